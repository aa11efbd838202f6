// Traces in this process, without a server: a CPU engine, stores in memory, and what a run has.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/refusal.h"
#include "server/device/hardware_checks.h"
#include "server/runs/memory_store.h"
#include "server/sessions/trace_execution.h"
#include "server/wire/convert_tensor.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {

inline constexpr int64_t kTraceRows = 32, kTraceIn = 64, kTraceHidden = 96, kTraceOut = 32;

inline v1::TensorSource TraceTensor(uint64_t seed, std::vector<int64_t> shape) {
  v1::TensorSource source;
  v1::GeneratorSpec& spec = *source.mutable_generate();
  spec.set_distribution("normal");
  spec.set_seed(seed);
  spec.mutable_type()->set_dtype("bf16");
  for (const int64_t dim : shape) spec.mutable_type()->add_shape(dim);
  return source;
}

/// Two linear layers, forward, backward and update, under these recipes.
inline v1::RunTraceRequest TwoLayerTrace(const std::vector<std::string>& recipes) {
  v1::RunTraceRequest request;
  v1::SessionTrace& trace = *request.mutable_trace();
  for (const char* name : {"fc1", "fc2"}) {
    v1::SessionLayer& layer = *trace.mutable_spec()->add_layers();
    layer.set_name(name);
    layer.mutable_layer()->set_kind("linear");
    (*trace.mutable_parameters())[std::string(name) + ".weight"] = std::string("w") + name[2];
  }
  trace.mutable_spec()->set_masters("f32");
  trace.mutable_spec()->mutable_sgd()->set_learning_rate(0.1f);
  trace.mutable_spec()->set_seed(5);
  for (const std::string& recipe : recipes) {
    trace.add_variants()->mutable_recipe()->set_name(recipe);
  }
  v1::SessionTrace::Step& forward = *trace.add_steps();
  forward.mutable_forward();
  forward.set_x("x");
  v1::SessionTrace::Step& backward = *trace.add_steps();
  backward.mutable_backward();
  backward.set_grad_output("dy");
  trace.add_steps()->mutable_optimize();
  auto& tensors = *request.mutable_tensors();
  tensors["w1"] = TraceTensor(11, {kTraceHidden, kTraceIn});
  tensors["w2"] = TraceTensor(12, {kTraceOut, kTraceHidden});
  tensors["x"] = TraceTensor(13, {kTraceRows, kTraceIn});
  tensors["dy"] = TraceTensor(14, {kTraceRows, kTraceOut});
  return request;
}

class TraceTest : public testing::Test {
 protected:
  /// How a trace ended, with its events.
  struct Outcome {
    absl::Status status;
    v1::RunReport report;
    std::vector<v1::RunEvent> events;

    /// The report of one step and variant; a test failure if there is none.
    const v1::TraceStep& Step(int step, int variant) const {
      for (const v1::RunEvent& event : events) {
        const v1::TraceStep& one = event.trace_step();
        if (event.has_trace_step() && one.step() == step && one.variant() == variant) return one;
      }
      ADD_FAILURE() << "no step " << step << " of variant " << variant;
      static const v1::TraceStep none;
      return none;
    }
  };
  using OnEvent = std::function<void(const v1::RunEvent& event, Cancellation& cancellation)>;

  explicit TraceTest(SessionLimits limits = {}) : sessions_(limits) {
    devices_.push_back(std::make_unique<Device>(MakeCpuEngine({.threads = 1}), 0));
  }

  Outcome Play(const v1::RunTraceRequest& request, const OnEvent& on_event = {}) {
    Outcome outcome;
    absl::StatusOr<CheckedRun> checked = CheckTraceRun(context_, request);
    outcome.status = checked.status();
    if (!checked.ok()) return outcome;
    const auto cancellation = std::make_shared<Cancellation>();
    const std::unique_ptr<RunWork> work = std::move(checked->make)(
        RunPlace{*checked->device, "run-of-test", cancellation, [&](v1::RunEvent& event) {
                   outcome.events.push_back(event);
                   if (on_event) on_event(event, *cancellation);
                   return absl::OkStatus();
                 }});
    absl::StatusOr<v1::RunReport> report = work->Execute(ranks_);
    outcome.status = report.status();
    if (report.ok()) outcome.report = *std::move(report);
    return outcome;
  }
  /// The field that a request is refused for, before any step; its text is in `text`.
  std::string FieldRefused(const v1::RunTraceRequest& request, std::string* text = nullptr) {
    const Outcome outcome = Play(request);
    EXPECT_TRUE(outcome.events.empty());
    EXPECT_FALSE(outcome.status.ok());
    if (text != nullptr) *text = std::string(outcome.status.message());
    const std::optional<Refusal> refusal = RefusalOf(outcome.status);
    return refusal.has_value() ? refusal->field : std::string(outcome.status.message());
  }
  /// The bytes of an output that the trace kept.
  std::vector<std::byte> BytesOf(const v1::TraceStep& step, const std::string& name) {
    for (const v1::NamedTensor& output : step.outputs()) {
      if (output.name() != name) continue;
      const absl::StatusOr<Digest> digest = DigestFromProto(output.digest(), "digest");
      EXPECT_TRUE(digest.ok()) << digest.status();
      const auto buffer = store_.Load(*digest);
      EXPECT_TRUE(buffer.ok()) << buffer.status();
      if (!buffer.ok()) return {};
      const std::byte* const data = (*buffer)->data();
      return {data, data + (*buffer)->size()};
    }
    ADD_FAILURE() << "no output " << name << " in step " << step.step();
    return {};
  }
  Engine& engine() { return *devices_[0]->engine; }

  MemoryStore store_;
  Devices devices_;
  TensorLoader loader_{store_, store_};
  SessionStore sessions_;
  HardwareChecks hardware_checks_{""};
  RankSetting ranks_;
  RunStatistics statistics_;
  CallContext context_{int64_t{1} << 30, {.threads = 1}, devices_,         store_, store_,
                       loader_,          sessions_,      hardware_checks_, ranks_, statistics_};
};

}  // namespace quantgate
