// The optimizer step of a session: SGD with all of its options composed by hand from the formulas
// of docs/numerics.md section 6, over a checkpoint too, and what an update leaves behind.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/tensor/convert.h"
#include "tests/training/session_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Values = std::vector<float>;

Values ValuesOf(const Tensor& tensor) {
  const Tensor wide = *CastTensor(tensor, DType::kF32, ExecutionContext());
  return {wide.as<float>(), wide.as<float>() + wide.element_count()};
}

/// One parameter trained by hand, an fp32 operation at a time.
struct TrainedByHand {
  Values master, buffer;

  void Step(const Values& gradient, const SgdOptions& options) {
    const bool is_first = buffer.empty();
    if (is_first) buffer.resize(master.size());
    for (size_t i = 0; i < master.size(); ++i) {
      float g = gradient[i];
      if (options.weight_decay != 0) {
        const float decay = options.weight_decay * master[i];
        g = g + decay;
      }
      const float kept = options.momentum * buffer[i];
      buffer[i] = is_first ? g : kept + g;
      const float ahead = options.momentum * buffer[i];
      const float direction = options.nesterov ? g + ahead : buffer[i];
      const float change = options.learning_rate * direction;
      master[i] = master[i] - change;
    }
  }
};

struct SgdCase {
  const char* name;
  float weight_decay;
  bool nesterov;
  Masters masters;
};

class SessionSgd : public ::testing::TestWithParam<SgdCase> {
 protected:
  SessionSgd() {
    spec_.masters = GetParam().masters;
    spec_.optimizer.kind = OptimizerSpec::Kind::kSgd;
    spec_.optimizer.sgd = {.learning_rate = 0.25f,
                           .momentum = 0.875f,
                           .weight_decay = GetParam().weight_decay,
                           .nesterov = GetParam().nesterov};
    for (const auto& [name, given] : TwoLayerParameters()) by_hand_[name].master = ValuesOf(given);
  }
  Values MasterOf(OneRankSession& session, const std::string& name) {
    if (spec_.masters == Masters::kF32) return ValuesOf(*session.Find(name + ".master", nullptr));
    const Tensor parameter = *session.Find(name, nullptr);
    const Tensor remainder = *session.Find(name + ".master_remainder", nullptr);
    return ValuesOf(*engine_->JoinMaster({parameter, remainder}, nullptr));
  }
  void StepBoth(OneRankSession& session, uint64_t seed, std::optional<float> learning_rate) {
    ASSERT_TRUE(session.Forward(ForwardOf(seed), nullptr).ok());
    const auto backward = session.Backward(BackwardOf(seed + 1), nullptr);
    ASSERT_TRUE(backward.ok()) << backward.status();
    ASSERT_TRUE(session.Optimize({.learning_rate = learning_rate}, nullptr).ok());
    SgdOptions options = spec_.optimizer.sgd;
    options.learning_rate = learning_rate.value_or(options.learning_rate);
    const std::pair<const char*, const char*> gradients[] = {{"fc1.weight", "fc1.dw"},
                                                             {"fc1.bias", "fc1.db"},
                                                             {"fc2.weight", "fc2.dw"},
                                                             {"fc2.bias", "fc2.db"}};
    for (const auto& [name, gradient] : gradients) {
      TrainedByHand& expected = by_hand_.at(name);
      expected.Step(ValuesOf(OutputOf(backward, gradient)), options);
      EXPECT_EQ(MasterOf(session, name), expected.master) << name;
      EXPECT_EQ(ValuesOf(*session.Find(absl::StrCat(name, ".momentum"), nullptr)), expected.buffer)
          << name;
    }
  }

  std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
  SessionSpec spec_ = TwoLayerSpec("bf16");
  std::map<std::string, TrainedByHand> by_hand_;
};

TEST_P(SessionSgd, FollowsItsFormulaWithItsMomentumOverACheckpoint) {
  auto session = OpenOn(*engine_, spec_);
  ASSERT_NE(session, nullptr);
  StepBoth(*session, 1, std::nullopt);
  StepBoth(*session, 11, 0.5f);
  const auto file = session->Checkpoint(nullptr);
  ASSERT_TRUE(file.ok()) << file.status();
  auto restored = OneRankSession::Restore(*engine_, spec_, *file, nullptr);
  ASSERT_TRUE(restored.ok()) << restored.status();
  StepBoth(**restored, 21, std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(
    Options, SessionSgd,
    ::testing::Values(SgdCase{"Momentum", 0, false, Masters::kF32},
                      SgdCase{"Nesterov", 0, true, Masters::kF32},
                      SgdCase{"Decay", 0.0625f, false, Masters::kBf16Remainder},
                      SgdCase{"NesterovAndDecay", 0.0625f, true, Masters::kBf16Remainder}),
    [](const auto& info) { return info.param.name; });

// A step of learning rate 0 leaves the parameters, so the same microbatch has the same gradient
// again; whatever an update left in the main gradient would be added to it.
TEST(SessionUpdate, LeavesMainGradientsOfZero) {
  const auto engine = MakeCpuEngine({.threads = 1});
  SessionSpec spec = TwoLayerSpec("fp8_current");
  spec.main_grads = true;
  const auto session = OpenOn(*engine, spec);
  ASSERT_NE(session, nullptr);
  std::map<std::string, Tensor> first;
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(session->Forward(ForwardOf(1), nullptr).ok());
    ASSERT_TRUE(session->Backward(BackwardOf(2), nullptr).ok());
    for (const char* name : {"fc1.main_grad", "fc2.main_grad"}) {
      const Tensor sum = *session->Find(name, nullptr);
      if (round == 0) first[name] = sum;
      EXPECT_TRUE(SameBits(sum, first.at(name))) << name;
    }
    ASSERT_TRUE(session->Optimize({.learning_rate = 0.0f}, nullptr).ok());
  }
}

/// The E4M3 codes of fc1.weight after an update that changes no master, whose values are
/// `value` but for a 448 in every block of 32, under which a block's scale is 1.
std::vector<uint8_t> CodesAfterAnUpdate(float value, Masters masters,
                                        Requantization requantization) {
  const auto engine = MakeCpuEngine({.threads = 1});
  SessionSpec spec = TwoLayerSpec("mxfp8");
  spec.weights = WeightStorage::kQuantized;
  spec.masters = masters;
  spec.requantization = requantization;
  std::map<std::string, Tensor> parameters = TwoLayerParameters();
  Tensor weight = *Tensor::Allocate(DType::kF32, {kHidden, kIn});
  for (int64_t i = 0; i < weight.element_count(); ++i) {
    const int64_t row = i / kIn, column = i % kIn;
    weight.as<float>()[i] = row % 32 == column % 32 ? 448.0f : value;
  }
  parameters["fc1.weight"] = weight;
  const auto session = OneRankSession::Open(*engine, spec, parameters, nullptr);
  EXPECT_TRUE(session.ok()) << session.status();
  EXPECT_TRUE((*session)->Forward(ForwardOf(1), nullptr).ok());
  EXPECT_TRUE((*session)->Backward(BackwardOf(2), nullptr).ok());
  EXPECT_TRUE((*session)->Optimize({.learning_rate = 0.0f}, nullptr).ok());
  const Tensor codes = *(*session)->Find("fc1.weight.quantized.rowwise_data", nullptr);
  return {codes.as<uint8_t>(), codes.as<uint8_t>() + codes.element_count()};
}

// 1 + 2^-4 + 2^-8 lies between the bf16 numbers 1 + 2^-4, which is half way between the E4M3
// numbers 1 (0x38) and 1.125 (0x39) and goes to the even one, and 1 + 2^-4 + 2^-7, which is above.
// A cast to bf16 takes the even lower one, the upper half of a master in two halves the upper one.
TEST(SessionUpdate, ThroughBf16IsThroughTheHalfThatTheMasterHas) {
  const float value = 1.0f + 0x1p-4f + 0x1p-8f;
  const auto code = [&](Masters masters, Requantization requantization) {
    return CodesAfterAnUpdate(value, masters, requantization).at(1);
  };
  EXPECT_EQ(code(Masters::kF32, Requantization::kFromF32), 0x39);
  EXPECT_EQ(code(Masters::kF32, Requantization::kThroughBf16), 0x38);
  EXPECT_EQ(code(Masters::kBf16Remainder, Requantization::kFromF32), 0x39);
  EXPECT_EQ(code(Masters::kBf16Remainder, Requantization::kThroughBf16), 0x39);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
