// Runs of a tensor's elements, quantized apart and put side by side, against the whole tensor
// quantized at once.
#include "kernels/quantize/fragment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "kernels/ops/reduction/ordered_reduction.h"
#include "kernels/tensor/transpose.h"
#include "tests/engine/tensor_values.h"
#include "tests/quantize/every_quantizer.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr int64_t kRows = 160, kColumns = 96;

std::vector<TensorFragment> Cut(const Tensor& whole, const std::vector<int64_t>& bounds) {
  std::vector<TensorFragment> fragments;
  const int64_t bytes = DTypeBytes(whole.dtype());
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    const int64_t count = bounds[i + 1] - bounds[i];
    fragments.push_back(
        {*Tensor::FromBytes(whole.dtype(), {count},
                            whole.bytes().subspan(bounds[i] * bytes, count * bytes)),
         bounds[i], whole.shape()});
  }
  return fragments;
}

/// From 0 to `elements`, `parts` of them, some empty; even ones.
std::vector<int64_t> RandomBounds(int64_t elements, int parts, uint32_t seed, bool even) {
  std::mt19937 random(seed);
  std::vector<int64_t> bounds = {0, elements};
  while (static_cast<int>(bounds.size()) <= parts) {
    const int64_t at = random() % 4 == 0 ? bounds[random() % bounds.size()]
                                         : static_cast<int64_t>(random() % elements);
    bounds.push_back(even ? at / 2 * 2 : at);
  }
  std::sort(bounds.begin(), bounds.end());
  return bounds;
}

/// Normal numbers of magnitudes that change over the tensor, with zeros and, if asked for, NaN and
/// infinity.
Tensor Source(DType dtype, bool has_specials) {
  std::vector<float> values =
      ToValues(Generated(Distribution::kNormal, 7, DType::kF32, {kRows, kColumns}));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] *= std::ldexp(1.0f, static_cast<int>(i / 1000 % 9) - 4);
    if (i / 64 % 50 == 0) values[i] = i % 2 == 0 ? 0.0f : -0.0f;
  }
  if (has_specials) {
    values[4000] = std::numeric_limits<float>::quiet_NaN();
    values[9001] = -std::numeric_limits<float>::infinity();
  }
  return FromValues(dtype, {kRows, kColumns}, values);
}

/// Every fragment measured and quantized, as ranks do.
void ExpectWhole(const Tensor& source, const Quantizer& quantizer, const QuantizerSpec& spec,
                 Usage usage, const QuantizeArguments& arguments,
                 const std::vector<int64_t>& bounds) {
  const ExecutionContext context;
  const std::vector<TensorFragment> fragments = Cut(source, bounds);
  std::vector<Tensor> amaxes;
  for (const TensorFragment& fragment : fragments) {
    amaxes.push_back(*MeasureFragmentCpu(fragment, spec, usage, context));
    ASSERT_EQ(amaxes.back().element_count(), FragmentAmaxCount(spec, usage, source.shape()));
  }
  const FragmentAmaxes largest = {*MaximumCpu(amaxes, context), 0};
  const Usages usages = {usage == Usage::kRowwise, usage == Usage::kColumnwise};
  const QuantizedTensor expected = *QuantizeCpu(source, quantizer, usages, arguments, context);
  const QuantizedCopy& copy = *expected.copy(usage);
  std::vector<std::byte> codes;
  for (const TensorFragment& fragment : fragments) {
    const auto quantized =
        QuantizeFragmentCpu(fragment, spec, usage, largest, arguments.scale, context);
    ASSERT_TRUE(quantized.ok()) << quantized.status();
    const std::span<const std::byte> own = quantized->codes.bytes();
    codes.insert(codes.end(), own.begin(), own.end());
    EXPECT_TRUE(SameBits(quantized->whole.scale_inv, copy.scale_inv));
    if (copy.amax.has_value()) {
      EXPECT_TRUE(SameBits(quantized->whole.amax, copy.amax));
    }
    if (copy.scale.has_value()) {
      EXPECT_TRUE(SameBits(quantized->whole.scale, copy.scale));
    }
  }
  // Fragments are in the order of the source.
  const bool is_turned = usage == Usage::kColumnwise && TraitsOf(copy.format).turns_columnwise;
  const Tensor whole = is_turned ? *Transpose2d(copy.data, context) : copy.data;
  ASSERT_EQ(codes.size(), whole.byte_size());
  EXPECT_TRUE(std::ranges::equal(codes, whole.bytes()));
}

TEST(Fragment, PartsAreTheWholeByEveryRule) {
  int tried = 0;
  for (const testing::NamedQuantizer& named : testing::EveryQuantizer()) {
    const QuantizerSpec& spec = named.quantizer.rowwise;
    for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
      for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF16}) {
        for (const bool has_specials : {false, true}) {
          const Tensor source = Source(dtype, has_specials);
          const auto fragments = Cut(source, {0, 10, kRows * kColumns});
          if (!CheckFragment(fragments[0], spec, usage).ok() ||
              named.quantizer.columnwise.hadamard) {
            continue;
          }
          const int parts = 1 + tried % 8;
          SCOPED_TRACE(named.name + " " + std::string(UsageName(usage)) + " of " +
                       TensorText(source));
          ExpectWhole(
              source, named.quantizer, spec, usage, named.ArgumentsFor(),
              RandomBounds(kRows * kColumns, parts, tried, spec.element == DType::kF4E2M1x2));
          ++tried;
        }
      }
    }
  }
  EXPECT_GT(tried, 800);
}

TEST(Fragment, NothingAtAllHasScaleOne) {
  const QuantizerSpec spec = {.format = QuantizerFormat::kFp8Tensor, .amax_epsilon = 0.5f};
  const Tensor empty = *Tensor::Allocate(DType::kBF16, {0, kColumns});
  ExpectWhole(empty, spec, spec, Usage::kRowwise, {}, {0, 0, 0});
  const QuantizerSpec lines = {.format = QuantizerFormat::kFp8Rowwise, .amax_epsilon = 0.5f};
  ExpectWhole(empty, lines, lines, Usage::kRowwise, {}, {0, 0, 0});
  ExpectWhole(empty, lines, lines, Usage::kColumnwise, {}, {0, 0, 0});
}

// A rank that has none of the elements still knows every scale, and an epsilon does not hide it.
TEST(Fragment, EmptyFragmentsShareTheScales) {
  const QuantizerSpec spec = {.format = QuantizerFormat::kFp8Tensor, .amax_epsilon = 0.5f};
  ExpectWhole(Source(DType::kBF16, false), spec, spec, Usage::kRowwise, {},
              {0, 0, 5, 5, kRows * kColumns, kRows * kColumns});
}

// A byte of two codes belongs to the fragment in which it ends; the other one's code is left out.
TEST(Fragment, NibblesOfOthersAreZero) {
  const QuantizerSpec spec = {
      .format = QuantizerFormat::kNvfp4, .element = DType::kF4E2M1x2, .block_dim = 2};
  const ExecutionContext context;
  const Tensor source = Source(DType::kBF16, false);
  const auto fragments = Cut(source, {0, 333, kRows * kColumns});
  const FragmentAmaxes amaxes = {
      *MeasureFragmentCpu(Cut(source, {0, kRows * kColumns})[0], spec, Usage::kRowwise, context)};
  const QuantizedTensor whole = *QuantizeCpu(source, spec, {}, {}, context);
  ASSERT_TRUE(whole.rowwise.has_value());
  const Tensor whole_codes = whole.rowwise->data;
  const auto* expected = whole_codes.as<uint8_t>();
  const auto first =
      QuantizeFragmentCpu(fragments[0], spec, Usage::kRowwise, amaxes, Tensor(), context);
  const auto second =
      QuantizeFragmentCpu(fragments[1], spec, Usage::kRowwise, amaxes, Tensor(), context);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->codes.element_count(), 166);
  EXPECT_EQ(second->codes.element_count(), kRows * kColumns / 2 - 166);
  EXPECT_EQ(second->codes.as<uint8_t>()[0], expected[166] & 0xF0);
  EXPECT_EQ(second->codes.as<uint8_t>()[1], expected[167]);
  EXPECT_EQ(first->codes.as<uint8_t>()[165], expected[165]);
}

TEST(Fragment, RefusesWhatCannotBeCut) {
  const Tensor source = Source(DType::kBF16, false);
  const TensorFragment fragment = {source, 0, source.shape()};
  const auto refusal = [&](const QuantizerSpec& spec, Usage usage) {
    return std::string(CheckFragment(fragment, spec, usage).message());
  };
  QuantizerSpec spec;
  EXPECT_EQ(refusal(spec, Usage::kRowwise),
            "quantizer.format is identity: a fragment must be quantized");
  spec = {.format = QuantizerFormat::kFp8Block};
  EXPECT_EQ(refusal(spec, Usage::kRowwise),
            "quantizer.block_dim is 1: fp8_block is cut into fragments with tiles (block_dim 2) "
            "only");
  spec.block_dim = 2;
  EXPECT_EQ(refusal(spec, Usage::kColumnwise),
            "usage is columnwise: columnwise codes of fp8_block are transposes of rowwise ones");
  spec = {.format = QuantizerFormat::kNvfp4, .element = DType::kF4E2M1x2, .block_dim = 2};
  spec.element_rounding = ElementRounding::kStochastic;
  EXPECT_EQ(refusal(spec, Usage::kRowwise),
            "quantizer.element_rounding is stochastic: fragments are rounded to nearest");
  spec.element_rounding = ElementRounding::kNearestEven;
  spec.four_over_six = FourOverSix::kMae;
  EXPECT_EQ(
      refusal(spec, Usage::kRowwise),
      "quantizer.4over6 is mae: it compares all elements of a tile, and a fragment may hold only "
      "some");
  const TensorFragment beyond = {source, 1, source.shape()};
  EXPECT_EQ(
      CheckFragment(beyond, {.format = QuantizerFormat::kMxfp8}, Usage::kRowwise).message(),
      "fragment.begin is 1 with 15360 elements: must lie within the 15360 of the whole tensor");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
