// TestServer: a server on a loopback port with a data directory of its own, and stubs to talk to
// it. Over TCP, since channels within the process skip the limits on messages.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quantgate/v1/blobs_service.grpc.pb.h"
#include "quantgate/v1/engine_service.grpc.pb.h"
#include "quantgate/v1/error.pb.h"
#include "quantgate/v1/info_service.grpc.pb.h"
#include "quantgate/v1/tensors_service.grpc.pb.h"
#include "server/server.h"
#include "tests/server/temporary_directory.h"

namespace quantgate {

class TestServer {
 public:
  using Change = std::function<void(ServerOptions&)>;
  explicit TestServer(Change change = {});

  /// Stops and starts on the same data directory.
  void Restart();
  void Stop() { server_ = nullptr; }

  Server& server() { return *server_; }
  const std::string& data_dir() const { return directory_.path(); }
  std::string address() const;
  v1::Info::Stub& info() { return *info_; }
  v1::Blobs::Stub& blobs() { return *blobs_; }
  v1::Tensors::Stub& tensors() { return *tensors_; }
  v1::Engine::Stub& engine() { return *engine_; }
  std::shared_ptr<grpc::Channel> channel() { return channel_; }
  /// A connection of its own, that takes and sends messages of any size.
  std::shared_ptr<grpc::Channel> NewChannel();
  /// GET on the HTTP port, which `change` must have asked for: the whole response.
  std::string HttpGet(const std::string& path);
  /// A connection to the same port that has asked nothing; the caller closes it.
  int ConnectHttp();

 private:
  void Start();

  TemporaryDirectory directory_;
  ServerOptions options_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Info::Stub> info_;
  std::unique_ptr<v1::Blobs::Stub> blobs_;
  std::unique_ptr<v1::Tensors::Stub> tensors_;
  std::unique_ptr<v1::Engine::Stub> engine_;
};

/// `size` bytes that differ from place to place, by a multiplicative generator.
std::string TestBytes(size_t size, uint32_t seed = 1);
v1::Digest DigestFor(const std::string& bytes);

/// The detail of a refused request.
v1::ErrorDetail DetailOf(const grpc::Status& status);

/// A call of a method ("/package.Service/Method") with these bytes as its message, whatever they
/// are; the bytes of the answer are put behind `response`.
grpc::Status SendBytes(TestServer& server, const std::string& method, const std::string& message,
                       std::string* response);

/// A call of grpc.health.v1.Health/Check by its wire format: request field 1 is the service,
/// response field 1 the status (1: SERVING, 2: NOT_SERVING).
int HealthOf(TestServer& server, const std::string& service);

/// GET of a port of this machine: the whole response.
std::string HttpGetFrom(int port, const std::string& path);

/// Of a page of metrics; -1 where the series is not there.
double MetricValue(const std::string& text, const std::string& series);

struct WriteOutcome {
  grpc::Status status;
  v1::WriteResponse response;
};
/// Uploads bytes from `offset` in chunks.
WriteOutcome WriteBlob(v1::Blobs::Stub& blobs, const std::string& upload_id,
                       const std::string& bytes, int64_t offset = 0, size_t chunk_bytes = 1 << 20);
/// Sends these messages and half-closes.
WriteOutcome WriteMessages(v1::Blobs::Stub& blobs, const std::vector<v1::WriteRequest>& messages);
/// Reads a blob, or a part of it.
grpc::Status ReadBlob(v1::Blobs::Stub& blobs, const v1::Digest& digest, int64_t offset,
                      int64_t limit, std::string* bytes);

/// Executes a run to its end. `finished`: of its last event; empty where the status says why not.
grpc::Status ExecuteToEnd(TestServer& server, const v1::ExecuteRequest& request,
                          v1::RunFinished& finished);

v1::TensorSource Generated(const std::string& distribution, uint64_t seed, const std::string& dtype,
                           const std::vector<int64_t>& shape);
v1::TensorSource Inline(const std::string& dtype, const std::vector<int64_t>& shape,
                        const std::string& bytes);
v1::Variant MakeVariant(const std::string& recipe, const std::string& backward_override,
                        const std::string& arithmetic);
/// x [m][k], weight [n][k], grad_output [m][n], all generated in bf16.
v1::RunSpec LinearSpec(int64_t m, int64_t n, int64_t k);

}  // namespace quantgate
