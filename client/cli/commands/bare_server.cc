#include "client/cli/commands/bare_server.h"

#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "absl/strings/str_cat.h"

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

class GenericServer : public BareServer {
 public:
  ~GenericServer() override {
    if (server_ != nullptr) server_->Shutdown();
  }
  absl::Status Listen(bool in_process) {
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
  std::unique_ptr<ChannelConnection> Connect() override {
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

}  // namespace

absl::StatusOr<std::unique_ptr<BareServer>> BareServer::Start(bool in_process) {
  auto server = std::make_unique<GenericServer>();
  if (absl::Status status = server->Listen(in_process); !status.ok()) return status;
  return server;
}

}  // namespace quantgate
