// Sessions whose experts are divided over ranks: what a rank has; layers beside the experts'; what
// is refused. Their bits are those of scenarios.
#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/training/expert_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ExpertStates : public ::testing::Test {
 protected:
  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
};

TEST_F(ExpertStates, RanksHaveTheirExpertsAndRowsTravel) {
  SessionSpec spec = ExpertLayers("mxfp8");
  spec.parallel = Experts(3);  // Two experts on rank 0, one on each of the others.
  const auto session = OpenRanks(*engine_, spec, ExpertParameters());
  ASSERT_NE(session, nullptr);
  const auto digests = DigestsOf(*session);
  for (const char* name : {"rank0.fc1.weight.0", "rank0.fc1.weight.1", "rank1.fc1.weight.2",
                           "rank2.fc2.weight.3.exp_avg", "rank2.fc1.bias.3.master"}) {
    EXPECT_EQ(digests.count(name), 1u) << name;
  }
  for (const char* name : {"rank0.fc1.weight.2", "rank1.fc1.weight.0", "rank2.fc2.weight.0"}) {
    EXPECT_EQ(digests.count(name), 0u) << name;
  }
  ForwardStep forward;
  forward.x = ExpertBatch(1);
  const auto y = session->Forward(forward, nullptr);
  ASSERT_TRUE(y.ok()) << y.status();
  const auto dx = session->Backward({"0", ExpertBatch(2)}, nullptr);
  ASSERT_TRUE(dx.ok()) << dx.status();
  const StepRecords& records = y->ranks[1].records;
  std::vector<std::string> stages, quantized, saved;
  for (const TimedStage& stage : records.stages) stages.push_back(stage.stage);
  for (const QuantizationRecord& one : records.quantizations) quantized.push_back(one.tensor);
  for (const SavedOperand& one : records.saved) saved.push_back(one.name);
  EXPECT_THAT(stages, Contains("fc1.dispatch x"));
  EXPECT_THAT(stages, Contains("fc2.combine y"));
  EXPECT_THAT(stages, Contains("fc1.quantize x.2"));
  EXPECT_THAT(quantized, Contains("fc2.weight.2"));
  EXPECT_THAT(quantized, Not(Contains("fc2.weight.0")));
  EXPECT_THAT(saved, Contains("fc1.weight.2"));
  // A third of every expert's rows, the first ranks one more: 43 + 86 + 43 of 512.
  EXPECT_EQ(y->ranks[0].outputs[0].shape[0], 43 + 0 + 86 + 43);
  std::vector<std::string> gradients;
  for (const RankStepRecords::Output& output : dx->ranks[2].outputs) {
    gradients.push_back(output.tensor);
  }
  EXPECT_EQ(gradients, std::vector<std::string>({"dx", "fc2.dw.3", "fc1.dw.3", "fc1.db.3"}));
}

// Other layers are copies: their rows have the same bits, and their gradients are sums over ranks.
TEST_F(ExpertStates, OtherLayersAreCopies) {
  SessionSpec spec = ExpertLayers("bf16");
  spec.layers[1] = {"fc", {}};
  auto parameters = ExpertParameters();
  parameters["fc.weight"] = Normal(40, {kExpertColumns, kExpertColumns});
  const auto one = OpenRanks(*engine_, spec, parameters);
  spec.parallel = Experts(2);
  const auto session = OpenRanks(*engine_, spec, parameters);
  ASSERT_TRUE(one != nullptr && session != nullptr);
  ForwardStep forward;
  forward.x = ExpertBatch(1);
  ExpectSameStep(*one, *session, [&](Session& each) { return each.Forward(forward, nullptr); });
  const auto whole = one->Backward({"0", ExpertBatch(2)}, nullptr);
  const auto backward = session->Backward({"0", ExpertBatch(2)}, nullptr);
  ASSERT_TRUE(whole.ok() && backward.ok()) << whole.status() << backward.status();
  EXPECT_THAT(backward->rank_differences, IsEmpty());
  for (const char* name : {"dx", "fc2.dw.2", "fc1.dw.0", "fc1.db.3"}) {
    EXPECT_TRUE(SameBits(OutputOf(whole, name), OutputOf(backward, name))) << name;
  }
  // Before the update each rank has its own; after it they have the same.
  EXPECT_EQ(session->Checkpoint(nullptr)->metadata.count("ranks"), 1u);
  ASSERT_TRUE(session->Optimize({}, nullptr).ok());
  EXPECT_EQ(session->Checkpoint(nullptr)->metadata.count("ranks"), 0u);
  const auto digests = DigestsOf(*session);
  EXPECT_EQ(digests.at("rank0.fc.weight"), digests.at("rank1.fc.weight"));
}

TEST_F(ExpertStates, Refusals) {
  const auto refusal = [&](const std::function<void(SessionSpec&)>& change) {
    SessionSpec spec = ExpertLayers("bf16");
    spec.parallel = Experts(2);
    change(spec);
    const auto session = OpenSession(*engine_, spec, ExpertParameters(), nullptr, nullptr);
    EXPECT_FALSE(session.ok());
    return std::string(session.status().message());
  };
  EXPECT_THAT(refusal([](SessionSpec& spec) { spec.parallel = Experts(5); }),
              HasSubstr("layers[0].layer.m_splits is 4 experts: each of the 5 ranks has an"));
  EXPECT_THAT(refusal([](SessionSpec& spec) {
                spec.layers[2].spec.m_splits = {0, 128, 256, 128};
              }),
              HasSubstr("layers[2].layer.m_splits[0] is 0: on several ranks all grouped_linear "
                        "layers have the same, "
                        "and in layer fc1 it is 128"));
  EXPECT_THAT(refusal([](SessionSpec& spec) { spec.layers = {spec.layers[1]}; }),
              HasSubstr("parallel.expert_parallel is 2: no layer is a grouped_linear"));
  for (const int64_t split : {int64_t{-1}, int64_t{1} << 40}) {
    EXPECT_THAT(refusal([&](SessionSpec& spec) { spec.layers[0].spec.m_splits[1] = split; }),
                HasSubstr("layers[0].layer.m_splits[1] is " + std::to_string(split)));
  }
  SessionSpec spec = ExpertLayers("bf16");
  spec.parallel = Experts(2);
  auto parameters = ExpertParameters();
  parameters.erase("fc2.weight.3");
  const absl::Status missing = OpenSession(*engine_, spec, parameters, nullptr, nullptr).status();
  EXPECT_THAT(std::string(missing.message()),
              HasSubstr("layers[fc2].parameters[weight.3] is absent"));
  const auto session = OpenRanks(*engine_, spec, ExpertParameters());
  ForwardStep forward;
  forward.x = Normal(1, {kBatch / 2, kExpertColumns});
  ASSERT_NE(session, nullptr);
  EXPECT_THAT(std::string(session->Forward(forward, nullptr).status().message()),
              HasSubstr("x is bf16[256x128]: on several ranks it must have a rank of 2 and "
                        "the 512 rows"));
  // What fails on a rank leaves all as they were, with groups for the next step.
  forward.x = Normal(1, {kBatch, kExpertColumns / 2});
  EXPECT_FALSE(session->Forward(forward, nullptr).ok());
  forward.x = ExpertBatch(1);
  EXPECT_TRUE(session->Forward(forward, nullptr).ok());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
