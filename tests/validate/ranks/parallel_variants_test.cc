// Variants on several ranks among others: what has the bits of one rank, what is held to a bound,
// and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/validate/ranks/parallel_report.h"
#include "kernels/validate/reference/exact_values.h"
#include "kernels/validate/run/run.h"
#include "tests/engine/tensor_values.h"
#include "tests/validate/rank_variants.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kM = 64, kK = 128, kO = 256;

Tensor Normal(uint64_t seed, Shape shape) {
  return Generated(Distribution::kNormal, seed, DType::kBF16, std::move(shape));
}

LayerRequest Linear(ParallelMode mode) {
  LayerRequest step;
  step.layer.parallel_mode = mode;
  step.x = Normal(1, {kM, kK});
  step.parameters = {{"weight", Normal(2, {kO, kK})}, {"bias", Normal(3, {kO})}};
  step.grad_output = Normal(4, {kM, kO});
  return step;
}

LayerRequest GatedMlp() {
  LayerRequest step;
  step.layer.kind = LayerKind::kLayerNormMlp;
  step.layer.parallel_mode = ParallelMode::kColumn;
  step.layer.activation.kind = ActivationKind::kSwiglu;
  step.x = Normal(1, {kM, kK});
  step.parameters = {{"gamma", Normal(2, {kK})},
                     {"beta", Normal(3, {kK})},
                     {"fc1.weight", Normal(4, {kO, kK})},
                     {"fc1.bias", Normal(5, {kO})},
                     {"fc2.weight", Normal(6, {kK, kO / 2})},
                     {"fc2.bias", Normal(7, {kK})}};
  step.grad_output = Normal(8, {kM, kK});
  return step;
}

TEST(ParallelVariants, ColumnParallelOutputsHaveTheBitsOfOneRank) {
  for (const char* recipe : {"bf16", "fp8_delayed", "mxfp8"}) {
    for (const bool sequence_parallel : {false, true}) {
      SCOPED_TRACE(absl::StrCat(recipe, sequence_parallel ? " sp" : ""));
      const RunReport report =
          RunOk(Twins(Linear(ParallelMode::kColumn), recipe,
                      {.tensor_parallel = 2, .sequence_parallel = sequence_parallel}));
      ExpectWholeAndWithinBounds(report);
      for (const char* output : {"y", "dw", "db"}) {
        EXPECT_TRUE(HasBitsOfOneRank(report, output));
      }
    }
  }
}

TEST(ParallelVariants, RowParallelGradientsHaveTheBitsOfOneRank) {
  for (const char* recipe : {"bf16", "mxfp8"}) {
    for (const bool sequence_parallel : {false, true}) {
      SCOPED_TRACE(absl::StrCat(recipe, sequence_parallel ? " sp" : ""));
      const RunReport report =
          RunOk(Twins(Linear(ParallelMode::kRow), recipe,
                      {.tensor_parallel = 4, .sequence_parallel = sequence_parallel}));
      ExpectWholeAndWithinBounds(report);
      for (const char* output : {"dx", "dw"}) EXPECT_TRUE(HasBitsOfOneRank(report, output));
    }
  }
}

// Each rank scales its own part of the weight, so that y is another one.
TEST(ParallelVariants, ADifferenceFromOneRankIsTheVerdict) {
  LayerRunRequest request =
      Twins(Linear(ParallelMode::kColumn), "fp8_current", {.tensor_parallel = 2});
  // A part of the weight whose amax is not the other part's.
  std::vector<float> weight = ToValues(request.step.parameters["weight"]);
  weight[0] = 100;
  request.step.parameters["weight"] = FromValues(DType::kBF16, {kO, kK}, weight);
  request.requirement = Requirement::kBitwise;
  const RunReport report = RunOk(request);
  EXPECT_FALSE(report.verdict.pass);
  EXPECT_THAT(report.verdict.finding, HasSubstr("fp8_current / none / auto / tp2 differs from "
                                                "fp8_current / none / auto"));
  request.requirement = Requirement::kBound;
  ExpectWholeAndWithinBounds(RunOk(request));
}

// Whole numbers, so small that every sum of them is exact: y over ranks is y of one rank, bias and
// all, in every order of the ranks.
TEST(ParallelVariants, ExactSumsOverRanksAreThoseOfOneRank) {
  LayerRequest step = Linear(ParallelMode::kRow);
  const auto numbers = [](int64_t count, int modulus) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(static_cast<float>(i * 7 % modulus == 0 ? i % 3 - 1 : 0));
    }
    return values;
  };
  step.x = FromValues(DType::kBF16, {kM, kK}, numbers(kM * kK, 5));
  step.parameters["weight"] = FromValues(DType::kBF16, {kO, kK}, numbers(kO * kK, 3));
  step.parameters["bias"] = FromValues(DType::kBF16, {kO}, numbers(kO, 2));
  step.grad_output = FromValues(DType::kBF16, {kM, kO}, numbers(kM * kO, 11));
  for (const ReductionProfile& profile : OrderedProfiles()) {
    for (const bool sequence_parallel : {false, true}) {
      LayerRunRequest request =
          Twins(step, "bf16",
                {.tensor_parallel = 4, .sequence_parallel = sequence_parallel, .profile = profile});
      request.requirement = Requirement::kBitwise;
      const RunReport report = RunOk(request);
      EXPECT_TRUE(report.verdict.pass) << report.verdict.finding;
      EXPECT_TRUE(OutputOf(report.variants[1], "y").against_exact.parity.equal);
      EXPECT_TRUE(OutputOf(report.variants[1], "db").against_exact.parity.equal);
    }
  }
}

TEST(ParallelVariants, GatedMlpIsWhole) {
  for (const bool sequence_parallel : {false, true}) {
    LayerRunRequest request =
        Twins(GatedMlp(), "bf16", {.tensor_parallel = 2, .sequence_parallel = sequence_parallel});
    const RunReport report = RunOk(request);
    ExpectWholeAndWithinBounds(report);
    // Halves of the gate, each divided by itself.
    for (const char* output : {"fc1.dw", "fc1.db", "fc2.dw"}) {
      EXPECT_TRUE(HasBitsOfOneRank(report, output));
    }
  }
}

TEST(ParallelVariants, GatheredNormOutputIsWhole) {
  LayerRequest step;
  step.layer.kind = LayerKind::kLayerNormLinear;
  step.layer.parallel_mode = ParallelMode::kColumn;
  step.layer.return_norm_output = true;
  step.x = Normal(1, {kM + 1, kK});  // Uneven rows.
  step.parameters = {{"gamma", Normal(2, {kK})}, {"weight", Normal(3, {kO, kK})}};
  step.layer.norm.kind = NormKind::kRmsNorm;
  step.grad_output = Normal(4, {kM + 1, kO});
  const RunReport report =
      RunOk(Twins(step, "bf16", {.tensor_parallel = 2, .sequence_parallel = true}));
  ExpectWholeAndWithinBounds(report);
  for (const char* output : {"norm_out", "y", "dw"}) {
    EXPECT_TRUE(HasBitsOfOneRank(report, output));
  }
}

TEST(ParallelVariants, RanksAreReported) {
  const RunReport report = RunOk(Twins(Linear(ParallelMode::kRow), "fp8_current",
                                       {.tensor_parallel = 2, .sequence_parallel = true}));
  const VariantReport& variant = report.variants[1];
  EXPECT_EQ(variant.label, "fp8_current / none / auto / tp2 sp");
  EXPECT_TRUE(report.variants[0].ranks.empty());
  ASSERT_EQ(variant.ranks.size(), 2u);
  for (int rank = 0; rank < 2; ++rank) {
    const VariantReport::RankReport& mine = variant.ranks[rank];
    EXPECT_EQ(mine.rank, rank);
    EXPECT_EQ(mine.device, "cpu");
    ASSERT_FALSE(mine.outputs.empty());
    EXPECT_EQ(mine.outputs[0].tensor, "y");
    EXPECT_EQ(mine.outputs[0].shape, (Shape{kM / 2, kO}));
    // This rank's rows of the whole.
    const Tensor& whole = OutputOf(variant, "y").value;
    const size_t bytes = whole.byte_size() / 2;
    const Tensor part =
        *Tensor::FromBytes(DType::kBF16, {kM / 2, kO}, whole.bytes().subspan(bytes * rank, bytes));
    EXPECT_EQ(mine.outputs[0].fingerprint, *MakeCpuEngine({})->FingerprintOf(part, nullptr));
    EXPECT_EQ(mine.gemms.size(), 3u);
    EXPECT_FALSE(mine.quantizations.empty());
    EXPECT_FALSE(mine.saved.empty());
    EXPECT_FALSE(mine.stages.empty());
  }
  EXPECT_THAT(variant.notes, ::testing::Contains(HasSubstr("y: a sum over the ranks")));
  EXPECT_THAT(variant.notes, ::testing::Contains(HasSubstr("db: each rank has what its own rows")));
}

std::string Refusal(const LayerRunRequest& request) {
  return std::string(TryRun(request).status().message());
}

TEST(ParallelVariants, Refusals) {
  const LayerRequest column = Linear(ParallelMode::kColumn);
  for (const int ranks : {-1, 0, 1, 9}) {
    EXPECT_THAT(Refusal(Twins(column, "bf16", {.tensor_parallel = ranks})),
                AllOf(HasSubstr("variants[1].parallel.tensor_parallel is "), HasSubstr("2 to 8")));
  }
  EXPECT_THAT(Refusal(Twins(Linear(ParallelMode::kNone), "bf16", {})),
              HasSubstr("layer.parallel_mode is none: a parallel variant needs column or row"));
  EXPECT_THAT(Refusal(Twins(column, "bf16", {.tensor_parallel = 3})),
              AllOf(StartsWith("grad_output is bf16[64x256]: "), HasSubstr("multiple of 3")));
  // 256 rows of the weight over 8 ranks are 32 each, one mxfp8 block; K = 128 over 8 is 16.
  EXPECT_EQ(TryRun(Twins(column, "mxfp8", {.tensor_parallel = 8})).status(), absl::OkStatus());
  EXPECT_THAT(Refusal(Twins(Linear(ParallelMode::kRow), "mxfp8", {.tensor_parallel = 8})),
              AllOf(StartsWith("x is bf16[64x16]: K is 16 "), EndsWith(" (of a rank's part under "
                                                                       "variants[1].parallel)")));
  OverlapSpec ring;
  ring.methods[{OverlapSide::kColumn, GemmRole::kFprop}] = OverlapMethod::kRingExchange;
  EXPECT_THAT(Refusal(Twins(column, "fp8_block", {.sequence_parallel = true, .overlap = ring})),
              StartsWith("variants[1].parallel.overlap.column_fprop is ring_exchange: recipe is "
                         "fp8_block"));
  OverlapSpec bulk;
  bulk.methods[{OverlapSide::kColumn, GemmRole::kFprop}] = OverlapMethod::kBulk;
  EXPECT_THAT(Refusal(Twins(column, "bf16", {.sequence_parallel = true, .overlap = bulk})),
              StartsWith("variants[1].parallel.overlap.column_fprop is bulk: "));
  OverlapSpec scatter;
  scatter.methods = {{{OverlapSide::kColumn, GemmRole::kDgrad}, OverlapMethod::kRingExchange},
                     {{OverlapSide::kColumn, GemmRole::kWgrad}, OverlapMethod::kNone}};
  EXPECT_THAT(Refusal(Twins(column, "bf16", {.sequence_parallel = true, .overlap = scatter})),
              HasSubstr(": reduction_profile is rank_asc_fp32: a ring_exchange reduce-scatter"));
  EXPECT_THAT(Refusal(Twins(column, "bf16", {.profile = {.kind = ReductionKind::kNccl}})),
              HasSubstr("variants[1].parallel.reduction_profile is nccl: "));
  LayerRunRequest alone = Twins(column, "bf16", {});
  alone.variants.pop_back();
  EXPECT_THAT(Refusal(alone), HasSubstr("layer.parallel_mode is column: no variant is parallel"));
  LayerRunRequest twice = Twins(column, "bf16", {});
  twice.variants.push_back(twice.variants[1]);
  EXPECT_THAT(Refusal(twice), HasSubstr("variants must differ"));
}

// dx is a sum that every rank gets whole: the first rank's is reported, and the others' are not
// taken on trust.
TEST(ParallelVariants, ReportsSayWhenRanksDisagreeOnWhatAllHave) {
  const LayerRunRequest request = Twins(Linear(ParallelMode::kColumn), "bf16", {});
  const auto engine = MakeCpuEngine({.threads = 2});
  RankEngines engines(*engine);
  auto step = RunOnRanks(request.step, *engine, request.variants[1],
                         *engines.EnginesFor(*request.variants[1].parallel), nullptr, nullptr);
  ASSERT_TRUE(step.ok()) << step.status();
  ExactValues exact(*engine, request.step, nullptr);
  OutputReporter whole(*engine, request.step, exact, nullptr);
  const auto difference = [&] {
    ParallelReporter reporter(*engine, whole, request.step, request.variants[1], *step, nullptr);
    return reporter.Report("dx")->report.rank_difference;
  };
  EXPECT_EQ(difference(), "");
  for (NamedTensor& output : step->ranks[1].result.outputs) {
    if (output.name == "dx") output.tensor.as<uint16_t>()[kM * kK - 1] ^= 1;
  }
  EXPECT_EQ(difference(),
            "every rank has all of it, and rank 1's differs from rank 0's, which is reported");
}

// Whatever the GEMMs compute with, the additions of ranks round: their sums have a bound of their
// own, and every other output that of its operation.
TEST(ParallelVariants, EveryOutputHasABoundUnderEveryArithmetic) {
  for (const ParallelMode mode : {ParallelMode::kColumn, ParallelMode::kRow}) {
    for (const bool sequence_parallel : {false, true}) {
      for (const char* recipe :
           {"bf16", "fp8_delayed", "fp8_current", "fp8_block", "fp8_rowwise", "mxfp8", "nvfp4"}) {
        int accepted = 0;
        for (const char* arithmetic : {"exact", "fp32", "sm80", "sm89", "sm90", "sm100", "sm120"}) {
          LayerRunRequest request;
          request.step = Linear(mode);
          request.variants = {
              {*Recipe::Parse(recipe), *Arithmetic::Parse(arithmetic),
               ParallelSpec{.tensor_parallel = 2, .sequence_parallel = sequence_parallel}}};
          request.requirement = Requirement::kBound;
          if (!Plan::Create(request).ok()) continue;  // No instruction for these operands.
          ++accepted;
          SCOPED_TRACE(request.variants[0].Label());
          const RunReport report = RunOk(request);
          EXPECT_TRUE(report.verdict.pass) << report.verdict.finding;
          for (const OutputReport& output : report.variants[0].outputs) {
            ASSERT_TRUE(output.bound.has_value()) << output.tensor;
            EXPECT_TRUE(output.bound->pass) << output.tensor;
          }
          const char* const sum = mode == ParallelMode::kColumn ? "dx" : "y";
          EXPECT_THAT(OutputOf(report.variants[0], sum).bound->bound.derivation,
                      HasSubstr("; their sum s: |s - sum p_r| <= "));
        }
        EXPECT_GE(accepted, 2) << recipe;  // exact and fp32 at least.
      }
    }
  }
}

// Two ulp of bf16 are more than the one rounding of two parts, one ulp more than its half.
TEST(ParallelVariants, AWrongSumOfExactPartsLeavesItsBound) {
  LayerRunRequest request = Twins(Linear(ParallelMode::kColumn), "mxfp8",
                                  {.tensor_parallel = 2, .sequence_parallel = true});
  request.variants[1].arithmetic = *Arithmetic::Parse("exact");
  const auto engine = MakeCpuEngine({.threads = 2});
  RankEngines engines(*engine);
  auto step = RunOnRanks(request.step, *engine, request.variants[1],
                         *engines.EnginesFor(*request.variants[1].parallel), nullptr, nullptr);
  ASSERT_TRUE(step.ok()) << step.status();
  ExactValues exact(*engine, request.step, nullptr);
  OutputReporter whole(*engine, request.step, exact, nullptr);
  const auto bound_of = [&](const char* output) {
    ParallelReporter reporter(*engine, whole, request.step, request.variants[1], *step, nullptr);
    return reporter.Report(output)->report.bound;
  };
  const auto change = [&](const std::string& name, uint16_t bits) {
    for (NamedTensor& output : step->ranks[1].result.outputs) {
      if (output.name == name) output.tensor.as<uint16_t>()[3] ^= bits;
    }
  };
  for (const char* output : {"dx", "y", "dw"}) {
    SCOPED_TRACE(output);
    ASSERT_TRUE(bound_of(output).has_value());
    EXPECT_TRUE(bound_of(output)->pass);
    // A sum may be off by its own rounding, a product that is rounded once by nothing.
    change(output, std::string_view(output) == "dx" ? 1u << 8 : 1);
    EXPECT_FALSE(bound_of(output)->pass);
    EXPECT_EQ(bound_of(output)->violation_count, 1);
  }
}

TEST(ParallelVariants, NcclNeedsGpus) {
  const absl::Status status =
      TryRun(Twins(Linear(ParallelMode::kColumn), "bf16", {.backend = CollectiveBackend::kNccl}))
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("variants[1].parallel.backend is nccl"), HasSubstr("on the CPU")));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
