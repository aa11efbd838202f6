#include "client/cli/options/invocation.h"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/channel_connection.h"
#include "client/cli/exit.h"
#include "kernels/base/status_macros.h"
#include "server/report/report_json.h"

namespace quantgate {
namespace {

/// https://no-color.org: any non-empty value switches colour off.
bool ColourIsWanted() {
  const char* no_colour = std::getenv("NO_COLOR");
  if (no_colour != nullptr && no_colour[0] != '\0') return false;
  const char* terminal = std::getenv("TERM");
  if (terminal == nullptr || std::string_view(terminal) == "dumb") return false;
  return ::isatty(STDOUT_FILENO) != 0;
}

/// The server refuses other names too, but does not know the option.
absl::Status CheckDeviceName(const std::string& device) {
  int ordinal = 0;
  if (device == "cpu" || device == "cuda") return absl::OkStatus();
  if (absl::StartsWith(device, "cuda:") && absl::SimpleAtoi(device.substr(5), &ordinal) &&
      ordinal >= 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--device: \"", device, "\": devices are cpu, cuda and cuda:N"));
}

}  // namespace

absl::StatusOr<absl::Duration> ParseTimeout(const std::string& text) {
  absl::Duration duration;
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds) && !std::isnan(seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &duration)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--timeout: \"", text, "\" is no duration; write 30s, 5m or seconds"));
  }
  if (duration < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("--timeout: \"", text, "\" is below zero"));
  }
  return duration;
}

Invocation::Invocation(GlobalOptions options, std::vector<std::string> arguments, std::ostream& out,
                       std::ostream& err)
    : options_(std::move(options)),
      arguments_(std::move(arguments)),
      start_(absl::Now()),
      out_(out),
      err_(err),
      uses_colour_(ColourIsWanted()),
      progress_(err, !options_.quiet && ::isatty(STDERR_FILENO) != 0) {}

Invocation::~Invocation() { SetInterruptAction({}); }

void Invocation::PrintJson(const std::string& kind, const nlohmann::ordered_json& body) {
  nlohmann::ordered_json json = JsonHead(kind);
  json.update(body);
  out() << JsonText(json, is_json() ? 2 : -1) << "\n";
}

std::string Invocation::CommandLine() const {
  std::string line = "quantgate";
  for (const std::string& argument : arguments_) absl::StrAppend(&line, " ", ShellQuoted(argument));
  return line;
}

void Invocation::Say(const std::string& text) {
  if (options_.quiet) return;
  progress_.Clear();
  err_ << text << std::endl;
}

absl::StatusOr<ConnectionOptions> Invocation::MakeConnectionOptions() const {
  ConnectionOptions options;
  if (!options_.timeout.empty()) {
    QG_ASSIGN_OR_RETURN(const absl::Duration timeout, ParseTimeout(options_.timeout));
    options.deadline = start_ + timeout;
  }
  return options;
}

absl::Status Invocation::CheckDevice(Connection& connection) const {
  // This process has exactly what was asked for.
  if (options_.device == "cpu" || options_.server.empty()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const v1::Capabilities capabilities, connection.GetCapabilities());
  const v1::Environment& environment = capabilities.environment();
  for (const v1::DeviceDescription& device : environment.devices()) {
    if (device.id().rfind("cuda", 0) == 0) return absl::OkStatus();
  }
  if (environment.cuda().empty()) {
    return absl::UnimplementedError(
        absl::StrCat("--device: \"", options_.device, "\": the engine of ", connection.address(),
                     " is built without CUDA; --device cpu gives the same bits"));
  }
  return absl::FailedPreconditionError(absl::StrCat("--device: \"", options_.device,
                                                    "\": the server at ", connection.address(),
                                                    " does not compute on a CUDA device"));
}

InProcessOptions Invocation::StoreOptions() {
  InProcessOptions options;
  options.local.threads = options_.threads;
  options.local.device = options_.device;
  options.on_wait = [this](const std::string& path) {
    Say(absl::StrCat("waiting for another quantgate that uses ", path));
  };
  options.is_cancelled = &WasInterrupted;
  return options;
}

absl::StatusOr<StoreLock> Invocation::LockStore() {
  QG_ASSIGN_OR_RETURN(const ConnectionOptions options, MakeConnectionOptions());
  return StoreLock::Take(StoreOptions(), options.deadline);
}

absl::StatusOr<Connection*> Invocation::Connect(bool keeps) {
  if (connection_ != nullptr) return connection_.get();
  QG_RETURN_IF_ERROR(CheckDeviceName(options_.device));
  if (!options_.server.empty()) {
    QG_ASSIGN_OR_RETURN(connection_, Dial());
  } else {
    QG_ASSIGN_OR_RETURN(const ConnectionOptions connection_options, MakeConnectionOptions());
    InProcessOptions in_process = StoreOptions();
    in_process.keeps = keeps;
    QG_ASSIGN_OR_RETURN(connection_, ConnectInProcess(in_process, connection_options));
  }
  SetInterruptAction([connection = connection_.get()] { connection->Cancel(); });
  QG_RETURN_IF_ERROR(CheckDevice(*connection_));
  return connection_.get();
}

absl::StatusOr<std::unique_ptr<ChannelConnection>> Invocation::Dial() const {
  QG_ASSIGN_OR_RETURN(const ConnectionOptions options, MakeConnectionOptions());
  return ChannelConnection::Dial(options_.server, options);
}

std::string ShellQuoted(const std::string& argument) {
  constexpr char kPlain[] =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,@+%";
  if (!argument.empty() && argument.find_first_not_of(kPlain) == std::string::npos) {
    return argument;
  }
  std::string quoted = "'";
  for (const char c : argument) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

}  // namespace quantgate
