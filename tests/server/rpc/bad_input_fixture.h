// Requests that are refused: a server, calls to it, and what a refusal must say.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <functional>
#include <string>

#include "tests/server/test_server.h"

namespace quantgate {

/// What a refusal must say. Empty texts are not looked at.
struct Refusal {
  grpc::StatusCode code;
  std::string field;
  std::string value;
  std::string rule;
};

class BadInputTest : public testing::Test {
 protected:
  grpc::Status Execute(const v1::ExecuteRequest& request) {
    grpc::ClientContext context;
    const auto reader = server_.engine().Execute(&context, request);
    v1::RunEvent event;
    while (reader->Read(&event)) {
    }
    return reader->Finish();
  }
  grpc::Status ExecuteSpec(const std::function<void(v1::RunSpec&)>& spoil) {
    v1::ExecuteRequest request;
    *request.mutable_spec() = LinearSpec(32, 48, 64);
    *request.mutable_spec()->add_variants() = MakeVariant("fp8_current", "none", "sm90");
    spoil(*request.mutable_spec());
    return Execute(request);
  }
  template <typename Request, typename Response>
  grpc::Status Unary(grpc::Status (v1::Engine::Stub::*method)(grpc::ClientContext*, const Request&,
                                                              Response*),
                     const Request& request) {
    Response response;
    grpc::ClientContext context;
    return (server_.engine().*method)(&context, request, &response);
  }

  void ExpectRefused(const grpc::Status& status, const Refusal& expected) {
    EXPECT_EQ(status.error_code(), expected.code) << status.error_message();
    const v1::ErrorDetail detail = DetailOf(status);
    EXPECT_EQ(detail.field(), expected.field) << status.error_message();
    EXPECT_THAT(detail.value(), testing::HasSubstr(expected.value));
    EXPECT_THAT(detail.rule(), testing::HasSubstr(expected.rule));
    EXPECT_FALSE(detail.rule().empty()) << status.error_message();
    // The text says it too, for people.
    EXPECT_THAT(status.error_message(), testing::HasSubstr(expected.value));
    ExpectServing();
  }

  void ExpectServing() {
    v1::Capabilities capabilities;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    EXPECT_TRUE(server_.info().GetCapabilities(&context, {}, &capabilities).ok());
  }

  static int64_t PeakResidentBytes() {
    rusage usage;
    ::getrusage(RUSAGE_SELF, &usage);
    return int64_t{usage.ru_maxrss} * 1024;
  }

  TestServer server_;
};

}  // namespace quantgate
