// Scales that flush subnormals against vectors of an independent implementation
// (tests/vectors/flush_subnormals_reference.py): from fragments, where that is the default, and of
// whole tensors, where it is not.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/quantize/fragment.h"
#include "tests/base/exhaustive.h"
#include "tests/quantize/vector_tensors.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::Digest64;
using testing::VectorFile;

const VectorFile& Vectors() {
  static const VectorFile vectors = testing::ReadVectors("flush_subnormals_vectors.txt");
  return vectors;
}

float FloatOf(const std::string& bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(std::stoul(bits, nullptr, 16)));
}

std::string BitsOf(const Tensor& scalar) {
  char text[9];
  std::snprintf(text, sizeof(text), "%08x", *scalar.as<uint32_t>());
  return text;
}

std::string TextOf(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += word + " ";
  return text;
}

QuantizerSpec With(QuantizerSpec spec, FlushSubnormals where) {
  spec.flush_subnormals = where;
  return spec;
}

/// The scales of a whole tensor of this shape whose only fragment is empty, under one given amax.
QuantizedFragment FragmentOfAmax(const QuantizerSpec& spec, const Shape& whole, float amax) {
  const TensorFragment fragment = {*Tensor::Allocate(DType::kF32, {0}), 0, whole};
  return *QuantizeFragmentCpu(fragment, spec, Usage::kRowwise, {*Tensor::FromScalar(amax)}, {}, {});
}

class FlushSubnormalsVectors : public ::testing::TestWithParam<ExecutionContext> {};

// ELEMENT POW2 EPS AMAX, scale and scale_inv flushed, then kept
TEST_P(FlushSubnormalsVectors, ScalesOfTensors) {
  int tried = 0, parting = 0;
  for (const std::vector<std::string>& words : Vectors().cases) {
    if (words[0] != "scale") continue;
    SCOPED_TRACE(TextOf(words));
    ASSERT_EQ(words.size(), 9u);
    const QuantizerSpec spec = {.format = QuantizerFormat::kFp8Tensor,
                                .element = *ParseDType(words[1]),
                                .power_2_scale = words[2] == "1",
                                .amax_epsilon = FloatOf(words[3])};
    const float amax = FloatOf(words[4]);
    for (const FlushSubnormals where :
         {FlushSubnormals::kShardedUpdate, FlushSubnormals::kNever, FlushSubnormals::kAlways}) {
      SCOPED_TRACE(FlushSubnormalsName(where));
      const QuantizerSpec chosen = With(spec, where);
      const size_t of_fragment = where == FlushSubnormals::kNever ? 7 : 5;
      const QuantizedFragment fragment = FragmentOfAmax(chosen, {1, 1}, amax);
      EXPECT_EQ(BitsOf(fragment.whole.scale), words[of_fragment]);
      EXPECT_EQ(BitsOf(fragment.whole.scale_inv), words[of_fragment + 1]);
      const size_t of_whole = where == FlushSubnormals::kAlways ? 5 : 7;
      const Tensor source =
          *Tensor::FromBytes(DType::kF32, {1, 1}, std::as_bytes(std::span(&amax, 1)));
      const QuantizedTensor whole = *QuantizeCpu(source, chosen, {true, true}, {}, GetParam());
      EXPECT_EQ(BitsOf(whole.rowwise->scale), words[of_whole]);
      EXPECT_EQ(BitsOf(whole.rowwise->scale_inv), words[of_whole + 1]);
      EXPECT_EQ(BitsOf(whole.columnwise->scale_inv), words[of_whole + 1]);
      EXPECT_EQ(BitsOf(whole.rowwise->amax), words[4]);
    }
    ++tried;
    parting += words[5] != words[7] || words[6] != words[8];
    if (HasFailure()) return;  // The first of a thousand cases says enough.
  }
  EXPECT_EQ(tried, 1216);
  EXPECT_EQ(parting, 623);
}

// ELEMENT AMAX, the code flushed, then kept
TEST_P(FlushSubnormalsVectors, CodesOfE8m0Scales) {
  constexpr int64_t kSide = 32;
  int tried = 0, parting = 0;
  for (const std::vector<std::string>& words : Vectors().cases) {
    if (words[0] != "e8m0") continue;
    SCOPED_TRACE(TextOf(words));
    ASSERT_EQ(words.size(), 5u);
    const QuantizerSpec spec = {
        .format = QuantizerFormat::kMxfp8,
        .element = *ParseDType(words[1] == "f4_e2m1" ? "f4_e2m1x2" : words[1]),
        .block_dim = 2};
    const float amax = FloatOf(words[2]);
    std::vector<float> values(kSide * kSide, amax);
    const Tensor source =
        *Tensor::FromBytes(DType::kF32, {kSide, kSide}, std::as_bytes(std::span(values)));
    for (const FlushSubnormals where :
         {FlushSubnormals::kShardedUpdate, FlushSubnormals::kNever, FlushSubnormals::kAlways}) {
      SCOPED_TRACE(FlushSubnormalsName(where));
      const QuantizerSpec chosen = With(spec, where);
      const auto expected = [&](bool flushes) {
        const int code = std::stoi(words[flushes ? 3 : 4], nullptr, 16);
        return std::vector<uint8_t>(kSide, static_cast<uint8_t>(code));
      };
      const auto codes_of = [](const Tensor& scales) {
        return std::vector<uint8_t>(scales.as<uint8_t>(),
                                    scales.as<uint8_t>() + scales.element_count());
      };
      const QuantizedFragment fragment = FragmentOfAmax(chosen, {kSide, kSide}, amax);
      EXPECT_EQ(codes_of(fragment.whole.scale_inv), expected(where != FlushSubnormals::kNever));
      const QuantizedTensor whole = *QuantizeCpu(source, chosen, {true, true}, {}, GetParam());
      for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
        EXPECT_EQ(codes_of(whole.copy(usage)->scale_inv),
                  expected(where == FlushSubnormals::kAlways));
      }
    }
    ++tried;
    parting += words[3] != words[4];
    if (HasFailure()) return;
  }
  EXPECT_EQ(tried, 1579);
  EXPECT_EQ(parting, 115);
}

QuantizerSpec SpecOf(const std::vector<std::string>& words) {
  return {.format = words[3] == "fp8_tensor"  ? QuantizerFormat::kFp8Tensor
                    : words[3] == "fp8_block" ? QuantizerFormat::kFp8Block
                                              : QuantizerFormat::kMxfp8,
          .element = *ParseDType(words[4]),
          .block_dim = std::stoi(words[5]),
          .power_2_scale = words[6] == "1",
          .amax_epsilon = FloatOf(words[7])};
}

/// The codes that fragments of all lengths give one after another, and the scales of the whole.
std::pair<Tensor, Tensor> FromFragments(const Tensor& source, const QuantizerSpec& spec,
                                        Usage usage, const ExecutionContext& context) {
  const int64_t elements = source.element_count(), bytes = DTypeBytes(source.dtype());
  const TensorFragment all = {source, 0, source.shape()};
  const FragmentAmaxes amaxes = {*MeasureFragmentCpu(all, spec, usage, context)};
  std::vector<std::byte> codes;
  Tensor scales;
  for (int64_t begin = 0, count = 1; begin < elements; begin += count, count = 3 * count + 1) {
    count = std::min(count, elements - begin);
    const TensorFragment fragment = {
        *Tensor::FromBytes(source.dtype(), {count},
                           source.bytes().subspan(begin * bytes, count * bytes)),
        begin, source.shape()};
    const QuantizedFragment quantized =
        *QuantizeFragmentCpu(fragment, spec, usage, amaxes, {}, context);
    codes.insert(codes.end(), quantized.codes.bytes().begin(), quantized.codes.bytes().end());
    scales = quantized.whole.scale_inv;
  }
  return {*Tensor::FromBytes(spec.element, {elements}, codes), scales};
}

// NAME SOURCE FORMAT ELEMENT BLOCK_DIM POW2 EPS, then codes and scale_inv of each direction
TEST_P(FlushSubnormalsVectors, CodesAndScalesOfWholeTensorsAndOfFragments) {
  int cases = 0, of_fragments = 0, parting = 0;
  for (const std::vector<std::string>& words : Vectors().cases) {
    if (words[0] != "tensor") continue;
    ++cases;
    if (!testing::RunsCase(GetParam(), TextOf(words))) continue;
    SCOPED_TRACE(TextOf(words));
    ASSERT_EQ(words.size(), 12u);
    const Tensor& source = Vectors().tensors.at(words[1] + " " + words[2]);
    const QuantizerSpec spec = SpecOf(words);
    const QuantizedTensor flushed =
        *QuantizeCpu(source, With(spec, FlushSubnormals::kAlways), {true, true}, {}, GetParam());
    const QuantizedTensor kept = *QuantizeCpu(source, spec, {true, true}, {}, GetParam());
    for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
      SCOPED_TRACE(UsageName(usage));
      const std::string* const expected = &words[usage == Usage::kRowwise ? 8 : 10];
      const QuantizedCopy& copy = *flushed.copy(usage);
      EXPECT_EQ(Digest64({copy.data}), expected[0]) << "codes";
      EXPECT_EQ(Digest64({copy.scale_inv}), expected[1]) << "scale_inv";
      parting += Digest64({kept.copy(usage)->scale_inv}) != expected[1];
      const TensorFragment whole = {source, 0, source.shape()};
      if (!CheckFragment(whole, spec, usage).ok()) continue;
      const auto [codes, scales] = FromFragments(source, spec, usage, GetParam());
      EXPECT_EQ(Digest64({codes}), expected[0]) << "codes of fragments";
      EXPECT_EQ(Digest64({scales}), expected[1]) << "scale_inv of fragments";
      ++of_fragments;
    }
    if (HasFailure()) return;
  }
  EXPECT_EQ(cases, 376);
  const int share = IsExhaustive() ? 1 : static_cast<int>(testing::EveryPath().size());
  EXPECT_GT(of_fragments, 200 / share);
  EXPECT_GT(parting, 160 / share);
}

INSTANTIATE_TEST_SUITE_P(EveryPath, FlushSubnormalsVectors,
                         ::testing::ValuesIn(testing::EveryPath()),
                         [](const auto& path) { return testing::PathName(path.param); });

// The scale of delayed scaling is given; its inverse and the amax of the next step flush.
TEST(FlushSubnormals, DelayedFragmentsFlushTheInverseAndTheNextAmax) {
  constexpr float kScale = 0x1.8p126f, kTinyAmax = 0x1p-130f;
  const TensorFragment fragment = {*Tensor::FromScalar(kTinyAmax), 0, {1, 1}};
  QuantizerSpec spec = {.format = QuantizerFormat::kFp8Tensor, .scaling = Scaling::kDelayed};
  const auto cast = [&](FlushSubnormals where, float amax) {
    spec.flush_subnormals = where;
    return *QuantizeFragmentCpu(fragment, spec, Usage::kRowwise, {*Tensor::FromScalar(amax)},
                                *Tensor::FromScalar(kScale), {});
  };
  const QuantizedFragment flushed = cast(FlushSubnormals::kShardedUpdate, kTinyAmax);
  EXPECT_EQ(BitsOf(flushed.whole.scale), BitsOf(*Tensor::FromScalar(kScale)));
  EXPECT_EQ(BitsOf(flushed.whole.scale_inv), "00000000");
  EXPECT_EQ(BitsOf(flushed.whole.amax), "00000000");
  const QuantizedFragment kept = cast(FlushSubnormals::kNever, kTinyAmax);
  EXPECT_EQ(BitsOf(kept.whole.scale_inv), "00555555");  // 2^-126 / 1.5 in units of 2^-149.
  EXPECT_EQ(BitsOf(kept.whole.amax), "00080000");       // 2^-130.
  EXPECT_TRUE(std::ranges::equal(flushed.codes.bytes(), kept.codes.bytes()));
  const QuantizedFragment usual = cast(FlushSubnormals::kShardedUpdate, 0x1p-126f);
  EXPECT_EQ(BitsOf(usual.whole.amax), "00800000");
}

TEST(FlushSubnormals, IsRefusedWhereNoScaleIsMade) {
  const auto refusal = [](QuantizerSpec spec, FlushSubnormals where) {
    return std::string(CheckQuantizer(With(spec, where)).message());
  };
  const QuantizerSpec delayed = {.format = QuantizerFormat::kFp8Tensor,
                                 .scaling = Scaling::kDelayed};
  EXPECT_EQ(refusal(delayed, FlushSubnormals::kNever), "");
  EXPECT_EQ(refusal(delayed, FlushSubnormals::kAlways),
            "quantizer.flush_subnormals is always: not a field of fp8_tensor with delayed "
            "scaling");
  const QuantizerSpec nvfp4 = {.format = QuantizerFormat::kNvfp4, .element = DType::kF4E2M1x2};
  EXPECT_EQ(refusal(nvfp4, FlushSubnormals::kNever),
            "quantizer.flush_subnormals is never: not a field of nvfp4");
  EXPECT_EQ(refusal({}, FlushSubnormals::kAlways),
            "quantizer.flush_subnormals is always: not a field of identity");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
