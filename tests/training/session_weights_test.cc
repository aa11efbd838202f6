// Quantized weights: the directions that they hold are kept and fresh over evaluations, updates,
// changes of the recipe, offload; what follows a master, and by which rounding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/training/parallel/parallel_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

const ExecutionContext kContext;

class SessionWeights : public ::testing::Test {
 protected:
  void Open(SessionSpec spec) {
    spec.weights = WeightStorage::kQuantized;
    spec_ = std::move(spec);
    session_ = OpenOn(*engine_, *spec_);
    ASSERT_NE(session_, nullptr);
  }
  Tensor State(const std::string& name) {
    const auto tensor = session_->Find(name, nullptr);
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    return tensor.ok() ? *tensor : Tensor();
  }
  bool Holds(const std::string& name) { return session_->Find(name, nullptr).ok(); }
  void Train(uint64_t seed) {
    const auto forward = session_->Forward(ForwardOf(seed), nullptr);
    ASSERT_TRUE(forward.ok()) << forward.status();
    const auto backward = session_->Backward(BackwardOf(seed + 1), nullptr);
    ASSERT_TRUE(backward.ok()) << backward.status();
  }
  void Evaluate(uint64_t seed) {
    ForwardStep evaluation = ForwardOf(seed, "eval");
    evaluation.train = false;
    const auto result = session_->Forward(evaluation, nullptr);
    ASSERT_TRUE(result.ok()) << result.status();
  }
  void Update() {
    const auto updated = session_->Optimize({}, nullptr);
    ASSERT_TRUE(updated.ok()) << updated.status();
  }
  /// Every direction of fc1.weight against a fresh quantization of `source`.
  void ExpectFresh(const Tensor& source, Usages usages) {
    const Quantizer& quantizer = session_->recipe().QuantizerFor(TensorRole::kWeight);
    const QuantizedTensor fresh = *QuantizeCpu(source, quantizer, usages, {}, kContext);
    const std::string prefix = "fc1.weight.quantized.";
    ASSERT_EQ(Holds(prefix + "rowwise_data"), usages.rowwise);
    ASSERT_EQ(Holds(prefix + "columnwise_data"), usages.columnwise);
    for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
      const auto& copy = fresh.copy(usage);
      if (!copy.has_value()) continue;
      const std::string direction(UsageName(usage));
      EXPECT_TRUE(SameBits(State(prefix + direction + "_data"), copy->data)) << direction;
      EXPECT_TRUE(SameBits(State(prefix + direction + "_scale_inv"), copy->scale_inv)) << direction;
    }
  }

  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
  std::optional<SessionSpec> spec_;
  std::unique_ptr<OneRankSession> session_;
};

class SessionWeightFormats : public SessionWeights,
                             public ::testing::WithParamInterface<const char*> {};

TEST_P(SessionWeightFormats, BothDirectionsStayFreshOverTrainEvaluateTrain) {
  Open(TwoLayerSpec(GetParam()));
  ExpectFresh(TwoLayerParameters().at("fc1.weight"), {true, true});
  for (uint64_t step = 0; step < 3; ++step) {
    Train(10 * step);
    Evaluate(10 * step + 5);
    Update();
    ExpectFresh(State("fc1.weight.master"), {true, true});
    EXPECT_TRUE(
        SameBits(State("fc1.weight"),
                 *DequantizeCpu(*QuantizeCpu(State("fc1.weight.master"),
                                             spec_->recipe.QuantizerFor(TensorRole::kWeight),
                                             {true, false}, {}, kContext),
                                Usage::kRowwise, DType::kBF16, kContext)));
  }
}

TEST_P(SessionWeightFormats, HasTheBitsOfHighPrecisionWeightsThatAreQuantizedEachTime) {
  // f32 parameters, so that the master is what each forward would quantize.
  SessionSpec spec = TwoLayerSpec(GetParam());
  std::map<std::string, Tensor> parameters = TwoLayerParameters();
  for (auto& [name, tensor] : parameters) tensor = *CastTensor(tensor, DType::kF32, kContext);
  const auto plain = *OneRankSession::Open(*engine_, spec, parameters, nullptr);
  spec.weights = WeightStorage::kQuantized;
  const auto held = *OneRankSession::Open(*engine_, spec, parameters, nullptr);
  for (uint64_t step = 0; step < 3; ++step) {
    const auto plain_y = plain->Forward(ForwardOf(step), nullptr);
    const auto held_y = held->Forward(ForwardOf(step), nullptr);
    EXPECT_TRUE(SameBits(OutputOf(held_y, "y"), OutputOf(plain_y, "y")));
    const auto plain_dx = plain->Backward(BackwardOf(step), nullptr);
    const auto held_dx = held->Backward(BackwardOf(step), nullptr);
    for (const char* name : {"dx", "fc1.dw", "fc2.dw", "fc1.db", "fc2.db"}) {
      EXPECT_TRUE(SameBits(OutputOf(held_dx, name), OutputOf(plain_dx, name))) << name;
    }
    ASSERT_TRUE(plain->Optimize({}, nullptr).ok());
    ASSERT_TRUE(held->Optimize({}, nullptr).ok());
    EXPECT_TRUE(SameBits(*held->Find("fc1.weight.master", nullptr),
                         *plain->Find("fc1.weight.master", nullptr)));
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, SessionWeightFormats,
                         ::testing::Values("fp8_current", "fp8_rowwise", "fp8_block",
                                           "fp8_block:w_block_dim=1", "mxfp8",
                                           "mxfp8:enable_2d_quantization=true", "nvfp4",
                                           "hybrid:fprop=mxfp8,dgrad=fp8_block,wgrad=mxfp8"));

TEST_F(SessionWeights, BuiltWithoutGradGetsTheColumnwiseDirectionWhereTheFormatHasIt) {
  for (const char* recipe : {"fp8_current", "fp8_block", "nvfp4"}) {
    SCOPED_TRACE(recipe);
    SessionSpec spec = TwoLayerSpec(recipe);
    spec.built_without_grad = true;
    Open(spec);
    ExpectFresh(TwoLayerParameters().at("fc1.weight"), {true, false});
    Evaluate(1);
    ExpectFresh(TwoLayerParameters().at("fc1.weight"), {true, false});
    Train(2);
    ExpectFresh(TwoLayerParameters().at("fc1.weight"), {true, true});
    Update();
    ExpectFresh(State("fc1.weight.master"), {true, true});
  }
}

TEST_F(SessionWeights, BuiltWithoutGradRefusesToTrainWhereTheFormatHasNot) {
  SessionSpec spec = TwoLayerSpec("mxfp8");
  spec.built_without_grad = true;
  Open(spec);
  Evaluate(1);
  const auto before = DigestsOf(*session_);
  const absl::Status refused = session_->Forward(ForwardOf(2), nullptr).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("layers[fc1].parameters[weight] is without columnwise codes"));
  EXPECT_EQ(DigestsOf(*session_), before);
}

TEST_F(SessionWeights, FollowTheirMastersFromF32OrThroughBf16) {
  for (const Requantization way : {Requantization::kFromF32, Requantization::kThroughBf16}) {
    SessionSpec spec = TwoLayerSpec("fp8_current");
    spec.requantization = way;
    Open(spec);
    Train(1);
    Update();
    Tensor source = State("fc1.weight.master");
    if (way == Requantization::kThroughBf16) source = *CastTensor(source, DType::kBF16, kContext);
    ExpectFresh(source, {true, true});
  }
}

TEST_F(SessionWeights, WithoutMastersTheUpdateStartsFromTheCodes) {
  SessionSpec spec = TwoLayerSpec("mxfp8");
  spec.masters = Masters::kNone;
  Open(spec);
  const QuantizedTensor codes =
      *QuantizeCpu(TwoLayerParameters().at("fc1.weight"),
                   spec.recipe.QuantizerFor(TensorRole::kWeight), {true, true}, {}, kContext);
  const Tensor master = *DequantizeCpu(codes, Usage::kRowwise, DType::kF32, kContext);
  ASSERT_TRUE(session_->Forward(ForwardOf(1), nullptr).ok());
  const auto backward = session_->Backward(BackwardOf(2), nullptr);
  const Tensor dw = OutputOf(backward, "fc1.dw");
  Update();
  Tensor zeros = *Tensor::Allocate(DType::kF32, master.shape());
  std::fill_n(zeros.as<float>(), zeros.element_count(), 0.0f);
  const AdamResult updated =
      *AdamStepCpu({master, dw, zeros, zeros, spec.optimizer.adam, 1}, kContext);
  ExpectFresh(updated.master, {true, true});
}

TEST_F(SessionWeights, TakeAChangedKnobFromTheirMastersAndRefuseItWithout) {
  SessionSpec spec = TwoLayerSpec("fp8_block");
  Open(spec);
  Train(1);
  ASSERT_TRUE(session_->ChangeRecipe(*Recipe::Parse("fp8_block:w_block_dim=1")).ok());
  ExpectFresh(State("fc1.weight.master"), {true, true});
  Train(3);

  spec.masters = Masters::kNone;
  Open(spec);
  const auto before = DigestsOf(*session_);
  const absl::Status refused = session_->ChangeRecipe(*Recipe::Parse("fp8_block:w_block_dim=1"));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("no masters to quantize it from anew"));
  EXPECT_EQ(DigestsOf(*session_), before);
  // What changes no weight is no matter for them.
  EXPECT_TRUE(session_
                  ->ChangeRecipe(*Recipe::Parse("fp8_block:x_block_dim=1,"
                                                "backward_override=dequantized"))
                  .ok());
  Train(5);
}

// A session whose weights are in high precision quantizes them in each forward by the recipe of
// that forward: what held weights must have after the change too.
TEST_F(SessionWeights, MoveToAnotherRecipeThroughTheirMasters) {
  const std::pair<const char*, const char*> changes[] = {
      {"mxfp8", "fp8_current"}, {"fp8_block", "nvfp4"},
      {"fp8_current", "mxfp8"}, {"nvfp4", "fp8_block:w_block_dim=1"},
      {"mxfp8", "fp8_delayed"}, {"fp8_delayed", "fp8_current"}};
  std::map<std::string, Tensor> parameters = TwoLayerParameters();
  for (auto& [name, tensor] : parameters) tensor = *CastTensor(tensor, DType::kF32, kContext);
  for (const auto& [from, to] : changes) {
    SCOPED_TRACE(absl::StrCat(from, " to ", to));
    SessionSpec spec = TwoLayerSpec(from);
    const auto plain = *OneRankSession::Open(*engine_, spec, parameters, nullptr);
    spec.weights = WeightStorage::kQuantized;
    session_ = *OneRankSession::Open(*engine_, spec, parameters, nullptr);
    spec.recipe = *Recipe::Parse(to);
    for (uint64_t step = 0; step < 4; ++step) {
      if (step == 2) {
        ASSERT_TRUE(plain->ChangeRecipe(spec.recipe).ok());
        const absl::Status changed = session_->ChangeRecipe(spec.recipe);
        ASSERT_TRUE(changed.ok()) << changed;
        const bool is_delayed = spec.recipe.is_delayed();
        if (!is_delayed) ExpectFresh(State("fc1.weight.master"), {true, true});
      }
      if (step == 3) {
        // A checkpoint after the change is restored under the recipe that it was written under.
        const TensorFile checkpoint = *session_->Checkpoint(nullptr);
        const auto before = DigestsOf(*session_);
        auto restored = OneRankSession::Restore(*engine_, spec, checkpoint, nullptr);
        ASSERT_TRUE(restored.ok()) << restored.status();
        session_ = *std::move(restored);
        EXPECT_EQ(DigestsOf(*session_), before);
      }
      const auto plain_y = plain->Forward(ForwardOf(step), nullptr);
      const auto held_y = session_->Forward(ForwardOf(step), nullptr);
      EXPECT_TRUE(SameBits(OutputOf(held_y, "y"), OutputOf(plain_y, "y"))) << step;
      const auto plain_dx = plain->Backward(BackwardOf(step), nullptr);
      const auto held_dx = session_->Backward(BackwardOf(step), nullptr);
      for (const char* name : {"dx", "fc1.dw", "fc2.dw"}) {
        EXPECT_TRUE(SameBits(OutputOf(held_dx, name), OutputOf(plain_dx, name))) << name << step;
      }
      ASSERT_TRUE(plain->Optimize({}, nullptr).ok());
      ASSERT_TRUE(session_->Optimize({}, nullptr).ok());
    }
  }
}

TEST_F(SessionWeights, RefuseAnotherRecipeWithoutMastersNamingWhatIsMissing) {
  SessionSpec spec = TwoLayerSpec("mxfp8");
  spec.masters = Masters::kNone;
  Open(spec);
  const auto before = DigestsOf(*session_);
  const absl::Status refused = session_->ChangeRecipe(*Recipe::Parse("fp8_current"));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  for (const char* part : {"recipe is fp8_current: fc1.weight is held as ", "by recipe mxfp8",
                           "spec.masters is none, and must be f32 or bf16_remainder"}) {
    EXPECT_THAT(std::string(refused.message()), HasSubstr(part));
  }
  EXPECT_EQ(DigestsOf(*session_), before);
}

TEST_F(SessionWeights, RefuseARecipeThatQuantizesNoWeights) {
  Open(TwoLayerSpec("mxfp8"));
  const absl::Status refused = session_->ChangeRecipe(*Recipe::Parse("bf16"));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("recipe bf16 does not quantize weights rowwise"));
}

TEST_F(SessionWeights, ACachedWorkspaceIsCompletedAndDroppedByTheUpdate) {
  // (first, later) x (evaluation, training): what later reads is what a fresh session would give.
  for (const char* recipe : {"fp8_current", "fp8_block", "mxfp8", "nvfp4"}) {
    SCOPED_TRACE(recipe);
    const auto session = OpenOn(*engine_, TwoLayerSpec(recipe));
    const auto fresh = OpenOn(*engine_, TwoLayerSpec(recipe));
    ForwardStep first = ForwardOf(1, "first");
    first.is_first = Microbatch::kFirst;
    first.train = false;
    ASSERT_TRUE(session->Forward(first, nullptr).ok());
    ASSERT_TRUE(fresh->Forward(first, nullptr).ok());
    EXPECT_TRUE(session->Find("fc1.weight.workspace.rowwise_data", nullptr).ok());
    EXPECT_FALSE(session->Find("fc1.weight.workspace.columnwise_data", nullptr).ok());
    ForwardStep later = ForwardOf(2);
    later.is_first = Microbatch::kLater;
    const auto forward = session->Forward(later, nullptr);
    later.is_first = Microbatch::kUnset;
    const auto uncached = fresh->Forward(later, nullptr);
    EXPECT_TRUE(SameBits(OutputOf(forward, "y"), OutputOf(uncached, "y")));
    EXPECT_TRUE(session->Find("fc1.weight.workspace.columnwise_data", nullptr).ok());
    const auto backward = session->Backward(BackwardOf(3), nullptr);
    EXPECT_TRUE(SameBits(OutputOf(backward, "dx"),
                         OutputOf(fresh->Backward(BackwardOf(3), nullptr), "dx")));
    ASSERT_TRUE(session->Optimize({}, nullptr).ok());
    EXPECT_FALSE(session->Find("fc1.weight.workspace.rowwise_data", nullptr).ok());
  }
}

// A margin is no part of the quantizer, but of the scale that the cached codes were made with.
TEST_F(SessionWeights, ACachedWorkspaceIsDroppedByAChangeOfTheRecipe) {
  const auto session = OpenOn(*engine_, TwoLayerSpec("fp8_delayed"));
  ForwardStep first = ForwardOf(1, "first");
  first.is_first = Microbatch::kFirst;
  ASSERT_TRUE(session->Forward(first, nullptr).ok());
  EXPECT_TRUE(session->Find("fc1.weight.workspace.rowwise_data", nullptr).ok());
  ASSERT_TRUE(session->ChangeRecipe(*Recipe::Parse("fp8_delayed:margin=3")).ok());
  EXPECT_FALSE(session->Find("fc1.weight.workspace.rowwise_data", nullptr).ok());
  const float scale = ToValues(*session->Find("fc1.weight.scale", nullptr))[0];
  ForwardStep later = ForwardOf(2, "later");
  later.is_first = Microbatch::kLater;
  const auto forward = session->Forward(later, nullptr);
  ASSERT_TRUE(forward.ok()) << forward.status();
  int weights = 0;
  for (const QuantizationRecord& record : forward->quantizations) {
    if (record.tensor != "fc1.weight") continue;
    EXPECT_EQ(record.scale, scale);
    ++weights;
  }
  EXPECT_EQ(weights, 1);
}

/// What moves no master: SGD of rate 0.
SessionSpec Unmoving(const char* recipe, Masters masters, Requantization way) {
  SessionSpec spec = TwoLayerSpec(recipe);
  spec.weights = WeightStorage::kQuantized;
  spec.masters = masters;
  spec.requantization = way;
  spec.optimizer.kind = OptimizerSpec::Kind::kSgd;
  spec.optimizer.sgd.learning_rate = 0;
  return spec;
}

// The codes of a session that has just opened stay, whatever dtype they are made through.
TEST_F(SessionWeights, AnUpdateThatMovesNothingChangesNoCode) {
  for (const char* recipe :
       {"mxfp8", "fp8_current", "fp8_block", "nvfp4", "hybrid:fprop=fp8_current,dgrad=bf16",
        "hybrid:fprop=fp8_current,dgrad=nvfp4,wgrad=nvfp4,columnwise_source=rowwise_dequantized"}) {
    for (const Masters masters : {Masters::kF32, Masters::kBf16Remainder}) {
      for (const Requantization way : {Requantization::kFromF32, Requantization::kThroughBf16}) {
        for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
          if (dtype == DType::kF16 && masters == Masters::kBf16Remainder) continue;  // Refused.
          SCOPED_TRACE(absl::StrCat(recipe, ", ", std::string(MastersName(masters)), ", ",
                                    std::string(RequantizationName(way)), ", ",
                                    std::string(DTypeName(dtype))));
          std::map<std::string, Tensor> parameters = TwoLayerParameters();
          // Normal values of this dtype, which bf16 rounds.
          for (const char* name : {"fc1.weight", "fc2.weight"}) {
            parameters[name] = Normal(9, parameters.at(name).shape(), dtype);
          }
          session_ =
              *OneRankSession::Open(*engine_, Unmoving(recipe, masters, way), parameters, nullptr);
          const auto codes = [&] {
            std::map<std::string, std::string> digests = DigestsOf(*session_);
            std::erase_if(digests, [](const auto& one) {
              return one.first.find(".quantized.") == std::string::npos;
            });
            return digests;
          };
          const auto before = codes();
          EXPECT_FALSE(before.empty());
          Train(50);
          Update();
          EXPECT_EQ(codes(), before);
        }
      }
    }
  }
}

// The gradients of one layer do not depend on its codes for fprop, so that a session with its
// weight in high precision has the same masters; and its parameter is what the unquantized
// direction of a held one is, whatever codes are made through.
TEST_F(SessionWeights, AnUnquantizedDirectionIsTheParameter) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const Masters masters : {Masters::kF32, Masters::kBf16Remainder}) {
      for (const Requantization way : {Requantization::kFromF32, Requantization::kThroughBf16}) {
        if (dtype == DType::kF16 && masters == Masters::kBf16Remainder) continue;  // Refused.
        for (const char* ranks : {"one", "copies", "fully_sharded", "distributed_optimizer"}) {
          SessionSpec spec = TwoLayerSpec("hybrid:fprop=fp8_current,dgrad=bf16");
          spec.layers.resize(1);
          spec.masters = masters;
          spec.requantization = way;
          if (ranks != std::string("one")) {
            spec.parallel = Ranks(1, 2);
            spec.parallel->fully_sharded = ranks == std::string("fully_sharded");
            spec.parallel->distributed_optimizer = ranks == std::string("distributed_optimizer");
          }
          if (spec.parallel.has_value() && spec.parallel->distributed_optimizer &&
              masters != Masters::kF32) {
            continue;  // Refused.
          }
          SCOPED_TRACE(absl::StrCat(std::string(DTypeName(dtype)), ", ",
                                    std::string(MastersName(masters)), ", ",
                                    std::string(RequantizationName(way)), ", ", ranks));
          const std::map<std::string, Tensor> parameters = {
              {"fc1.weight", Normal(11, {kHidden, kIn}, dtype)}};
          const auto plain = *OpenSession(*engine_, spec, parameters, nullptr, nullptr);
          spec.weights = WeightStorage::kQuantized;
          const auto held = *OpenSession(*engine_, spec, parameters, nullptr, nullptr);
          for (uint64_t step = 0; step < 3; ++step) {
            const TensorFile of_plain = *plain->Checkpoint(nullptr);
            const TensorFile of_held = *held->Checkpoint(nullptr);
            EXPECT_TRUE(SameBits(*of_held.Find("fc1.weight.quantized.columnwise_data"),
                                 *of_plain.Find("fc1.weight")));
            const auto restored = RestoreSession(*engine_, spec, of_held, nullptr, nullptr);
            ASSERT_TRUE(restored.ok()) << restored.status();
            EXPECT_EQ(DigestsOf(**restored), DigestsOf(*held));
            for (Session* const session : {plain.get(), held.get()}) {
              ASSERT_TRUE(session->Forward(ForwardOf(step), nullptr).ok());
              const auto dx =
                  session->Backward({"0", Normal(step + 40, {kRows, kHidden})}, nullptr);
              ASSERT_TRUE(dx.ok()) << dx.status();
              const auto updated = session->Optimize({}, nullptr);
              ASSERT_TRUE(updated.ok()) << updated.status();
            }
          }
        }
      }
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
