// Layouts of scales, delayed scaling's states and summaries of host tensors on a GPU, against the
// CPU functions of the same names.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <string>

#include "kernels/quantize/cuda/quantize_cuda.h"
#include "kernels/tensor/generate/generate.h"
#include "tests/tensor/cuda_test_device.h"

namespace quantgate {
namespace QG_TEST_FILE {

Tensor Numbered(const ScaleArrayType& type) {
  Tensor tensor = ValueOrAbort(Tensor::Allocate(type.dtype, type.shape));
  for (size_t i = 0; i < tensor.byte_size(); ++i) {
    tensor.data()[i] = static_cast<std::byte>(1 + i % 251);
  }
  return tensor;
}

/// Every byte or fp32 is the same power of two, but for the last scale.
Tensor Powers(const ScaleArrayType& type) {
  Tensor tensor = ValueOrAbort(Tensor::Allocate(type.dtype, type.shape));
  std::fill_n(tensor.data(), tensor.byte_size(), std::byte{0x40});
  if (type.dtype != DType::kF32) return tensor;
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    tensor.as<float>()[i] = i + 1 == tensor.element_count() ? 0x1p-127f : 0x1p-63f;
  }
  return tensor;
}

TEST(ConvertScalesCuda, EveryLayoutFromEveryLayout) {
  int converted = 0, refused = 0;
  for (const QuantizerFormat format :
       {QuantizerFormat::kFp8Block, QuantizerFormat::kMxfp8, QuantizerFormat::kNvfp4}) {
    for (const int block_dim : {1, 2}) {
      for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
        for (const auto& [rows, columns] :
             {std::pair<int64_t, int64_t>{0, 32}, {32, 32}, {160, 96}, {96, 4128}, {2080, 640}}) {
          const ScaleArray array = {format, block_dim, usage, rows, columns};
          for (const ScaleLayout from : kScaleLayouts) {
            for (const ScaleLayout to : kScaleLayouts) {
              const auto type = ScaleArrayTypeOf(array, from);
              if (!type.ok()) continue;
              // Of numbered bytes few are powers of two, nor are the lines of a tile alike.
              for (const Tensor& scales : {Numbered(*type), Powers(*type)}) {
                const auto expected = ConvertScales(scales, array, from, to);
                const auto found =
                    ConvertScalesCuda(TestDevice(), OnDevice(scales), array, from, to);
                ASSERT_EQ(found.status(), expected.status());
                refused += ScaleArrayTypeOf(array, to).ok() && !expected.ok();
                if (!expected.ok()) continue;
                ++converted;
                EXPECT_TRUE(SameTensor(*expected, *found))
                    << QuantizerFormatName(format) << " " << rows << "x" << columns << " "
                    << ScaleLayoutName(from) << " to " << ScaleLayoutName(to);
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(converted, 1500);
  EXPECT_GT(refused, 50);
  const ScaleArray array = {QuantizerFormat::kMxfp8, 1, Usage::kRowwise, 64, 64};
  const Tensor wrong = OnDevice(Numbered({DType::kF8E8M0, {64, 3}}));
  EXPECT_EQ(
      ConvertScalesCuda(TestDevice(), wrong, array, ScaleLayout::kLogical, ScaleLayout::kPadded)
          .status(),
      ConvertScales(wrong, array, ScaleLayout::kLogical, ScaleLayout::kPadded).status());
}

DelayedScalingState StateOf(float scale, const Tensor& history) {
  return {ValueOrAbort(Tensor::FromScalar(scale)), history};
}

void ExpectSame(const DelayedScalingState& expected,
                const absl::StatusOr<DelayedScalingState>& found) {
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(SameTensor(expected.scale, found->scale));
  EXPECT_TRUE(SameTensor(expected.amax_history, found->amax_history));
}

/// Histories of every length around a block of threads, with what the rules treat apart.
std::vector<Tensor> Histories() {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<Tensor> histories;
  for (const int64_t length : {1, 2, 3, 16, 1023, 1024, 1025, 5000}) {
    for (const float newest : {0.0f, 2.5f, kInfinity, kNan}) {
      for (const float older : {0.0f, 7.0f, kInfinity, kNan}) {
        Tensor history = ValueOrAbort(Tensor::Allocate(DType::kF32, {length}));
        float* rows = history.as<float>();
        for (int64_t i = 0; i < length; ++i) rows[i] = 0.001f * static_cast<float>(i * 37 % 1000);
        rows[length / 2] = older;
        rows[0] = newest;
        histories.push_back(history);
      }
    }
  }
  return histories;
}

TEST(DelayedScalingCuda, EveryUpdateOfEveryHistory) {
  for (const Tensor& history : Histories()) {
    const DelayedScalingState state = StateOf(3.0f, history);
    const DelayedScalingState there = {OnDevice(state.scale), OnDevice(state.amax_history)};
    for (const ScaleUpdate update : {ScaleUpdate::kFused, ScaleUpdate::kUnfused}) {
      for (const AmaxAlgorithm algorithm : {AmaxAlgorithm::kMax, AmaxAlgorithm::kMostRecent}) {
        for (const int margin : {0, 3}) {
          DelayedScalingOptions options;
          options.margin = margin;
          options.algorithm = algorithm;
          options.update = update;
          ExpectSame(*WithUpdate(state, options, 57344.0f),
                     WithUpdateCuda(TestDevice(), there, options, 57344.0f));
        }
      }
    }
    // The old state is as it was.
    EXPECT_TRUE(SameTensor(state.amax_history, there.amax_history));
    EXPECT_TRUE(SameTensor(state.scale, there.scale));
  }
}

TEST(DelayedScalingCuda, EveryCastAndCalibration) {
  for (const Tensor& history : Histories()) {
    const DelayedScalingState state = StateOf(3.0f, history);
    const DelayedScalingState there = {OnDevice(state.scale), OnDevice(state.amax_history)};
    for (const float amax : {0.0f, 1.0f, 4.0f, std::numeric_limits<float>::infinity()}) {
      const Tensor scalar = ValueOrAbort(Tensor::FromScalar(amax));
      ExpectSame(*WithCast(state, amax), WithCastCuda(TestDevice(), there, OnDevice(scalar)));
      ExpectSame(*WithCalibration(state, amax),
                 WithCalibrationCuda(TestDevice(), there, OnDevice(scalar)));
    }
  }
}

TEST(SummarizeCuda, OfATensorInHostMemory) {
  const Tensor source = ValueOrAbort(Generate({.dtype = DType::kBF16, .shape = {64, 64}}, {}));
  const QuantizerSpec spec = {.format = QuantizerFormat::kMxfp8};
  const QuantizedTensor quantized = ValueOrAbort(QuantizeCpu(source, spec, {}, {}, {}));
  const QuantizationSummary expected = SummarizeCpu(quantized);
  const auto summaries = ValueOrAbort(SummarizeCuda(TestDevice(), std::span(&quantized, 1)));
  ASSERT_EQ(summaries.size(), 1u);
  const QuantizationSummary& found = summaries[0];
  EXPECT_EQ(found.scale_codes, expected.scale_codes);
  EXPECT_EQ(found.counts.normal, expected.counts.normal);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
