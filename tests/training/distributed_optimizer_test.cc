// The distributed optimizer of sessions (docs/ranks.md section 9.3) against the operations
// themselves on whole tensors: masters, moments, and the parameters that are put together of them.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/engine/engine.h"
#include "kernels/ops/optimizer/optimizer.h"
#include "tests/training/parallel/parallel_fixture.h"
#include "tests/training/sharding/shard_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// Of 3 and of 4 copies, whose rows are whole blocks of every format.
constexpr int64_t kBatch = 384;
const Shape kWideShape = {96, 64}, kNarrowShape = {64, 96}, kBiasShape = {96};
const char* const kWeights[] = {"fc1.weight", "fc2.weight"};
constexpr int kUpdates = 3;

struct Rule {
  const char* recipe;
  Quantizer quantizer;  ///< Of its weights.
};

std::vector<Rule> Rules() {
  QuantizerSpec powers = Fp8Tensor();
  powers.power_2_scale = true;
  QuantizerSpec floor = Mxfp8();
  floor.scale_rule = ScaleRule::kFloor;
  return {{"fp8_current", Fp8Tensor()},
          {"fp8_current:power_2_scales=true", powers},
          {"fp8_block", Fp8Tiles()},
          {"mxfp8", Mxfp8()},
          {"mxfp8:scale_rule=floor", floor},
          {"mxfp8:enable_2d_quantization=true", Mxfp8(2)},
          {"nvfp4", Nvfp4Tiles()}};
}

std::map<std::string, Tensor> Parameters() {
  return {{"fc1.weight", TroubledWeight(1, DType::kBF16, kWideShape)},
          {"fc1.bias", Normal(2, kBiasShape)},
          {"fc2.weight", TroubledWeight(3, DType::kBF16, kNarrowShape)}};
}

/// Everything whole, by the operations themselves.
class Whole {
 public:
  Whole(const Quantizer& quantizer, const SessionSpec& spec) : quantizer_(quantizer), spec_(spec) {
    for (const auto& [name, value] : Parameters()) {
      masters_[name] = *CastTensor(value, DType::kF32, {});
      m_[name] = v_[name] = Generated(Distribution::kAllZero, 0, DType::kF32, value.shape());
      Store(name, value);
    }
  }

  /// `gradients`: "fc1.dw" and so on, of all copies.
  void Update(const SessionStepResult& gradients) {
    ++steps_;
    for (const NamedTensor& output : gradients.outputs) {
      const size_t dot = output.name.find(".d");
      if (dot == std::string::npos) continue;
      const std::string name =
          output.name.substr(0, dot) + (output.name.back() == 'w' ? ".weight" : ".bias");
      Update(name, output.tensor);
    }
  }

  void ExpectSame(Session& subject, int ranks) const {
    for (const auto& [name, master] : masters_) {
      SCOPED_TRACE(name);
      ExpectJoined(subject, ranks, name + ".master", master);
      if (is_adam()) {
        ExpectJoined(subject, ranks, name + ".exp_avg", m_.at(name));
        ExpectJoined(subject, ranks, name + ".exp_avg_sq", v_.at(name));
      } else {
        ExpectJoined(subject, ranks, name + ".momentum", m_.at(name));
      }
    }
    for (int rank = 0; rank < ranks; ++rank) {
      const auto held = [&](const std::string& name) {
        const auto tensor = subject.Find(absl::StrCat("rank", rank, ".", name), nullptr);
        EXPECT_TRUE(tensor.ok()) << tensor.status();
        return tensor.ok() ? *tensor : Tensor();
      };
      EXPECT_TRUE(SameBits(held("fc1.bias"), bias_));
      for (const char* name : kWeights) {
        const QuantizedTensor& expected = quantized_.at(name);
        const std::string prefix = absl::StrCat(name, ".quantized.");
        SCOPED_TRACE(absl::StrCat(prefix, " of rank ", rank));
        EXPECT_TRUE(SameBits(held(prefix + "rowwise_data"), expected.rowwise->data));
        EXPECT_TRUE(SameBits(held(prefix + "rowwise_scale_inv"), expected.rowwise->scale_inv));
        EXPECT_TRUE(SameBits(held(prefix + "columnwise_data"), expected.columnwise->data));
        EXPECT_TRUE(
            SameBits(held(prefix + "columnwise_scale_inv"), expected.columnwise->scale_inv));
      }
    }
  }

 private:
  bool is_adam() const { return spec_.optimizer.kind == OptimizerSpec::Kind::kAdam; }

  void Update(const std::string& name, const Tensor& gradient) {
    if (is_adam()) {
      const AdamResult adam = *AdamStepCpu(
          {masters_[name], gradient, m_[name], v_[name], spec_.optimizer.adam, steps_}, {});
      masters_[name] = adam.master;
      m_[name] = adam.m;
      v_[name] = adam.v;
    } else {
      const Tensor momentum = steps_ == 1 ? Tensor() : m_[name];
      const SgdResult sgd =
          *SgdStepCpu({masters_[name], gradient, momentum, spec_.optimizer.sgd}, {});
      masters_[name] = sgd.master;
      m_[name] = sgd.momentum;
    }
    const bool is_direct =
        spec_.requantization == Requantization::kFromF32 && name.ends_with(".weight");
    Store(name, is_direct ? masters_[name] : *CastTensor(masters_[name], DType::kBF16, {}));
  }

  void Store(const std::string& name, const Tensor& source) {
    if (name == "fc1.bias") {
      bias_ = source;
    } else {
      quantized_[name] = *QuantizeCpu(source, quantizer_, {true, true}, {}, {});
    }
  }

  /// The ranks' fragments one after the other.
  static void ExpectJoined(Session& subject, int ranks, const std::string& name,
                           const Tensor& whole) {
    std::vector<float> joined;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto part = subject.Find(absl::StrCat("rank", rank, ".", name), nullptr);
      ASSERT_TRUE(part.ok()) << part.status();
      const std::vector<float> values = ToValues(*part);
      joined.insert(joined.end(), values.begin(), values.end());
    }
    ASSERT_EQ(static_cast<int64_t>(joined.size()), whole.element_count()) << name;
    EXPECT_TRUE(SameBits(FromValues(DType::kF32, whole.shape(), joined), whole)) << name;
  }

  const Quantizer quantizer_;
  const SessionSpec spec_;
  std::map<std::string, Tensor> masters_, m_, v_;
  Tensor bias_;
  std::map<std::string, QuantizedTensor> quantized_;
  int64_t steps_ = 0;
};

SessionSpec SpecOf(const Rule& rule, OptimizerSpec::Kind kind, Requantization requantization,
                   int copies) {
  SessionSpec spec = LinearLayers(rule.recipe, {ParallelMode::kNone, ParallelMode::kNone});
  spec.weights = WeightStorage::kQuantized;
  spec.optimizer.kind = kind;
  spec.optimizer.sgd.learning_rate = 0.05f;
  spec.optimizer.sgd.momentum = 0.9f;
  spec.requantization = requantization;
  spec.parallel = Ranks(1, copies);
  spec.parallel->distributed_optimizer = true;
  return spec;
}

/// Updates from what the session itself says are its gradients.
void ExpectUpdatesOfWhole(Engine& engine, const Rule& rule, const SessionSpec& spec) {
  Whole whole(rule.quantizer, spec);
  const auto session = OpenRanks(engine, spec, Parameters());
  ASSERT_NE(session, nullptr);
  for (uint64_t step = 0; step < kUpdates; ++step) {
    SCOPED_TRACE(absl::StrCat("update ", step));
    ForwardStep forward;
    forward.x = Normal(100 + step, {kBatch, kWideShape[1]});
    ASSERT_TRUE(session->Forward(forward, nullptr).ok());
    const auto gradients =
        session->Backward({"0", Normal(200 + step, {kBatch, kNarrowShape[0]})}, nullptr);
    ASSERT_TRUE(gradients.ok()) << gradients.status();
    const auto updated = session->Optimize({}, nullptr);
    ASSERT_TRUE(updated.ok()) << updated.status();
    whole.Update(*gradients);
    whole.ExpectSame(*session, spec.parallel->data_parallel);
  }
}

TEST(DistributedOptimizer, HasTheBitsOfWholeTensors) {
  const auto engine = MakeCpuEngine({.threads = 1});
  for (const Rule& rule : Rules()) {
    for (const auto kind : {OptimizerSpec::Kind::kAdam, OptimizerSpec::Kind::kSgd}) {
      const Requantization requantization = kind == OptimizerSpec::Kind::kAdam
                                                ? Requantization::kThroughBf16
                                                : Requantization::kFromF32;
      // 2 x 96 x 64 + 96 elements: of three copies, and of four, runs begin within rows.
      for (const int copies : {3, 4}) {
        SCOPED_TRACE(absl::StrCat(rule.recipe, " on ", copies));
        ExpectUpdatesOfWhole(*engine, rule, SpecOf(rule, kind, requantization, copies));
      }
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
