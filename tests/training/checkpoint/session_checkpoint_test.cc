// Checkpoints: a session that goes on from one has the bits of the one that never stopped, on any
// engine; files of other sessions and files that lie are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/tensor/files/tensor_file.h"
#include "tests/tensor/scratch_file.h"
#include "tests/training/session_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

SessionSpec SpecOf(const SessionCase& which) {
  SessionSpec spec = TwoLayerSpec(which.recipe);
  which.Set(spec);
  return spec;
}

class SessionCheckpoint : public ::testing::TestWithParam<SessionCase> {
 protected:
  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 2});
};

/// With gradients that no update has used yet, and weights that are cached.
void TrainToTheMiddle(OneRankSession& session) {
  TrainOnce(session, 100);
  ForwardStep forward = ForwardOf(200);
  forward.is_first = Microbatch::kFirst;
  ASSERT_TRUE(session.Forward(forward, nullptr).ok());
  ASSERT_TRUE(session.Backward(BackwardOf(201), nullptr).ok());
}

void GoOn(OneRankSession& session) {
  ForwardStep forward = ForwardOf(202);
  forward.is_first = Microbatch::kLater;
  ASSERT_TRUE(session.Forward(forward, nullptr).ok());
  ASSERT_TRUE(session.Backward(BackwardOf(203), nullptr).ok());
  ASSERT_TRUE(session.Optimize({}, nullptr).ok());
  TrainOnce(session, 300);
}

TEST_P(SessionCheckpoint, GoesOnWithTheSameBitsFromAFileOnAnotherEngine) {
  const SessionSpec spec = SpecOf(GetParam());
  const auto uninterrupted = OpenOn(*engine_, spec);
  ASSERT_NE(uninterrupted, nullptr);
  TrainToTheMiddle(*uninterrupted);
  const auto checkpoint = uninterrupted->Checkpoint(nullptr);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const ScratchFile file("session_checkpoint.safetensors");
  ASSERT_TRUE(WriteSafetensors(file.path(), checkpoint->tensors, checkpoint->metadata).ok());

  const auto scalar = MakeCpuEngine({.isa = Isa::kScalar, .threads = 1});
  const auto read = ReadSafetensors(file.path());
  ASSERT_TRUE(read.ok()) << read.status();
  auto restored = OneRankSession::Restore(*scalar, spec, *read, nullptr);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(DigestsOf(**restored), DigestsOf(*uninterrupted));
  EXPECT_EQ((*restored)->step_count(), uninterrupted->step_count());

  GoOn(*uninterrupted);
  GoOn(**restored);
  EXPECT_EQ(DigestsOf(**restored), DigestsOf(*uninterrupted));
}

TEST_P(SessionCheckpoint, WritesTheSameBytesAgainAfterARestore) {
  const SessionSpec spec = SpecOf(GetParam());
  const auto session = OpenOn(*engine_, spec);
  TrainToTheMiddle(*session);
  const auto first = session->Checkpoint(nullptr);
  ASSERT_TRUE(first.ok());
  const auto restored = OneRankSession::Restore(*engine_, spec, *first, nullptr);
  ASSERT_TRUE(restored.ok()) << restored.status();
  const auto second = (*restored)->Checkpoint(nullptr);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(first->metadata, second->metadata);
  ASSERT_EQ(first->tensors.size(), second->tensors.size());
  for (size_t i = 0; i < first->tensors.size(); ++i) {
    EXPECT_EQ(first->tensors[i].name, second->tensors[i].name);
    EXPECT_TRUE(SameBits(first->tensors[i].tensor, second->tensors[i].tensor));
  }
}

TEST_P(SessionCheckpoint, AnUpdateAfterARestoreTakesTheGradientsOfBefore) {
  const SessionSpec spec = SpecOf(GetParam());
  const auto session = OpenOn(*engine_, spec);
  TrainToTheMiddle(*session);
  const auto before = DigestsOf(*session);
  const auto checkpoint = session->Checkpoint(nullptr);
  ASSERT_TRUE(checkpoint.ok());
  const auto restored = OneRankSession::Restore(*engine_, spec, *checkpoint, nullptr);
  ASSERT_TRUE(restored.ok()) << restored.status();
  for (OneRankSession* each : {session.get(), restored->get()}) {
    const auto updated = each->Optimize({}, nullptr);
    ASSERT_TRUE(updated.ok()) << updated.status();
  }
  EXPECT_EQ(DigestsOf(**restored), DigestsOf(*session));
  EXPECT_NE(DigestsOf(**restored), before);
}

constexpr char kE2M3[] = R"(custom:rules=[{"quantizer":{"format":"mxfp8","element":"f6_e2m3"}}])";
constexpr char kE3M2[] = R"(custom:rules=[{"quantizer":{"format":"mxfp8","element":"f6_e3m2"}}])";
constexpr char kTwoScales[] =
    R"(hybrid:fprop=fp8_current,dgrad={"name":"fp8_current","knobs":{"power_2_scales":"true"}})";
constexpr auto kQuantized = WeightStorage::kQuantized;
INSTANTIATE_TEST_SUITE_P(
    Sessions, SessionCheckpoint,
    ::testing::Values(SessionCase{"Bf16", "bf16"},
                      SessionCase{"Delayed", "fp8_delayed:amax_history_len=4"},
                      SessionCase{"Current", "fp8_current"}, SessionCase{"Nvfp4", "nvfp4"},
                      SessionCase{"RemainderAndMainGrads", "mxfp8", WeightStorage::kHighPrecision,
                                  Masters::kBf16Remainder, true},
                      SessionCase{"QuantizedDelayed", "fp8_delayed", kQuantized},
                      SessionCase{"QuantizedBlock", "fp8_block", kQuantized},
                      SessionCase{"QuantizedMxfp8", "mxfp8", kQuantized, Masters::kBf16Remainder},
                      SessionCase{"QuantizedNvfp4NoMasters", "nvfp4", kQuantized, Masters::kNone},
                      SessionCase{"QuantizedHybrid",
                                  "hybrid:fprop=mxfp8,dgrad=fp8_block,wgrad=mxfp8", kQuantized},
                      SessionCase{"QuantizedOfTwoScales", kTwoScales, kQuantized},
                      // Safetensors has no name for FP6: files have its codes as U8.
                      SessionCase{"QuantizedE2M3", kE2M3, kQuantized},
                      SessionCase{"QuantizedE3M2NoMasters", kE3M2, kQuantized, Masters::kNone}),
    [](const auto& info) { return info.param.name; });

class SessionRestore : public ::testing::Test {
 protected:
  SessionRestore() {
    spec_ = TwoLayerSpec("fp8_delayed:amax_history_len=4");
    const auto session = OpenOn(*engine_, *spec_);
    TrainOnce(*session, 100);
    file_ = *session->Checkpoint(nullptr);
  }
  absl::Status Restore(const SessionSpec& spec) {
    return OneRankSession::Restore(*engine_, spec, file_, nullptr).status();
  }
  void ExpectMalformed(const std::string& what) {
    const absl::Status status = Restore(*spec_);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }
  void Replace(const std::string& key, const std::string& from, const std::string& to) {
    std::string& text = file_.metadata.at(key);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << text;
    text.replace(at, from.size(), to);
  }

  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
  std::optional<SessionSpec> spec_;
  TensorFile file_;
};

TEST_F(SessionRestore, RefusesAnotherSessionByName) {
  const auto expect_refused = [&](const SessionSpec& spec, const std::string& what) {
    const absl::Status status = Restore(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  };
  SessionSpec spec = *spec_;
  spec.layers[1].name = "out";
  expect_refused(spec, "/layers/1/name is \"fc2\", this session's is \"out\"");
  spec = *spec_;
  spec.layers.pop_back();
  expect_refused(spec, "/layers/1");
  spec = *spec_;
  spec.layers[0].spec.fused = false;
  expect_refused(spec, "/layers/0/fused is true, this session's is false");
  spec = *spec_;
  spec.masters = Masters::kNone;
  expect_refused(spec, "/masters is \"f32\"");
  spec = *spec_;
  spec.seed = 1;
  expect_refused(spec, "/seed is 77, this session's is 1");
  spec = *spec_;
  spec.recipe = *Recipe::Parse("fp8_current");
  expect_refused(spec, "of recipe fp8_delayed");
}

TEST_F(SessionRestore, TakesOtherKnobsOfItsRecipeAsAChange) {
  SessionSpec spec = *spec_;
  spec.recipe = *Recipe::Parse("fp8_delayed:amax_history_len=4,margin=3");
  auto restored = OneRankSession::Restore(*engine_, spec, file_, nullptr);
  ASSERT_TRUE(restored.ok()) << restored.status();
  auto same = OneRankSession::Restore(*engine_, *spec_, file_, nullptr);
  ASSERT_TRUE((*same)->ChangeRecipe(spec.recipe).ok());
  EXPECT_EQ(DigestsOf(**restored), DigestsOf(**same));
}

TEST_F(SessionRestore, RefusesFilesThatLie) {
  const TensorFile good = file_;
  file_.metadata.erase("quantgate.session");
  ExpectMalformed("no checkpoint of a session: its metadata has no \"quantgate.session\"");
  file_.metadata["quantgate.session"] = "2";
  ExpectMalformed("metadata \"quantgate.session\" must be \"1\"");
  file_ = good;
  file_.metadata.erase("state");
  ExpectMalformed("metadata \"state\" is absent");
  file_ = good;
  file_.metadata["state"] = "{\"layers\":[";
  ExpectMalformed("metadata \"state\" is no JSON object");
  file_ = good;
  file_.metadata["state"] = "[]";
  ExpectMalformed("metadata \"state\" is no JSON object");
  file_ = good;
  file_.metadata["recipe"] = "fp9";
  ExpectMalformed("fp9");
  file_ = good;
  Replace("state", "\"next_call_id\":", "\"next_call_id\":-");
  ExpectMalformed("next_call_id must be an integer from 0");
  for (const std::string count : {"step_count", "optimizer_steps"}) {
    file_ = good;
    Replace("state", "\"" + count + "\":", "\"" + count + "\":9007199254740993,\"was\":");
    ExpectMalformed(count + " must be an integer from 0 to 9007199254740992");
  }
  file_ = good;
  Replace("state", "\"shape\":[96,64]", "\"shape\":[9223372036854775807,64]");
  ExpectMalformed("fc1.weight");
  file_ = good;
  Replace("state", "\"shape\":[96,64]", "\"shape\":[96,-64]");
  ExpectMalformed("fc1.weight.shape");
  file_ = good;
  Replace("state", "\"shape\":[96,64]", "\"shape\":\"x\"");
  ExpectMalformed("fc1.weight.shape");
  file_ = good;
  Replace("state", "\"bias\":", "\"bios\":");
  ExpectMalformed("bios");
  file_ = good;
  file_.tensors.pop_back();
  ExpectMalformed("is absent");
  file_ = good;
  file_.tensors.push_back({"fc1.weight.workspace.rowwise_data", file_.tensors[0].tensor});
  ExpectMalformed("fc1.weight.workspace.rowwise_data; this state has none of that name");
  file_ = good;
  file_.tensors[0].tensor = *Tensor::FromScalar(1);
  ExpectMalformed("it must be");
}

TEST_F(SessionRestore, RefusesStatesThatCannotBe) {
  for (NamedTensor& tensor : file_.tensors) {
    if (tensor.name == "fc1.input.scale") tensor.tensor = *Tensor::FromScalar(-1);
  }
  ExpectMalformed("[fc1.input].scale is -1: must be positive and finite");
}

/// A checkpoint that has one scale beside two copies has the rowwise one's; nothing is said of the
/// other until the weight is quantized again.
TEST(SessionRestoreOfOneScale, LeavesTheColumnwiseCopyWithoutOne) {
  const SessionSpec spec = SpecOf({"", kTwoScales, kQuantized});
  const auto engine = MakeCpuEngine({.threads = 1});
  const auto session = OpenOn(*engine, spec);
  TrainOnce(*session, 100);
  TensorFile file = *session->Checkpoint(nullptr);
  const std::string name = "fc1.weight.quantized.";
  const auto own = session->Find(name + "rowwise_scale", nullptr);
  ASSERT_TRUE(own.ok()) << own.status();
  std::erase_if(file.tensors, [](const NamedTensor& tensor) {
    return tensor.name.ends_with(".columnwise_scale");
  });
  for (NamedTensor& tensor : file.tensors) {
    if (tensor.name == name + "rowwise_scale") tensor.name = name + "scale";
  }
  for (int round = 0; round < 2; ++round) {
    const auto restored = OneRankSession::Restore(*engine, spec, file, nullptr);
    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_TRUE(SameBits(*(*restored)->Find(name + "rowwise_scale", nullptr), *own));
    EXPECT_FALSE((*restored)->Find(name + "columnwise_scale", nullptr).ok());
    EXPECT_FALSE((*restored)->Find(name + "scale", nullptr).ok());
    file = *(*restored)->Checkpoint(nullptr);
    TrainOnce(**restored, 200);
    EXPECT_TRUE((*restored)->Find(name + "columnwise_scale", nullptr).ok());
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
