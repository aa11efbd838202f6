// Checkpoints of sessions on several ranks: the bytes do not depend on the ranks, whoever wrote the
// file and whoever went on from it; training goes on with the bits of training that never stopped;
// what is each rank's own only the same ranks can continue.
#include <gmock/gmock.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "kernels/tensor/files/tensor_file.h"
#include "tests/tensor/scratch_file.h"
#include "tests/training/parallel/parallel_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

constexpr int64_t kBatch = 64, kNarrow = 128, kWide = 512;

SessionSpec SpecOf(const SessionCase& of) {
  SessionSpec spec = LinearLayers(of.recipe, {ParallelMode::kColumn, ParallelMode::kRow});
  if (of.is_mlp) BecomeGatedMlp(spec);
  of.Set(spec);
  spec.seed = 5;
  return spec;
}

std::map<std::string, Tensor> ParametersOf(const SessionCase& of) {
  if (of.is_mlp) {
    return {{"fc1.gamma", Normal(1, {kNarrow})},
            {"fc1.beta", Normal(2, {kNarrow})},
            {"fc1.fc1.weight", Normal(3, {kWide, kNarrow})},
            {"fc1.fc1.bias", Normal(4, {kWide})},
            {"fc1.fc2.weight", Normal(5, {kNarrow, kWide / 2})},
            {"fc1.fc2.bias", Normal(6, {kNarrow})}};
  }
  return {{"fc1.weight", Normal(3, {kWide, kNarrow})},
          {"fc1.bias", Normal(4, {kWide})},
          {"fc2.weight", Normal(5, {kNarrow, kWide})},
          {"fc2.bias", Normal(6, {kNarrow})}};
}

Tensor Batch(uint64_t seed) { return Normal(seed, {kBatch, kNarrow}); }

void Pass(Session& session, uint64_t seed, Microbatch is_first = Microbatch::kUnset) {
  ForwardStep forward;
  forward.x = Batch(seed);
  forward.is_first = is_first;
  const auto y = session.Forward(forward, nullptr);
  ASSERT_TRUE(y.ok()) << y.status();
  const auto dx = session.Backward({"0", Batch(seed + 1)}, nullptr);
  ASSERT_TRUE(dx.ok()) << dx.status();
}

void Update(Session& session) {
  const auto updated = session.Optimize({}, nullptr);
  ASSERT_TRUE(updated.ok()) << updated.status();
}

/// Two updates, and gradients that no update has used yet.
void TrainToTheMiddle(Session& session, bool caches) {
  for (const uint64_t seed : {100, 110}) {
    Pass(session, seed);
    Update(session);
  }
  Pass(session, 120, caches ? Microbatch::kFirst : Microbatch::kUnset);
}

void GoOn(Session& session, bool caches) {
  Pass(session, 130, caches ? Microbatch::kLater : Microbatch::kUnset);
  Update(session);
  Pass(session, 140);
  Update(session);
}

/// Through a file, whose tensors and metadata it gives.
TensorFile CheckpointOf(Session& session) {
  const auto checkpoint = session.Checkpoint(nullptr);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  if (!checkpoint.ok()) return {};
  const ScratchFile file("parallel_checkpoint.safetensors");
  EXPECT_TRUE(WriteSafetensors(file.path(), checkpoint->tensors, checkpoint->metadata).ok());
  return *ReadSafetensors(file.path());
}

std::unique_ptr<Session> GoOnFrom(Engine& engine, SessionSpec spec,
                                  const std::optional<ParallelSpec>& parallel,
                                  const TensorFile& file) {
  if (parallel.has_value()) {
    spec.parallel = parallel;
  } else {
    spec = OnOneRank(spec);
  }
  auto session = RestoreSession(engine, spec, file, nullptr, nullptr);
  EXPECT_TRUE(session.ok()) << session.status();
  return session.ok() ? *std::move(session) : nullptr;
}

void ExpectSameFile(const TensorFile& subject, const TensorFile& reference) {
  EXPECT_EQ(subject.metadata, reference.metadata);
  ASSERT_EQ(subject.tensors.size(), reference.tensors.size());
  for (size_t i = 0; i < subject.tensors.size(); ++i) {
    EXPECT_EQ(subject.tensors[i].name, reference.tensors[i].name);
    EXPECT_TRUE(SameBits(subject.tensors[i].tensor, reference.tensors[i].tensor))
        << subject.tensors[i].name;
  }
}

class ParallelCheckpoint : public ::testing::TestWithParam<SessionCase> {
 protected:
  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
};

TEST_P(ParallelCheckpoint, IsTheSameBytesOnFourRanksTwoOneAndFourAgain) {
  SessionSpec spec = SpecOf(GetParam());
  spec.parallel = Ranks(4);
  const auto first = OpenRanks(*engine_, spec, ParametersOf(GetParam()));
  ASSERT_NE(first, nullptr);
  TrainToTheMiddle(*first, GetParam().caches);
  const TensorFile written = CheckpointOf(*first);
  ASSERT_FALSE(written.tensors.empty());
  for (const NamedTensor& tensor : written.tensors) {
    EXPECT_FALSE(absl::StartsWith(tensor.name, "rank")) << tensor.name;
  }
  TensorFile file = written;
  for (const std::optional<ParallelSpec>& parallel :
       {std::optional(Ranks(2)), std::optional<ParallelSpec>(), std::optional(Ranks(4))}) {
    const auto session = GoOnFrom(*engine_, spec, parallel, file);
    ASSERT_NE(session, nullptr);
    EXPECT_EQ(session->step_count(), first->step_count());
    file = CheckpointOf(*session);
    ExpectSameFile(file, written);
  }
  // Training that stopped and moved four times, and training that did not.
  const auto last = GoOnFrom(*engine_, spec, Ranks(4), file);
  for (Session* each : {first.get(), last.get()}) GoOn(*each, GetParam().caches);
  EXPECT_EQ(DigestsOf(*last), DigestsOf(*first));
}

constexpr auto kQuantized = WeightStorage::kQuantized;
INSTANTIATE_TEST_SUITE_P(
    Sessions, ParallelCheckpoint,
    ::testing::Values(
        SessionCase{.name = "Bf16", .recipe = "bf16", .caches = true},
        SessionCase{.name = "Current", .recipe = "fp8_current", .main_grads = true},
        SessionCase{
            .name = "DelayedCached", .recipe = "fp8_delayed:amax_history_len=4", .caches = true},
        SessionCase{.name = "Mxfp8CachedRemainder",
                    .recipe = "mxfp8",
                    .masters = Masters::kBf16Remainder,
                    .caches = true},
        SessionCase{.name = "Nvfp4", .recipe = "nvfp4"},
        SessionCase{.name = "QuantizedDelayed", .recipe = "fp8_delayed", .weights = kQuantized},
        SessionCase{.name = "QuantizedBlock", .recipe = "fp8_block", .weights = kQuantized},
        SessionCase{.name = "QuantizedMxfp8",
                    .recipe = "mxfp8",
                    .weights = kQuantized,
                    .masters = Masters::kBf16Remainder,
                    .main_grads = true},
        SessionCase{.name = "QuantizedHybrid",
                    .recipe = "hybrid:fprop=mxfp8,dgrad=fp8_block,wgrad=mxfp8",
                    .weights = kQuantized},
        SessionCase{.name = "GatedMlp", .recipe = "mxfp8", .weights = kQuantized, .is_mlp = true}),
    [](const auto& info) { return info.param.name; });

// Whatever a checkpoint says once for all ranks is what each of them has.
TEST_P(ParallelCheckpoint, GivesEveryRankBackItsState) {
  SessionSpec spec = SpecOf(GetParam());
  spec.parallel = Ranks(2);
  const auto session = OpenRanks(*engine_, spec, ParametersOf(GetParam()));
  ASSERT_NE(session, nullptr);
  const auto expect_same = [&](const char* after) {
    SCOPED_TRACE(after);
    const TensorFile file = CheckpointOf(*session);
    EXPECT_EQ(file.metadata.count("ranks"), 0u);
    const auto restored = GoOnFrom(*engine_, spec, spec.parallel, file);
    ASSERT_NE(restored, nullptr);
    EXPECT_EQ(DigestsOf(*restored), DigestsOf(*session));
  };
  expect_same("opening");
  Pass(*session, 100, GetParam().caches ? Microbatch::kFirst : Microbatch::kUnset);
  expect_same("a backward");
  Update(*session);
  expect_same("an update");
  if (!spec.recipe.is_delayed()) return;
  ForwardStep calibration;
  calibration.x = Batch(120);
  calibration.calibrate = true;
  calibration.train = false;
  ASSERT_TRUE(session->Forward(calibration, nullptr).ok());
  expect_same("a calibration");
}

class OwnParts : public ::testing::TestWithParam<SessionCase> {
 protected:
  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
};

// Copies' gradients that are not summed yet, scales of parts, gradients of own rows.
TEST_P(OwnParts, GoOnOnTheSameRanksAlone) {
  SessionSpec spec = SpecOf(GetParam());
  for (const ParallelSpec& parallel : {Ranks(2, 2, true), Ranks(2, 2), Ranks(4, 1, true)}) {
    SCOPED_TRACE(parallel.Label());
    const bool has_own_scales = absl::StrContains(GetParam().recipe, "reduce_amax=false");
    if (has_own_scales && parallel.sequence_parallel)
      continue;  // Codes of other scales don't join.
    spec.parallel = parallel;
    const auto session = OpenRanks(*engine_, spec, ParametersOf(GetParam()));
    ASSERT_NE(session, nullptr);
    TrainToTheMiddle(*session, GetParam().caches);
    const TensorFile file = CheckpointOf(*session);
    const auto restored = GoOnFrom(*engine_, spec, parallel, file);
    ASSERT_NE(restored, nullptr);
    EXPECT_EQ(DigestsOf(*restored), DigestsOf(*session));
    ExpectSameFile(CheckpointOf(*restored), file);
    for (Session* each : {session.get(), restored.get()}) GoOn(*each, GetParam().caches);
    EXPECT_EQ(DigestsOf(*restored), DigestsOf(*session));

    for (const std::optional<ParallelSpec>& other :
         {std::optional(Ranks(2)), std::optional<ParallelSpec>()}) {
      SessionSpec elsewhere = other.has_value() ? spec : OnOneRank(spec);
      elsewhere.parallel = other;
      const absl::Status refused =
          RestoreSession(*engine_, elsewhere, file, nullptr, nullptr).status();
      EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr("only the same ranks can continue"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sessions, OwnParts,
    ::testing::Values(SessionCase{.name = "Bf16MainGrads", .recipe = "bf16", .main_grads = true},
                      SessionCase{.name = "QuantizedCurrent",
                                  .recipe = "fp8_current",
                                  .weights = kQuantized,
                                  .caches = true},
                      SessionCase{.name = "QuantizedNvfp4NoMasters",
                                  .recipe = "nvfp4",
                                  .weights = kQuantized,
                                  .masters = Masters::kNone},
                      SessionCase{.name = "QuantizedPowersOf2",
                                  .recipe = "fp8_current:power_2_scales=true",
                                  .weights = kQuantized},
                      SessionCase{.name = "OwnHistories",
                                  .recipe = "fp8_delayed:reduce_amax=false"},
                      SessionCase{.name = "GatedMlp", .recipe = "mxfp8", .is_mlp = true}),
    [](const auto& info) { return info.param.name; });

class ParallelRestore : public ::testing::Test {
 protected:
  void ExpectRefused(const SessionSpec& spec, const TensorFile& file, absl::StatusCode code,
                     const std::string& what) {
    const absl::Status status = RestoreSession(*engine_, spec, file, nullptr, nullptr).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }
  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
};

// What docs/ranks.md section 5 has as equal bits is one file.
TEST_F(ParallelRestore, EqualStatesAreEqualFiles) {
  const auto train = [](Session& session) {
    ForwardStep forward;
    forward.x = Batch(1);
    ASSERT_TRUE(session.Forward(forward, nullptr).ok());
    ASSERT_TRUE(session.Backward({"0", Normal(2, {kBatch, kWide})}, nullptr).ok());
    Update(session);
  };
  for (const char* recipe : {"mxfp8", "fp8_delayed"}) {
    SessionSpec spec = LinearLayers(recipe, {ParallelMode::kColumn});
    spec.weights = kQuantized;
    const std::map<std::string, Tensor> weights = {{"fc1.weight", Normal(3, {kWide, kNarrow})}};
    const auto one = OpenRanks(*engine_, OnOneRank(spec), weights);
    train(*one);
    const TensorFile of_one = CheckpointOf(*one);
    for (const int tp : {2, 4}) {
      spec.parallel = Ranks(tp, 1, true);
      const auto session = OpenRanks(*engine_, spec, weights);
      train(*session);
      ExpectSameFile(CheckpointOf(*session), of_one);
    }
    // A file of one rank goes on on several: each copy has all of it.
    const auto copies = GoOnFrom(*engine_, spec, Ranks(2, 2), of_one);
    ASSERT_NE(copies, nullptr);
    ExpectSameFile(CheckpointOf(*copies), of_one);
  }
}

TEST_F(ParallelRestore, GradientsOfOneRankAreNobodysPart) {
  SessionSpec spec = LinearLayers("bf16", {ParallelMode::kColumn, ParallelMode::kRow});
  const auto one = OpenRanks(*engine_, OnOneRank(spec), ParametersOf({}));
  Pass(*one, 1);
  const TensorFile file = CheckpointOf(*one);
  EXPECT_NE(GoOnFrom(*engine_, spec, Ranks(2), file), nullptr);
  const auto refused = absl::StatusCode::kFailedPrecondition;
  spec.parallel = Ranks(2, 2);
  ExpectRefused(spec, file, refused, "[fc1.db]: gradients since the last optimizer step");
  // Of tensor-parallel ranks that divide rows only the bias which all of them have.
  spec.parallel = Ranks(2, 1, true);
  ExpectRefused(spec, file, refused, "[fc2.db]: gradients since the last optimizer step");
}

// Their sum is twice as much, whatever their bits.
TEST_F(ParallelRestore, EqualGradientsOfCopiesAreStillTheirOwn) {
  SessionSpec spec = LinearLayers("bf16", {ParallelMode::kNone});
  spec.parallel = Ranks(1, 2);
  const auto session = OpenRanks(*engine_, spec, {{"fc1.weight", Normal(3, {kNarrow, kNarrow})}});
  const auto twice = [](const Tensor& half) {
    Tensor whole = *Tensor::Allocate(half.dtype(), {2 * half.shape()[0], half.shape()[1]});
    for (const size_t begin : {size_t{0}, half.byte_size()}) {
      std::copy_n(half.data(), half.byte_size(), whole.data() + begin);
    }
    return whole;
  };
  ForwardStep forward;
  forward.x = twice(Batch(1));
  ASSERT_TRUE(session->Forward(forward, nullptr).ok());
  ASSERT_TRUE(session->Backward({"0", twice(Batch(2))}, nullptr).ok());
  const TensorFile file = CheckpointOf(*session);
  const auto of_first = file.Find("rank0.fc1.dw"), of_second = file.Find("rank1.fc1.dw");
  ASSERT_TRUE(of_first.ok() && of_second.ok());
  EXPECT_TRUE(SameBits(*of_first, *of_second));
  ExpectRefused(OnOneRank(spec), file, absl::StatusCode::kFailedPrecondition, "of ranks tp1 dp2");
}

TEST_F(ParallelRestore, RefusesPartsThatCutBlocks) {
  SessionSpec spec = LinearLayers("fp8_block", {ParallelMode::kColumn});
  spec.weights = kQuantized;
  const auto one =
      OpenRanks(*engine_, OnOneRank(spec), {{"fc1.weight", Normal(3, {384, kNarrow})}});
  const TensorFile file = CheckpointOf(*one);
  spec.parallel = Ranks(2);
  ExpectRefused(spec, file, absl::StatusCode::kFailedPrecondition,
                "quantized.rowwise_data]: scales of blocks");
  EXPECT_NE(GoOnFrom(*engine_, spec, Ranks(3), file), nullptr);
  spec.parallel = Ranks(5);
  ExpectRefused(spec, file, absl::StatusCode::kInvalidArgument,
                "fc1.weight: [384x128]; dim 0 must be a multiple of 5");
  // Ranks that began with such parts have them as their own.
  spec.parallel = Ranks(2);
  const auto ranks = OpenRanks(*engine_, spec, {{"fc1.weight", Normal(3, {384, kNarrow})}});
  const TensorFile own = CheckpointOf(*ranks);
  const auto again = GoOnFrom(*engine_, spec, Ranks(2), own);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(DigestsOf(*again), DigestsOf(*ranks));
}

TEST_F(ParallelRestore, RefusesFilesThatLie) {
  SessionSpec spec = LinearLayers("fp8_current", {ParallelMode::kColumn});
  spec.weights = kQuantized;
  spec.parallel = Ranks(2);
  const auto session = OpenRanks(*engine_, spec, {{"fc1.weight", Normal(3, {kWide, kNarrow})}});
  const TensorFile good = CheckpointOf(*session);
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const auto erase = [](TensorFile& file, const std::string& name) {
    std::erase_if(file.tensors, [&](const NamedTensor& tensor) { return tensor.name == name; });
  };
  TensorFile file = good;
  erase(file, "rank1.fc1.weight.quantized.scale");
  ExpectRefused(spec, file, invalid, "tensor fc1.weight.quantized.scale is absent");
  file = good;
  file.tensors.push_back({"fc1.weight.quantized.scale", *Tensor::FromScalar(1)});
  ExpectRefused(spec, file, invalid, "this state has none of that name");
  file = good;
  for (NamedTensor& tensor : file.tensors) {
    if (absl::StartsWith(tensor.name, "rank0")) tensor.tensor = Normal(1, {2}, DType::kF32);
  }
  ExpectRefused(spec, file, invalid, "must be f32[1]");
  file = good;
  file.metadata["ranks"] = "one rank";
  ExpectRefused(OnOneRank(spec), file, absl::StatusCode::kFailedPrecondition, "of ranks one rank");
  file = good;
  file.metadata.erase("ranks");
  ExpectRefused(spec, file, invalid, "is absent");
}

TEST_F(ParallelRestore, StopsForWhatIsInFlight) {
  SessionSpec spec = LinearLayers("bf16", {ParallelMode::kColumn});
  spec.parallel = Ranks(2);
  const auto session = OpenRanks(*engine_, spec, {{"fc1.weight", Normal(3, {kWide, kNarrow})}});
  ForwardStep forward;
  forward.x = Batch(1);
  ASSERT_TRUE(session->Forward(forward, nullptr).ok());
  const absl::Status status = session->Checkpoint(nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("microbatch is 0: it is in flight"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
