// Sessions on several ranks against the session on one where sums are exact, and against
// themselves where communication is hidden; failures; what is refused.
#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/training/parallel/parallel_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int64_t kBatch = 256, kWide = 256;

std::unique_ptr<Engine> NewEngine() { return MakeCpuEngine({.threads = 1}); }

std::map<std::string, Tensor> Weights(const SessionSpec& spec, bool has_bias = false) {
  std::map<std::string, Tensor> parameters;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    parameters[spec.layers[i].name + ".weight"] = Normal(31 + i, {kWide, kWide});
    if (has_bias) parameters[spec.layers[i].name + ".bias"] = Normal(41 + i, {kWide});
  }
  return parameters;
}

ForwardStep Forward(const Tensor& x, const std::string& microbatch = "0") {
  ForwardStep step;
  step.microbatch = microbatch;
  step.x = x;
  return step;
}

std::string HexOf(Engine& engine, const Tensor& tensor) {
  const auto fingerprint = engine.FingerprintOf(tensor, nullptr);
  return fingerprint.ok() ? fingerprint->Hex() : "";
}

/// Fingerprints of what `names` are in a step's outputs.
void Note(Engine& engine, const absl::StatusOr<SessionStepResult>& result,
          const std::vector<std::string>& names, std::map<std::string, std::string>& noted) {
  if (result.ok()) {
    EXPECT_THAT(result->rank_differences, testing::IsEmpty());
  }
  for (const std::string& name : names) {
    noted[name + " " + std::to_string(noted.size())] = HexOf(engine, OutputOf(result, name));
  }
}

/// Two rounds of two microbatches each: outputs of both directions, then the weights.
std::map<std::string, std::string> Train(Engine& engine, Session& session,
                                         const std::vector<std::string>& forward,
                                         const std::vector<std::string>& backward,
                                         const std::vector<std::string>& parameters,
                                         const std::function<Tensor(uint64_t)>& tensor) {
  std::map<std::string, std::string> noted;
  for (uint64_t round = 0; round < 2; ++round) {
    for (const std::string microbatch : {"a", "b"}) {
      const uint64_t seed = 100 * round + microbatch[0];
      Note(engine, session.Forward(Forward(tensor(seed), microbatch), nullptr), forward, noted);
    }
    for (const std::string microbatch : {"b", "a"}) {
      const Tensor dy = tensor(1000 + 100 * round + microbatch[0]);
      Note(engine, session.Backward({microbatch, dy}, nullptr), backward, noted);
    }
    const auto updated = session.Optimize({}, nullptr);
    EXPECT_TRUE(updated.ok()) << updated.status();
    for (const std::string& name : parameters) {
      const auto found = session.Find(name, nullptr);
      EXPECT_TRUE(found.ok()) << found.status();
      if (found.ok()) noted[name + std::to_string(round)] = HexOf(engine, *found);
    }
  }
  return noted;
}

Tensor Batch(uint64_t seed) { return Normal(seed, {kBatch, kWide}); }
Tensor QuarterBatch(uint64_t seed) { return Quarters(seed, {kBatch, kWide}); }

// A bias of a row-parallel layer is whole on every rank, which under sequence parallelism has the
// gradient of its own rows only.
TEST(ParallelSession, GradientsOfOwnRowsAreSummed) {
  const std::unique_ptr<Engine> engine = NewEngine();
  SessionSpec spec = LinearLayers("bf16", {ParallelMode::kRow});
  const auto one = OpenRanks(*engine, OnOneRank(spec), Weights(spec, true));
  for (const ParallelSpec& parallel : {Ranks(2, 1, true), Ranks(2, 2, true), Ranks(4, 1, false)}) {
    spec.parallel = parallel;
    const auto session = OpenRanks(*engine, spec, Weights(spec, true));
    for (Session* each : {one.get(), session.get()}) {
      ASSERT_TRUE(each->Forward(Forward(QuarterBatch(1)), nullptr).ok());
    }
    const auto expected = one->Backward({"0", QuarterBatch(2)}, nullptr);
    const auto given = session->Backward({"0", QuarterBatch(2)}, nullptr);
    EXPECT_EQ(HexOf(*engine, OutputOf(given, "fc1.db")),
              HexOf(*engine, OutputOf(expected, "fc1.db")))
        << parallel.Label();
  }
}

// Column, then row: what lies between never leaves a rank; the sums are exact.
TEST(ParallelSession, LayersInARowHaveTheBitsOfOneRankWhereSumsAreExact) {
  const std::unique_ptr<Engine> engine = NewEngine();
  SessionSpec spec = LinearLayers("bf16", {ParallelMode::kColumn, ParallelMode::kRow});
  std::map<std::string, Tensor> weights;
  for (const char* name : {"fc1.weight", "fc2.weight"}) {
    // One element of each row: fc1 and fc2 permute and scale by a power of two, without rounding.
    Tensor weight = *Tensor::Allocate(DType::kBF16, {kWide, kWide});
    std::fill_n(weight.as<uint16_t>(), weight.element_count(), uint16_t{0});
    for (int64_t row = 0; row < kWide; ++row) {
      weight.as<uint16_t>()[row * kWide + (row * 37 + 11) % kWide] =
          name[2] == '1' ? 0x3f80 : 0x4000;
    }
    weights[name] = weight;
  }
  const auto one = OpenRanks(*engine, OnOneRank(spec), weights);
  const auto y = one->Forward(Forward(QuarterBatch(1)), nullptr);
  const auto dx = one->Backward({"0", QuarterBatch(2)}, nullptr);
  for (const ParallelSpec& parallel : {Ranks(2, 1, true), Ranks(4, 2, true), Ranks(2, 2, false)}) {
    spec.parallel = parallel;
    const auto session = OpenRanks(*engine, spec, weights);
    EXPECT_EQ(HexOf(*engine, OutputOf(session->Forward(Forward(QuarterBatch(1)), nullptr), "y")),
              HexOf(*engine, OutputOf(y, "y")))
        << parallel.Label();
    const auto given = session->Backward({"0", QuarterBatch(2)}, nullptr);
    for (const char* name : {"dx"}) {
      EXPECT_EQ(HexOf(*engine, OutputOf(given, name)), HexOf(*engine, OutputOf(dx, name)))
          << parallel.Label();
    }
    ASSERT_EQ(given->ranks.size(), static_cast<size_t>(parallel.size()));
    EXPECT_EQ(given->ranks[1].device, "cpu");
    EXPECT_THAT(given->gemms, IsEmpty());
    EXPECT_EQ(given->ranks[1].records.gemms.size(), 4u);
  }
}

TEST(ParallelSession, AStepThatFailsLeavesAllRanksAsTheyWere) {
  const std::unique_ptr<Engine> engine = NewEngine();
  SessionSpec spec = LinearLayers("fp8_delayed", {ParallelMode::kColumn});
  spec.parallel = Ranks(2, 1, true);
  const auto undisturbed = OpenRanks(*engine, spec, Weights(spec));
  const auto session = OpenRanks(*engine, spec, Weights(spec));
  for (Session* each : {undisturbed.get(), session.get()}) {
    ASSERT_TRUE(each->Forward(Forward(Batch(1), "a"), nullptr).ok());
  }
  const auto before = DigestsOf(*session);
  EXPECT_EQ(session->Backward({"b", Batch(2)}, nullptr).status().code(),
            absl::StatusCode::kFailedPrecondition);
  const auto wrong = session->Forward(Forward(Normal(1, {kBatch, kWide / 2}), "c"), nullptr);
  EXPECT_EQ(wrong.status().code(), absl::StatusCode::kInvalidArgument) << wrong.status();
  session->LimitBytes(session->bytes() + 1);
  const auto large = session->Forward(Forward(Batch(3), "c"), nullptr);
  EXPECT_EQ(large.status().code(), absl::StatusCode::kResourceExhausted) << large.status();
  session->LimitBytes(session->bytes() * 100);
  EXPECT_EQ(DigestsOf(*session), before);
  EXPECT_EQ(session->step_count(), 1);
  // The groups are new, and the forward in flight goes on with them.
  const auto expected = undisturbed->Backward({"a", Batch(2)}, nullptr);
  const auto given = session->Backward({"a", Batch(2)}, nullptr);
  for (const char* name : {"dx", "fc1.dw"}) {
    EXPECT_EQ(HexOf(*engine, OutputOf(given, name)), HexOf(*engine, OutputOf(expected, name)));
  }
  Cancellation cancellation;
  cancellation.Cancel();
  EXPECT_EQ(session->Optimize({}, &cancellation).status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(session->Optimize({}, nullptr).ok());
}

// Whatever overlaps, and with other ends of the ranks' groups after a failure.
TEST(ParallelSession, OverlapLeavesTheBits) {
  const std::unique_ptr<Engine> engine = NewEngine();
  for (const char* recipe :
       {"bf16", "bf16:backward_override=dequantized", "fp8_delayed", "mxfp8"}) {
    SessionSpec spec = LinearLayers(recipe, {ParallelMode::kColumn, ParallelMode::kRow});
    spec.parallel = Ranks(2, 1, true);
    const std::vector<std::string> gradients = {"dx", "fc1.dw", "fc2.dw"};
    const std::vector<std::string> weights = {"fc1.weight", "fc2.weight"};
    const auto plain = OpenRanks(*engine, spec, Weights(spec));
    const auto expected = Train(*engine, *plain, {"y"}, gradients, weights, Batch);
    spec.parallel->overlap.emplace().splits = 2;  // mxfp8: of 128 columns at least.
    const auto session = OpenRanks(*engine, spec, Weights(spec));
    EXPECT_EQ(Train(*engine, *session, {"y"}, gradients, weights, Batch), expected) << recipe;

    const auto forward = session->Forward(Forward(Batch(1)), nullptr);
    ASSERT_TRUE(forward.ok()) << forward.status();
    std::vector<std::string> stages;
    for (const StageTimeline& stage : forward->ranks[1].records.timelines) {
      stages.push_back(stage.stage);
      EXPECT_GT(FiguresOf(stage.timeline).total_s, 0);
    }
    EXPECT_THAT(stages, ElementsAre("fc1.fprop", "fc2.fprop"));
    ASSERT_TRUE(plain->Forward(Forward(Batch(1)), nullptr).ok());
    EXPECT_FALSE(session->Backward({"none", Batch(2)}, nullptr).ok());
    const auto given = session->Backward({"0", Batch(2)}, nullptr);
    const auto wanted = plain->Backward({"0", Batch(2)}, nullptr);
    EXPECT_EQ(HexOf(*engine, OutputOf(given, "dx")), HexOf(*engine, OutputOf(wanted, "dx")));
  }
}

std::vector<std::string> StagesThatOverlap(const absl::StatusOr<SessionStepResult>& result) {
  EXPECT_TRUE(result.ok()) << result.status();
  std::vector<std::string> stages;
  if (!result.ok()) return stages;
  for (const StageTimeline& stage : result->ranks[1].records.timelines) {
    stages.push_back(stage.stage);
  }
  return stages;
}

// What a session leaves open gives way step by step; what it names, an evaluation runs without.
TEST(ParallelSession, OverlapGivesWayStepByStep) {
  const std::unique_ptr<Engine> engine = NewEngine();
  for (const bool is_named : {false, true}) {
    SessionSpec spec = LinearLayers("bf16", {ParallelMode::kColumn});
    spec.layers[0].spec.kind = LayerKind::kLayerNormLinear;
    auto parameters = Weights(spec);
    parameters["fc1.gamma"] = Normal(8, {kWide});
    spec.parallel = Ranks(2, 1, true);
    const auto plain = OpenRanks(*engine, spec, parameters);
    spec.parallel->overlap.emplace();
    if (is_named) {
      spec.parallel->overlap->methods[{OverlapSide::kColumn, GemmRole::kFprop}] =
          OverlapMethod::kRingExchange;
    }
    const auto session = OpenRanks(*engine, spec, parameters);
    ForwardStep evaluation = Forward(Batch(1), "e");
    evaluation.train = false;
    for (int round = 0; round < 2; ++round) {
      const auto evaluated = session->Forward(evaluation, nullptr);
      ASSERT_TRUE(evaluated.ok()) << evaluated.status();
      EXPECT_THAT(StagesThatOverlap(evaluated), IsEmpty());
      EXPECT_THAT(evaluated->notes, Contains(HasSubstr("fprop runs without overlap: grad is not "
                                                       "enabled")));
      EXPECT_EQ(HexOf(*engine, OutputOf(evaluated, "y")),
                HexOf(*engine, OutputOf(plain->Forward(evaluation, nullptr), "y")));
      const auto trained = session->Forward(Forward(Batch(1)), nullptr);
      EXPECT_THAT(StagesThatOverlap(trained), ElementsAre("fc1.fprop"));
      EXPECT_THAT(trained->notes, Not(Contains(HasSubstr("without overlap"))));
      ASSERT_TRUE(plain->Forward(Forward(Batch(1)), nullptr).ok());
      const auto given = session->Backward({"0", Batch(2)}, nullptr);
      EXPECT_THAT(StagesThatOverlap(given), ElementsAre("fc1.dgrad", "fc1.wgrad"));
      const auto wanted = plain->Backward({"0", Batch(2)}, nullptr);
      for (const char* name : {"dx", "fc1.dw", "fc1.dgamma"}) {
        EXPECT_EQ(HexOf(*engine, OutputOf(given, name)), HexOf(*engine, OutputOf(wanted, name)));
      }
    }
    // Named, the method is refused under a recipe that has none; left open, it gives way.
    const absl::Status changed = session->ChangeRecipe(*Recipe::Parse("fp8_block"), nullptr);
    EXPECT_EQ(changed.ok(), !is_named) << changed;
    if (is_named) continue;
    const auto without = session->Forward(Forward(Batch(1)), nullptr);
    ASSERT_TRUE(without.ok()) << without.status();
    EXPECT_THAT(StagesThatOverlap(without), IsEmpty());
    EXPECT_THAT(without->notes, Contains(HasSubstr("fprop, dgrad, wgrad run without overlap: "
                                                   "recipe is fp8_block")));
  }
}

// The stages of a step, and of one without a gradient of x, whichever default is named.
TEST(ParallelSession, NamingADefaultOfOverlapChangesNothing) {
  const std::unique_ptr<Engine> engine = NewEngine();
  using Methods = std::map<std::pair<OverlapSide, GemmRole>, OverlapMethod>;
  for (const Methods& named :
       {Methods{}, {{{OverlapSide::kRow, GemmRole::kWgrad}, OverlapMethod::kExternal}}}) {
    SessionSpec spec = LinearLayers("mxfp8", {ParallelMode::kRow});
    std::map<std::string, Tensor> parameters = {{"fc1.weight", Normal(31, {2 * kWide, kWide})}};
    spec.parallel = Ranks(2, 1, true);
    const auto plain = OpenRanks(*engine, spec, parameters);
    spec.parallel->overlap.emplace().methods = named;
    const auto session = OpenRanks(*engine, spec, parameters);
    const Tensor dy = Normal(2, {kBatch, 2 * kWide});
    for (const bool needs_dx : {true, false}) {
      ForwardStep forward = Forward(Batch(1));
      forward.requires_grad.x = needs_dx;
      const auto y = session->Forward(forward, nullptr);
      EXPECT_THAT(StagesThatOverlap(y), ElementsAre("fc1.fprop"));
      EXPECT_THAT(y->notes, Not(Contains(HasSubstr("without overlap"))));
      ASSERT_TRUE(plain->Forward(forward, nullptr).ok());
      const auto given = session->Backward({"0", dy}, nullptr);
      const auto wanted = plain->Backward({"0", dy}, nullptr);
      EXPECT_EQ(StagesThatOverlap(given),
                needs_dx ? std::vector<std::string>{"fc1.dgrad"} : std::vector<std::string>{});
      EXPECT_EQ(HexOf(*engine, OutputOf(given, "fc1.dw")),
                HexOf(*engine, OutputOf(wanted, "fc1.dw")));
    }
  }
}

TEST(ParallelSession, RefusesANamedOverlapByItsField) {
  const std::unique_ptr<Engine> engine = NewEngine();
  SessionSpec spec = LinearLayers("bf16", {ParallelMode::kColumn});
  spec.parallel = Ranks(2, 1, true);
  spec.parallel->overlap.emplace().methods[{OverlapSide::kColumn, GemmRole::kDgrad}] =
      OverlapMethod::kBulk;
  const std::string named = "parallel.overlap.column_dgrad is bulk: ";
  const auto session = OpenRanks(*engine, spec, Weights(spec));
  for (const auto& [recipe, why] :
       {std::pair("mxfp8:backward_override=dequantized", "backward_override is dequantized: "),
        {"fp8_block", "recipe is fp8_block: "}}) {
    const absl::Status changed = session->ChangeRecipe(*Recipe::Parse(recipe), nullptr);
    EXPECT_TRUE(absl::IsInvalidArgument(changed)) << changed;
    EXPECT_THAT(std::string(changed.message()),
                AllOf(StartsWith(named + why), EndsWith(" (layer fc1)")));
    SessionSpec under = spec;
    under.recipe = *Recipe::Parse(recipe);
    const absl::Status opened =
        OpenSession(*engine, under, Weights(spec), nullptr, nullptr).status();
    EXPECT_THAT(std::string(opened.message()), StartsWith(named + why));
  }
  // A method of units that the session does not have does nothing.
  spec.parallel->overlap->methods = {
      {{OverlapSide::kRow, GemmRole::kWgrad}, OverlapMethod::kExternal}};
  EXPECT_NE(OpenRanks(*engine, spec, Weights(spec)), nullptr);
}

TEST(ParallelSession, AForwardNamesItsOwnOverlap) {
  const std::unique_ptr<Engine> engine = NewEngine();
  SessionSpec spec = LinearLayers("bf16", {ParallelMode::kColumn});
  spec.parallel = Ranks(2, 1, true);
  const auto session = OpenRanks(*engine, spec, Weights(spec));
  ForwardStep forward = Forward(Batch(1), "a");
  forward.overlap.emplace();
  EXPECT_THAT(StagesThatOverlap(session->Forward(forward, nullptr)), ElementsAre("fc1.fprop"));
  // The next forward has the session's, the backward that of its own forward.
  EXPECT_THAT(StagesThatOverlap(session->Forward(Forward(Batch(2), "b"), nullptr)), IsEmpty());
  EXPECT_THAT(StagesThatOverlap(session->Backward({"a", Batch(3)}, nullptr)),
              ElementsAre("fc1.dgrad", "fc1.wgrad"));
  EXPECT_THAT(StagesThatOverlap(session->Backward({"b", Batch(3)}, nullptr)), IsEmpty());

  const auto message = [&](const absl::StatusOr<SessionStepResult>& result) {
    EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
    return std::string(result.status().message());
  };
  forward.overlap->methods[{OverlapSide::kColumn, GemmRole::kFprop}] = OverlapMethod::kBulk;
  EXPECT_THAT(message(session->Forward(forward, nullptr)),
              StartsWith("overlap.column_fprop is bulk: it gathers x for its own GEMM"));
  forward.overlap->methods = {
      {{OverlapSide::kColumn, GemmRole::kDgrad}, OverlapMethod::kRingExchange},
      {{OverlapSide::kColumn, GemmRole::kWgrad}, OverlapMethod::kNone}};
  EXPECT_THAT(message(session->Forward(forward, nullptr)),
              HasSubstr("reduction_profile is rank_asc_fp32: a ring_exchange "
                        "reduce-scatter sums in the order of ub_p2p"));
  // Where nothing is communicated, an overlap that names nothing does nothing.
  const auto alone = OpenSession(*engine, LinearLayers("bf16", {ParallelMode::kNone}),
                                 Weights(spec), nullptr, nullptr);
  ASSERT_TRUE(alone.ok()) << alone.status();
  SessionSpec of_copies = LinearLayers("bf16", {ParallelMode::kNone});
  of_copies.parallel = Ranks(1, 2);
  const auto copies = OpenRanks(*engine, of_copies, Weights(spec));
  forward.overlap.emplace().pieces = 2;
  EXPECT_THAT(message((*alone)->Forward(forward, nullptr)),
              HasSubstr("overlap is pieces=2: a session on one rank communicates nothing"));
  EXPECT_THAT(message(copies->Forward(forward, nullptr)),
              HasSubstr("overlap is pieces=2: overlap needs tensor_parallel > 1"));
  forward.overlap.emplace();
  for (Session* const each : {alone->get(), copies.get()}) {
    const auto with = each->Forward(forward, nullptr);
    ASSERT_TRUE(with.ok()) << with.status();
    const auto without = each->Forward(Forward(forward.x, "without"), nullptr);
    EXPECT_EQ(HexOf(*engine, OutputOf(with, "y")), HexOf(*engine, OutputOf(without, "y")));
    EXPECT_TRUE(each->Backward({"a", Batch(3)}, nullptr).ok());
  }
}

TEST(ParallelSession, MicrobatchesGoAwayAndComeBackAndRecipesChange) {
  const std::unique_ptr<Engine> engine = NewEngine();
  SessionSpec spec = LinearLayers("bf16", {ParallelMode::kColumn});
  spec.parallel = Ranks(2, 1, true);
  const auto session = OpenRanks(*engine, spec, Weights(spec));
  const auto plain = OpenRanks(*engine, spec, Weights(spec));
  ForwardStep recomputed = Forward(Batch(1));
  recomputed.recompute = true;
  ASSERT_TRUE(plain->Forward(Forward(Batch(1)), nullptr).ok());
  ASSERT_TRUE(session->Forward(recomputed, nullptr).ok());
  ASSERT_TRUE(session->Offload("0", nullptr).ok());
  ASSERT_TRUE(session->ChangeRecipe(*Recipe::Parse("mxfp8"), nullptr).ok());
  ASSERT_TRUE(session->Reload("0", nullptr).ok());
  const auto expected = plain->Backward({"0", Batch(2)}, nullptr);
  const auto given = session->Backward({"0", Batch(2)}, nullptr);
  EXPECT_EQ(HexOf(*engine, OutputOf(given, "fc1.dw")),
            HexOf(*engine, OutputOf(expected, "fc1.dw")));
  EXPECT_EQ(session->recipe().name(), "mxfp8");
  EXPECT_EQ(session->Find("fc9.weight", nullptr).status().code(), absl::StatusCode::kNotFound);
  const auto part = session->Find("rank1.fc1.weight", nullptr);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(part->shape(), Shape({kWide / 2, kWide}));
}

TEST(ParallelSession, RefusesWhatDoesNotGoTogether) {
  const std::unique_ptr<Engine> engine = NewEngine();
  const auto refusal = [&](const std::function<void(SessionSpec&)>& spoil) {
    SessionSpec spec = LinearLayers("bf16", {ParallelMode::kColumn, ParallelMode::kRow});
    spec.parallel = Ranks(2);
    spoil(spec);
    const absl::Status status =
        OpenSession(*engine, spec, Weights(spec), nullptr, nullptr).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  using Spec = SessionSpec;
  for (const char* role : {"output", "grad_input"}) {
    const Recipe rules = *Recipe::Parse(
        absl::StrCat(R"(custom:rules=[{"tensor_type":")", role,
                     R"(","quantizer":"fp8_current"},{"quantizer":"fp8_current"}])"));
    const std::string rule = absl::StrCat("a rule for ", role, " goes with one rank: ");
    EXPECT_THAT(refusal([&](Spec& spec) { spec.recipe = rules; }), HasSubstr(rule));
    const auto copies = [&](Spec& spec) {
      for (SessionLayer& layer : spec.layers) layer.spec.parallel_mode = ParallelMode::kNone;
      spec.parallel = Ranks(1, 2);
      spec.recipe = rules;
    };
    EXPECT_THAT(refusal(copies), HasSubstr(rule));
    EXPECT_THAT(refusal([&](Spec& spec) {
                  copies(spec);
                  spec.parallel->fully_sharded = true;
                }),
                HasSubstr(rule));
    SessionSpec spec = LinearLayers("fp8_current", {ParallelMode::kNone});
    spec.parallel = Ranks(1, 2);
    const absl::Status changed =
        OpenRanks(*engine, spec, Weights(spec))->ChangeRecipe(rules, nullptr);
    EXPECT_THAT(std::string(changed.message()), HasSubstr(rule));
  }
  EXPECT_THAT(refusal([](Spec& spec) { spec.parallel = Ranks(9); }),
              HasSubstr("parallel.tensor_parallel is 9: from 1 to 8"));
  EXPECT_THAT(refusal([](Spec& spec) { spec.parallel = Ranks(4, 4); }),
              HasSubstr("parallel is tp4 dp4: tensor_parallel or expert_parallel, times"));
  EXPECT_THAT(
      refusal([](Spec& spec) { spec.parallel = Ranks(1, 2); }),
      HasSubstr("layers[0].layer.parallel_mode is given: it needs parallel.tensor_parallel > 1"));
  EXPECT_THAT(
      refusal([](Spec& spec) { spec.parallel.reset(); }),
      HasSubstr("layers[0].layer.parallel_mode is given: it needs parallel.tensor_parallel > 1"));
  EXPECT_THAT(refusal([](Spec& spec) {
                for (SessionLayer& layer : spec.layers) {
                  layer.spec.parallel_mode = ParallelMode::kNone;
                }
              }),
              HasSubstr("no layer has a parallel_mode"));
  EXPECT_THAT(
      refusal([](Spec& spec) { spec.layers[1].spec.parallel_mode = ParallelMode::kColumn; }),
      HasSubstr("layers[1].layer.parallel_mode is column: on each rank its x is whole, and "
                "what layer fc1 gives is divided along its columns"));
  EXPECT_THAT(
      refusal([](Spec& spec) {
        spec.layers[0].spec.parallel_mode = ParallelMode::kRow;
        spec.layers[1].spec.parallel_mode = ParallelMode::kNone;
        spec.parallel->sequence_parallel = true;
      }),
      HasSubstr("layers[1].layer.parallel_mode is none: on each rank its x is whole, and what "
                "layer fc1 gives is divided along its rows"));
  EXPECT_THAT(refusal([](Spec& spec) { spec.layers[0].name = "rank0"; }),
              HasSubstr("layers[0].name is rank0"));
  EXPECT_THAT(refusal([](Spec& spec) { spec.parallel->profile = {ReductionKind::kNccl}; }),
              HasSubstr("needs backend nccl"));
  EXPECT_THAT(refusal([](Spec& spec) { spec.parallel->backend = CollectiveBackend::kNccl; }),
              HasSubstr("needs a GPU"));
  SessionSpec spec = LinearLayers("bf16", {ParallelMode::kColumn});
  spec.parallel = Ranks(2, 2);
  const auto session = OpenRanks(*engine, spec, Weights(spec));
  const absl::Status uneven =
      session->Forward(Forward(Normal(1, {kBatch - 1, kWide})), nullptr).status();
  EXPECT_THAT(std::string(uneven.message()), HasSubstr("x is bf16[255x256]: it must have"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
