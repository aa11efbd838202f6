#include "tests/server/rpc/client_process.h"

#include <grpcpp/channel.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <utility>

#include "client/channel_connection.h"
#include "quantgate/v1/engine_service.grpc.pb.h"

namespace quantgate {
namespace {

using Clock = Arrivals::Clock;

constexpr char kClientOption[] = "--client";

/// False at the end of the pipe.
bool ReadAll(int file, void* data, size_t size) {
  auto* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = ::read(file, at, size);
    if (got <= 0) return false;
    at += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

void WriteAll(int file, const void* data, size_t size) {
  const auto* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t put = ::write(file, at, size);
    if (put <= 0) std::abort();
    at += put;
    size -= static_cast<size_t>(put);
  }
}

std::optional<std::string> ReadText(int file) {
  uint64_t size = 0;
  if (!ReadAll(file, &size, sizeof(size))) return std::nullopt;
  std::string text(size, '\0');
  if (!ReadAll(file, text.data(), size)) return std::nullopt;
  return text;
}

void WriteText(int file, const std::string& text) {
  const uint64_t size = text.size();
  WriteAll(file, &size, sizeof(size));
  WriteAll(file, text.data(), size);
}

/// What an answer begins with; the report follows.
struct Times {
  bool is_good = false;
  Clock::time_point begin, accepted, finished, end;
  double seconds_of_report = 0;
};

std::optional<Arrivals> ExecuteHere(v1::Engine::Stub& engine, v1::ExecuteRequest& request) {
  Arrivals arrivals;
  request.set_request_id(NewRequestId());  // As the client library does.
  arrivals.begin = Clock::now();
  grpc::ClientContext context;
  const auto reader = engine.Execute(&context, request);
  for (v1::RunEvent event; reader->Read(&event);) {
    const auto now = Clock::now();
    if (event.has_accepted()) arrivals.accepted = now;
    if (event.has_finished()) {
      arrivals.finished = now;
      arrivals.report = std::move(*event.mutable_finished()->mutable_variant()->mutable_report());
      arrivals.seconds_of_report = event.finished().report().seconds();
    }
  }
  const grpc::Status status = reader->Finish();
  arrivals.end = Clock::now();
  if (status.ok() && !arrivals.report.stages().empty()) return arrivals;
  std::fprintf(stderr, "the run failed: %s\n", status.error_message().c_str());
  return std::nullopt;
}

void ServeRuns(int requests, int answers) {
  std::map<std::string, std::unique_ptr<ChannelConnection>> connections;
  while (const std::optional<std::string> address = ReadText(requests)) {
    const std::optional<std::string> bytes = ReadText(requests);
    v1::ExecuteRequest request;
    if (!bytes.has_value() || !request.ParseFromString(*bytes)) std::abort();
    auto& connection = connections[*address];
    if (connection == nullptr) connection = *ChannelConnection::Dial(*address, {});
    const auto stub = v1::Engine::NewStub(connection->channel());
    const std::optional<Arrivals> arrivals = ExecuteHere(*stub, request);
    Times times;
    std::string report;
    if (arrivals.has_value()) {
      times = {true,
               arrivals->begin,
               arrivals->accepted,
               arrivals->finished,
               arrivals->end,
               arrivals->seconds_of_report};
      report = arrivals->report.SerializeAsString();
    }
    WriteAll(answers, &times, sizeof(times));
    WriteText(answers, report);
  }
}

}  // namespace

ClientProcess::ClientProcess() {
  int requests[2], answers[2];
  if (::pipe(requests) != 0 || ::pipe(answers) != 0) std::abort();
  pid_ = ::fork();
  if (pid_ < 0) std::abort();
  if (pid_ == 0) {
    ::close(requests[1]);
    ::close(answers[0]);
    // gRPC does not survive a fork.
    ::execl("/proc/self/exe", "client", kClientOption, std::to_string(requests[0]).c_str(),
            std::to_string(answers[1]).c_str(), nullptr);
    std::abort();
  }
  ::close(requests[0]);
  ::close(answers[1]);
  requests_ = requests[1];
  answers_ = answers[0];
}

ClientProcess::~ClientProcess() {
  ::close(requests_);
  ::close(answers_);
  ::waitpid(pid_, nullptr, 0);
}

std::optional<Arrivals> ClientProcess::Execute(const std::string& address,
                                               const v1::ExecuteRequest& request) {
  WriteText(requests_, address);
  WriteText(requests_, request.SerializeAsString());
  Times times;
  if (!ReadAll(answers_, &times, sizeof(times))) std::abort();
  const std::optional<std::string> report = ReadText(answers_);
  if (!times.is_good || !report.has_value()) return std::nullopt;
  Arrivals arrivals{times.begin, times.accepted,         times.finished, times.end,
                    {},          times.seconds_of_report};
  if (!arrivals.report.ParseFromString(*report)) std::abort();
  return arrivals;
}

bool ClientProcess::Serve(int argc, char** argv) {
  if (argc != 4 || argv[1] != std::string(kClientOption)) return false;
  ::signal(SIGPIPE, SIG_IGN);
  ServeRuns(std::atoi(argv[2]), std::atoi(argv[3]));
  return true;
}

}  // namespace quantgate
