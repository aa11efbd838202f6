// A distributed optimizer of sessions against copies that have all of every master, and against
// one rank: the same bits of everything, and checkpoints of the same bytes, of 4 copies, 2, 1 and 4
// again too; what a rank holds; what is refused.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tests/training/divided_sessions.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kBatch = 128, kNarrow = 128, kWide = 256;

class SessionFragments : public DividedSessions<kNarrow, kWide> {};

Tensor Batch(uint64_t seed) { return Normal(seed, {kBatch, kNarrow}); }

ParallelSpec Divided(ParallelSpec parallel) {
  parallel.distributed_optimizer = true;
  return parallel;
}

/// Two microbatches and an update, twice, of the session; `tensor` makes what it is fed.
template <typename Tensors>
void Train(Session& session, uint64_t seed, const Tensors& tensor) {
  for (int round = 0; round < 2; ++round) {
    for (const std::string microbatch : {"a", "b"}) {
      ForwardStep step;
      step.microbatch = microbatch;
      step.x = tensor(seed++);
      const auto y = session.Forward(step, nullptr);
      ASSERT_TRUE(y.ok()) << y.status();
    }
    for (const std::string microbatch : {"b", "a"}) {
      const auto dx = session.Backward({microbatch, tensor(seed++)}, nullptr);
      ASSERT_TRUE(dx.ok()) << dx.status();
      EXPECT_THAT(dx->rank_differences, testing::IsEmpty());
    }
    const auto updated = session.Optimize({}, nullptr);
    ASSERT_TRUE(updated.ok()) << updated.status();
    EXPECT_THAT(updated->rank_differences, testing::IsEmpty());
  }
}

TEST_P(SessionFragments, HaveTheBitsOfWholeMasters) {
  for (const ParallelSpec& parallel : {Ranks(1, 2), Ranks(1, 3), Ranks(2, 2, true)}) {
    // 3 copies: cuts that fall within rows and blocks; the batch has to be divided too.
    if (parallel.data_parallel == 3 && std::string(GetParam().recipe) == "mxfp8") continue;
    const auto batch = [&](uint64_t seed) {
      return Normal(seed, {parallel.data_parallel == 3 ? 96 : kBatch, kNarrow});
    };
    SCOPED_TRACE(Divided(parallel).Label());
    const auto whole = Open(SpecOf(parallel));
    const auto session = Open(SpecOf(Divided(parallel)));
    ASSERT_TRUE(whole != nullptr && session != nullptr);
    ExpectSameFiles(*whole, *session);
    Train(*whole, 100, batch);
    Train(*session, 100, batch);
    ExpectSameParameters(*whole, *session, Parameters());
    ExpectSameFiles(*whole, *session);
    // Master and two moments, of two copies a half each.
    EXPECT_LT(session->bytes(), whole->bytes());
    // Each goes on from the other's checkpoint.
    const auto file = session->Checkpoint(nullptr), of_whole = whole->Checkpoint(nullptr);
    ASSERT_TRUE(file.ok() && of_whole.ok()) << file.status() << of_whole.status();
    auto as_whole = RestoreSession(*engine_, SpecOf(parallel), *file, nullptr, nullptr);
    auto as_divided =
        RestoreSession(*engine_, SpecOf(Divided(parallel)), *of_whole, nullptr, nullptr);
    ASSERT_TRUE(as_whole.ok() && as_divided.ok()) << as_whole.status() << as_divided.status();
    Train(**as_whole, 200, batch);
    Train(**as_divided, 200, batch);
    ExpectSameFiles(**as_whole, **as_divided);
  }
}

/// On `copies`; on one rank where there is 1.
SessionSpec OnCopies(SessionSpec spec, int copies) {
  if (copies == 1) return OnOneRank(std::move(spec));
  spec.parallel = Divided(Ranks(1, copies));
  return spec;
}

TEST_P(SessionFragments, CheckpointsAreTheSameBytesOnFourCopiesTwoOneAndFourAgain) {
  const SessionSpec spec = SpecOf(Divided(Ranks(1, 4)));
  ExpectSameCheckpointsOnOtherCopies(
      [&](int copies) { return OnCopies(spec, copies); },
      [](Session& session, uint64_t seed) { Train(session, seed, Batch); });
}

constexpr auto kQuantized = WeightStorage::kQuantized;
constexpr auto kThroughBf16 = Requantization::kThroughBf16;
INSTANTIATE_TEST_SUITE_P(
    Sessions, SessionFragments,
    ::testing::Values(
        SessionCase{.name = "Bf16", .recipe = "bf16"},
        SessionCase{.name = "CurrentMainGrads", .recipe = "fp8_current", .main_grads = true},
        SessionCase{.name = "Delayed", .recipe = "fp8_delayed"},
        SessionCase{.name = "QuantizedDelayed", .recipe = "fp8_delayed", .weights = kQuantized},
        SessionCase{.name = "QuantizedCurrent", .recipe = "fp8_current", .weights = kQuantized},
        SessionCase{.name = "QuantizedMxfp8", .recipe = "mxfp8", .weights = kQuantized},
        SessionCase{.name = "QuantizedBlock", .recipe = "fp8_block", .weights = kQuantized},
        SessionCase{.name = "QuantizedNvfp4", .recipe = "nvfp4", .weights = kQuantized},
        SessionCase{.name = "QuantizedMxfp8MlpMainGrads",
                    .recipe = "mxfp8",
                    .weights = kQuantized,
                    .main_grads = true,
                    .is_mlp = true}),
    [](const auto& info) { return info.param.name; });

/// Gradients of exact sums: whatever adds them up, and in whatever order, they are one rank's.
Tensor QuarterBatch(uint64_t seed) { return Quarters(seed, {kBatch, kNarrow}); }

class FragmentsOfOneLayer : public ::testing::Test {
 protected:
  static SessionSpec Spec(const std::string& recipe, int copies) {
    SessionSpec spec = LinearLayers(recipe, {ParallelMode::kNone});
    spec.arithmetic = *Arithmetic::Parse("exact");
    if (copies > 1) spec.parallel = Divided(Ranks(1, copies));
    return spec;
  }
  std::unique_ptr<Session> Open(const SessionSpec& spec) {
    return OpenRanks(*engine_, spec, {{"fc1.weight", Quarters(3, {kWide, kNarrow})}});
  }
  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
};

TEST_F(FragmentsOfOneLayer, TrainAsOneRankWhereSumsAreExact) {
  for (const char* recipe : {"bf16", "mxfp8"}) {
    for (const Requantization requantization : {Requantization::kFromF32, kThroughBf16}) {
      for (const int copies : {2, 4}) {
        SessionSpec one_rank = Spec(recipe, 1), divided = Spec(recipe, copies);
        const bool is_quantized = std::string(recipe) != "bf16";
        for (SessionSpec* spec : {&one_rank, &divided}) {
          spec->requantization = requantization;
          if (is_quantized) spec->weights = kQuantized;
        }
        SCOPED_TRACE(std::string(recipe) + std::to_string(copies));
        const auto one = Open(one_rank);
        const auto session = Open(divided);
        // One round: values of later rounds are no quarters any more.
        for (Session* each : {one.get(), session.get()}) {
          ForwardStep step;
          step.x = QuarterBatch(1);
          ASSERT_TRUE(each->Forward(step, nullptr).ok());
          ASSERT_TRUE(each->Backward({"0", Quarters(2, {kBatch, kWide})}, nullptr).ok());
          ASSERT_TRUE(each->Optimize({}, nullptr).ok());
        }
        ExpectSameFiles(*one, *session);
      }
    }
  }
}

// One buffer of all parameters, weights first, cut evenly: 256 x 128 + 256 elements over 3 ranks.
TEST_F(FragmentsOfOneLayer, ARankHoldsItsRunOfOneFlatBuffer) {
  const SessionSpec spec = Spec("bf16", 3);
  const auto session =
      OpenRanks(*engine_, spec,
                {{"fc1.weight", Normal(3, {kWide, kNarrow})}, {"fc1.bias", Normal(4, {kWide})}});
  std::map<std::string, Shape> shapes;
  const auto tensors = session->Describe(nullptr);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  for (const StateTensor& tensor : *tensors) shapes[tensor.name] = tensor.shape;
  const int64_t total = kWide * kNarrow + kWide, part = (total + 2) / 3;
  EXPECT_EQ(shapes.at("rank0.fc1.weight.master"), Shape({part}));
  EXPECT_EQ(shapes.at("rank0.fc1.bias.master"), Shape({0}));
  EXPECT_EQ(shapes.at("rank2.fc1.weight.exp_avg"), Shape({kWide * kNarrow - 2 * part}));
  EXPECT_EQ(shapes.at("rank2.fc1.bias.exp_avg_sq"), Shape({kWide}));
  EXPECT_EQ(shapes.at("rank1.fc1.weight"), Shape({kWide, kNarrow}));
}

TEST_F(FragmentsOfOneLayer, AnotherKnobQuantizesAnewFromFragments) {
  SessionSpec spec = Spec("fp8_current", 2), whole = spec;
  whole.parallel->distributed_optimizer = false;
  for (SessionSpec* each : {&spec, &whole}) each->weights = kQuantized;
  const auto session = Open(spec), expected = Open(whole);
  for (Session* each : {session.get(), expected.get()}) {
    ASSERT_TRUE(each->ChangeRecipe(*Recipe::Parse("fp8_current:power_2_scales=true")).ok());
  }
  ExpectSameFiles(*expected, *session);
}

TEST_F(FragmentsOfOneLayer, RefusalsNameFieldValueAndRule) {
  const auto refused = [&](const SessionSpec& spec, const std::string& what,
                           const std::string& rule) {
    const absl::Status status =
        OpenSession(*engine_, spec, {{"fc1.weight", Normal(3, {kWide, kNarrow})}}, nullptr, nullptr)
            .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(what), HasSubstr(rule)));
  };
  SessionSpec spec = Spec("bf16", 2);
  spec.masters = Masters::kBf16Remainder;
  refused(spec, "masters is bf16_remainder: ", "f32");
  spec.masters = Masters::kNone;
  refused(spec, "masters is none: ", "f32");
  spec = Spec("bf16", 2);
  spec.optimizer.kind = OptimizerSpec::Kind::kNone;
  refused(spec, "optimizer is none: ", "distributed_optimizer");
  spec = Spec("bf16", 2);
  spec.parallel->fully_sharded = true;
  refused(spec, "parallel.distributed_optimizer is true: ", "fully_sharded");
  spec = Spec("bf16", 2);
  spec.parallel->data_parallel = 1;
  spec.parallel->tensor_parallel = 2;
  spec.layers[0].spec.parallel_mode = ParallelMode::kColumn;
  refused(spec, "parallel.distributed_optimizer is true: ", "needs data_parallel > 1");
  // Blocks of 1 x 128 need their neighbours.
  spec = Spec("nvfp4:disable_2d_quantization=true", 2);
  spec.weights = kQuantized;
  refused(spec, "fc1.weight.quantizer.", "block");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
