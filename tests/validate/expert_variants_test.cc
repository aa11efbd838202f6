// Variants whose experts are divided over ranks: every output has the bits of one rank, and is
// reported as one rank's is; what each rank had; what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/layer/experts/expert_run.h"
#include "kernels/validate/run/run.h"
#include "tests/engine/tensor_values.h"
#include "tests/validate/rank_variants.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kIn = 64, kOut = 96;

Tensor Normal(uint64_t seed, Shape shape, DType dtype = DType::kBF16) {
  return Generated(Distribution::kNormal, seed, dtype, std::move(shape));
}

/// Experts with rows that no number of ranks divides, and one without rows.
const std::vector<int64_t> kUneven = {37, 0, 21, 5, 40};
/// Of whole blocks, the last ones empty: the last of five ranks has nothing to do.
const std::vector<int64_t> kBlocks = {32, 96, 0, 64, 0};

LayerRequest Experts(const std::vector<int64_t>& splits) {
  LayerRequest step;
  step.layer.kind = LayerKind::kGroupedLinear;
  step.layer.m_splits = splits;
  int64_t rows = 0;
  for (size_t i = 0; i < splits.size(); ++i) {
    rows += splits[i];
    step.parameters[absl::StrCat("weight.", i)] = Normal(10 + i, {kOut, kIn});
    step.parameters[absl::StrCat("bias.", i)] = Normal(20 + i, {kOut});
  }
  step.x = Normal(1, {rows, kIn});
  step.grad_output = Normal(2, {rows, kOut});
  return step;
}

ParallelSpec Ranks(int ranks, int copies = 1) {
  ParallelSpec parallel;
  parallel.tensor_parallel = 1;
  parallel.expert_parallel = ranks;
  parallel.data_parallel = copies;
  return parallel;
}

LayerRunRequest BitwiseTwins(LayerRequest step, const std::string& recipe, ParallelSpec parallel) {
  return Twins(std::move(step), recipe, std::move(parallel), Requirement::kBitwise);
}

/// The bits of one rank, and what a report says of them.
void ExpectAsOnOneRank(const RunReport& report) {
  ASSERT_EQ(report.variants.size(), 2u);
  EXPECT_TRUE(report.verdict.pass) << report.verdict.finding;
  const VariantReport& one = report.variants[0];
  const VariantReport& ranks = report.variants[1];
  ASSERT_EQ(ranks.outputs.size(), one.outputs.size());
  for (size_t i = 0; i < one.outputs.size(); ++i) {
    const OutputReport& alone = one.outputs[i];
    const OutputReport& output = ranks.outputs[i];
    SCOPED_TRACE(alone.tensor);
    EXPECT_EQ(output.tensor, alone.tensor);
    EXPECT_TRUE(SameBits(output.value, alone.value));
    EXPECT_EQ(output.against_exact.error.relative_frobenius,
              alone.against_exact.error.relative_frobenius);
    EXPECT_EQ(output.against_exact.error.element_count, output.value.element_count());
    EXPECT_EQ(output.bound.has_value(), alone.bound.has_value());
    if (alone.bound.has_value()) {
      EXPECT_EQ(output.bound->worst_ratio, alone.bound->worst_ratio);
    }
  }
  ASSERT_EQ(ranks.state.size(), one.state.size());
  for (size_t i = 0; i < one.state.size(); ++i) {
    const auto same = [&](const NamedTensor& state) { return state.name == one.state[i].name; };
    const auto found = std::find_if(ranks.state.begin(), ranks.state.end(), same);
    ASSERT_NE(found, ranks.state.end()) << one.state[i].name;
    EXPECT_TRUE(SameBits(found->tensor, one.state[i].tensor)) << one.state[i].name;
  }
}

TEST(ExpertVariants, HaveTheBitsOfOneRank) {
  for (const int ranks : {2, 3, 5}) {
    for (const char* recipe : {"bf16", "bf16:activation_dtype=f32"}) {
      SCOPED_TRACE(absl::StrCat(recipe, " on ", ranks));
      const auto report = TryRun(BitwiseTwins(Experts(kUneven), recipe, Ranks(ranks)));
      ASSERT_TRUE(report.ok()) << report.status();
      ExpectAsOnOneRank(*report);
    }
    for (const char* recipe : {"fp8_delayed", "fp8_current", "fp8_block", "mxfp8", "nvfp4"}) {
      SCOPED_TRACE(absl::StrCat(recipe, " on ", ranks));
      LayerRunRequest request = BitwiseTwins(Experts(kBlocks), recipe, Ranks(ranks));
      // Random numbers are the experts', wherever they are.
      if (std::string(recipe) == "nvfp4") request.step.seed = 7;
      const auto report = TryRun(request);
      ASSERT_TRUE(report.ok()) << report.status();
      ExpectAsOnOneRank(*report);
    }
  }
}

TEST(ExpertVariants, MainGradientsAndDelayedStatesAreTheExperts) {
  LayerRequest step = Experts(kBlocks);
  for (const int expert : {0, 3}) {
    step.main_grads[absl::StrCat("weight.", expert)] =
        Normal(50 + expert, {kOut, kIn}, DType::kF32);
  }
  DelayedScalingState state = *FreshDelayedScaling(3);
  state.scale = *Tensor::FromScalar(4);
  step.delayed["input.3"] = state;
  const auto report =
      TryRun(BitwiseTwins(std::move(step), "fp8_delayed:amax_history_len=3", Ranks(2)));
  ASSERT_TRUE(report.ok()) << report.status();
  ExpectAsOnOneRank(*report);
  const auto forward = [] {
    LayerRequest alone = Experts(kBlocks);
    alone.grad_output = Tensor();
    return alone;
  };
  const auto of_forward = TryRun(BitwiseTwins(forward(), "fp8_delayed", Ranks(3)));
  ASSERT_TRUE(of_forward.ok()) << of_forward.status();
  ExpectAsOnOneRank(*of_forward);
}

TEST(ExpertVariants, RanksAreReportedByTheNumbersOfTheWhole) {
  const auto report = TryRun(BitwiseTwins(Experts(kBlocks), "mxfp8", Ranks(2)));
  ASSERT_TRUE(report.ok()) << report.status();
  const VariantReport& variant = report->variants[1];
  EXPECT_EQ(variant.label, "mxfp8 / none / auto / ep2");
  ASSERT_EQ(variant.ranks.size(), 2u);
  std::vector<std::string> outputs;
  for (const auto& output : variant.ranks[1].outputs) outputs.push_back(output.tensor);
  EXPECT_THAT(outputs, ElementsAre("y", "dx", "dw.3", "db.3", "dw.4", "db.4"));
  // Half of 32, 96 and 64 rows.
  EXPECT_EQ(variant.ranks[1].outputs[0].shape, Shape({96, kOut}));
  std::vector<std::string> quantized;
  for (const auto& quantization : variant.ranks[1].quantizations) {
    quantized.push_back(quantization.tensor);
  }
  EXPECT_THAT(quantized, ::testing::Contains("weight.3"));
  EXPECT_THAT(quantized, ::testing::Not(::testing::Contains("weight.0")));
  std::vector<std::string> stages;
  for (const auto& stage : variant.ranks[0].stages) stages.push_back(stage.stage);
  for (const char* stage : {"dispatch x", "combine y", "dispatch grad_output", "combine dx"}) {
    EXPECT_THAT(stages, ::testing::Contains(stage));
  }
}

TEST(ExpertVariants, EveryRankBeginsWithAPartOfEachExpertsRows) {
  LayerSpec layer;
  layer.kind = LayerKind::kGroupedLinear;
  layer.m_splits = {3, 0, 2};
  const ExpertDivision division = DivideExperts(layer, 2);
  EXPECT_THAT(division.first_expert, ElementsAre(0, 2, 3));
  EXPECT_THAT(division.first_row, ElementsAre(0, 3, 3, 5));
  EXPECT_THAT(division.tokens[0], ElementsAre(0, 1, 3));
  EXPECT_THAT(division.tokens[1], ElementsAre(2, 4));
}

/// Of two copies, the first of which has the odd row of every expert's.
std::vector<int64_t> RowsOfCopyOf(const std::vector<int64_t>& splits, int copy) {
  std::vector<int64_t> rows;
  int64_t begin = 0;
  for (const int64_t split : splits) {
    const int64_t half = (split + 1) / 2;
    const int64_t first = copy == 0 ? 0 : half, last = copy == 0 ? half : split;
    for (int64_t row = first; row < last; ++row) rows.push_back(begin + row);
    begin += split;
  }
  return rows;
}

Tensor Picked(const Tensor& whole, const std::vector<int64_t>& rows) {
  Tensor some =
      *Tensor::Allocate(whole.dtype(), {static_cast<int64_t>(rows.size()), whole.columns()});
  for (size_t i = 0; i < rows.size(); ++i) {
    std::copy_n(whole.as<uint16_t>() + rows[i] * whole.columns(), whole.columns(),
                some.as<uint16_t>() + static_cast<int64_t>(i) * whole.columns());
  }
  return some;
}

/// a + b, of bf16 numbers in fp32, rounded to nearest, ties to even.
Tensor SumOf(const Tensor& a, const Tensor& b) {
  Tensor sum = *Tensor::Allocate(a.dtype(), a.shape());
  for (int64_t i = 0; i < a.element_count(); ++i) {
    const float total = std::bit_cast<float>(uint32_t{a.as<uint16_t>()[i]} << 16) +
                        std::bit_cast<float>(uint32_t{b.as<uint16_t>()[i]} << 16);
    const uint32_t bits = std::bit_cast<uint32_t>(total);
    sum.as<uint16_t>()[i] = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
  return sum;
}

// What one rank gives for each copy's rows: the rows beside each other, the gradients added.
TEST(ExpertVariants, CopiesHaveTheirOwnRowsAndSumGradients) {
  struct Case {
    const char* recipe;
    std::vector<int64_t> splits;
  };
  const Case cases[] = {{"bf16", kUneven},
                        {"mxfp8", {64, 0, 192, 64}},
                        {"fp8_current", {64, 0, 192, 64}},
                        {"nvfp4:disable_stochastic_rounding=true", {64, 0, 192, 64}}};
  for (const auto& [recipe, splits] : cases) {
    for (const int ranks : {2, 3}) {
      SCOPED_TRACE(absl::StrCat(recipe, " on 2 x ", ranks));
      const LayerRequest step = Experts(splits);
      LayerRunRequest request = BitwiseTwins(step, recipe, Ranks(ranks, 2));
      request.requirement = Requirement::kBound;
      const auto report = TryRun(request);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_TRUE(report->verdict.pass) << report->verdict.finding;
      const VariantReport& variant = report->variants[1];
      EXPECT_EQ(variant.ranks.size(), static_cast<size_t>(2 * ranks));
      std::vector<VariantReport> copies;
      for (const int copy : {0, 1}) {
        LayerRequest own = Experts(splits);
        const std::vector<int64_t> rows = RowsOfCopyOf(splits, copy);
        for (int64_t& split : own.layer.m_splits) split = (split + 1 - copy) / 2;
        own.x = Picked(step.x, rows);
        own.grad_output = Picked(step.grad_output, rows);
        LayerRunRequest alone = BitwiseTwins(std::move(own), recipe, {});
        alone.variants.pop_back();
        alone.requirement = Requirement::kNone;
        alone.reference.reset();
        const auto given = TryRun(alone);
        ASSERT_TRUE(given.ok()) << given.status();
        copies.push_back(given->variants[0]);
        for (const char* name : {"y", "dx"}) {
          EXPECT_TRUE(SameBits(Picked(OutputOf(variant, name).value, rows),
                               OutputOf(copies[copy], name).value))
              << name << " of copy " << copy;
        }
      }
      for (const OutputReport& output : variant.outputs) {
        SCOPED_TRACE(output.tensor);
        EXPECT_EQ(output.against_exact.error.element_count, output.value.element_count());
        EXPECT_EQ(output.rank_difference, "");
        if (output.tensor == "y" || output.tensor == "dx") {
          // A row of bf16 numbers is what it is beside any others, and so is what it should be.
          if (std::string(recipe) != "bf16") continue;
          for (const OutputReport& alone : report->variants[0].outputs) {
            if (alone.tensor != output.tensor) continue;
            EXPECT_EQ(output.against_exact.error.relative_frobenius,
                      alone.against_exact.error.relative_frobenius);
          }
          continue;
        }
        EXPECT_TRUE(SameBits(output.value, SumOf(OutputOf(copies[0], output.tensor).value,
                                                 OutputOf(copies[1], output.tensor).value)));
        EXPECT_THAT(output.arithmetic, HasSubstr(" + rank_asc_fp32"));
      }
      EXPECT_THAT(variant.notes, ::testing::Contains(
                                     HasSubstr("dw.0: a sum over the ranks that hold the expert")));
    }
  }
}

// The amaxes of both copies' rows are those of all rows.
TEST(ExpertVariants, CopiesHaveOneStateOfDelayedScaling) {
  const std::vector<int64_t> splits = {64, 0, 192, 64};
  LayerRunRequest request = BitwiseTwins(Experts(splits), "fp8_delayed", Ranks(2, 2));
  request.requirement = Requirement::kNone;
  const auto report = TryRun(request);
  ASSERT_TRUE(report.ok()) << report.status();
  const std::vector<NamedTensor>& one = report->variants[0].state;
  const std::vector<NamedTensor>& ranks = report->variants[1].state;
  ASSERT_EQ(ranks.size(), one.size());
  for (const NamedTensor& state : one) {
    const auto found = std::find_if(ranks.begin(), ranks.end(), [&](const NamedTensor& each) {
      return each.name == state.name;
    });
    ASSERT_NE(found, ranks.end()) << state.name;
    EXPECT_TRUE(SameBits(found->tensor, state.tensor)) << state.name;
  }
  request = BitwiseTwins(Experts(splits), "fp8_delayed:reduce_amax=false", Ranks(2, 2));
  request.requirement = Requirement::kNone;
  const auto differing = TryRun(request);
  ASSERT_TRUE(differing.ok()) << differing.status();
  EXPECT_LT(differing->variants[1].state.size(), one.size());
  EXPECT_THAT(differing->variants[1].notes,
              ::testing::Contains(HasSubstr("left out of the state, since ranks differ: input.0")));
}

// By the number in the whole layer, on whichever rank the expert is.
TEST(ExpertVariants, RefusalsNameTheExpert) {
  EXPECT_EQ(TryRun(BitwiseTwins(Experts({64, 64, 96}), "mxfp8", Ranks(3, 2))).status().message(),
            "layer.m_splits[2] is bf16[48x64]: M is 48 and must be a multiple of 32 under mxfp8: "
            "both dims of a quantized tensor are in whole blocks (of a rank's part under "
            "variants[1].parallel)");
}

AmaxGroups Named(const char* group) {
  AmaxGroups groups;
  for (const TensorRole role : {TensorRole::kInput, TensorRole::kGradOutput}) {
    groups[role] = *ParseAmaxGroup(group);
  }
  return groups;
}

// Copies divide the rows of every expert: under the amaxes of all of them each row has the bits of
// one rank with all rows.
TEST(ExpertVariants, CopiesUnderTheAmaxesOfAllRowsHaveTheBitsOfOneRank) {
  LayerRequest step = Experts({64, 0, 128, 96, 32});
  // Of each expert's rows the first copy's alone have the largest.
  for (const int64_t row : {0, 64, 192, 288}) {
    for (Tensor* const tensor : {&step.x, &step.grad_output}) {
      tensor->as<uint16_t>()[row * tensor->columns()] = 0x4120;  // 10.
    }
  }
  for (const char* recipe : {"fp8_current", "nvfp4:disable_stochastic_rounding=true"}) {
    for (const int ranks : {2, 3}) {
      SCOPED_TRACE(absl::StrCat(recipe, " on ", ranks));
      ParallelSpec parallel = Ranks(ranks, 2);
      const RunReport own = RunOk(Twins(step, recipe, parallel));
      for (const char* group : {"data", "world"}) {
        parallel.amax_groups = Named(group);
        const RunReport named = RunOk(Twins(step, recipe, parallel));
        for (const char* output : {"y", "dx"}) {
          EXPECT_TRUE(HasBitsOfOneRank(named, output)) << output << " " << group;
          EXPECT_FALSE(HasBitsOfOneRank(own, output)) << output;
        }
      }
    }
  }
}

// Under delayed scaling both copies' states are of all rows, or of each copy's and no common ones.
TEST(ExpertVariants, DelayedStatesAreOfTheNamedRows) {
  const LayerRequest step = Experts({64, 0, 128, 96, 32});
  ParallelSpec parallel = Ranks(2, 2);
  for (const char* group : {"data", "world", "0,2/1,3"}) {
    parallel.amax_groups = Named(group);
    const RunReport report = RunOk(Twins(step, "fp8_delayed", parallel));
    EXPECT_EQ(report.variants[1].state.size(), report.variants[0].state.size()) << group;
    for (const NamedTensor& state : report.variants[0].state) {
      const auto& states = report.variants[1].state;
      const auto found = std::find_if(states.begin(), states.end(), [&](const NamedTensor& mine) {
        return mine.name == state.name;
      });
      ASSERT_NE(found, states.end()) << state.name;
      EXPECT_TRUE(SameBits(found->tensor, state.tensor)) << state.name;
    }
  }
  parallel.amax_groups = Named("none");
  const RunReport report = RunOk(Twins(step, "fp8_delayed", parallel));
  EXPECT_THAT(report.variants[1].notes,
              ::testing::Contains(HasSubstr("left out of the state, since ranks differ: input.0")));
}

TEST(ExpertVariants, Refusals) {
  const auto refusal = [](LayerRequest step, ParallelSpec parallel) {
    const absl::Status status = TryRun(BitwiseTwins(std::move(step), "bf16", parallel)).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  EXPECT_THAT(
      refusal(Experts(kUneven), Ranks(6)),
      HasSubstr("variants[1].parallel.expert_parallel is 6: each rank has an expert at least, "
                "of 5"));
  EXPECT_THAT(refusal(Experts(kUneven), Ranks(9)),
              HasSubstr("expert_parallel is 9: a group has 2"));
  ParallelSpec both = Ranks(2);
  both.tensor_parallel = 2;
  EXPECT_THAT(refusal(Experts(kUneven), both),
              HasSubstr("parallel.tensor_parallel is 2: with expert_parallel the ranks of a copy"));
  ParallelSpec summed = Ranks(2);
  summed.profile = {ReductionKind::kUbP2p};
  EXPECT_THAT(refusal(Experts(kUneven), summed), HasSubstr("nothing is summed over ranks"));
  ParallelSpec unknown = Ranks(2, 2);
  unknown.profile = {ReductionKind::kNccl};
  EXPECT_THAT(refusal(Experts(kUneven), unknown),
              HasSubstr("parallel.reduction_profile is nccl: the library's own sum needs backend"));
  for (const int copies : {0, 5, 1 << 30}) {
    EXPECT_THAT(
        refusal(Experts(kUneven), Ranks(2, copies)),
        HasSubstr(absl::StrCat("parallel.data_parallel is ", copies, ": copies of 2 ranks")));
  }
  ParallelSpec sharded = Ranks(2, 2);
  sharded.fully_sharded = true;
  EXPECT_THAT(refusal(Experts(kUneven), sharded),
              HasSubstr("parallel.fully_sharded is true: experts' weights are whole"));
  LayerRequest accumulates = Experts(kUneven);
  accumulates.main_grads["weight.1"] = Normal(50, {kOut, kIn}, DType::kF32);
  EXPECT_THAT(refusal(accumulates, Ranks(2, 2)),
              HasSubstr("main_grads is weight.1: what it held before would be added"));
  ParallelSpec sp = Ranks(2);
  sp.sequence_parallel = true;
  EXPECT_THAT(refusal(Experts(kUneven), sp), HasSubstr("sequence_parallel is given: it needs"));
  LayerRequest divided = Experts(kUneven);
  divided.layer.parallel_mode = ParallelMode::kColumn;
  EXPECT_THAT(refusal(divided, Ranks(2)), HasSubstr("every expert is whole on its rank"));
  // Ranks with other experts have no amaxes in common.
  const auto of_amaxes = [](const ParallelSpec& parallel, const char* group) {
    ParallelSpec named = parallel;
    named.amax_groups = Named(group);
    return std::string(TryRun(Twins(Experts(kBlocks), "fp8_current", named)).status().message());
  };
  for (const char* group : {"world", "0,1"}) {
    EXPECT_THAT(of_amaxes(Ranks(2), group),
                HasSubstr(absl::StrCat("variants[1].parallel.amax_groups[input] is ", group,
                                       ": each expert is whole on its rank, and no two ranks")));
  }
  EXPECT_THAT(of_amaxes(Ranks(2, 2), "0,1/2,3"), HasSubstr("no two ranks of a list have the same"));
  EXPECT_THAT(of_amaxes(Ranks(2, 2), "tensor"), HasSubstr("needs tensor_parallel > 1"));
  EXPECT_THAT(of_amaxes(Ranks(2), "data"), HasSubstr("needs data_parallel > 1"));
  LayerRequest linear;
  linear.x = Normal(1, {32, kIn});
  linear.parameters["weight"] = Normal(2, {kOut, kIn});
  EXPECT_THAT(refusal(linear, Ranks(2)),
              HasSubstr("layer.kind is linear: expert_parallel divides the experts"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
