// The self-check of the hardware against stand-ins for it: it must stay silent where nothing
// changed, and name what did.
#include "kernels/gemm/cublaslt/hardware_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "kernels/base/execution.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Hardware that has one algorithm, and another that splits K where it may, and computes as sm90
/// does.
struct StandIn {
  CublasLtAlgorithm whole, split;
  int hardware_calls = 0;

  StandIn() {
    whole.id = split.id = 66;
    whole.tile = split.tile = 20;
    split.index = 1;
    split.split_k = 2;
  }

  HardwareCheckSides Sides() {
    HardwareCheckSides sides;
    sides.place = sides.to_host = [](const Tensor& tensor) { return tensor; };
    sides.algorithms = [this](const GemmDesc& desc) {
      std::vector<CublasLtAlgorithm> all = {whole};
      if (desc.a.data.dtype() == DType::kF32) all[0].id = 21;
      if (desc.arithmetic.any_split_k) all.push_back(split);
      if (desc.a.data.dtype() == DType::kF32 && all.size() > 1) all[1].id = 21;
      return all;
    };
    sides.hardware = [this](const GemmDesc& desc) {
      ++hardware_calls;
      GemmDesc model = desc;
      model.arithmetic = desc.arithmetic.Model();
      model.arithmetic.split_k = desc.arithmetic.algorithm == 1 ? 2 : 1;
      return GemmCpu(model, {});
    };
    sides.model = [](const GemmDesc& desc) { return GemmCpu(desc, {}); };
    return sides;
  }
};

HardwareCase SmallCase(DType operand, DType out) {
  HardwareCase one;
  one.shape = {16, 24, 64};
  one.a = one.b = operand;
  one.out = out;
  one.seed = 5;
  if (IsFp8(operand)) one.a_scaling = one.b_scaling = ScaleMode::kTensor;
  return one;
}

HardwareCheck Checked(const HardwareCheckSides& sides, const std::vector<HardwareCase>& cases) {
  absl::StatusOr<HardwareCheck> check = CheckHardware(sides, cases, nullptr);
  EXPECT_TRUE(check.ok()) << check.status();
  return check.ok() ? *std::move(check) : HardwareCheck();
}

TEST(HardwareCheckTest, NothingIsSaidWhereNothingChanged) {
  StandIn stand_in;
  const std::vector<HardwareCase> cases = HardwareCases(HardwareCheckSize::kQuick);
  const HardwareCheck check = Checked(stand_in.Sides(), cases);
  EXPECT_FALSE(check.has_drift());
  EXPECT_EQ(check.cases, static_cast<int>(cases.size()));
  int not_modelled = 0;
  for (const HardwareClass& one : check.classes) {
    EXPECT_EQ(one.differing, 0);
    EXPECT_NE(one.standing, ClassStanding::kUnlisted) << one.operands << one.algorithm_id;
    not_modelled += one.not_modelled;
  }
  // Two requests, one of them with a second algorithm; split-K of f32 has no model.
  EXPECT_EQ(check.runs() + not_modelled, 3 * check.cases);
  EXPECT_EQ(stand_in.hardware_calls, check.runs());
  EXPECT_GT(not_modelled, 0);
  const std::vector<std::string> lines = HardwareCheckLines(check);
  EXPECT_THAT(lines[0], StartsWith("the hardware computes what its models say: "));
  EXPECT_THAT(lines, Not(Contains(HasSubstr("drift"))));
}

/// `model` with one bit of output (row, column) flipped where the GEMM's output has `out`.
HardwareCheckSides WithFlippedBit(HardwareCheckSides sides, DType out, int64_t row, int64_t column,
                                  uint8_t bit) {
  sides.model = [=](const GemmDesc& desc) -> absl::StatusOr<GemmResult> {
    absl::StatusOr<GemmResult> result = GemmCpu(desc, {});
    if (!result.ok() || desc.out_dtype != out) return result;
    const int64_t at = (row * result->d.columns() + column) * DTypeBytes(out);
    result->d.data()[at] ^= std::byte{bit};
    return result;
  };
  return sides;
}

TEST(HardwareCheckTest, OneFlippedBitIsFoundWhereItIs) {
  for (const DType out : {DType::kF32, DType::kBF16}) {
    StandIn stand_in;
    const HardwareCase bad = SmallCase(DType::kBF16, out);
    const DType other = out == DType::kF32 ? DType::kBF16 : DType::kF32;
    const HardwareCheck check = Checked(WithFlippedBit(stand_in.Sides(), out, 3, 17, 4),
                                        {SmallCase(DType::kBF16, other), bad});
    EXPECT_TRUE(check.has_drift());
    // The same kernel gave two outputs their types: one run of each request is good, one is not.
    ASSERT_EQ(check.classes.size(), 3u);
    for (const HardwareClass& one : check.classes) {
      EXPECT_EQ(one.equal, 1);
      EXPECT_EQ(one.differing, 1);
      EXPECT_EQ(one.differing_outputs, 1);
      EXPECT_EQ(one.outputs, 2 * 16 * 24);
      EXPECT_EQ(one.first_choices, one.split_k == 1 ? 2 : 0);
      ASSERT_TRUE(one.first.has_value());
      EXPECT_EQ(one.first->row, 3);
      EXPECT_EQ(one.first->column, 17);
      EXPECT_EQ(one.first->hardware_bits ^ one.first->model_bits, 4u);
      EXPECT_EQ(one.first->count, 1);
      EXPECT_EQ(one.first->of, 16 * 24);
      EXPECT_THAT(one.first->gemm, HasSubstr("m=16 n=24 k=64 bf16 x bf16 -> "));
      EXPECT_THAT(one.first->gemm, HasSubstr("data normal, seed 5"));
      // The hardware's value is what the CPU computes for the same desc.
      GemmDesc desc = DescOf(bad).value();
      desc.arithmetic = desc.arithmetic.Model();
      desc.arithmetic.split_k = one.split_k;
      const Tensor d = GemmCpu(desc, {})->d;
      uint32_t expected = 0;
      const auto width = static_cast<size_t>(DTypeBytes(out));
      std::memcpy(&expected, d.data() + (3 * 24 + 17) * width, width);
      EXPECT_EQ(one.first->hardware_bits, expected);
    }
    const std::vector<std::string> lines = HardwareCheckLines(check);
    EXPECT_THAT(lines[0], StartsWith("DRIFT: 2 GEMMs, 6 runs "));
    EXPECT_THAT(lines,
                Contains(StartsWith("drift: bf16 by algorithm 66 (tile 20, K in 2 slices, asked "
                                    "for: any) differs from sm90 in 1 of 2 runs; first: 1 of 384 "
                                    "outputs, at (3, 17): hardware 0x")));
  }
}

TEST(HardwareCheckTest, AnAmaxThatDiffersIsDriftToo) {
  StandIn stand_in;
  HardwareCheckSides sides = stand_in.Sides();
  sides.model = [](const GemmDesc& desc) {
    absl::StatusOr<GemmResult> result = GemmCpu(desc, {});
    result->amax.as<uint32_t>()[0] ^= 1;
    return result;
  };
  const HardwareCheck check = Checked(sides, {SmallCase(DType::kF8E4M3, DType::kF8E4M3)});
  EXPECT_TRUE(check.has_drift());
  for (const HardwareClass& one : check.classes) {
    ASSERT_TRUE(one.first.has_value());
    EXPECT_TRUE(one.first->is_amax);
    EXPECT_EQ(one.differing_outputs, 0);
    EXPECT_EQ(one.first->hardware_bits ^ one.first->model_bits, 1u);
  }
  EXPECT_THAT(HardwareCheckLines(check), Contains(HasSubstr("first: the reported amax: hardware")));
}

/// Every rule that a new driver might exchange for another is seen by the quick list's data.
TEST(HardwareCheckTest, AnotherRuleIsSeenInEveryKindOfOperands) {
  std::vector<HardwareCase> cases = HardwareCases(HardwareCheckSize::kQuick);
  StandIn stand_in;
  HardwareCheckSides sides = stand_in.Sides();
  sides.model = [](const GemmDesc& desc) -> absl::StatusOr<GemmResult> {
    GemmDesc other = desc;
    if (desc.a.scaling == ScaleMode::k1x128 || desc.a.scaling == ScaleMode::k128x128) {
      other.arithmetic.family = ArithmeticFamily::kFp32;
    } else if (IsFp8(desc.a.data.dtype())) {
      const bool is_split = ResolvedFor(desc).accumulation == Accumulation::kSplit;
      other.arithmetic.accumulation = is_split ? Accumulation::kFast : Accumulation::kSplit;
    } else {
      other.arithmetic = Arithmetic();
      other.arithmetic.family = ArithmeticFamily::kSm80;
    }
    return GemmCpu(other, {});
  };
  const HardwareCheck check = Checked(sides, cases);
  std::set<std::string> seen;
  for (const HardwareClass& one : check.classes) {
    if (one.differing > 0 && one.split_k == 1) seen.insert(one.operands);
  }
  EXPECT_EQ(seen, (std::set<std::string>{"bf16", "fp16", "f32 (tf32)", "FP8, fast", "FP8, split",
                                         "FP8, both 1x128", "FP8, tiles of 128x128"}));
}

TEST(HardwareCheckTest, WhatIsKnownToHaveNoModelIsCountedAndNotRun) {
  StandIn stand_in;
  stand_in.whole.id = 41;  // 16-bit operands with split-K forbidden.
  HardwareCheckSides sides = stand_in.Sides();
  sides.algorithms = [&](const GemmDesc& desc) {
    std::vector<CublasLtAlgorithm> all;
    if (!desc.arithmetic.any_split_k) all.push_back(stand_in.whole);
    return all;
  };
  const HardwareCheck check = Checked(sides, {SmallCase(DType::kBF16, DType::kF32)});
  EXPECT_FALSE(check.has_drift());
  EXPECT_EQ(stand_in.hardware_calls, 0);
  ASSERT_EQ(check.classes.size(), 1u);
  EXPECT_EQ(check.classes[0].standing, ClassStanding::kNotModelled);
  EXPECT_EQ(check.classes[0].not_modelled, 1);
  EXPECT_EQ(check.classes[0].first_choices, 1);
}

TEST(HardwareCheckTest, AnAlgorithmThatNoSurveySawIsToldAndComparedWithTheModel) {
  StandIn stand_in;
  stand_in.whole.id = 99;
  const std::vector<HardwareCase> cases = {SmallCase(DType::kBF16, DType::kF32)};
  HardwareCheck check = Checked(stand_in.Sides(), cases);
  EXPECT_FALSE(check.has_drift());
  EXPECT_THAT(HardwareCheckLines(check),
              Contains("new: bf16 by algorithm 99 (tile 20, K not split, asked for: any), which no "
                       "survey has seen, equals sm90 in 1 runs"));
  check = Checked(WithFlippedBit(stand_in.Sides(), DType::kF32, 0, 0, 1), cases);
  EXPECT_TRUE(check.has_drift());
  EXPECT_THAT(HardwareCheckLines(check),
              Contains(HasSubstr("which no survey has seen, differs from sm90 in 1 of 1 runs")));
}

TEST(HardwareCheckTest, ARefusedGemmIsDrift) {
  StandIn stand_in;
  HardwareCheckSides sides = stand_in.Sides();
  sides.algorithms = [](const GemmDesc&) -> absl::StatusOr<std::vector<CublasLtAlgorithm>> {
    return absl::UnimplementedError("no algorithm");
  };
  const HardwareCheck check = Checked(sides, {SmallCase(DType::kF16, DType::kF16)});
  EXPECT_TRUE(check.has_drift());
  EXPECT_EQ(check.refusals.size(), 2u);
  EXPECT_THAT(HardwareCheckLines(check), Contains(StartsWith("refused: m=16 n=24 k=64 f16 x f16")));
}

TEST(HardwareCheckTest, ErrorsAndCancellationEndIt) {
  StandIn stand_in;
  const std::vector<HardwareCase> cases = {SmallCase(DType::kBF16, DType::kF32)};
  HardwareCheckSides sides = stand_in.Sides();
  sides.hardware = [](const GemmDesc&) -> absl::StatusOr<GemmResult> {
    return absl::DataLossError("ECC");
  };
  EXPECT_EQ(CheckHardware(sides, cases, nullptr).status(), absl::DataLossError("ECC"));
  Cancellation cancellation;
  cancellation.Cancel();
  EXPECT_TRUE(absl::IsCancelled(CheckHardware(stand_in.Sides(), cases, &cancellation).status()));
}

TEST(HardwareCasesTest, CoverWhatCublasLtHasAndAreTheSameEveryTime) {
  for (const HardwareCheckSize size : {HardwareCheckSize::kQuick, HardwareCheckSize::kFull}) {
    const std::vector<HardwareCase> cases = HardwareCases(size);
    std::set<std::pair<DType, DType>> pairs;
    std::set<std::tuple<DType, GemmLayout>> layouts;
    std::set<std::tuple<DType, bool>> accumulations;
    std::set<std::pair<ScaleMode, ScaleMode>> scalings;
    std::set<std::pair<bool, CaseEpilogue>> epilogues;
    std::set<std::pair<DType, DType>> outputs;
    std::set<uint64_t> seeds;
    for (const HardwareCase& one : cases) {
      pairs.emplace(one.a, one.b);
      layouts.emplace(one.a, one.layout);
      if (IsFp8(one.a)) accumulations.emplace(one.a, one.use_split_accumulator);
      scalings.emplace(one.a_scaling, one.b_scaling);
      epilogues.emplace(IsFp8(one.a), one.epilogue);
      outputs.emplace(one.a, one.out);
      EXPECT_TRUE(seeds.insert(one.seed).second);
    }
    EXPECT_EQ(pairs.size(), 6u);            // bf16, f16, f32, three pairs of FP8.
    EXPECT_EQ(layouts.size(), 3 * 3u + 2);  // FP8 in one layout.
    EXPECT_EQ(accumulations.size(), 4u);
    EXPECT_EQ(scalings.size(), 6u);   // None, tensor, outer, three pairs of blocks.
    EXPECT_EQ(epilogues.size(), 8u);  // Four each.
    EXPECT_EQ(outputs.size(), 5u + 2 * 4u);
  }
}

TEST(HardwareCasesTest, AllAreGemmsThatCublasLtTakes) {
  for (const HardwareCase& one : HardwareCases(HardwareCheckSize::kQuick)) {
    const absl::StatusOr<GemmDesc> desc = DescOf(one);
    ASSERT_TRUE(desc.ok()) << desc.status();
    EXPECT_TRUE(CheckCublasLtGemm(*desc).ok()) << CheckCublasLtGemm(*desc).status();
    const Tensor again = DescOf(one)->b.data;
    EXPECT_EQ(std::memcmp(again.data(), desc->b.data.data(), again.byte_size()), 0);
  }
}

TEST(HardwareCheckKeyTest, NamesAllThatAResultDependsOn) {
  const HardwareCheckKey key{"NVIDIA H200", "580.159.04", "13.1.0", "1.4.0"};
  EXPECT_EQ(key.ToString(HardwareCheckSize::kQuick),
            "NVIDIA H200, driver 580.159.04, cuBLASLt 13.1.0, build 1.4.0, quick");
  EXPECT_NE(key.ToString(HardwareCheckSize::kQuick), key.ToString(HardwareCheckSize::kFull));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
