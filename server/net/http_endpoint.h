// HTTP beside the API: /metrics, /healthz (the process lives) and /readyz (it takes work), with
// libmicrohttpd. One thread serves all connections, so that no slow connection delays a probe, and
// another thread writes the metrics. A connection answers one request and lives for a bounded time;
// when there are too many, the oldest that has not sent its request is closed.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/limits.h"

namespace quantgate {

class HttpEndpoint {
 public:
  struct Sources {
    /// The exposition text. May take its time; never called by two threads at once.
    std::function<std::string()> metrics;
    /// Why the server takes no work; empty where it does. Must answer at once.
    std::function<std::string()> why_not_ready;
  };
  struct Bounds {
    int connections_max = kHttpConnectionsMax;  ///< At least 2.
    absl::Duration request_time_max = kHttpRequestTimeMax;
    absl::Duration connection_age_max = kHttpConnectionAgeMax;
  };

  /// Listens on "host:port"; port 0 means any. INVALID_ARGUMENT for text that is not an address,
  /// UNAVAILABLE naming the address when it cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpEndpoint>> Start(const std::string& listen,
                                                             Sources sources, Bounds bounds);
  using Starter = decltype(&Start);
  virtual ~HttpEndpoint() = default;
  virtual int port() const = 0;
};

}  // namespace quantgate
