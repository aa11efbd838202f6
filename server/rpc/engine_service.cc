#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "quantgate/v1/engine_service.grpc.pb.h"
#include "server/errors.h"
#include "server/rpc/call.h"
#include "server/rpc/run_stream.h"
#include "server/rpc/services.h"
#include "server/rpc/unary_call.h"
#include "server/runs/engine_calls.h"
#include "server/service_context.h"

namespace quantgate {
namespace {

/// Execute and WaitRun receive requests and send events as raw bytes.
template <typename Base>
using RawStreams =
    v1::Engine::WithRawCallbackMethod_Execute<v1::Engine::WithRawCallbackMethod_WaitRun<Base>>;
/// The largest request, in bytes, whose run is started on gRPC's thread, which other calls wait
/// for.
constexpr size_t kQuicklyStartedBytesMax = 64 << 10;

class EngineService : public RawStreams<v1::Engine::CallbackService> {
 public:
  EngineService(ServiceContext& context, Runs& runs) : context_(context), runs_(runs) {}

#define QG_ANSWER_ON_DEVICE(Name)                                                              \
  grpc::ServerUnaryReactor* Name(grpc::CallbackServerContext* server_context,                  \
                                 const v1::Name##Request* request,                             \
                                 v1::Name##Response* response) noexcept override {             \
    return AnswerOnDevice(context_, Rpc("Engine." #Name), server_context,                      \
                          [=, this] { return Prepare##Name(context_, *request, *response); }); \
  }
  QG_ENGINE_CALLS(QG_ANSWER_ON_DEVICE)
#undef QG_ANSWER_ON_DEVICE

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Execute(
      grpc::CallbackServerContext* server_context,
      const grpc::ByteBuffer* bytes) noexcept override {
    // Waking a thread takes longer than starting a run, so a worker of the device stays awake for
    // it.
    Served(LeastLoaded(context_.devices)).run_queue.Expect();
    const bool is_here =
        bytes->Length() <= kQuicklyStartedBytesMax && !is_starting_here_.exchange(true);
    auto* const stream = new RunStream(
        context_, runs_, Rpc("Engine.Execute"), Admission::kUnlessDraining, server_context,
        is_here ? RunStream::Place::kHere : RunStream::Place::kExecutor,
        [this, bytes](const Call& call) { return Begin(*bytes, call); });
    if (is_here) is_starting_here_ = false;
    return stream;
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* WaitRun(
      grpc::CallbackServerContext* server_context,
      const grpc::ByteBuffer* bytes) noexcept override {
    return new RunStream(context_, runs_, Rpc("Engine.WaitRun"), Admission::kAlways, server_context,
                         RunStream::Place::kExecutor,
                         [this, bytes](const Call&) -> absl::StatusOr<RunStream::Start> {
                           QG_ASSIGN_OR_RETURN(const v1::WaitRunRequest request,
                                               Parsed<v1::WaitRunRequest>(*bytes));
                           return Attach(request);
                         });
  }

  grpc::ServerUnaryReactor* GetRun(grpc::CallbackServerContext* server_context,
                                   const v1::GetRunRequest* request,
                                   v1::Run* response) noexcept override {
    return AnswerOnExecutor(context_, Rpc("Engine.GetRun"), Admission::kAlways, server_context,
                            [=, this]() -> absl::Status {
                              QG_ASSIGN_OR_RETURN(*response, runs_.Get(request->run_id()));
                              return absl::OkStatus();
                            });
  }

  grpc::ServerUnaryReactor* ListRuns(grpc::CallbackServerContext* server_context,
                                     const v1::ListRunsRequest* request,
                                     v1::ListRunsResponse* response) noexcept override {
    return AnswerOnExecutor(context_, Rpc("Engine.ListRuns"), Admission::kAlways, server_context,
                            [=, this]() -> absl::Status {
                              QG_ASSIGN_OR_RETURN(*response, runs_.List(*request));
                              return absl::OkStatus();
                            });
  }

  grpc::ServerUnaryReactor* CancelRun(grpc::CallbackServerContext* server_context,
                                      const v1::CancelRunRequest* request,
                                      v1::Run* response) noexcept override {
    return AnswerOnExecutor(context_, Rpc("Engine.CancelRun"), Admission::kAlways, server_context,
                            [=, this]() -> absl::Status {
                              QG_RETURN_IF_ERROR(runs_.Cancel(request->run_id()));
                              QG_ASSIGN_OR_RETURN(*response, runs_.Get(request->run_id()));
                              return absl::OkStatus();
                            });
  }

 private:
  absl::StatusOr<RunStream::Start> Begin(const grpc::ByteBuffer& bytes, const Call& call) {
    QG_ASSIGN_OR_RETURN(const v1::ExecuteRequest request, Parsed<v1::ExecuteRequest>(bytes));
    const bool cancel = request.cancel_on_disconnect();
    // A run that outlives its stream is not bound by the stream's deadline.
    const absl::Time deadline = cancel ? call.cancellation()->deadline() : absl::InfiniteFuture();
    QG_ASSIGN_OR_RETURN(std::string run_id, runs_.Start(request, deadline));
    return RunStream::Start{std::move(run_id), 1, cancel};
  }

  absl::StatusOr<RunStream::Start> Attach(const v1::WaitRunRequest& request) {
    // Includes events that are not stored yet. Read before the record, which has all events once
    // the run has ended.
    const int64_t told = runs_.live().LastSequence(request.run_id());
    QG_ASSIGN_OR_RETURN(const RunRecord record, context_.run_store.Get(request.run_id()));
    const int64_t from = request.from_sequence() == 0 ? 1 : request.from_sequence();
    if (from < 1) {
      return Refuse("from_sequence", absl::StrCat(from), "must not be negative");
    }
    // A run that has not ended will have at least one more event.
    const bool goes_on = !IsFinal(record.state);
    const int64_t last = goes_on ? std::max(record.last_sequence, told) : record.last_sequence;
    if (from > last + (goes_on ? 1 : 0)) return error::SequenceBeyondEnd(from, last);
    return RunStream::Start{record.run_id, from};
  }

  ServiceContext& context_;
  Runs& runs_;
  /// Whether one of gRPC's threads is starting a run. At most one does, since it may have to wait
  /// for the database.
  std::atomic<bool> is_starting_here_ = false;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeEngineService(ServiceContext& context, Runs& runs) {
  return std::make_unique<EngineService>(context, runs);
}

}  // namespace quantgate
