// Sessions of a transformer layer: each step is that of the layer alone on the session's weights;
// recomputation, offload and checkpoints change no bit; what is saved, in bytes by hand; ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "kernels/layer/layer.h"
#include "tests/training/parallel/parallel_fixture.h"
#include "tests/training/same_sessions.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

// Heads of 16 columns: four of queries, two of keys, two of values.
constexpr int64_t kSequence = 32, kBatch = 2, kColumns = 64, kHeads = 4, kHead = 16, kFc1 = 128;
constexpr int64_t kQkv = (kHeads + 4) * kHead;

SessionSpec SpecOf(const std::string& recipe, LayerKind kind = LayerKind::kTransformerLayer) {
  SessionLayer layer{"block", {}};
  layer.spec.kind = kind;
  layer.spec.attention = {
      .heads = kHeads, .groups = 2, .mask = AttentionMask::kCausal, .rotary_base = 1000.0f};
  SessionSpec spec{.layers = {layer}, .recipe = *Recipe::Parse(recipe)};
  spec.masters = Masters::kF32;
  spec.optimizer.kind = OptimizerSpec::Kind::kAdam;
  spec.optimizer.adam.learning_rate = 0.05f;
  spec.seed = 77;
  return spec;
}

std::map<std::string, Tensor> Parameters(LayerKind kind = LayerKind::kTransformerLayer) {
  std::map<std::string, Tensor> parameters = {
      {"block.qkv.weight", Normal(1, {kQkv, kColumns})},
      {"block.qkv.bias", Normal(2, {kQkv})},
      {"block.proj.weight", Normal(3, {kColumns, kHeads * kHead})}};
  if (kind == LayerKind::kAttention) return parameters;
  parameters["block.norm1.gamma"] = Normal(4, {kColumns});
  parameters["block.norm2.gamma"] = Normal(5, {kColumns});
  parameters["block.norm2.beta"] = Normal(6, {kColumns});
  parameters["block.fc1.weight"] = Normal(7, {kFc1, kColumns});
  parameters["block.fc1.bias"] = Normal(8, {kFc1});
  parameters["block.fc2.weight"] = Normal(9, {kColumns, kFc1});
  return parameters;
}

Tensor Batch(uint64_t seed) { return Normal(seed, {kSequence, kBatch, kColumns}); }

ForwardStep ForwardBatch(uint64_t seed, const std::string& microbatch = "0") {
  ForwardStep step;
  step.microbatch = microbatch;
  step.x = Batch(seed);
  return step;
}

/// One update.
void Train(Session& session, uint64_t seed) {
  ASSERT_TRUE(session.Forward(ForwardBatch(seed), nullptr).ok());
  const auto backward = session.Backward({"0", Batch(seed + 1000)}, nullptr);
  ASSERT_TRUE(backward.ok()) << backward.status();
  for (const SavedOperand& saved : backward->saved) {
    EXPECT_EQ(saved.at_save, saved.at_use) << saved.name;
  }
  ASSERT_TRUE(session.Optimize({}, nullptr).ok());
}

class AttentionSessions : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Session> Open(const SessionSpec& spec) {
    return OpenRanks(*engine_, spec, Parameters(spec.layers[0].spec.kind));
  }
  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 2});
};

TEST_P(AttentionSessions, BytesCountTheRotaryTable) {
  SessionSpec spec = SpecOf(GetParam());
  const auto rotated = Open(spec);
  spec.layers[0].spec.attention.rotary_base.reset();
  const auto plain = Open(spec);
  EXPECT_EQ(rotated->bytes(), plain->bytes());
  Train(*rotated, 1);
  Train(*plain, 1);
  // Cosines and sines of bf16, for each position and pair of a head's columns.
  EXPECT_EQ(rotated->bytes() - plain->bytes(), 2 * 2 * kSequence * (kHead / 2));
}

TEST_P(AttentionSessions, RecomputedAndOffloadedStepsHaveTheBitsOfTheOriginal) {
  const auto original = Open(SpecOf(GetParam()));
  const auto recomputed = Open(SpecOf(GetParam()));
  const auto offloaded = Open(SpecOf(GetParam()));
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    ForwardStep forward = ForwardBatch(seed);
    ASSERT_TRUE(original->Forward(forward, nullptr).ok());
    ASSERT_TRUE(offloaded->Forward(forward, nullptr).ok());
    forward.recompute = true;
    ASSERT_TRUE(recomputed->Forward(forward, nullptr).ok());
    ASSERT_TRUE(offloaded->Offload("0", nullptr).ok());
    ASSERT_TRUE(offloaded->Reload("0", nullptr).ok());
    for (Session* const other : {recomputed.get(), offloaded.get()}) {
      SCOPED_TRACE(other == recomputed.get() ? "recomputed" : "offloaded");
      const auto step = [&](Session& session) {
        return session.Backward({"0", Batch(seed + 1000)}, nullptr);
      };
      if (other == recomputed.get()) {
        ExpectSameStep(*original, *other, step);
      } else {
        ASSERT_TRUE(step(*other).ok());
      }
    }
    for (Session* const each : {original.get(), recomputed.get(), offloaded.get()}) {
      ASSERT_TRUE(each->Optimize({}, nullptr).ok());
    }
  }
  ExpectSameFiles(*original, *recomputed);
  // An offload counts as a step.
  EXPECT_EQ(DigestsOf(*original), DigestsOf(*offloaded));
}

TEST_P(AttentionSessions, ContinueFromTheirCheckpoints) {
  const SessionSpec spec = SpecOf(GetParam());
  const auto session = Open(spec);
  Train(*session, 1);
  const auto file = session->Checkpoint(nullptr);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto restored = RestoreSession(*engine_, spec, *file, nullptr, nullptr);
  ASSERT_TRUE(restored.ok()) << restored.status();
  for (const uint64_t seed : {2, 3}) {
    Train(*session, seed);
    Train(**restored, seed);
  }
  ExpectSameFiles(*session, **restored);
  SessionSpec other = spec;
  other.layers[0].spec.attention.mask = AttentionMask::kNone;
  const auto refused = RestoreSession(*engine_, other, *file, nullptr, nullptr);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("attention/mask is \"causal\""));
}

INSTANTIATE_TEST_SUITE_P(Recipes, AttentionSessions,
                         ::testing::Values("bf16", "fp8_current", "fp8_delayed", "fp8_block",
                                           "mxfp8", "nvfp4",
                                           "mxfp8:backward_override=dequantized"));

void ExpectStepsOfTheLayer(const std::string& recipe) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const SessionSpec spec = SpecOf(recipe);
  const auto session = OpenRanks(*engine, spec, Parameters());
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    LayerRequest request;
    request.layer = spec.layers[0].spec;
    request.x = Batch(seed);
    request.grad_output = Batch(seed + 1000);
    for (const auto& [name, given] : Parameters()) {
      request.parameters[name.substr(sizeof("block.") - 1)] = *session->Find(name, nullptr);
    }
    const auto alone = RunLayer(*engine, request, spec.recipe, Arithmetic{}, nullptr);
    ASSERT_TRUE(alone.ok()) << alone.status();
    const auto forward = session->Forward(ForwardBatch(seed), nullptr);
    const auto backward = session->Backward({"0", request.grad_output}, nullptr);
    ASSERT_TRUE(forward.ok() && backward.ok()) << forward.status() << backward.status();
    for (const NamedTensor& output : alone->outputs) {
      const bool is_y = output.name == "y", is_dx = output.name == "dx";
      const Tensor given = is_y    ? OutputOf(forward, "y")
                           : is_dx ? OutputOf(backward, "dx")
                                   : OutputOf(backward, "block." + output.name);
      EXPECT_TRUE(SameBits(given, output.tensor)) << output.name << " " << seed;
    }
    ASSERT_TRUE(session->Optimize({}, nullptr).ok());
  }
}

// Not of delayed scaling, whose histories are the session's own.
TEST(AttentionSession, StepsAreThoseOfTheLayerOnTheSessionsWeights) {
  for (const char* recipe :
       {"bf16", "fp8_current", "fp8_block", "mxfp8", "nvfp4:disable_stochastic_rounding=true",
        "mxfp8:backward_override=dequantized"}) {
    SCOPED_TRACE(recipe);
    ExpectStepsOfTheLayer(recipe);
  }
}

TEST(AttentionSession, SavesHeadsAndProbabilities) {
  const auto engine = MakeCpuEngine({.threads = 1});
  for (const char* recipe : {"bf16", "mxfp8"}) {
    const auto session = OpenRanks(*engine, SpecOf(recipe), Parameters());
    ASSERT_TRUE(session->Forward(ForwardBatch(1), nullptr).ok());
    int found = 0;
    for (const SessionOperand& operand : session->saved_memory().operands) {
      if (operand.operand.rfind("core ", 0) != 0) continue;
      const bool is_heads = operand.operand == "core heads";
      EXPECT_EQ(operand.format, is_heads ? "bf16" : "f32");
      EXPECT_EQ(operand.size.data, is_heads ? 2 * kSequence * kBatch * kQkv
                                            : 4 * kBatch * kHeads * kSequence * kSequence);
      EXPECT_EQ(operand.size.scales + operand.size.held, 0);
      ++found;
    }
    EXPECT_EQ(found, 2) << recipe;
  }
}

SessionSpec OnRanks(const std::string& recipe, LayerKind kind, const ParallelSpec& parallel) {
  SessionSpec spec = SpecOf(recipe, kind);
  spec.layers[0].spec.parallel_mode = ParallelMode::kColumn;
  spec.parallel = parallel;
  return spec;
}

// Sums over ranks have one order, whichever ranks then have which rows of them.
TEST(AttentionSession, OfDividedSequencesHasTheBitsOfDividedHeads) {
  const auto engine = MakeCpuEngine({.threads = 1});
  for (const char* recipe : {"bf16", "fp8_delayed", "mxfp8"}) {
    ParallelSpec overlapped = Ranks(2, 1, true);
    overlapped.overlap = OverlapSpec();
    for (const ParallelSpec& parallel : {Ranks(2, 1, true), overlapped}) {
      SCOPED_TRACE(recipe);
      const LayerKind kind = LayerKind::kAttention;
      const auto heads = OpenRanks(*engine, OnRanks(recipe, kind, Ranks(2)), Parameters(kind));
      const auto rows = OpenRanks(*engine, OnRanks(recipe, kind, parallel), Parameters(kind));
      for (uint64_t seed = 1; seed <= 3; ++seed) {
        ExpectSameStep(*heads, *rows, [&](Session& session) {
          return session.Forward(ForwardBatch(seed), nullptr);
        });
        ExpectSameStep(*heads, *rows, [&](Session& session) {
          return session.Backward({"0", Batch(seed + 1000)}, nullptr);
        });
        ASSERT_TRUE(heads->Optimize({}, nullptr).ok() && rows->Optimize({}, nullptr).ok());
      }
      ExpectSameParameters(*heads, *rows, Parameters(kind));
    }
  }
}

TEST(AttentionSession, ContinuesOnOtherRanks) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const LayerKind kind = LayerKind::kTransformerLayer;
  for (const char* recipe : {"bf16", "mxfp8"}) {
    SCOPED_TRACE(recipe);
    const SessionSpec divided = OnRanks(recipe, kind, Ranks(2, 1, true));
    const auto first = OpenRanks(*engine, divided, Parameters());
    Train(*first, 1);
    const auto file = first->Checkpoint(nullptr);
    ASSERT_TRUE(file.ok()) << file.status();
    const auto one = RestoreSession(*engine, OnOneRank(divided), *file, nullptr, nullptr);
    ASSERT_TRUE(one.ok()) << one.status();
    ExpectSameFiles(*first, **one);
    const auto again =
        RestoreSession(*engine, divided, *(*one)->Checkpoint(nullptr), nullptr, nullptr);
    ASSERT_TRUE(again.ok()) << again.status();
    Train(*first, 2);
    Train(**again, 2);
    ExpectSameFiles(*first, **again);
  }
}

TEST(AttentionSession, RefusesCopiesThatDivideTheSequence) {
  const auto engine = MakeCpuEngine({.threads = 1});
  SessionSpec spec = SpecOf("bf16");
  spec.parallel = Ranks(1, 2);
  const auto session = OpenSession(*engine, spec, Parameters(), nullptr, nullptr);
  EXPECT_EQ(session.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(session.status().message()),
              HasSubstr("parallel.data_parallel is 2: it divides dim 0 of a batch"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
