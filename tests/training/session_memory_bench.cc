// Memory of many open sessions on the CPU engine: resident bytes of the process beside the tensors
// that the sessions hold, and the time that opening one and a training step take. Each session has
// parameters of its own, has taken a step, and has a microbatch in flight.
#include <benchmark/benchmark.h>
#include <malloc.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/training/training_session.h"

namespace quantgate {
namespace {

template <typename T>
T ValueOrDie(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::cerr << value.status() << "\n";
  std::exit(1);
}

/// Without what the heap keeps of freed blocks.
int64_t ResidentBytes() {
  malloc_trim(0);
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

Tensor Made(Engine& engine, uint64_t seed, Shape shape) {
  GeneratorSpec spec;
  spec.seed = seed;
  spec.shape = std::move(shape);
  return ValueOrDie(engine.Generate(spec, nullptr));
}

/// Two linear layers of width x width in bf16, fp32 masters, Adam.
std::unique_ptr<OneRankSession> OpenOne(Engine& engine, const std::string& recipe, int64_t width) {
  SessionSpec spec{.layers = {{"fc1", {}}, {"fc2", {}}},
                   .recipe = ValueOrDie(Recipe::Parse(recipe))};
  spec.masters = Masters::kF32;
  spec.optimizer.kind = OptimizerSpec::Kind::kAdam;
  std::map<std::string, Tensor> parameters;
  for (const char* name : {"fc1.weight", "fc2.weight"}) {
    parameters[name] = Made(engine, 1, {width, width});
  }
  return ValueOrDie(OneRankSession::Open(engine, spec, parameters, nullptr));
}

/// `rows` rows through the session, and back where it is an update's.
void Step(Engine& engine, OneRankSession& session, int64_t rows, int64_t width, bool updates) {
  ForwardStep forward;
  forward.x = Made(engine, 2, {rows, width});
  ValueOrDie(session.Forward(forward, nullptr));
  if (!updates) return;
  BackwardStep backward;
  backward.grad_output = Made(engine, 3, {rows, width});
  ValueOrDie(session.Backward(backward, nullptr));
  ValueOrDie(session.Optimize({}, nullptr));
}

void BM_OpenSessions(benchmark::State& state, const char* recipe) {
  constexpr int64_t kSessions = 1000, kRows = 32;
  const int64_t width = state.range(0);
  const auto engine = MakeCpuEngine({.threads = 1});
  // What the program needs once.
  Step(*engine, *OpenOne(*engine, recipe, width), kRows, width, true);
  int64_t held = 0, resident = 0;
  for (auto _ : state) {
    const int64_t before = ResidentBytes();
    std::vector<std::unique_ptr<OneRankSession>> sessions;
    for (int64_t i = 0; i < kSessions; ++i) {
      sessions.push_back(OpenOne(*engine, recipe, width));
      Step(*engine, *sessions.back(), kRows, width, true);
      Step(*engine, *sessions.back(), kRows, width, false);
    }
    resident = ResidentBytes() - before;
    held = 0;
    for (const auto& session : sessions) held += session->bytes();
  }
  state.counters["sessions"] = kSessions;
  state.counters["tensors_MiB"] = static_cast<double>(held) / (1 << 20);
  state.counters["resident_MiB"] = static_cast<double>(resident) / (1 << 20);
  state.counters["beyond_tensors_KiB_each"] =
      static_cast<double>(resident - held) / 1024 / kSessions;
}

BENCHMARK_CAPTURE(BM_OpenSessions, bf16, "bf16")->Arg(64)->Iterations(1);
BENCHMARK_CAPTURE(BM_OpenSessions, fp8_delayed, "fp8_delayed")->Arg(64)->Iterations(1);
BENCHMARK_CAPTURE(BM_OpenSessions, fp8_current, "fp8_current")->Arg(64)->Arg(256)->Iterations(1);
BENCHMARK_CAPTURE(BM_OpenSessions, nvfp4, "nvfp4")->Arg(64)->Iterations(1);

}  // namespace
}  // namespace quantgate
