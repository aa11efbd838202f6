// Runs by Engine.Execute and WaitRun to their end, for the tests of Engine's runs.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/server/test_server.h"

namespace quantgate {

struct RunOutcome {
  grpc::Status status;
  std::vector<v1::RunEvent> events;

  const v1::RunFinished& finished() const { return events.back().finished(); }
  std::vector<v1::VariantReport> variants() const {
    std::vector<v1::VariantReport> reports;
    for (const auto& event : events) {
      if (event.has_variant()) reports.push_back(event.variant().report());
    }
    return reports;
  }
};

/// The first event that says how far a run is; asserts that there is one.
template <typename Reader>
v1::RunEvent ReadUntilProgress(Reader& reader) {
  v1::RunEvent event;
  while (reader.Read(&event)) {
    if (event.has_progress()) return event;
  }
  ADD_FAILURE() << "the stream ended before any progress";
  return {};
}

template <typename Reader>
RunOutcome Drain(Reader& reader) {
  RunOutcome outcome;
  v1::RunEvent event;
  while (reader.Read(&event)) outcome.events.push_back(event);
  outcome.status = reader.Finish();
  return outcome;
}

inline RunOutcome Execute(TestServer& server, const v1::ExecuteRequest& request) {
  grpc::ClientContext context;
  const auto reader = server.engine().Execute(&context, request);
  return Drain(*reader);
}

inline RunOutcome Wait(TestServer& server, const std::string& run_id, int64_t from) {
  v1::WaitRunRequest request;
  request.set_run_id(run_id);
  request.set_from_sequence(from);
  grpc::ClientContext context;
  const auto reader = server.engine().WaitRun(&context, request);
  return Drain(*reader);
}

inline std::vector<v1::Run> ListRuns(TestServer& server) {
  v1::ListRunsResponse response;
  grpc::ClientContext context;
  const grpc::Status status = server.engine().ListRuns(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return {response.runs().begin(), response.runs().end()};
}

inline v1::Run GetRun(TestServer& server, const std::string& run_id) {
  v1::GetRunRequest request;
  request.set_run_id(run_id);
  v1::Run run;
  grpc::ClientContext context;
  const grpc::Status status = server.engine().GetRun(&context, request, &run);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return run;
}

inline v1::ExecuteRequest SmallRequest() {
  v1::ExecuteRequest request;
  *request.mutable_spec() = LinearSpec(32, 48, 64);
  *request.mutable_spec()->add_variants() = MakeVariant("fp8_current", "none", "sm90");
  return request;
}

/// Long enough (about 1e12 multiply-adds in exact arithmetic) that a test always meets it running.
inline v1::ExecuteRequest EndlessRequest() {
  v1::ExecuteRequest request;
  *request.mutable_spec() = LinearSpec(2048, 2048, 2048);
  for (const char* mode : {"none", "high_precision", "dequantized"}) {
    for (const char* arithmetic : {"exact", "fp32", "sm90:split"}) {
      *request.mutable_spec()->add_variants() = MakeVariant("fp8_current", mode, arithmetic);
    }
  }
  return request;
}

inline void EnableHttp(ServerOptions& options) { options.metrics_listen = "127.0.0.1:0"; }

}  // namespace quantgate
