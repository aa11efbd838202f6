// HTTP beside the API: /metrics, /healthz (the process lives) and /readyz (it takes work), with
// CivetWeb.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace quantgate {

class HttpEndpoint {
 public:
  struct Sources {
    std::function<std::string()> metrics;
    std::function<bool()> is_ready;
  };

  /// "host:port", port 0: any. UNAVAILABLE naming the address when it cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpEndpoint>> Start(const std::string& listen,
                                                             Sources sources);
  virtual ~HttpEndpoint() = default;
  virtual int port() const = 0;
};

}  // namespace quantgate
