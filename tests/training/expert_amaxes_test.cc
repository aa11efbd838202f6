// Amax groups of sessions with a grouped_linear: amaxes by what was put into the rows; microbatches
// that name groups of their own; what is refused.
#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/numerics/cast.h"
#include "tests/training/amax_records.h"
#include "tests/training/expert_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

/// The largest element that each expert has among the rows of the first copy and of the second:
/// more than the generator gives. Rows of expert 1: none.
constexpr float kLargest[4][2] = {{6, 10}, {0, 0}, {18, 14}, {22, 7}};

/// Those in the first rows of each half.
Tensor UnevenBatch(uint64_t seed) {
  Tensor batch = ExpertBatch(seed);
  constexpr int64_t kBegin[] = {0, 128, 128, 384}, kCount[] = {128, 0, 256, 128};
  for (size_t expert = 0; expert < 4; ++expert) {
    for (int64_t copy = 0; copy < 2 && kCount[expert] > 0; ++copy) {
      const int64_t row = kBegin[expert] + copy * kCount[expert] / 2;
      batch.as<uint16_t>()[row * kExpertColumns + 5] =
          EncodeFloat<BFloat16>(kLargest[expert][copy]);
    }
  }
  return batch;
}

ForwardStep ForwardOn(uint64_t seed, const std::string& microbatch, AmaxGroups groups = {}) {
  return ForwardOf(UnevenBatch(seed), microbatch, std::move(groups));
}

std::map<std::string, Tensor> Parameters(const SessionSpec& spec) {
  std::map<std::string, Tensor> parameters = ExpertParameters();
  if (spec.layers[1].name == "fc") {
    parameters["fc.weight"] = Normal(40, {kExpertColumns, kExpertColumns});
  }
  return parameters;
}

SessionSpec OnRanks(SessionSpec spec, const ParallelSpec& parallel, const AmaxGroups& groups) {
  spec.parallel = parallel;
  spec.parallel->amax_groups = groups;
  return spec;
}

AmaxGroups OfBatches(const std::string& group) {
  return AmaxGroupsOf({{TensorRole::kInput, group}, {TensorRole::kGradOutput, group}});
}

// Where ranks divide the experts' weights, rows come to them as they were given: they are cast for
// their amax and for their codes at once.
TEST(ExpertAmaxes, RowsInAnotherDtypeAreCastOnce) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const SessionSpec spec = FirstExperts("fp8_current:activation_dtype=bf16", ParallelMode::kColumn);
  const Tensor x = Normal(1, {kBatch, kExpertColumns}, DType::kF32);
  const Tensor rounded = *engine->Cast(x, DType::kBF16, nullptr);
  for (const char* group : {"default", "data"}) {
    SCOPED_TRACE(group);
    const SessionSpec on_ranks = OnRanks(
        spec, Ranks(2, 2), WithGroupsOfCall(AmaxGroupsOf({{TensorRole::kInput, group}}), {}));
    const auto session = OpenRanks(*engine, on_ranks, FirstExpertParameters());
    const auto expected = OpenRanks(*engine, on_ranks, FirstExpertParameters());
    ASSERT_TRUE(session != nullptr && expected != nullptr);
    const auto y = session->Forward(ForwardOf(x, "0", {}), nullptr);
    EXPECT_TRUE(SameBits(OutputOf(y, "y"),
                         OutputOf(expected->Forward(ForwardOf(rounded, "0", {}), nullptr), "y")));
    std::vector<std::string> stages;
    for (const TimedStage& stage : y->ranks[1].records.stages) stages.push_back(stage.stage);
    for (const char* stage : {"fc1.cast x.0", "fc1.cast x.2", "fc1.cast x.3"}) {
      EXPECT_EQ(std::count(stages.begin(), stages.end(), stage), 1) << stage;
    }
  }
}

struct NamedCase {
  const char* group;
  bool is_of_both_copies;     ///< An expert's rows.
  std::vector<size_t> ranks;  ///< Whose rows of other layers rank 0 quantizes under one scale.
  const char* text;           ///< Of rank 0.
};

// Two copies on two ranks each: an expert is on one rank of either.
TEST(ExpertAmaxes, AreThoseOfTheRowsThatTheGroupHas) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const SessionSpec spec = MixedLayers("fp8_current");
  const NamedCase cases[] = {{"default", false, {0}, ""},
                             {"none", false, {0}, "none"},
                             {"data", true, {0, 2}, "data (ranks 0, 2)"},
                             {"world", true, {0, 1, 2, 3}, "world (ranks 0, 1, 2, 3)"},
                             {"0,1/2,3", false, {0, 1}, "0,1/2,3 (ranks 0, 1)"},
                             {"0/1/2/3", false, {0}, "0/1/2/3 (ranks 0)"}};
  const auto session = OpenRanks(*engine, OnRanks(spec, Experts(2, 2), {}), Parameters(spec));
  for (const NamedCase& one : cases) {
    SCOPED_TRACE(one.group);
    ForwardStep step = ForwardOn(1, "0", OfBatches(one.group));
    step.train = false;
    const auto named = session->Forward(step, nullptr);
    for (size_t rank = 0; rank < 4; ++rank) {
      const size_t copy = rank / 2;
      for (size_t expert = rank % 2 * 2; expert < rank % 2 * 2 + 2; ++expert) {
        const float* const of_copies = kLargest[expert];
        const QuantizationRecord record = RecordOf(named, rank, absl::StrCat("fc1.x.", expert));
        EXPECT_EQ(record.amax,
                  one.is_of_both_copies ? std::max(of_copies[0], of_copies[1]) : of_copies[copy])
            << rank << " " << expert;
      }
    }
    EXPECT_EQ(RecordOf(named, 0, "fc1.x.0").amax_group, one.text);
    // The rows of other layers are the experts' outputs, which the named scales have changed: the
    // amaxes of a group are equal, and another's are not.
    const auto of_rank = [&](size_t rank) { return *RecordOf(named, rank, "fc.x").amax; };
    for (size_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(of_rank(rank) == of_rank(0), std::count(one.ranks.begin(), one.ranks.end(), rank))
          << rank;
    }
  }
}

// What each rank's experts saw, by what was put into the rows: row 0 of a history is rolled away.
TEST(ExpertAmaxes, DelayedScalingReducesOverTheGroupOfItsForward) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const SessionSpec spec = FirstExperts("fp8_delayed", ParallelMode::kNone);
  struct Case {
    int ranks;
    const char* x;
    const char* dy;
    bool x_is_of_both, dy_is_of_both;
  };
  const Case cases[] = {{1, "default", "none", true, false}, {1, "none", "data", false, true},
                        {2, "default", "none", true, false}, {2, "none", "world", false, true},
                        {2, "data", "0,2/1,3", true, true},  {2, "world", "default", true, true}};
  for (const Case& one : cases) {
    SCOPED_TRACE(absl::StrCat(one.ranks, " ", one.x, " ", one.dy));
    const AmaxGroups groups =
        AmaxGroupsOf({{TensorRole::kInput, one.x}, {TensorRole::kGradOutput, one.dy}});
    const auto session =
        OpenRanks(*engine, OnRanks(spec, Experts(one.ranks, 2), {}), FirstExpertParameters());
    ASSERT_TRUE(session->Forward(ForwardOn(1, "0", groups), nullptr).ok());
    ASSERT_TRUE(session->Backward({"0", UnevenBatch(2)}, nullptr).ok());
    for (size_t rank = 0; rank < static_cast<size_t>(one.ranks) * 2; ++rank) {
      const size_t copy = rank / static_cast<size_t>(one.ranks);
      for (size_t expert = 0; expert < 4; ++expert) {
        if (one.ranks == 2 && expert / 2 != rank % 2) continue;
        const float both = std::max(kLargest[expert][0], kLargest[expert][1]);
        const float own = kLargest[expert][copy];
        const auto amax = [&](const char* state) {
          return LargestOf(
              *session, absl::StrCat("rank", rank, ".fc1.", state, ".", expert, ".amax_history"));
        };
        EXPECT_EQ(amax("input"), one.x_is_of_both ? both : own) << rank << " " << expert;
        EXPECT_EQ(amax("grad_output"), one.dy_is_of_both ? both : own) << rank << " " << expert;
      }
    }
  }
}

/// y, dx and one expert's dw.
using Bits = std::vector<std::string>;

Bits BitsOf(Engine& engine, const absl::StatusOr<SessionStepResult>& forward,
            const absl::StatusOr<SessionStepResult>& backward) {
  return {HexOf(engine, forward, "y"), HexOf(engine, backward, "dx"),
          HexOf(engine, backward, "fc1.dw.2")};
}

// A backward reduces over what its own forward named, whatever came between, a recomputation and a
// failure, after which the ranks' groups are made anew, among it.
TEST(ExpertAmaxes, InterleavedMicrobatchesKeepTheirGroups) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const std::vector<AmaxGroups> calls = {
      OfBatches("data"), {}, OfBatches("world"), OfBatches("0,1/2,3")};
  SessionSpec spec = MixedLayers("fp8_current");
  spec.optimizer.kind = OptimizerSpec::Kind::kNone;
  std::vector<Bits> expected;
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto alone = OpenRanks(*engine, OnRanks(spec, Experts(2, 2), calls[i]), Parameters(spec));
    const auto forward = alone->Forward(ForwardOn(1, "0"), nullptr);
    expected.push_back(BitsOf(*engine, forward, alone->Backward({"0", UnevenBatch(2)}, nullptr)));
    for (size_t before = 0; before < i; ++before) EXPECT_NE(expected[before], expected[i]);
  }
  const auto session = OpenRanks(*engine, OnRanks(spec, Experts(2, 2), {}), Parameters(spec));
  std::vector<absl::StatusOr<SessionStepResult>> forwards;
  for (size_t i = 0; i < calls.size(); ++i) {
    ForwardStep step = ForwardOn(1, std::to_string(i), calls[i]);
    step.recompute = i == 2;
    forwards.push_back(session->Forward(step, nullptr));
  }
  EXPECT_FALSE(session->Backward({"no such", UnevenBatch(2)}, nullptr).ok());
  for (const size_t i : {1, 3, 0, 2}) {
    const auto backward = session->Backward({std::to_string(i), UnevenBatch(2)}, nullptr);
    EXPECT_EQ(BitsOf(*engine, forwards[i], backward), expected[i]) << i;
  }
}

// Codes that are quantized by an update on a rank that has half of the experts: no rank waits for
// one with others.
TEST(ExpertAmaxes, HeldWeightsOfDividedExpertsKeepTheirOwn) {
  const auto engine = MakeCpuEngine({.threads = 1});
  SessionSpec spec = ExpertLayers("fp8_current");
  spec.weights = WeightStorage::kQuantized;
  const auto by_default = OpenRanks(*engine, OnRanks(spec, Experts(3, 2), {}), Parameters(spec));
  const auto named = OpenRanks(
      *engine, OnRanks(spec, Experts(3, 2), AmaxGroupsOf({{TensorRole::kWeight, "world"}})),
      Parameters(spec));
  for (Session* const session : {by_default.get(), named.get()}) {
    PassExperts(*session, 5);
    ASSERT_TRUE(session->Optimize({}, nullptr).ok());
  }
  ExpectSameFiles(*by_default, *named);
}

TEST(ExpertAmaxes, RefusalsNameFieldValueAndRule) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const auto refusal = [&](const SessionSpec& spec, int ranks, int copies, const char* group) {
    const absl::Status status =
        OpenSession(*engine, OnRanks(spec, Experts(ranks, copies), OfBatches(group)),
                    Parameters(spec), nullptr, nullptr)
            .status();
    return std::string(status.message());
  };
  const SessionSpec experts = ExpertLayers("fp8_current"), mixed = MixedLayers("fp8_current");
  const std::string rule =
      "each expert is whole on its rank, and no two ranks of a list have the same experts";
  EXPECT_EQ(refusal(experts, 2, 1, "world"), "parallel.amax_groups[input] is world: " + rule);
  EXPECT_EQ(refusal(experts, 2, 2, "0,1/2,3"), "parallel.amax_groups[input] is 0,1/2,3: " + rule);
  EXPECT_THAT(refusal(experts, 2, 1, "data"), HasSubstr("needs data_parallel > 1"));
  EXPECT_THAT(refusal(experts, 2, 2, "tensor"), HasSubstr("needs tensor_parallel > 1"));
  // Other layers have rows of their own on every rank; and lists of one rank are `none`.
  for (const char* group : {"world", "0,1"}) EXPECT_EQ(refusal(mixed, 2, 1, group), "");
  EXPECT_EQ(refusal(experts, 2, 1, "0/1"), "");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
