// Nothing waits for the device between the operations of a layer or of a training step: all of them
// are put on the stream while it stands still, up to the step's first read.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/cuda_status.h"
#include "kernels/layer/layer_program.h"
#include "tests/engine/both_engines.h"
#include "tests/engine/order_recorder.h"
#include "tests/layer/layer_cases.h"
#include "tests/training/session_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// Holds a stream until it is opened, or for five seconds: whoever waits for the stream before it
/// opens the gate then goes on, and the gate knows.
class Gate {
 public:
  absl::Status Close(CudaDevice& device) {
    QG_RETURN_IF_ERROR(device.Synchronize());
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_open_ = has_expired_ = false;
    }
    return QG_CUDA_STATUS(cudaLaunchHostFunc(device.stream(), &Hold, this));
  }
  void Open() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_open_ = true;
    }
    opened_.notify_all();
  }
  bool has_expired() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return has_expired_;
  }

 private:
  static void Hold(void* self) {
    auto* gate = static_cast<Gate*>(self);
    std::unique_lock<std::mutex> lock(gate->mutex_);
    gate->has_expired_ =
        !gate->opened_.wait_for(lock, std::chrono::seconds(5), [gate] { return gate->is_open_; });
  }

  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = false, has_expired_ = false;
};

/// The CUDA engine with the gate opened by the first read, of a time of a stage too.
class GatedEngine : public ForwardingEngine {
 public:
  GatedEngine() : ForwardingEngine(Cuda()) {}
  std::unique_ptr<Stopwatch> StartStopwatch() override {
    return std::make_unique<GatedStopwatch>(Cuda().StartStopwatch(), gate);
  }
  Gate gate;

 protected:
  void OnOperation(const std::string& name) override {
    if (IsRead(name)) gate.Open();
  }

 private:
  class GatedStopwatch : public Stopwatch {
   public:
    GatedStopwatch(std::unique_ptr<Stopwatch> stopwatch, Gate& gate)
        : stopwatch_(std::move(stopwatch)), gate_(gate) {}
    absl::Status Stop() override { return stopwatch_->Stop(); }
    absl::StatusOr<double> Seconds() override {
      gate_.Open();
      return stopwatch_->Seconds();
    }

   private:
    const std::unique_ptr<Stopwatch> stopwatch_;
    Gate& gate_;
  };
};

/// For steps that ran before: every kernel is loaded, and the pool has grown.
void ExpectNoWait(GatedEngine& engine, const std::string& what,
                  const std::function<absl::Status()>& step) {
  ASSERT_TRUE(engine.gate.Close(Cuda().device()).ok());
  const absl::Status status = step();
  EXPECT_TRUE(status.ok()) << what << ": " << status;
  EXPECT_FALSE(engine.gate.has_expired()) << what << " waited for the device";
  engine.gate.Open();
  EXPECT_TRUE(Cuda().device().Synchronize().ok());
}

Tensor OnDevice(const Tensor& tensor) { return Cuda().ToDevice(tensor, nullptr).value(); }

const char* const kRecipes[] = {"bf16",
                                "fp8_current",
                                "fp8_delayed:amax_history_len=4",
                                "fp8_block",
                                "mxfp8",
                                "nvfp4",
                                "fp8_current:backward_override=dequantized",
                                "mxfp8:backward_override=high_precision"};

class CudaResidency : public testing::TestWithParam<const char*> {
 protected:
  const Recipe recipe_ = Recipe::Parse(GetParam()).value();
  GatedEngine engine_;
};
INSTANTIATE_TEST_SUITE_P(Recipes, CudaResidency, testing::ValuesIn(kRecipes));

// A wait would show: this one is one.
TEST(CudaGate, ExpiresWhereTheDeviceIsWaitedFor) {
  GatedEngine engine;
  ASSERT_TRUE(engine.gate.Close(Cuda().device()).ok());
  EXPECT_TRUE(Cuda().device().Synchronize().ok());
  EXPECT_TRUE(engine.gate.has_expired());
}

TEST_P(CudaResidency, ALayer) {
  for (NamedCase& one : AllLayerCases()) {
    LayerRequest& request = one.request;
    request.x = OnDevice(request.x);
    request.grad_output = OnDevice(request.grad_output);
    for (auto& [name, tensor] : request.parameters) tensor = OnDevice(tensor);
    // What an earlier step of the same engine left, as in training.
    for (const LayerDelayedState& state :
         DelayedStatesOf(request.layer, *Recipe::Parse("fp8_delayed"))) {
      if (!recipe_.is_delayed()) continue;
      const DelayedScalingState fresh = FreshDelayedScaling(4).value();
      request.delayed[state.name] = {OnDevice(fresh.scale), OnDevice(fresh.amax_history)};
    }
    for (const bool fused : {true, false}) {
      request.layer.fused = fused;
      const auto run = [&] {
        return RunLayer(engine_, request, recipe_, Arithmetic{}, nullptr).status();
      };
      const absl::Status first = run();
      ASSERT_TRUE(first.ok()) << first;
      ExpectNoWait(engine_, one.name, run);
    }
  }
}

TEST_P(CudaResidency, ATrainingStep) {
  SessionSpec spec = TwoLayerSpec(GetParam());
  spec.main_grads = true;
  const auto session = OpenOn(engine_, spec);
  ASSERT_NE(session, nullptr);
  ForwardStep kept = ForwardOf(1, "kept"), recomputed = ForwardOf(2, "recomputed"),
              deferred = ForwardOf(3, "deferred");
  kept.is_first = Microbatch::kFirst;
  recomputed.recompute = deferred.defer_wgrad = true;
  recomputed.is_first = deferred.is_first = Microbatch::kLater;
  const auto run = [&](bool is_gated) {
    const auto take = [&](const std::string& what, const std::function<absl::Status()>& step) {
      if (is_gated) return ExpectNoWait(engine_, what, step);
      const absl::Status status = step();
      EXPECT_TRUE(status.ok()) << what << ": " << status;
    };
    for (ForwardStep* forward : {&kept, &recomputed, &deferred}) {
      forward->x = OnDevice(forward->x);
      take("forward of " + forward->microbatch,
           [&] { return session->Forward(*forward, nullptr).status(); });
    }
    for (const ForwardStep* forward : {&deferred, &recomputed, &kept}) {
      BackwardStep backward = BackwardOf(4, forward->microbatch);
      backward.grad_output = OnDevice(backward.grad_output);
      take("backward of " + forward->microbatch,
           [&] { return session->Backward(backward, nullptr).status(); });
    }
    take("wgrad", [&] { return session->Wgrad(nullptr).status(); });
    take("optimizer", [&] { return session->Optimize({}, nullptr).status(); });
  };
  run(false);
  run(true);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
