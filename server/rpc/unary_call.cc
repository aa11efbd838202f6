#include "server/rpc/unary_call.h"

#include <memory>
#include <utility>

#include "kernels/base/steady_time.h"
#include "server/runs/memory_guard.h"
#include "server/service_context.h"

namespace quantgate {
namespace {

/// The thread that runs the body finishes the call; a cancellation only makes the body end sooner.
/// Deletes itself in OnDone.
class UnaryCall : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(ServiceContext& context, Rpc rpc, grpc::CallbackServerContext* server_context)
      : method_(rpc.index()), call_(context, rpc, server_context) {
    call_.MessageReceived();
  }

  Call& call() { return call_; }
  int method() const { return method_; }  ///< Index in AllRpcMethods.

  void Answer(const absl::Status& status) {
    if (status.ok()) call_.MessageSent();
    Finish(call_.End(status));
  }

 private:
  void OnCancel() noexcept override {
    for (const auto& device : call_.context().devices) {
      Served(*device).call_queue.Cancel(call_.cancellation());
    }
  }
  void OnDone() noexcept override { delete this; }

  const int method_;
  Call call_;
};

void RunOnDevice(UnaryCall* unary, DeviceWork work) {
  ServiceContext& context = unary->call().context();
  auto shared = std::make_shared<DeviceWork>(std::move(work));
  const absl::Time enqueued = SteadyNow();
  Device& device = shared->device != nullptr ? *shared->device : LeastLoaded(context.devices);
  const auto submitted = Served(device).call_queue.Submit(
      unary->call().cancellation(),
      [unary, shared, &context, &device, enqueued](absl::Status admission) {
        const absl::Time start = SteadyNow();
        context.metrics.StageTook(Stage::kQueue, start - enqueued);
        absl::Status status = std::move(admission);
        if (status.ok()) {
          status = GuardMemory(
              [&] { return std::move(shared->run)(device, *unary->call().cancellation()); });
        }
        // What the work holds, such as a session's place, is given back before the answer.
        shared->run = nullptr;
        status = context.watch.Checked(device, std::move(status));
        status = Served(device).call_queue.Reported(*unary->call().cancellation(), status);
        context.metrics.CallEnded(unary->method(), status);
        context.metrics.CallTook(unary->method(), shared->recipe, SteadyNow() - start);
        unary->Answer(status);
      });
  if (submitted.ok()) return;
  context.metrics.CallEnded(unary->method(), submitted.status());
  unary->Answer(submitted.status());
}

}  // namespace

grpc::ServerUnaryReactor* AnswerInline(ServiceContext& context, Rpc rpc,
                                       grpc::CallbackServerContext* server_context,
                                       absl::FunctionRef<absl::Status()> body) {
  auto* unary = new UnaryCall(context, rpc, server_context);
  absl::Status status = unary->call().Admit(Admission::kAlways);
  if (status.ok()) status = GuardMemory(body);
  unary->Answer(status);
  return unary;
}

grpc::ServerUnaryReactor* AnswerOnExecutor(ServiceContext& context, Rpc rpc, Admission admission,
                                           grpc::CallbackServerContext* server_context,
                                           absl::AnyInvocable<absl::Status() &&> body) {
  auto* unary = new UnaryCall(context, rpc, server_context);
  context.executor.Run([unary, admission, body = std::move(body)]() mutable {
    absl::Status status = unary->call().Admit(admission);
    if (status.ok()) status = GuardMemory([&] { return std::move(body)(); });
    unary->Answer(status);
  });
  return unary;
}

grpc::ServerUnaryReactor* AnswerOnDevice(
    ServiceContext& context, Rpc rpc, grpc::CallbackServerContext* server_context,
    absl::AnyInvocable<absl::StatusOr<DeviceWork>() &&> prepare) {
  auto* unary = new UnaryCall(context, rpc, server_context);
  context.executor.Run([unary, prepare = std::move(prepare)]() mutable {
    const absl::Status admitted = unary->call().Admit(Admission::kUnlessDraining);
    if (!admitted.ok()) return unary->Answer(admitted);
    absl::StatusOr<DeviceWork> work = GuardMemory([&] { return std::move(prepare)(); });
    if (!work.ok()) {
      unary->call().context().metrics.CallEnded(unary->method(), work.status());
      return unary->Answer(work.status());
    }
    RunOnDevice(unary, *std::move(work));
  });
  return unary;
}

}  // namespace quantgate
