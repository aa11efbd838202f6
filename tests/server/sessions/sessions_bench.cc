// What a session's RPC and a trace add to a step, and what a session costs in memory: the same
// evaluation of a small layer through a server on this host, and straight from the session.
#include <benchmark/benchmark.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "client/channel_connection.h"
#include "client/execute.h"
#include "client/session.h"
#include "kernels/training/training_session.h"
#include "tests/engine/tensor_values.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace {

constexpr int64_t kSize = 64;

v1::OpenSessionRequest OpenRequest() {
  v1::OpenSessionRequest request;
  v1::SessionLayer& layer = *request.mutable_spec()->add_layers();
  layer.set_name("fc");
  layer.mutable_layer()->set_kind("linear");
  request.mutable_spec()->mutable_recipe()->set_name("fp8_current");
  (*request.mutable_parameters())["fc.weight"] = Generated("normal", 1, "bf16", {kSize, kSize});
  return request;
}

void BM_StepOverRpc(benchmark::State& state) {
  TestServer server([](ServerOptions& options) { options.engine.threads = 1; });
  ChannelConnection connection(server.channel(), server.address(), {});
  absl::StatusOr<ClientSession> session = ClientSession::Open(connection, OpenRequest());
  if (!session.ok()) return state.SkipWithError(std::string(session.status().message()).c_str());
  v1::SessionStepRequest request;
  *request.mutable_forward()->mutable_x() = Generated("normal", 2, "bf16", {kSize, kSize});
  request.mutable_forward()->set_evaluate(true);
  for (auto _ : state) {
    const auto response = session->Step(request);
    if (!response.ok()) {
      return state.SkipWithError(std::string(response.status().message()).c_str());
    }
  }
}
BENCHMARK(BM_StepOverRpc)->Unit(benchmark::kMicrosecond)->UseRealTime()->Repetitions(5);

void BM_StepDirect(benchmark::State& state) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const SessionSpec spec{.layers = {{"fc", {}}}, .recipe = *Recipe::Parse("fp8_current")};
  const Tensor weight = Generated(Distribution::kNormal, 1, DType::kBF16, {kSize, kSize});
  const auto session =
      OneRankSession::Open(*engine, spec, {{"fc.weight", weight}}, nullptr).value();
  ForwardStep step;
  step.train = false;
  for (auto _ : state) {
    step.x = Generated(Distribution::kNormal, 2, DType::kBF16, {kSize, kSize});
    benchmark::DoNotOptimize(session->Forward(step, nullptr));
  }
}
BENCHMARK(BM_StepDirect)->Unit(benchmark::kMicrosecond)->UseRealTime()->Repetitions(5);

/// Rounds of a trace of BM_TraceStepOverRpc: enough that its beginning and end are a small part.
constexpr int kTraceRounds = 500;

/// The same evaluations as steps of a trace of two variants, each compared with the other, through
/// a server: an item is one step of one variant.
void BM_TraceStepOverRpc(benchmark::State& state) {
  TestServer server([](ServerOptions& options) { options.engine.threads = 1; });
  ChannelConnection connection(server.channel(), server.address(), {});
  v1::RunTraceRequest request;
  v1::SessionTrace& trace = *request.mutable_trace();
  *trace.mutable_spec() = OpenRequest().spec();
  trace.mutable_spec()->clear_recipe();
  (*trace.mutable_parameters())["fc.weight"] = "weight";
  for (int i = 0; i < 2; ++i) trace.add_variants()->mutable_recipe()->set_name("fp8_current");
  trace.add_steps()->mutable_forward()->set_evaluate(true);
  trace.mutable_steps(0)->set_x("x");
  trace.set_rounds(kTraceRounds);
  (*request.mutable_tensors())["weight"] = Generated("normal", 1, "bf16", {kSize, kSize});
  (*request.mutable_tensors())["x"] = Generated("normal", 2, "bf16", {kSize, kSize});
  for (auto _ : state) {
    const auto report = RunTrace(connection, request);
    if (!report.ok()) {
      return state.SkipWithError(std::string(report.status().message()).c_str());
    }
  }
  state.SetItemsProcessed(state.iterations() * kTraceRounds * 2);
  // Against BM_TraceStepDirect: what a step costs beside the engine's own time.
  state.counters["seconds_per_step"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * kTraceRounds * 2,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_TraceStepOverRpc)->Unit(benchmark::kMillisecond)->UseRealTime()->Repetitions(5);

/// The engine's own part of the same: two evaluations, and of each output its fingerprint and one
/// comparison of bits and errors.
void BM_TraceStepDirect(benchmark::State& state) {
  const auto engine = MakeCpuEngine({.threads = 1});
  const SessionSpec spec{.layers = {{"fc", {}}}, .recipe = *Recipe::Parse("fp8_current")};
  const Tensor weight = Generated(Distribution::kNormal, 1, DType::kBF16, {kSize, kSize});
  std::vector<std::unique_ptr<OneRankSession>> sessions;
  for (int i = 0; i < 2; ++i) {
    sessions.push_back(
        OneRankSession::Open(*engine, spec, {{"fc.weight", weight}}, nullptr).value());
  }
  ForwardStep step;
  step.train = false;
  step.x = Generated(Distribution::kNormal, 2, DType::kBF16, {kSize, kSize});
  for (auto _ : state) {
    std::vector<Tensor> outputs;
    for (const auto& session : sessions) {
      outputs.push_back(session->Forward(step, nullptr).value().outputs[0].tensor);
      benchmark::DoNotOptimize(engine->FingerprintOf(outputs.back(), nullptr).value());
    }
    benchmark::DoNotOptimize(engine->CompareBits(outputs[1], outputs[0], nullptr).value());
    benchmark::DoNotOptimize(engine->MeasureError(outputs[1], outputs[0], nullptr).value());
  }
  state.SetItemsProcessed(state.iterations() * 2);
  state.counters["seconds_per_step"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * 2,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_TraceStepDirect)->Unit(benchmark::kMicrosecond)->UseRealTime()->Repetitions(5);

double ResidentBytes() {
  std::ifstream status("/proc/self/statm");
  double total = 0, resident = 0;
  status >> total >> resident;
  return resident * 4096;
}

/// Memory of 1000 open sessions beside their tensors.
void BM_OpenSessions(benchmark::State& state) {
  for (auto _ : state) {
    TestServer server([](ServerOptions& options) { options.engine.threads = 1; });
    ChannelConnection connection(server.channel(), server.address(), {});
    const double before = ResidentBytes();
    std::vector<ClientSession> sessions;
    double tensors = 0;
    for (int i = 0; i < 1000; ++i) {
      absl::StatusOr<ClientSession> session = ClientSession::Open(connection, OpenRequest());
      if (!session.ok()) {
        return state.SkipWithError(std::string(session.status().message()).c_str());
      }
      tensors += static_cast<double>(session->session().bytes());
      sessions.push_back(*std::move(session));
    }
    state.counters["bytes_per_session"] = (ResidentBytes() - before) / 1000;
    state.counters["tensor_bytes_per_session"] = tensors / 1000;
  }
}
BENCHMARK(BM_OpenSessions)->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(1);

}  // namespace
}  // namespace quantgate
