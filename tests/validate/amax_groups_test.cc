// Amax groups of a run by name: with the group over which a tensor is divided, operands have the
// scales of one rank, and so the bits; with lists of ranks those of the same parts alone; what is
// joined under scales that differ is refused; reports say which group.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/validate/run/run.h"
#include "tests/engine/tensor_values.h"
#include "tests/validate/rank_variants.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kM = 64, kK = 128, kO = 256;

/// Of 1/2, 1 and their negatives, so that amaxes are told apart by the largest element alone.
Tensor Ones(uint64_t seed, Shape shape) {
  Tensor tensor = *Tensor::Allocate(DType::kBF16, std::move(shape));
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    constexpr uint16_t kValues[] = {0x3f00, 0x3f80, 0xbf00, 0xbf80};
    tensor.as<uint16_t>()[i] = kValues[seed >> 62];
  }
  return tensor;
}

void Put(Tensor& tensor, int64_t index, uint16_t bf16) { tensor.as<uint16_t>()[index] = bf16; }

/// Every quarter of each operand, along either dim, has an amax of its own.
Tensor Uneven(uint64_t seed, int64_t rows, int64_t columns) {
  Tensor tensor = Generated(Distribution::kNormal, seed, DType::kBF16, {rows, columns});
  for (int64_t part = 0; part < 4; ++part) {
    // 5, 7, 9, 11: all above what the generator gives.
    constexpr uint16_t kLarge[] = {0x40a0, 0x40e0, 0x4110, 0x4130};
    Put(tensor, (part * rows / 4) * columns + part * columns / 4, kLarge[part]);
  }
  return tensor;
}

LayerRequest Linear(ParallelMode mode) {
  LayerRequest step;
  step.layer.parallel_mode = mode;
  step.x = Uneven(1, kM, kK);
  step.parameters = {{"weight", Uneven(2, kO, kK)}};
  step.grad_output = Uneven(4, kM, kO);
  return step;
}

AmaxGroups Groups(const std::vector<std::pair<TensorRole, std::string>>& named) {
  AmaxGroups groups;
  for (const auto& [role, text] : named) groups[role] = *ParseAmaxGroup(text);
  return groups;
}

absl::StatusOr<RunReport> TryRun(const LayerRequest& step, const std::string& recipe,
                                 const std::optional<ParallelSpec>& parallel) {
  LayerRunRequest request;
  request.step = step;
  request.variants = {{*Recipe::Parse(recipe), *Arithmetic::Parse("sm90"), parallel}};
  if (absl::StartsWith(recipe, "nvfp4") || recipe == "mxfp8") {
    request.variants[0].arithmetic = *Arithmetic::Parse("sm100");
  }
  return quantgate::TryRun(request);
}

VariantReport RunOk(const LayerRequest& step, const std::string& recipe,
                    const std::optional<ParallelSpec>& parallel) {
  auto report = TryRun(step, recipe, parallel);
  EXPECT_TRUE(report.ok()) << report.status();
  return report.ok() ? std::move(report->variants[0]) : VariantReport{};
}

Tensor ValueOf(const VariantReport& variant, const std::string& name) {
  return OutputOf(variant, name).value;
}

ParallelSpec Ranks(int tp, bool sp, AmaxGroups groups) {
  ParallelSpec parallel;
  parallel.tensor_parallel = tp;
  parallel.sequence_parallel = sp;
  parallel.amax_groups = std::move(groups);
  return parallel;
}

struct WholeCase {
  const char* recipe;
  ParallelMode mode;
  std::vector<TensorRole> roles;
  std::vector<const char*> outputs;
};

class WholeAmaxTest : public ::testing::TestWithParam<WholeCase> {};

// docs/ranks.md section 5: "topology" becomes "yes" where the divided operand has the amax of
// the whole; without the group the test would show nothing, so the bits must then differ.
TEST_P(WholeAmaxTest, DividedOperandsWithTheAmaxOfAllRanksHaveTheBitsOfOne) {
  const WholeCase& given = GetParam();
  const LayerRequest step = Linear(given.mode);
  AmaxGroups groups;
  for (const TensorRole role : given.roles) groups[role] = *ParseAmaxGroup("tensor");
  LayerRequest whole = step;
  whole.layer.parallel_mode = ParallelMode::kNone;
  const VariantReport one = RunOk(whole, given.recipe, std::nullopt);
  for (const int tp : {2, 4}) {
    for (const bool sp : {false, true}) {
      SCOPED_TRACE(absl::StrCat("tp", tp, sp ? " sp" : ""));
      const VariantReport own = RunOk(step, given.recipe, Ranks(tp, sp, {}));
      const VariantReport reduced = RunOk(step, given.recipe, Ranks(tp, sp, groups));
      for (const char* output : given.outputs) {
        SCOPED_TRACE(output);
        EXPECT_TRUE(SameBits(ValueOf(reduced, output), ValueOf(one, output)));
        EXPECT_FALSE(SameBits(ValueOf(own, output), ValueOf(one, output)));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, WholeAmaxTest,
                         ::testing::Values(WholeCase{"fp8_current",
                                                     ParallelMode::kColumn,
                                                     {TensorRole::kWeight, TensorRole::kGradOutput},
                                                     {"y", "dw"}},
                                           WholeCase{"fp8_current",
                                                     ParallelMode::kRow,
                                                     {TensorRole::kInput, TensorRole::kWeight},
                                                     {"dx", "dw"}},
                                           WholeCase{"nvfp4:disable_stochastic_rounding=true",
                                                     ParallelMode::kColumn,
                                                     {TensorRole::kWeight, TensorRole::kGradOutput},
                                                     {"y", "dw"}},
                                           WholeCase{"nvfp4:disable_stochastic_rounding=true",
                                                     ParallelMode::kRow,
                                                     {TensorRole::kInput, TensorRole::kWeight},
                                                     {"dx", "dw"}}),
                         [](const auto& info) {
                           const std::string recipe = info.param.recipe;
                           return recipe.substr(0, recipe.find(':')) + "_" +
                                  std::string(ParallelModeName(info.param.mode));
                         });

// Ranks 0 and 1 hold the first half of the weight's rows: their columns of y are those of a layer
// of that half alone.
TEST(AmaxGroups, ListsOfRanksHaveTheAmaxOfTheirPartsAlone) {
  const LayerRequest step = Linear(ParallelMode::kColumn);
  const AmaxGroups pairs = Groups({{TensorRole::kWeight, "0,1/2,3"}});
  const Tensor y = ValueOf(RunOk(step, "fp8_current", Ranks(4, true, pairs)), "y");
  const auto engine = MakeCpuEngine({.threads = 1});
  for (const int64_t half : {0, 1}) {
    LayerRequest alone = step;
    alone.layer.parallel_mode = ParallelMode::kNone;
    alone.grad_output = Tensor();
    alone.parameters["weight"] =
        *engine->Slice(step.parameters.at("weight"), 0, half * kO / 2, kO / 2, nullptr);
    EXPECT_TRUE(SameBits(*engine->Slice(y, 1, half * kO / 2, kO / 2, nullptr),
                         ValueOf(RunOk(alone, "fp8_current", std::nullopt), "y")));
  }
  // Another order of the same lists is the same group.
  const AmaxGroups turned = Groups({{TensorRole::kWeight, "3,2/1,0"}});
  EXPECT_TRUE(SameBits(ValueOf(RunOk(step, "fp8_current", Ranks(4, true, turned)), "y"), y));
}

/// Rows of rank 0 have the amax 1, those of rank 1 the amax 2.
LayerRequest TwoAmaxes(ParallelMode mode) {
  LayerRequest step = Linear(mode);
  step.x = Ones(5, {kM, kK});
  step.grad_output = Ones(6, {kM, kO});
  Put(step.x, kM / 2 * kK + 3, 0x4000);
  Put(step.grad_output, kM / 2 * kO + 3, 0x4000);
  return step;
}

// scale = RN(max / amax), scale_inv = RN(1 / scale): with e4m3 448 and 224, with e5m2 57344 and
// 28672. Codes under 1 / 448 and under 1 / 224 must not become one tensor.
TEST(AmaxGroups, CodesOfOtherScalesAreRefusedBeforeTheyAreJoined) {
  struct Case {
    const char* recipe;
    ParallelMode mode;
    TensorRole role;
    const char* group;
    float rank0, rank1;
    const char* what;
  };
  const Case cases[] = {
      {"fp8_current", ParallelMode::kColumn, TensorRole::kInput, "none", 1.0f / 448, 1.0f / 224,
       "x rowwise scale_inv"},
      {"fp8_current", ParallelMode::kColumn, TensorRole::kInput, "0/1", 1.0f / 448, 1.0f / 224,
       "x rowwise scale_inv"},
      {"fp8_current", ParallelMode::kRow, TensorRole::kGradOutput, "none", 1.0f / 57344,
       1.0f / 28672, "grad_output rowwise scale_inv"},
      {"nvfp4", ParallelMode::kColumn, TensorRole::kInput, "none", 1, 2, "x rowwise amax"}};
  for (const Case& one : cases) {
    for (const bool overlaps : {false, true}) {
      if (overlaps && std::string(one.recipe) == "nvfp4") continue;
      ParallelSpec parallel = Ranks(2, true, Groups({{one.role, one.group}}));
      if (overlaps) parallel.overlap.emplace();
      const auto report = TryRun(TwoAmaxes(one.mode), one.recipe, parallel);
      EXPECT_EQ(report.status().code(), absl::StatusCode::kFailedPrecondition) << report.status();
      EXPECT_THAT(
          std::string(report.status().message()),
          AllOf(HasSubstr(absl::StrCat("amax_groups[", std::string(TensorRoleName(one.role)),
                                       "]: ", one.group, "; ")),
                HasSubstr("tensor (ranks 0, 1)"), HasSubstr(one.what),
                HasSubstr(absl::StrCat("(", one.rank0, "), rank 1")),
                HasSubstr(absl::StrCat("(", one.rank1, ")"))));
    }
  }
}

// Where every rank has the same amax there is nothing to refuse, and `world` is `tensor` in a run.
TEST(AmaxGroups, EqualScalesAreJoinedWhateverGroupTheyAreOf) {
  LayerRequest step = TwoAmaxes(ParallelMode::kColumn);
  const Tensor by_default = ValueOf(RunOk(step, "fp8_current", Ranks(2, true, {})), "y");
  const AmaxGroups world = Groups({{TensorRole::kInput, "world"}});
  EXPECT_TRUE(
      SameBits(ValueOf(RunOk(step, "fp8_current", Ranks(2, true, world)), "y"), by_default));
  Put(step.x, 3, 0x4000);
  const Tensor equal = ValueOf(RunOk(step, "fp8_current", Ranks(2, true, {})), "y");
  const AmaxGroups none = Groups({{TensorRole::kInput, "none"}});
  EXPECT_TRUE(SameBits(ValueOf(RunOk(step, "fp8_current", Ranks(2, true, none)), "y"), equal));
}

TEST(AmaxGroups, ReportsSayWhoseAmaxItIs) {
  const LayerRequest step = TwoAmaxes(ParallelMode::kColumn);
  const VariantReport by_default = RunOk(step, "fp8_current", Ranks(2, true, {}));
  const VariantReport named = RunOk(step, "fp8_current",
                                    Ranks(2, true,
                                          Groups({{TensorRole::kInput, "world"},
                                                  {TensorRole::kWeight, "0/1"},
                                                  {TensorRole::kGradOutput, "none"}})));
  EXPECT_THAT(named.label, HasSubstr("amax:input=world,weight=0/1,grad_output=none"));
  const auto record = [](const VariantReport& variant, size_t rank, const std::string& tensor) {
    for (const QuantizationRecord& one : variant.ranks[rank].quantizations) {
      if (one.tensor == tensor) return one;
    }
    ADD_FAILURE() << "no " << tensor;
    return QuantizationRecord();
  };
  EXPECT_EQ(record(by_default, 1, "x").amax_group, "tensor (ranks 0, 1)");
  EXPECT_EQ(record(by_default, 1, "weight").amax_group, "");
  EXPECT_EQ(record(named, 0, "x").amax_group, "world (ranks 0, 1)");
  EXPECT_EQ(record(named, 0, "x").amax, 2.0f);
  EXPECT_EQ(record(named, 1, "weight").amax_group, "0/1 (ranks 1)");
  EXPECT_EQ(record(named, 1, "grad_output").amax_group, "none");
  // dy of a column-parallel layer is divided along its columns: the 2 is rank 0's.
  EXPECT_EQ(record(named, 0, "grad_output").amax, 2.0f);
  EXPECT_EQ(record(named, 1, "grad_output").amax, 1.0f);
}

// What a forward and a backward leave in the histories, by hand: row 0 is rolled away, so the last
// row has the amax of the ranks over which it was reduced.
TEST(AmaxGroups, DelayedScalingReducesOncePerGroup) {
  const LayerRequest step = TwoAmaxes(ParallelMode::kColumn);
  const ParallelSpec parallel =
      Ranks(2, true, Groups({{TensorRole::kWeight, "0/1"}, {TensorRole::kGradOutput, "none"}}));
  const VariantReport report = RunOk(step, "fp8_delayed", parallel);
  std::vector<std::string> stages;
  for (const auto& stage : report.ranks[0].stages) {
    if (absl::StartsWith(stage.stage, "reduce amaxes")) stages.push_back(stage.stage);
  }
  EXPECT_EQ(stages, (std::vector<std::string>{"reduce amaxes of forward",
                                              "reduce amaxes of forward over 0/1"}));
}

struct Refusal {
  const char* recipe;
  int tp;
  TensorRole role;
  const char* group;
  const char* message;
};

class AmaxGroupRefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(AmaxGroupRefusalTest, NamesFieldValueAndRule) {
  const Refusal& given = GetParam();
  const auto report = TryRun(Linear(ParallelMode::kColumn), given.recipe,
                             Ranks(given.tp, true, Groups({{given.role, given.group}})));
  EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument) << report.status();
  EXPECT_THAT(std::string(report.status().message()),
              AllOf(HasSubstr(absl::StrCat("variants[0].parallel.amax_groups[",
                                           std::string(TensorRoleName(given.role)), "] is ",
                                           given.group, ": ")),
                    HasSubstr(given.message)));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, AmaxGroupRefusalTest,
    ::testing::Values(
        Refusal{"mxfp8", 2, TensorRole::kInput, "world", "has no amax of a whole input tensor"},
        Refusal{"bf16", 2, TensorRole::kWeight, "none", "has no amax of a whole weight tensor"},
        Refusal{"fp8_block", 2, TensorRole::kGradOutput, "tensor", "has no amax of a whole"},
        Refusal{"fp8_delayed:reduce_amax=false", 2, TensorRole::kInput, "world",
                "under reduce_amax=false every rank has its own amaxes"},
        Refusal{"fp8_current", 2, TensorRole::kInput, "data", "needs data_parallel > 1"},
        Refusal{"fp8_current", 4, TensorRole::kInput, "0,1/2", "every rank from 0 to 3 once"},
        Refusal{"fp8_current", 4, TensorRole::kInput, "0,1/1,2,3", "every rank from 0 to 3 once"},
        Refusal{"fp8_current", 2, TensorRole::kInput, "0,1,2", "every rank from 0 to 1 once"}));

TEST(AmaxGroups, NamesOfGroups) {
  for (const char* text :
       {"default", "none", "tensor", "data", "world", "0", "0,2/1,3", "3/2,1,0"}) {
    const auto group = ParseAmaxGroup(text);
    ASSERT_TRUE(group.ok()) << group.status();
    EXPECT_EQ(group->Text(), text);
  }
  for (const char* text : {"", "tp", "0,,1", "0/", "/0", "0 1", "-1", "99999999999", "0,1//2"}) {
    EXPECT_EQ(ParseAmaxGroup(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
