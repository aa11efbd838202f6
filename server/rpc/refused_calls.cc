#include "server/rpc/refused_calls.h"

#include <google/protobuf/descriptor.h>

#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/refusal.h"
#include "server/rpc/call.h"
#include "server/rpc/rpc_methods.h"
#include "server/wire/request_fields.h"

namespace quantgate {
namespace {

struct CalledMethod {
  int number = 0;  ///< Index in AllRpcMethods.
  std::string request;
};

/// Watches one call. No method of this server ends with UNIMPLEMENTED and an empty text, so such a
/// status comes from gRPC itself, for a message that it could not parse.
class MalformedCallAnswer : public grpc::experimental::Interceptor {
 public:
  MalformedCallAnswer(Metrics& metrics, const CalledMethod& method)
      : metrics_(metrics), method_(method), start_(absl::Now()) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
    using grpc::experimental::InterceptionHookPoints;
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const grpc::Status status = batch->GetSendStatus();
      if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED &&
          status.error_message().empty()) {
        Answer(*batch);
      }
    }
    batch->Proceed();
  }

 private:
  void Answer(grpc::experimental::InterceptorBatchMethods& batch) {
    const absl::Status status =
        Refuse("message", "malformed", absl::StrCat("must be a ", method_.request));
    metrics_.RpcStarted(method_.number);
    metrics_.MessageReceived(method_.number);
    metrics_.RpcHandled(method_.number, status.code(), absl::Now() - start_);
    batch.ModifySendStatus(StatusToGrpc(status));
  }

  Metrics& metrics_;
  const CalledMethod& method_;
  const absl::Time start_;
};

class MalformedCallAnswers : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit MalformedCallAnswers(Metrics& metrics) : metrics_(metrics) {
    const auto* pool = google::protobuf::DescriptorPool::generated_pool();
    int number = 0;
    for (const RpcMethod& method : AllRpcMethods()) {
      const auto* described = pool->FindMethodByName(
          absl::StrCat(std::string(method.service), ".", std::string(method.method)));
      methods_[absl::StrCat("/", std::string(method.service), "/", std::string(method.method))] = {
          number++, described->input_type()->full_name()};
    }
  }

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* call) override {
    const auto found = methods_.find(absl::string_view(call->method()));
    // Calls of the health and reflection services keep the statuses that gRPC gives them.
    return found == methods_.end() ? nullptr : new MalformedCallAnswer(metrics_, found->second);
  }

 private:
  Metrics& metrics_;
  absl::flat_hash_map<std::string, CalledMethod> methods_;  ///< By path; constant once constructed.
};

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

InterceptorFactories MakeMalformedCallAnswers(Metrics& metrics) {
  InterceptorFactories factories;
  factories.push_back(std::make_unique<MalformedCallAnswers>(metrics));
  return factories;
}

std::unique_ptr<grpc::CallbackGenericService> MakeUnknownMethods(Metrics& metrics) {
  return std::make_unique<UnknownMethods>(metrics);
}

}  // namespace quantgate
