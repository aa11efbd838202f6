// Sessions that are given weights, x and grad_output as codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/training/session_outline.h"
#include "tests/layer/linear/hand_codes.h"
#include "tests/training/session_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kM = 32, kN = 64, kK = 96;
const HandRule kMx{QuantizerFormat::kMxfp8, DType::kF8E4M3, 1};

SessionSpec OneLinear(const std::string& recipe) {
  SessionSpec spec{.layers = {{"fc1", {}}}, .recipe = *Recipe::Parse(recipe)};
  spec.arithmetic = *Arithmetic::Parse("exact");
  spec.weights = WeightStorage::kQuantized;
  spec.masters = Masters::kF32;
  spec.optimizer.kind = OptimizerSpec::Kind::kSgd;
  spec.optimizer.sgd.learning_rate = 0.5f;
  return spec;
}

/// A session of one linear layer with hand-made codes of all three operands.
class GivenCodesSession : public ::testing::Test {
 protected:
  absl::Status Open(const SessionSpec& spec) {
    auto opened = OneRankSession::Open(*engine_, spec, {}, nullptr, {}, nullptr,
                                       {{"fc1.weight", weight_.codes}});
    if (opened.ok()) session_ = *std::move(opened);
    return opened.status();
  }
  ForwardStep Forward() const {
    ForwardStep step;
    step.x = FromValues(DType::kF32, {kM, kK}, x_.rowwise);
    step.x_codes = x_.codes;
    return step;
  }
  BackwardStep Backward() const {
    return {"0", FromValues(DType::kF32, {kM, kN}, grad_output_.rowwise), grad_output_.codes};
  }
  Tensor State(const std::string& name) {
    const auto tensor = session_->Find(name, nullptr);
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    return tensor.ok() ? *tensor : Tensor();
  }
  std::vector<float> ExpectedDw() const {
    return SumsOf(
        kN, kK, kM, [&](int64_t n, int64_t m) { return grad_output_.columnwise[m * kN + n]; },
        [&](int64_t m, int64_t k) { return x_.columnwise[m * kK + k]; });
  }

  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
  HandTensor x_{kMx, kM, kK, 1}, weight_{kMx, kN, kK, 2}, grad_output_{kMx, kM, kN, 3};
  std::unique_ptr<OneRankSession> session_;
};

TEST_F(GivenCodesSession, EachGemmReadsTheCodesAsTheyAre) {
  const absl::Status opened = Open(OneLinear("mxfp8"));
  ASSERT_TRUE(opened.ok()) << opened;
  const auto forward = session_->Forward(Forward(), nullptr);
  EXPECT_EQ(ToValues(OutputOf(forward, "y")),
            SumsOf(
                kM, kN, kK, [&](int64_t m, int64_t k) { return x_.rowwise[m * kK + k]; },
                [&](int64_t k, int64_t n) { return weight_.rowwise[n * kK + k]; }));
  const auto backward = session_->Backward(Backward(), nullptr);
  EXPECT_EQ(ToValues(OutputOf(backward, "dx")),
            SumsOf(
                kM, kK, kN, [&](int64_t m, int64_t n) { return grad_output_.rowwise[m * kN + n]; },
                [&](int64_t n, int64_t k) { return weight_.columnwise[n * kK + k]; }));
  EXPECT_EQ(ToValues(OutputOf(backward, "fc1.dw")), ExpectedDw());
}

TEST_F(GivenCodesSession, MastersBeginAsTheValuesAndUpdatesFollowThem) {
  ASSERT_TRUE(Open(OneLinear("mxfp8")).ok());
  EXPECT_EQ(ToValues(State("fc1.weight.master")), weight_.rowwise);
  EXPECT_TRUE(SameBits(State("fc1.weight.quantized.rowwise_data"), weight_.codes.rowwise->data));
  EXPECT_TRUE(
      SameBits(State("fc1.weight.quantized.columnwise_data"), weight_.codes.columnwise->data));
  ASSERT_TRUE(session_->Forward(Forward(), nullptr).ok());
  ASSERT_TRUE(session_->Backward(Backward(), nullptr).ok());
  ASSERT_TRUE(session_->Optimize({}, nullptr).ok());
  std::vector<float> updated = weight_.rowwise;
  const std::vector<float> dw = ExpectedDw();
  for (size_t i = 0; i < updated.size(); ++i) updated[i] -= 0.5f * dw[i];
  EXPECT_EQ(ToValues(State("fc1.weight.master")), updated);
  const QuantizedTensor fresh =
      *QuantizeCpu(FromValues(DType::kF32, {kN, kK}, updated),
                   Recipe::Parse("mxfp8")->QuantizerFor(TensorRole::kWeight), {true, true}, {},
                   ExecutionContext());
  EXPECT_TRUE(SameBits(State("fc1.weight.quantized.rowwise_data"), fresh.rowwise->data));
  EXPECT_TRUE(SameBits(State("fc1.weight.quantized.columnwise_data"), fresh.columnwise->data));
}

TEST_F(GivenCodesSession, ACheckpointBringsTheCodesBack) {
  const SessionSpec spec = OneLinear("mxfp8");
  ASSERT_TRUE(Open(spec).ok());
  const TensorFile checkpoint = *session_->Checkpoint(nullptr);
  const auto before = DigestsOf(*session_);
  auto restored = OneRankSession::Restore(*engine_, spec, checkpoint, nullptr);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(DigestsOf(**restored), before);
}

TEST_F(GivenCodesSession, WeightsOfEveryFormatAreHeldAsTheyWereQuantized) {
  for (const char* recipe :
       {"fp8_current", "fp8_block", "fp8_block:w_block_dim=1", "mxfp8", "nvfp4"}) {
    for (const bool gives_columnwise : {true, false}) {
      SCOPED_TRACE(absl::StrCat(recipe, gives_columnwise));
      SessionSpec spec = TwoLayerSpec(recipe);
      spec.weights = WeightStorage::kQuantized;
      std::map<std::string, Tensor> parameters = TwoLayerParameters();
      for (auto& [name, tensor] : parameters) {
        tensor = *CastTensor(tensor, DType::kF32, ExecutionContext());
      }
      const auto plain = *OneRankSession::Open(*engine_, spec, parameters, nullptr);
      const Quantizer& quantizer = spec.recipe.QuantizerFor(TensorRole::kWeight);
      std::map<std::string, QuantizedTensor> codes;
      for (const char* name : {"fc1.weight", "fc2.weight"}) {
        codes[name] = *QuantizeCpu(parameters.at(name), quantizer, {true, gives_columnwise}, {},
                                   ExecutionContext());
        parameters.erase(name);
      }
      const auto given =
          OneRankSession::Open(*engine_, spec, parameters, nullptr, {}, nullptr, codes);
      const bool is_derivable = std::string(recipe) == "fp8_current" ||
                                std::string(recipe) == "fp8_block" ||
                                std::string(recipe) == "nvfp4";
      if (!gives_columnwise && !is_derivable) {
        EXPECT_THAT(std::string(given.status().message()),
                    AllOf(HasSubstr("parameters[fc1.weight] is without columnwise codes: dgrad"),
                          HasSubstr("cannot be made from rowwise ones")));
        continue;
      }
      ASSERT_TRUE(given.ok()) << given.status();
      for (const char* part :
           {"rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv"}) {
        const std::string name = absl::StrCat("fc1.weight.quantized.", part);
        EXPECT_TRUE(SameBits(*(*given)->Find(name, nullptr), *plain->Find(name, nullptr))) << part;
      }
      EXPECT_TRUE(SameBits(OutputOf((*given)->Forward(ForwardOf(3), nullptr), "y"),
                           OutputOf(plain->Forward(ForwardOf(3), nullptr), "y")));
    }
  }
}

TEST_F(GivenCodesSession, WhatASessionCannotHoldIsRefusedByName) {
  SessionSpec spec = OneLinear("mxfp8");
  spec.weights = WeightStorage::kHighPrecision;
  EXPECT_THAT(std::string(Open(spec).message()),
              AllOf(HasSubstr("parameters[fc1.weight] is given as mxfp8 (f8_e4m3, block_dim 1)"),
                    HasSubstr("weights quantized")));
  EXPECT_THAT(std::string(Open(OneLinear("fp8_current")).message()),
              AllOf(HasSubstr("parameters[fc1.weight] is given as mxfp8"),
                    HasSubstr("recipe fp8_current reads weight rowwise as fp8_tensor (f8_e4m3)")));
  weight_ = HandTensor({QuantizerFormat::kFp8Tensor, DType::kF8E4M3, 1}, kN, kK, 2);
  EXPECT_THAT(std::string(Open(OneLinear("fp8_current")).message()),
              HasSubstr("parameters[fc1.weight] is without amax_rowwise"));
}

// A weight of two rules has a scale of each, and the error says which one is missing.
TEST_F(GivenCodesSession, OfTwoRulesEachScaleIsHeld) {
  const SessionSpec spec =
      OneLinear(R"(hybrid:fprop=fp8_current,wgrad=fp8_current,)"
                R"(dgrad={"name":"fp8_current","knobs":{"power_2_scales":"true"}})");
  const Tensor weight = FromValues(DType::kF32, {kN, kK}, weight_.rowwise);
  weight_.codes = *QuantizeCpu(weight, spec.recipe.QuantizerFor(TensorRole::kWeight), {true, true},
                               {}, ExecutionContext());
  EXPECT_TRUE(Open(spec).ok());
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    const QuantizedTensor whole = weight_.codes;
    weight_.codes.copy(usage)->scale = Tensor();
    EXPECT_EQ(std::string(Open(spec).message()),
              absl::StrCat("parameters[fc1.weight] is without ", std::string(UsageName(usage)),
                           "_scale: a session keeps what multiplied the elements with the codes, "
                           "as a quantization gives it"));
    weight_.codes = whole;
  }
}

TEST_F(GivenCodesSession, AStepThatIsRefusedChangesNothing) {
  ASSERT_TRUE(Open(OneLinear("mxfp8")).ok());
  ForwardStep recomputed = Forward();
  recomputed.recompute = true;
  EXPECT_THAT(std::string(session_->Forward(recomputed, nullptr).status().message()),
              HasSubstr("recompute is true: x is given as codes"));
  ForwardStep other = Forward();
  other.x_codes = HandTensor({QuantizerFormat::kFp8Block, DType::kF8E4M3, 1}, kM, kK, 1).codes;
  EXPECT_THAT(std::string(session_->Forward(other, nullptr).status().message()),
              AllOf(HasSubstr("x is given as fp8_block"), HasSubstr("as mxfp8")));
  ASSERT_TRUE(session_->Forward(Forward(), nullptr).ok());
  const auto before = DigestsOf(*session_);
  BackwardStep backward = Backward();
  backward.codes = HandTensor({QuantizerFormat::kFp8Block, DType::kF8E4M3, 1}, kM, kN, 1).codes;
  EXPECT_THAT(std::string(session_->Backward(backward, nullptr).status().message()),
              AllOf(HasSubstr("grad_output is given as fp8_block"), HasSubstr("as mxfp8")));
  EXPECT_EQ(DigestsOf(*session_), before);
  EXPECT_TRUE(session_->Backward(Backward(), nullptr).ok());
}

TEST_F(GivenCodesSession, AnOutlineRefusesWhatTheSessionDoes) {
  auto outline =
      SessionOutline::Open(*engine_, OneLinear("mxfp8"), {}, {{"fc1.weight", weight_.codes}});
  ASSERT_TRUE(outline.ok()) << outline.status();
  ASSERT_TRUE(Open(OneLinear("mxfp8")).ok());
  const QuantizedTensor of_block =
      HandTensor({QuantizerFormat::kFp8Block, DType::kF8E4M3, 1}, kM, kN, 1).codes;
  const auto message = [](const absl::Status& status) { return std::string(status.message()); };
  ASSERT_TRUE(outline->Forward(Forward()).ok());
  ASSERT_TRUE(session_->Forward(Forward(), nullptr).ok());
  BackwardStep backward = Backward();
  backward.codes = of_block;
  const std::string refusal = message(outline->Backward(backward));
  EXPECT_THAT(refusal,
              AllOf(HasSubstr("grad_output is given as fp8_block"), HasSubstr("as mxfp8")));
  EXPECT_EQ(refusal, message(session_->Backward(backward, nullptr).status()));
  EXPECT_TRUE(outline->Backward(Backward()).ok());
}

TEST_F(GivenCodesSession, AnOutlineOnRanksRefusesCodes) {
  SessionSpec spec = OneLinear("mxfp8");
  spec.weights = WeightStorage::kHighPrecision;
  spec.masters = Masters::kNone;
  spec.parallel = ParallelSpec{.tensor_parallel = 1, .data_parallel = 2};
  auto outline = SessionOutline::Open(
      *engine_, spec, {{"fc1.weight", FromValues(DType::kF32, {kN, kK}, weight_.rowwise)}});
  ASSERT_TRUE(outline.ok()) << outline.status();
  EXPECT_THAT(std::string(outline->Forward(Forward()).message()),
              AllOf(HasSubstr("x is given as mxfp8"), HasSubstr("ranks quantize their own parts")));
  ForwardStep plain = Forward();
  plain.x_codes = {};
  ASSERT_TRUE(outline->Forward(plain).ok());
  EXPECT_THAT(std::string(outline->Backward(Backward()).message()),
              AllOf(HasSubstr("grad_output is given as mxfp8"),
                    HasSubstr("ranks quantize their own parts")));
}

// ---- One weight of all experts

SessionSpec GroupedSpec() {
  SessionSpec spec{.layers = {{"fc", {}}}, .recipe = *Recipe::Parse("mxfp8")};
  spec.layers[0].spec.kind = LayerKind::kGroupedLinear;
  spec.layers[0].spec.m_splits = {32, 0, 64};
  spec.weights = WeightStorage::kQuantized;
  spec.masters = Masters::kF32;
  spec.optimizer.kind = OptimizerSpec::Kind::kSgd;
  spec.optimizer.sgd.learning_rate = 0.5f;
  return spec;
}

TEST(StackedExpertsSession, HoldsTheExpertsAndGivesTheirGradientsStacked) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const Tensor stack = Normal(7, {3, 32, 64});
  const size_t bytes = 32 * 64 * sizeof(uint16_t);
  std::map<std::string, Tensor> apart;
  for (size_t expert = 0; expert < 3; ++expert) {
    apart[absl::StrCat("fc.weight.", expert)] =
        *Tensor::FromBytes(DType::kBF16, {32, 64}, std::span(stack.data() + expert * bytes, bytes));
  }
  auto expected = *OneRankSession::Open(*engine, GroupedSpec(), apart, nullptr);
  auto opened = OneRankSession::Open(*engine, GroupedSpec(), {{"fc.weight", stack}}, nullptr);
  ASSERT_TRUE(opened.ok()) << opened.status();
  OneRankSession& session = **opened;
  EXPECT_EQ(DigestsOf(session), DigestsOf(*expected));
  for (uint64_t step = 0; step < 2; ++step) {
    ForwardStep forward;
    forward.x = Normal(20 + step, {96, 64});
    EXPECT_TRUE(SameBits(OutputOf(session.Forward(forward, nullptr), "y"),
                         OutputOf(expected->Forward(forward, nullptr), "y")));
    const BackwardStep backward{"0", Normal(30 + step, {96, 32})};
    const auto subject = session.Backward(backward, nullptr);
    const auto reference = expected->Backward(backward, nullptr);
    const Tensor dw = OutputOf(subject, "fc.dw");
    ASSERT_EQ(dw.shape(), (Shape{3, 32, 64}));
    for (size_t expert = 0; expert < 3; ++expert) {
      const Tensor part = OutputOf(reference, absl::StrCat("fc.dw.", expert));
      EXPECT_EQ(std::memcmp(dw.data() + expert * bytes, part.data(), bytes), 0) << expert;
    }
    EXPECT_EQ(reference->outputs.size() + 1, subject->outputs.size());
    ASSERT_TRUE(session.Optimize({}, nullptr).ok());
    ASSERT_TRUE(expected->Optimize({}, nullptr).ok());
  }
  EXPECT_EQ(DigestsOf(session), DigestsOf(*expected));
  const Tensor weight = *session.Find("fc.weight", nullptr);
  ASSERT_EQ(weight.shape(), (Shape{3, 32, 64}));
  for (size_t expert = 0; expert < 3; ++expert) {
    const Tensor part = *expected->Find(absl::StrCat("fc.weight.", expert), nullptr);
    EXPECT_EQ(std::memcmp(weight.data() + expert * bytes, part.data(), bytes), 0) << expert;
  }
}

TEST(StackedExpertsSession, OfAnotherShapeOrBesideItsExpertsIsRefused) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const auto refusal = [&](const std::map<std::string, Tensor>& parameters) {
    return std::string(
        OneRankSession::Open(*engine, GroupedSpec(), parameters, nullptr).status().message());
  };
  EXPECT_THAT(refusal({{"fc.weight", Normal(7, {2, 32, 64})}}),
              AllOf(HasSubstr("parameters[fc.weight] is bf16[2x32x64]"),
                    HasSubstr("[E][N][K], with E = 3")));
  EXPECT_THAT(
      refusal({{"fc.weight", Normal(7, {3, 32, 64})}, {"fc.weight.1", Normal(8, {32, 64})}}),
      AllOf(HasSubstr("parameters[fc.weight]"), HasSubstr("weight.1] is given too")));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
