#include "client/cli/commands/bench_wire.h"

#include <fcntl.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/sync_stream.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "client/blob_transfer.h"
#include "client/cli/exit.h"
#include "client/status.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/fingerprint.h"
#include "kernels/tensor/tensor.h"
#include "quantgate/v1/blobs_service.grpc.pb.h"

namespace quantgate {
namespace {

/// Reads to the end, then answers one empty message. Owns itself until OnDone.
class DiscardReactor : public grpc::ServerGenericBidiReactor {
 public:
  DiscardReactor() : empty_(&slice_, 1) { StartRead(&message_); }
  void OnReadDone(bool ok) override {
    if (ok) {
      StartRead(&message_);
    } else {
      StartWriteAndFinish(&empty_, grpc::WriteOptions(), grpc::Status::OK);
    }
  }
  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer message_;
  grpc::Slice slice_;
  grpc::ByteBuffer empty_;
};

class DiscardService : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new DiscardReactor;
  }
};

/// A gRPC server that reads every request of every method and answers one empty message: the
/// ceiling of what any service over gRPC can do.
class BareServer {
 public:
  ~BareServer() {
    if (server_ != nullptr) server_->Shutdown();
  }
  /// In process, or on a loopback port of the system's choice; UNAVAILABLE when none can be had.
  absl::Status Start(bool in_process) {
    is_in_process_ = in_process;
    grpc::ServerBuilder builder;
    if (!in_process) {
      builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    }
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || (!in_process && port_ == 0)) {
      return absl::UnavailableError("bench: no loopback port for the bare gRPC server");
    }
    return absl::OkStatus();
  }
  std::unique_ptr<ChannelConnection> Connect() {
    const std::string address = absl::StrCat("127.0.0.1:", port_);
    auto channel = is_in_process_
                       ? server_->InProcessChannel(grpc::ChannelArguments())
                       : grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    return std::make_unique<ChannelConnection>(std::move(channel), address, ConnectionOptions());
  }

 private:
  DiscardService service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  bool is_in_process_ = false;
};

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Latencies {
  double median = 0;
  double p99 = 0;
};

/// Latencies of an empty FindMissing, by the same client code for either server.
absl::StatusOr<Latencies> UnaryLatencies(ChannelConnection& connection, double seconds) {
  std::vector<double> times;
  double spent = 0;
  while (times.size() < 200 || spent < seconds) {
    if (WasInterrupted()) return absl::CancelledError("interrupted");
    const Clock::time_point start = Clock::now();
    QG_RETURN_IF_ERROR(connection.FindMissing(v1::FindMissingRequest()).status());
    times.push_back(SecondsSince(start));
    spent += times.back();
  }
  std::sort(times.begin(), times.end());
  return Latencies{times[times.size() / 2], times[times.size() * 99 / 100]};
}

/// Bytes per second through a client stream that sends one prepared 1 MiB message over and over.
absl::StatusOr<double> BareStreamRate(ChannelConnection& connection, int64_t bytes) {
  v1::WriteRequest request;
  request.set_data(std::string(kUploadChunkBytes, 'x'));
  const std::unique_ptr<v1::Blobs::Stub> stub = v1::Blobs::NewStub(connection.channel());
  grpc::ClientContext context;
  v1::WriteResponse response;
  const Clock::time_point start = Clock::now();
  const auto writer = stub->Write(&context, &response);
  for (int64_t sent = 0; sent < bytes; sent += kUploadChunkBytes) {
    if (!writer->Write(request)) break;
  }
  writer->WritesDone();
  QG_RETURN_IF_ERROR(FromGrpcStatus(writer->Finish()));
  return static_cast<double>(bytes) / SecondsSince(start);
}

/// Bytes per second into one file in 1 MiB writes, fsynced at the end.
absl::StatusOr<double> DiskRate(const std::string& directory, std::span<const std::byte> bytes) {
  const std::string path = absl::StrCat(directory, "/bench.", ::getpid(), ".tmp");
  const int descriptor = ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  const auto fail = [&](const std::string& what) {
    if (descriptor >= 0) ::close(descriptor);
    ::unlink(path.c_str());
    return absl::FailedPreconditionError(
        absl::StrCat("bench: cannot ", what, " ", path, ": ", std::strerror(errno)));
  };
  if (descriptor < 0) return fail("create");
  const Clock::time_point start = Clock::now();
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = ::write(descriptor, bytes.data() + done,
                                  std::min<size_t>(kUploadChunkBytes, bytes.size() - done));
    if (count < 0) return fail("write");
    done += static_cast<size_t>(count);
  }
  if (::fsync(descriptor) != 0) return fail("sync");
  const double rate = static_cast<double>(bytes.size()) / SecondsSince(start);
  ::close(descriptor);
  ::unlink(path.c_str());
  return rate;
}

/// Bytes that no store has yet.
absl::StatusOr<std::shared_ptr<Buffer>> FreshBytes(int64_t size) {
  QG_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, Buffer::Allocate(size));
  std::mt19937_64 random(std::random_device{}());
  for (int64_t offset = 0; offset + 8 <= size; offset += 8) {
    const uint64_t word = random();
    std::memcpy(buffer->data() + offset, &word, 8);
  }
  return buffer;
}

absl::Status BenchUnary(ChannelConnection& connection, ChannelConnection& bare, double seconds,
                        std::vector<BenchLine>& lines) {
  QG_ASSIGN_OR_RETURN(const Latencies echo, UnaryLatencies(bare, seconds));
  QG_ASSIGN_OR_RETURN(const Latencies call, UnaryLatencies(connection, seconds));
  lines.push_back({"bare gRPC echo, median", echo.median, "s", "", {}});
  lines.push_back({"unary call, median", call.median, "s", "bare gRPC echo, median",
                   call.median / echo.median});
  lines.push_back({"bare gRPC echo, 99th percentile", echo.p99, "s", "", {}});
  lines.push_back({"unary call, 99th percentile", call.p99, "s", "bare gRPC echo, 99th percentile",
                   call.p99 / echo.p99});
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<BenchLine>> BenchWire(ChannelConnection& connection,
                                                 const WireBenchOptions& options,
                                                 const BenchProgress& progress) {
  std::vector<BenchLine> lines;
  BareServer bare_server;
  QG_RETURN_IF_ERROR(bare_server.Start(options.is_in_process));
  const std::unique_ptr<ChannelConnection> bare = bare_server.Connect();
  QG_RETURN_IF_ERROR(progress("unary calls"));
  QG_RETURN_IF_ERROR(BenchUnary(connection, *bare, options.seconds, lines));

  QG_ASSIGN_OR_RETURN(const std::shared_ptr<Buffer> buffer, FreshBytes(options.upload_bytes));
  const std::span<const std::byte> bytes(buffer->data(), buffer->size());
  QG_RETURN_IF_ERROR(progress("bare gRPC stream"));
  QG_ASSIGN_OR_RETURN(const double stream, BareStreamRate(*bare, options.upload_bytes));
  lines.push_back({"bare gRPC stream", stream / 1e9, "GB/s", "", {}});
  QG_RETURN_IF_ERROR(progress("SHA-256"));
  Clock::time_point start = Clock::now();
  const v1::Digest digest = DigestOf(bytes);
  const double sha256 = static_cast<double>(bytes.size()) / SecondsSince(start);
  lines.push_back({"SHA-256, one core", sha256 / 1e9, "GB/s", "", {}});
  double ceiling = std::min(stream, sha256);
  std::string ceiling_name = stream < sha256 ? "bare gRPC stream" : "SHA-256, one core";
  if (!options.disk.empty()) {
    QG_RETURN_IF_ERROR(progress("disk"));
    QG_ASSIGN_OR_RETURN(const double disk, DiskRate(options.disk, bytes));
    lines.push_back({"fsynced writes", disk / 1e9, "GB/s", "", {}});
    if (disk < ceiling) ceiling_name = "fsynced writes";
    ceiling = std::min(ceiling, disk);
  }
  QG_RETURN_IF_ERROR(progress("upload"));
  start = Clock::now();
  QG_RETURN_IF_ERROR(WriteBlob(connection, {bytes, buffer}, digest).status());
  const double upload = static_cast<double>(bytes.size()) / SecondsSince(start);
  lines.push_back({absl::StrCat("upload of ", bytes.size() >> 20, " MiB, digest known"),
                   upload / 1e9, "GB/s", ceiling_name, upload / ceiling});
  return lines;
}

}  // namespace quantgate
