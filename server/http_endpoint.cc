#include "server/http_endpoint.h"

#include <CivetServer.h>

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quantgate {
namespace {

struct Answer {
  int code = 200;
  std::string body;
};

/// GET of one path.
class HttpPage : public CivetHandler {
 public:
  explicit HttpPage(std::function<Answer()> make) : make_(std::move(make)) {}

  bool handleGet(CivetServer*, mg_connection* connection) override {
    const Answer answer = make_();
    const std::string header = absl::StrCat(
        "HTTP/1.1 ", answer.code, answer.code == 200 ? " OK" : " Service Unavailable",
        "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: ",
        answer.body.size(), "\r\n\r\n");
    mg_write(connection, header.data(), header.size());
    mg_write(connection, answer.body.data(), answer.body.size());
    return true;
  }

 private:
  const std::function<Answer()> make_;
};

class CivetEndpoint : public HttpEndpoint {
 public:
  CivetEndpoint(const std::string& listen, Sources sources)
      : metrics_([metrics = sources.metrics] {
          return Answer{200, metrics()};
        }),
        health_([] {
          return Answer{200, "ok\n"};
        }),
        ready_([is_ready = sources.is_ready] {
          return is_ready() ? Answer{200, "ready\n"} : Answer{503, "not ready\n"};
        }),
        // A connection that asks nothing has a thread until its time is up.
        server_(std::vector<std::string>{"listening_ports", listen, "num_threads", "16",
                                         "request_timeout_ms", "1000"}) {
    server_.addHandler("/metrics$", metrics_);
    server_.addHandler("/healthz$", health_);
    server_.addHandler("/readyz$", ready_);
  }

  int port() const override {
    const std::vector<int> ports = const_cast<CivetServer&>(server_).getListeningPorts();
    return ports.empty() ? 0 : ports.front();
  }

 private:
  HttpPage metrics_, health_, ready_;
  CivetServer server_;  // Destroyed first, so that no handler runs any more.
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(const std::string& listen,
                                                                  Sources sources) {
  // CivetServer reports a taken port by throwing; nothing else here does.
  try {
    return std::make_unique<CivetEndpoint>(listen, std::move(sources));
  } catch (const CivetException&) {
    return absl::UnavailableError(absl::StrCat("metrics: cannot listen on ", listen));
  }
}

}  // namespace quantgate
