// The maxima ahead of a quantization: those that the quantization of the same tensor records, whose
// values vectors of Transformer Engine check, and those of a plain loop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

#include "kernels/quantize/quantizer.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/generate/generate.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

Tensor Source(DType dtype, Shape shape, Distribution distribution = Distribution::kSpecialsLaced) {
  return *Generate({.distribution = distribution, .seed = 3, .dtype = dtype, .shape = shape}, {});
}

QuantizerSpec Fp8() {
  return {.format = QuantizerFormat::kFp8Tensor, .element = DType::kF8E4M3, .amax_epsilon = 0.5f};
}
QuantizerSpec Nvfp4() { return {.format = QuantizerFormat::kNvfp4, .element = DType::kF4E2M1x2}; }
Quantizer Hadamard() {
  Quantizer quantizer(Nvfp4());
  quantizer.columnwise.hadamard = true;
  return quantizer;
}

float LoopAmax(const Tensor& source) {
  const Tensor f32 = *CastTensor(source, DType::kF32, {});
  float amax = 0;
  for (int64_t i = 0; i < f32.element_count(); ++i) {
    const float magnitude = std::fabs(f32.as<float>()[i]);
    if (magnitude > amax) amax = magnitude;  // False for NaN.
  }
  return amax;
}

void ExpectAmax(const Tensor& amax, float expected) {
  ASSERT_TRUE(amax.has_value());
  ASSERT_EQ(TensorText(amax), "f32[1]");
  EXPECT_EQ(std::memcmp(amax.data(), &expected, sizeof(expected)), 0)
      << *amax.as<float>() << " instead of " << expected;
}

const Usages kRows{true, false}, kColumns{false, true}, kBoth{true, true};

TEST(MeasureAmax, PerTensorIsTheLargestMagnitude) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Distribution distribution : {Distribution::kNormal, Distribution::kSpecialsLaced}) {
      const Tensor source = Source(dtype, {33, 77}, distribution);
      for (const Usages usages : {kRows, kColumns, kBoth}) {
        for (const Isa isa : RunnableIsas()) {
          const TensorAmaxes amaxes = *MeasureAmaxCpu(source, Fp8(), usages, {isa, 2});
          ExpectAmax(amaxes.rowwise, LoopAmax(source));  // For both copies.
          EXPECT_FALSE(amaxes.columnwise.has_value());
        }
      }
    }
  }
}

TEST(MeasureAmax, OfBothDirectionsIsWhatQuantizeRecords) {
  // 48 rows: the vector loops cannot transform all of them.
  for (const Shape& shape : {Shape{64, 96}, Shape{48, 80}}) {
    for (const Distribution distribution : {Distribution::kNormal, Distribution::kSpecialsLaced}) {
      const Tensor source = Source(DType::kBF16, shape, distribution);
      for (const Quantizer& quantizer : {Quantizer(Nvfp4()), Hadamard()}) {
        const QuantizedTensor quantized = *QuantizeCpu(source, quantizer, kBoth, {}, {});
        for (const Usages usages : {kRows, kColumns, kBoth}) {
          for (const Isa isa : RunnableIsas()) {
            const TensorAmaxes amaxes = *MeasureAmaxCpu(source, quantizer, usages, {isa, 2});
            EXPECT_EQ(amaxes.rowwise.has_value(), usages.rowwise);
            EXPECT_EQ(amaxes.columnwise.has_value(), usages.columnwise);
            if (usages.rowwise) ExpectAmax(amaxes.rowwise, *quantized.rowwise->amax.as<float>());
            if (usages.columnwise) {
              ExpectAmax(amaxes.columnwise, *quantized.columnwise->amax.as<float>());
            }
          }
        }
      }
    }
  }
}

TEST(MeasureAmax, TheTransformedOneIsAnother) {
  const Tensor source = Source(DType::kBF16, {64, 96}, Distribution::kNormal);
  const TensorAmaxes amaxes = *MeasureAmaxCpu(source, Hadamard(), kBoth, {});
  ExpectAmax(amaxes.rowwise, LoopAmax(source));
  EXPECT_NE(*amaxes.rowwise.as<float>(), *amaxes.columnwise.as<float>());
}

TEST(MeasureAmax, AbsentWhereNoGroupsIsRead) {
  const Tensor source = Source(DType::kBF16, {64, 64});
  QuantizerSpec delayed = Fp8(), single = Nvfp4(), rows = Nvfp4();
  delayed.scaling = Scaling::kDelayed;
  delayed.amax_epsilon = 0;
  single.scale_rule = ScaleRule::kSingleLevel;
  rows.row_scaled = true;
  const QuantizerSpec blocks = {.format = QuantizerFormat::kFp8Block};
  const QuantizerSpec micro = {.format = QuantizerFormat::kMxfp8};
  for (const QuantizerSpec& spec : {QuantizerSpec{}, delayed, single, rows, blocks, micro}) {
    const auto amaxes = MeasureAmaxCpu(source, spec, kBoth, {});
    ASSERT_TRUE(amaxes.ok()) << amaxes.status();
    EXPECT_FALSE(amaxes->rowwise.has_value()) << QuantizerText(spec);
    EXPECT_FALSE(amaxes->columnwise.has_value()) << QuantizerText(spec);
  }
}

TEST(MeasureAmax, EmptyIsZero) {
  const Tensor empty = Source(DType::kBF16, {0, 64});
  const TensorAmaxes amaxes = *MeasureAmaxCpu(empty, Hadamard(), kBoth, {});
  ExpectAmax(amaxes.rowwise, 0.0f);
  ExpectAmax(amaxes.columnwise, 0.0f);
  ExpectAmax(MeasureAmaxCpu(empty, Fp8(), kBoth, {})->rowwise, 0.0f);
}

TEST(MeasureAmax, TwoRules) {
  const Tensor source = Source(DType::kBF16, {64, 64}, Distribution::kNormal);
  Quantizer mixed(Nvfp4());
  mixed.columnwise = Fp8();
  // The per-tensor copy reads the rowwise one, which is the same number.
  const TensorAmaxes amaxes = *MeasureAmaxCpu(source, mixed, kColumns, {});
  ExpectAmax(amaxes.rowwise, LoopAmax(source));
  EXPECT_FALSE(amaxes.columnwise.has_value());
  mixed.columnwise_source = ColumnwiseSource::kRowwiseDequantized;
  EXPECT_THAT(std::string(MeasureAmaxCpu(source, mixed, kBoth, {}).status().message()),
              HasSubstr("rowwise_dequantized"));
  EXPECT_TRUE(MeasureAmaxCpu(source, mixed, kRows, {}).ok());
}

TEST(MeasureAmax, RefusesWhatQuantizeRefuses) {
  EXPECT_THAT(
      std::string(
          MeasureAmaxCpu(Source(DType::kBF16, {17, 64}), Nvfp4(), kBoth, {}).status().message()),
      HasSubstr("17x64"));
  EXPECT_THAT(std::string(MeasureAmaxCpu(Tensor(), Nvfp4(), kBoth, {}).status().message()),
              HasSubstr("source is absent"));
}

/// An empty shard of a group has the group's scale: f32(448 / 3), worked out on paper.
TEST(GroupAmax, GivesAnEmptyShardTheGroupsScale) {
  QuantizeArguments arguments;
  arguments.group_amax_rowwise = *Tensor::FromScalar(3.0f);
  const Tensor empty = Source(DType::kBF16, {0, 64});
  const QuantizedTensor quantized = *QuantizeCpu(empty, Fp8(), kBoth, arguments, {});
  EXPECT_EQ(*quantized.rowwise->scale.as<float>(), 0x1.2aaaaap+7f);
  EXPECT_EQ(*quantized.rowwise->amax.as<float>(), 3.0f);
  EXPECT_EQ(*QuantizeCpu(empty, Fp8(), kBoth, {}, {})->rowwise->scale.as<float>(), 1.0f);
}

TEST(GroupAmax, MustBeOneFloat) {
  QuantizeArguments arguments;
  const Tensor source = Source(DType::kBF16, {16, 64});
  for (Tensor QuantizeArguments::*field :
       {&QuantizeArguments::group_amax_rowwise, &QuantizeArguments::group_amax_columnwise}) {
    for (const Tensor& wrong : {Source(DType::kF32, {2}), Source(DType::kBF16, {1})}) {
      QuantizeArguments changed = arguments;
      changed.*field = wrong;
      const absl::Status status = QuantizeCpu(source, Nvfp4(), kBoth, changed, {}).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr("must be f32[1]"));
      EXPECT_THAT(std::string(status.message()), HasSubstr("group_amax_"));
    }
  }
}

TEST(GroupAmax, IsOfMagnitudes) {
  QuantizeArguments arguments;
  for (const float amax : {-1.0f, -0.0f, -INFINITY}) {
    arguments.group_amax_rowwise = *Tensor::FromScalar(amax);
    const absl::Status status =
        QuantizeCpu(Source(DType::kBF16, {16, 64}), Nvfp4(), kBoth, arguments, {}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << amax;
    EXPECT_THAT(std::string(status.message()), HasSubstr("group_amax_rowwise is -"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("at least 0"));
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
