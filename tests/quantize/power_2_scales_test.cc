// Every bf16 value under every power of two that a block of FP8 can be scaled by, in both
// directions and on every instruction set, against the scalar casts of kernels/numerics: vector
// code moves exponents in 16-bit lanes where those multiply.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>
#include <vector>

#include "kernels/numerics/cast.h"
#include "kernels/numerics/e8m0.h"
#include "kernels/quantize/quantizer.h"

namespace quantgate {
namespace QG_TEST_FILE {

float Value(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

/// What multiplies the elements of a block of this amax.
template <class F>
float ScaleOf(const QuantizerSpec& spec, float amax) {
  if (spec.format == QuantizerFormat::kMxfp8) {
    return E8m0Multiplier(E8m0Scale<F>(amax, ScaleRule::kRoundUp));
  }
  return ComputeScale(amax, MaxFinite<F>(),
                      {.power_2 = true,
                       .amax_epsilon = spec.amax_epsilon,
                       .value_for_infinity = MaxFinite<BFloat16>()});
}

/// The largest finite bf16 amax of every scale.
template <class F>
std::map<float, uint16_t> LargestAmaxes(const QuantizerSpec& spec) {
  std::map<float, uint16_t> amaxes;
  for (uint16_t bits = 0; bits <= FormatConstants<BFloat16>::kMaxFinite; ++bits) {
    amaxes[ScaleOf<F>(spec, Value(bits))] = bits;
  }
  return amaxes;
}

/// All values up to `amax` of both signs in tiles whose first row and column are amax, so that
/// every block of either direction has it. A tile is two mxfp8 blocks wide, or one fp8_block.
Tensor EveryValueUpTo(uint16_t amax, int64_t side, int64_t width) {
  std::vector<uint16_t> elements;
  uint32_t next = 0;
  const auto is_edge = [&](size_t i) {
    const auto row = static_cast<int64_t>(i) / width, column = static_cast<int64_t>(i) % width;
    return row % side == 0 || column % side == 0;
  };
  while (next <= 2u * amax + 1) {
    for (int64_t i = 0; i < side * width; ++i) {
      const bool is_value = !is_edge(elements.size()) && next <= 2u * amax + 1;
      elements.push_back(is_value ? static_cast<uint16_t>(next / 2 | (next % 2) << 15) : amax);
      next += is_value ? 1 : 0;
    }
  }
  Tensor tensor =
      *Tensor::Allocate(DType::kBF16, {static_cast<int64_t>(elements.size()) / width, width});
  std::memcpy(tensor.data(), elements.data(), tensor.byte_size());
  return tensor;
}

template <class F>
std::vector<uint8_t> ExpectedCodes(const Tensor& source, float scale) {
  std::vector<uint8_t> codes;
  for (int64_t i = 0; i < source.element_count(); ++i) {
    codes.push_back(EncodeFloat<F>(Value(source.as<uint16_t>()[i]) * scale));
  }
  return codes;
}

std::vector<uint8_t> Transposed(const std::vector<uint8_t>& codes, int64_t rows, int64_t columns) {
  std::vector<uint8_t> transposed;
  for (int64_t column = 0; column < columns; ++column) {
    for (int64_t row = 0; row < rows; ++row) {
      transposed.push_back(codes[static_cast<size_t>(row * columns + column)]);
    }
  }
  return transposed;
}

bool HasCodes(const QuantizedCopy& copy, const std::vector<uint8_t>& codes) {
  return copy.data.byte_size() == codes.size() &&
         std::memcmp(copy.data.data(), codes.data(), codes.size()) == 0;
}

template <class F>
void ExpectEveryValue(const QuantizerSpec& spec, size_t scales) {
  const bool is_mxfp8 = spec.format == QuantizerFormat::kMxfp8;
  const auto amaxes = LargestAmaxes<F>(spec);
  EXPECT_EQ(amaxes.size(), scales);
  for (const auto& [scale, amax] : amaxes) {
    const Tensor source = is_mxfp8 ? EveryValueUpTo(amax, 32, 64) : EveryValueUpTo(amax, 128, 128);
    const std::vector<uint8_t> codes = ExpectedCodes<F>(source, scale);
    const std::vector<uint8_t> columnwise =
        is_mxfp8 ? codes : Transposed(codes, source.rows(), source.columns());
    QuantizationCounts counts;
    for (const Isa isa : RunnableIsas()) {
      const QuantizedTensor q =
          *QuantizeCpu(source, spec, {true, true}, {}, {.isa = isa, .threads = 1});
      ASSERT_TRUE(HasCodes(*q.rowwise, codes)) << IsaName(isa) << " rowwise, scale " << scale;
      ASSERT_TRUE(HasCodes(*q.columnwise, columnwise)) << IsaName(isa) << " columnwise " << scale;
      if (isa == Isa::kScalar) counts = q.counts;
      ASSERT_TRUE(q.counts == counts) << IsaName(isa) << scale;
    }
  }
}

/// The numbers of scales: the largest amax is 2^128 - 2^120, for E4M3 under 2^-120, for E5M2 under
/// 2^-113; the smallest ones would want more than 2^127, which both formats end at.
template <class F>
void ExpectEveryScale(DType element, size_t mxfp8, size_t fp8_block) {
  for (const int block_dim : {1, 2}) {
    QuantizerSpec spec = {
        .format = QuantizerFormat::kMxfp8, .element = element, .block_dim = block_dim};
    ExpectEveryValue<F>(spec, mxfp8);
    spec.format = QuantizerFormat::kFp8Block;
    spec.power_2_scale = true;
    ExpectEveryValue<F>(spec, fp8_block);
  }
}

TEST(Power2Scales, EveryValueInE4m3) { ExpectEveryScale<E4M3>(DType::kF8E4M3, 248, 248); }
TEST(Power2Scales, EveryValueInE5m2) { ExpectEveryScale<E5M2>(DType::kF8E5M2, 241, 241); }

/// Zeros alone would have a scale of 1 or a code of 0; with a floor, or beside other blocks, not.
TEST(Power2Scales, ZerosAndTinyBlocksBesideOthers) {
  for (const float epsilon : {0.0f, 0.75f, 0x1p120f}) {
    QuantizerSpec spec = {.format = QuantizerFormat::kFp8Block, .amax_epsilon = epsilon};
    spec.power_2_scale = true;
    for (const uint16_t other : {0x0000, 0x8000, 0x0001, 0x0080, 0x0A00, 0x0B80, 0x3F80}) {
      Tensor source = *Tensor::Allocate(DType::kBF16, {128, 128});
      for (int64_t i = 0; i < source.element_count(); ++i) {
        source.as<uint16_t>()[i] = (i / 128 + i % 128) % 3 == 0 || i < 512 || i % 128 < 2
                                       ? static_cast<uint16_t>(i % 2 << 15)
                                       : other;
      }
      source.as<uint16_t>()[128 * 128 - 1] = 0x4123;
      const QuantizedTensor expected =
          *QuantizeCpu(source, spec, {true, true}, {}, {.isa = Isa::kScalar, .threads = 1});
      for (const Isa isa : RunnableIsas()) {
        const QuantizedTensor q =
            *QuantizeCpu(source, spec, {true, true}, {}, {.isa = isa, .threads = 1});
        for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
          const auto& codes = expected.copy(usage)->data;
          EXPECT_EQ(std::memcmp(q.copy(usage)->data.data(), codes.data(), codes.byte_size()), 0)
              << IsaName(isa) << " " << UsageName(usage) << " " << other << " " << epsilon;
        }
      }
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
