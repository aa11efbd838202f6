#include "server/rpc/unknown_methods.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/rpc/convert_error.h"
#include "server/wire/convert_tensor.h"

namespace quantgate {
namespace {

/// Deletes itself.
class UnknownMethodCall : public grpc::ServerGenericBidiReactor {
 public:
  explicit UnknownMethodCall(const std::string& path) {
    Finish(StatusToGrpc(
        absl::UnimplementedError(absl::StrCat("this server has no method ", Printable(path)))));
  }

 private:
  void OnDone() noexcept override { delete this; }
};

class UnknownMethods : public grpc::CallbackGenericService {
 public:
  explicit UnknownMethods(Metrics& metrics) : metrics_(metrics) {}

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* server_context) noexcept override {
    metrics_.UnknownMethodCalled();
    return new UnknownMethodCall(server_context->method());
  }

 private:
  Metrics& metrics_;
};

}  // namespace

std::unique_ptr<grpc::CallbackGenericService> MakeUnknownMethods(Metrics& metrics) {
  return std::make_unique<UnknownMethods>(metrics);
}

}  // namespace quantgate
