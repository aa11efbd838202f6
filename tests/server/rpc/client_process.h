// A client in a process of its own, as clients are: in the server's process both would share gRPC's
// polling threads, and what comes for one would wake threads of the other first.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

#include "quantgate/v1/engine_service.pb.h"

namespace quantgate {

/// When a client had what, by the clock that all processes of the machine share.
struct Arrivals {
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin, accepted, finished, end;
  v1::VariantReport report;
  double seconds_of_report = 0;
};

class ClientProcess {
 public:
  /// Runs this program again, whose main calls Serve first. Ends the program where it cannot.
  ClientProcess();
  ~ClientProcess();

  /// One run, over the client library's connection. Nothing where it failed, which the client has
  /// said then.
  std::optional<Arrivals> Execute(const std::string& address, const v1::ExecuteRequest& request);

  /// In the other process: does what it is told until nobody is left to tell it. False, at once, in
  /// a process that is not one.
  static bool Serve(int argc, char** argv);

 private:
  pid_t pid_;
  int requests_, answers_;
};

}  // namespace quantgate
