// A session's step on a GPU, forward and backward of one linear layer, beside the same work without
// a session: the engine's quantizers and GEMMs on the same tensors, nothing hashed and nothing
// recorded. By events on the engine's stream, host time between launches included; one step at a
// time, which begins and ends with a device that stands still, and many in a row.
// Environment variable QUANTGATE_BENCH_DIM: M = N = K, 4096 unless set.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/engine/cuda_engine.h"
#include "kernels/layer/layer.h"
#include "kernels/training/training_session.h"
#include "tests/engine/order_recorder.h"
#include "tests/tensor/cuda_benchmark.h"

namespace quantgate {
namespace {

CudaEngine& BenchmarkEngine() {
  static CudaEngine& engine = *ValueOrDie(CudaEngine::Open(0)).release();
  return engine;
}

int64_t Dim() {
  const char* text = std::getenv("QUANTGATE_BENCH_DIM");
  return text == nullptr ? 4096 : std::atoll(text);
}

struct Operands {
  Tensor x, weight, grad_output;
};

const Operands& TheOperands() {
  const auto make = [](uint64_t seed) {
    GeneratorSpec spec;
    spec.seed = seed;
    spec.shape = {Dim(), Dim()};
    return ValueOrDie(BenchmarkEngine().Generate(spec, nullptr));
  };
  static const Operands& operands = *new Operands{make(1), make(2), make(3)};
  return operands;
}

/// The layer by hand (docs/quantizers.md section 9, no override): each tensor quantized once in the
/// directions that are read, three GEMMs that are described as the layer describes them.
class DirectLinear {
 public:
  explicit DirectLinear(const Recipe& recipe) : recipe_(recipe) {
    LayerRequest request;
    request.x = TheOperands().x;
    request.parameters["weight"] = TheOperands().weight;
    request.grad_output = TheOperands().grad_output;
    const LayerResult layer =
        ValueOrDie(RunLayer(BenchmarkEngine(), request, recipe, Arithmetic{}, nullptr));
    for (const GemmRecord& gemm : layer.gemms) gemms_.push_back(gemm.desc);
  }

  absl::Status Step() {
    if (!recipe_.is_quantized()) {
      for (const GemmDesc& desc : gemms_) QG_RETURN_IF_ERROR(Gemm(desc));
      return absl::OkStatus();
    }
    const Operands& operands = TheOperands();
    QG_ASSIGN_OR_RETURN(const QuantizedTensor x, Quantize(operands.x, TensorRole::kInput));
    QG_ASSIGN_OR_RETURN(const QuantizedTensor w, Quantize(operands.weight, TensorRole::kWeight));
    QG_RETURN_IF_ERROR(Gemm(Of(0, x.rowwise, w.rowwise)));
    QG_ASSIGN_OR_RETURN(const QuantizedTensor g,
                        Quantize(operands.grad_output, TensorRole::kGradOutput));
    QG_RETURN_IF_ERROR(Gemm(Of(1, g.rowwise, w.columnwise)));
    return Gemm(Of(2, g.columnwise, x.columnwise));
  }

 private:
  absl::StatusOr<QuantizedTensor> Quantize(const Tensor& tensor, TensorRole role) {
    return BenchmarkEngine().Quantize(tensor, recipe_.QuantizerFor(role), {true, true}, {},
                                      nullptr);
  }
  GemmDesc Of(size_t index, const std::optional<QuantizedCopy>& a,
              const std::optional<QuantizedCopy>& b) {
    GemmDesc desc = gemms_[index];
    desc.a = OperandOf(*a);
    desc.b = OperandOf(*b);
    return desc;
  }
  static absl::Status Gemm(const GemmDesc& desc) {
    return BenchmarkEngine().Gemm(desc, nullptr).status();
  }

  const Recipe recipe_;
  std::vector<GemmDesc> gemms_;  ///< fprop, dgrad, wgrad.
};

SessionSpec LinearSpec(const Recipe& recipe) { return {.layers = {{"fc", {}}}, .recipe = recipe}; }

absl::Status SessionStep(OneRankSession& session) {
  ForwardStep forward;
  forward.x = TheOperands().x;
  QG_RETURN_IF_ERROR(session.Forward(forward, nullptr).status());
  BackwardStep backward;
  backward.grad_output = TheOperands().grad_output;
  return session.Backward(backward, nullptr).status();
}

/// A session that has taken no update: its gradients are added up, step by step, so each step has a
/// new session's state put back.
class BenchmarkSession {
 public:
  BenchmarkSession(Engine& engine, const Recipe& recipe)
      : session_(ValueOrDie(OneRankSession::Open(engine, LinearSpec(recipe),
                                                 {{"fc.weight", TheOperands().weight}}, nullptr))),
        beginning_(session_->Snapshot()) {}

  absl::Status Step() {
    session_->RestoreSnapshot(beginning_);
    return SessionStep(*session_);
  }

 private:
  const std::unique_ptr<OneRankSession> session_;
  const std::shared_ptr<const SessionState> beginning_;
};

/// The engine without stopwatches: what two events for each stage take.
class UntimedEngine : public ForwardingEngine {
 public:
  UntimedEngine() : ForwardingEngine(BenchmarkEngine()) {}
  std::unique_ptr<Stopwatch> StartStopwatch() override { return std::make_unique<NoStopwatch>(); }

 private:
  class NoStopwatch : public Stopwatch {
    absl::Status Stop() override { return absl::OkStatus(); }
    absl::StatusOr<double> Seconds() override { return 0.0; }
  };
};

UntimedEngine& TheUntimedEngine() {
  static UntimedEngine& engine = *new UntimedEngine;
  return engine;
}

/// One run of the layer: fingerprints and records as in a session, read once.
class LayerRun {
 public:
  explicit LayerRun(const Recipe& recipe) : recipe_(recipe) {
    request_.x = TheOperands().x;
    request_.parameters["weight"] = TheOperands().weight;
    request_.grad_output = TheOperands().grad_output;
  }
  absl::Status Step() {
    return RunLayer(BenchmarkEngine(), request_, recipe_, Arithmetic{}, nullptr).status();
  }

 private:
  const Recipe recipe_;
  LayerRequest request_;
};

/// Steps between two readings of the clock.
enum class Pace { kOneByOne = 1, kInARow = 16 };

/// Both by turns, so that clocks and neighbours are the same for both; the median of their ratios.
template <typename Subject>
void TimeByTurns(benchmark::State& state, const Recipe& recipe, Pace pace, Subject& session) {
  DirectLinear linear(recipe);
  const int steps = static_cast<int>(pace);
  const auto seconds_of = [steps](auto& subject) {
    const std::unique_ptr<Stopwatch> stopwatch = BenchmarkEngine().StartStopwatch();
    for (int step = 0; step < steps; ++step) DieUnlessOk(subject.Step());
    DieUnlessOk(stopwatch->Stop());
    return ValueOrDie(stopwatch->Seconds()) / steps;
  };
  for (int warm_up = 0; warm_up < 3; ++warm_up) {
    seconds_of(linear);
    seconds_of(session);
  }
  std::vector<double> ratios;
  double all_direct = 0;
  for (auto _ : state) {
    const double direct = seconds_of(linear), in_session = seconds_of(session);
    ratios.push_back(in_session / direct);
    state.SetIterationTime(in_session);
    all_direct += direct;
  }
  std::nth_element(ratios.begin(), ratios.begin() + ratios.size() / 2, ratios.end());
  state.counters["of_direct"] = ratios[ratios.size() / 2];
  state.counters["direct_us"] = {all_direct * 1e6, benchmark::Counter::kAvgIterations};
}

void BM_Session(benchmark::State& state, const char* text, Pace pace) {
  const Recipe recipe = ValueOrDie(Recipe::Parse(text));
  BenchmarkSession session(BenchmarkEngine(), recipe);
  TimeByTurns(state, recipe, pace, session);
}

void BM_UntimedSession(benchmark::State& state, const char* text, Pace pace) {
  const Recipe recipe = ValueOrDie(Recipe::Parse(text));
  BenchmarkSession session(TheUntimedEngine(), recipe);
  TimeByTurns(state, recipe, pace, session);
}

void BM_RunLayer(benchmark::State& state, const char* text, Pace pace) {
  const Recipe recipe = ValueOrDie(Recipe::Parse(text));
  LayerRun run(recipe);
  TimeByTurns(state, recipe, pace, run);
}

/// The host's side of a session's step: until everything of forward, and of backward, is on the
/// stream, and what comes after.
class TimedEngine : public ForwardingEngine {
 public:
  TimedEngine() : ForwardingEngine(BenchmarkEngine()) {}
  std::chrono::steady_clock::time_point first_read;
  bool has_read = false;

 protected:
  void OnOperation(const std::string& name) override {
    if (has_read || !IsRead(name)) return;
    has_read = true;
    first_read = std::chrono::steady_clock::now();
  }
};

void BM_HostTimesOfSession(benchmark::State& state, const char* text) {
  using Clock = std::chrono::steady_clock;
  TimedEngine engine;
  const Recipe recipe = ValueOrDie(Recipe::Parse(text));
  const auto session = ValueOrDie(OneRankSession::Open(
      engine, LinearSpec(recipe), {{"fc.weight", TheOperands().weight}}, nullptr));
  const auto beginning = session->Snapshot();
  double enqueue[2] = {0, 0}, wait[2] = {0, 0};
  const auto microseconds = [](Clock::duration duration) {
    return std::chrono::duration<double, std::micro>(duration).count();
  };
  const auto timed = [&](int which, auto step) {
    engine.has_read = false;
    const auto begin = Clock::now();
    DieUnlessOk(step().status());
    enqueue[which] += microseconds(engine.first_read - begin);
    wait[which] += microseconds(Clock::now() - engine.first_read);
  };
  ForwardStep forward;
  forward.x = TheOperands().x;
  BackwardStep backward;
  backward.grad_output = TheOperands().grad_output;
  for (auto _ : state) {
    session->RestoreSnapshot(beginning);
    timed(0, [&] { return session->Forward(forward, nullptr); });
    timed(1, [&] { return session->Backward(backward, nullptr); });
  }
  const auto per_iteration = benchmark::Counter::kAvgIterations;
  state.counters["forward_enqueue_us"] = {enqueue[0], per_iteration};
  state.counters["forward_read_us"] = {wait[0], per_iteration};
  state.counters["backward_enqueue_us"] = {enqueue[1], per_iteration};
  state.counters["backward_read_us"] = {wait[1], per_iteration};
}

#define QG_SESSION_BENCHMARK(function, recipe)                               \
  BENCHMARK_CAPTURE(function, recipe##_one_by_one, #recipe, Pace::kOneByOne) \
      ->Unit(benchmark::kMicrosecond)                                        \
      ->UseManualTime();                                                     \
  BENCHMARK_CAPTURE(function, recipe##_in_a_row, #recipe, Pace::kInARow)     \
      ->Unit(benchmark::kMicrosecond)                                        \
      ->UseManualTime()

QG_SESSION_BENCHMARK(BM_Session, fp8_current);
QG_SESSION_BENCHMARK(BM_UntimedSession, fp8_current);
QG_SESSION_BENCHMARK(BM_RunLayer, fp8_current);
QG_SESSION_BENCHMARK(BM_Session, fp8_block);
QG_SESSION_BENCHMARK(BM_Session, bf16);
BENCHMARK_CAPTURE(BM_HostTimesOfSession, fp8_current, "fp8_current")->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace quantgate
