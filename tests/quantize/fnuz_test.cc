// AMD's FP8 formats: every bf16 number and drawn fp32 ones against ml_dtypes, every code back, and
// quantizers that make them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "kernels/numerics/cast.h"
#include "kernels/numerics/format_list.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/tensor/files/tensor_file.h"
#include "kernels/tensor/generate/generate.h"

namespace quantgate {
namespace QG_TEST_FILE {

const TensorFile& Vectors() {
  static const auto& file = *new TensorFile(*ReadKnownSafetensors(
      std::string(QUANTGATE_SOURCE_DIR) + "/tests/data/fnuz_casts.safetensors"));
  return file;
}

template <class F>
void ExpectCasts(const std::string& name) {
  const auto expect = [&](const std::string& source, Overflow overflow, auto value_of) {
    const Tensor expected = *Vectors().Find(name + "." + source);
    ASSERT_GE(expected.element_count(), 8192);
    for (int64_t i = 0; i < expected.element_count(); ++i) {
      const float value = value_of(i);
      const uint8_t wanted = expected.as<uint8_t>()[i];
      ASSERT_EQ(EncodeFloat<F>(value, ElementRounding::kNearestEven, overflow), wanted)
          << name << " " << source << " of " << value;
      ASSERT_EQ(EncodeDouble<F>(value, ElementRounding::kNearestEven, overflow), wanted);
    }
  };
  const auto bf16 = [](int64_t i) { return std::bit_cast<float>(static_cast<uint32_t>(i) << 16); };
  const Tensor drawn = *Vectors().Find("drawn");
  const auto f32 = [&](int64_t i) { return drawn.as<float>()[i]; };
  expect("bf16", Overflow::kNan, bf16);
  expect("bf16_saturated", Overflow::kSaturate, bf16);
  expect("f32", Overflow::kNan, f32);
  expect("f32_saturated", Overflow::kSaturate, f32);
  const Tensor values = *Vectors().Find(name + ".values");
  for (int code = 0; code < 256; ++code) {
    const float value = values.as<float>()[code];
    const float found = DecodeFloat<F>(static_cast<uint8_t>(code));
    EXPECT_TRUE(std::bit_cast<uint32_t>(value) == std::bit_cast<uint32_t>(found) ||
                (value != value && found != found))
        << code;
    EXPECT_EQ(FloatClassOf<F>(static_cast<uint8_t>(code)),
              Unpack<F>(static_cast<uint8_t>(code)).kind);
  }
}

TEST(Fnuz, CastsAreThoseOfMlDtypes) {
  ExpectCasts<E4M3Fnuz>("e4m3fnuz");
  ExpectCasts<E5M2Fnuz>("e5m2fnuz");
}

TEST(Fnuz, NamesAreThoseOfOtherLibraries) {
  for (const char* name : {"f8_e4m3fnuz", "float8_e4m3fnuz", "torch.float8_e4m3fnuz"}) {
    EXPECT_EQ(*ParseDType(name), DType::kF8E4M3Fnuz) << name;
  }
  EXPECT_EQ(*ParseDType("float8_e5m2fnuz"), DType::kF8E5M2Fnuz);
  EXPECT_EQ(*ParseSafetensorsDType("F8_E5M2FNUZ"), DType::kF8E5M2Fnuz);
  EXPECT_FALSE(IsFp8(DType::kF8E4M3Fnuz));
}

TEST(Fnuz, QuantizersScaleByTheirOwnMaximum) {
  GeneratorSpec source_spec;
  source_spec.distribution = Distribution::kNormal;
  source_spec.dtype = DType::kBF16;
  source_spec.shape = {40, 160};
  const Tensor source = *Generate(source_spec, {});
  for (const DType element : {DType::kF8E4M3Fnuz, DType::kF8E5M2Fnuz}) {
    const float largest = element == DType::kF8E4M3Fnuz ? 240.0f : 57344.0f;
    for (const QuantizerFormat format :
         {QuantizerFormat::kFp8Tensor, QuantizerFormat::kFp8Block, QuantizerFormat::kFp8Rowwise,
          QuantizerFormat::kFp8Block32}) {
      const QuantizerSpec spec = {.format = format, .element = element};
      const auto quantized = QuantizeCpu(source, spec, {true, false}, {}, {});
      ASSERT_TRUE(quantized.ok()) << quantized.status();
      const Tensor values = *DequantizeCpu(*quantized, Usage::kRowwise, DType::kF32, {});
      float amax = 0, largest_value = 0;
      int64_t at_maximum = 0;
      for (int64_t i = 0; i < source.element_count(); ++i) {
        const float x = DecodeFloat<BFloat16>(source.as<uint16_t>()[i]);
        if (std::fabs(x) > amax) amax = std::fabs(x);
        largest_value = std::max(largest_value, std::fabs(values.as<float>()[i]));
        const uint8_t code = quantized->rowwise->data.as<uint8_t>()[i];
        EXPECT_NE(code, 0x80);
        at_maximum += (code & 0x7F) == 0x7F;
      }
      EXPECT_GE(at_maximum, quantized->rowwise->scale_inv.element_count());
      // The largest code times amax / max: three roundings (the scale, its inverse, the product),
      // each of at most 2^-24 of its value.
      EXPECT_LE(std::fabs(double{largest_value} - amax), double{amax} * 0x1.8001p-23);
      if (format == QuantizerFormat::kFp8Tensor) {
        EXPECT_EQ(*quantized->rowwise->scale.as<float>(), largest / amax);
      }
    }
  }
  QuantizerSpec delayed = {.format = QuantizerFormat::kFp8Tensor, .element = DType::kF8E4M3Fnuz};
  delayed.scaling = Scaling::kDelayed;
  EXPECT_THAT(std::string(CheckQuantizer(delayed).message()),
              ::testing::HasSubstr("element is f8_e4m3fnuz: delayed scaling has f8_e4m3"));
  EXPECT_THAT(std::string(CheckQuantizer(QuantizerSpec{.format = QuantizerFormat::kMxfp8,
                                                       .element = DType::kF8E4M3Fnuz})
                              .message()),
              ::testing::HasSubstr("element is f8_e4m3fnuz: mxfp8 has elements f8_e4m3"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
