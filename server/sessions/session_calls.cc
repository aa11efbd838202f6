// Sessions.Open, Restore, Get and Checkpoint.
#include "server/sessions/session_calls.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/files/tensor_file.h"
#include "server/errors.h"
#include "server/limits.h"
#include "server/runs/output_writer.h"
#include "server/runs/run_execution.h"
#include "server/sessions/convert_session.h"
#include "server/sessions/session_store.h"
#include "server/wire/convert_layer.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/request_fields.h"

namespace quantgate {
namespace {

/// What Open and Restore have in common: the session to be opened, and its place.
struct OpeningWork {
  explicit OpeningWork(SessionSpec spec_in) : spec(std::move(spec_in)) {}
  SessionSpec spec;
  absl::Duration lease;
  std::string spec_text;
  /// Absent where the session `opened` was opened by an earlier request.
  std::optional<SessionPlace> place;
  std::string opened;
};

absl::Status DescribeSession(CallContext& context, const std::string& id,
                             const std::string& spec_text, v1::Session& response) {
  QG_ASSIGN_OR_RETURN(const SessionRecord record, context.sessions.Find(id));
  response = SessionRecordToProto(record, context.sessions.Now());
  v1::SessionSpec spec;
  if (!spec.ParseFromString(spec_text)) return error::Internal("a session's spec is damaged");
  QG_ASSIGN_OR_RETURN(const std::vector<std::string> notes, NotesOfRecipe(spec, *record.recipe));
  response.mutable_notes()->Add(notes.begin(), notes.end());
  *response.mutable_spec() = SessionSpecToProto(std::move(spec), *record.recipe);
  return absl::OkStatus();
}

template <typename Request>
absl::StatusOr<OpeningWork> BeginOpening(CallContext& context, const Request& request) {
  if (!request.request_id().empty()) {
    QG_RETURN_IF_ERROR(CheckToken(request.request_id(), "request_id"));
  }
  QG_ASSIGN_OR_RETURN(SessionSpec spec, SessionSpecFromProto(request.spec(), "spec"));
  OpeningWork work(std::move(spec));
  QG_ASSIGN_OR_RETURN(work.lease,
                      LeaseFromProto(request.lease_seconds(), context.sessions.limits()));
  work.spec_text = request.spec().SerializeAsString();
  const Sha256 content = ContentDigest(request);
  QG_ASSIGN_OR_RETURN(const auto earlier,
                      context.sessions.FindRequest(request.request_id(), content));
  if (earlier.has_value()) {
    work.opened = *earlier;
    return work;
  }
  QG_ASSIGN_OR_RETURN(SessionPlace place, context.sessions.Reserve(request.request_id(), content));
  work.place.emplace(std::move(place));
  return work;
}

/// The device that will hold the session.
absl::StatusOr<Device*> DeviceForSession(CallContext& context, const SessionSpec& spec) {
  absl::StatusOr<Device*> device = LeastLoadedWith(context.devices, {&spec.arithmetic, 1});
  if (device.ok()) return device;
  return AsField("spec.arithmetic", device.status());
}

absl::Status Finish(CallContext& context, Device& device, OpeningWork& work,
                    std::unique_ptr<Session> training, v1::Session& response) {
  QG_ASSIGN_OR_RETURN(const SessionRecord record,
                      context.sessions.Open(*std::move(work.place), device, work.lease,
                                            std::move(training), work.spec_text));
  work.place.reset();
  return DescribeSession(context, record.id, work.spec_text, response);
}

using References = std::map<std::string, TensorReference>;

/// The parameters of a session as its request gives them.
struct ParameterReferences {
  References plain;
  std::map<std::string, QuantizedReference> quantized;

  std::vector<TensorReference*> All() {
    std::vector<TensorReference*> all;
    for (auto& [name, reference] : plain) all.push_back(&reference);
    for (auto& [name, weight] : quantized) {
      for (auto& [slot, reference] : weight.parts) all.push_back(&reference);
    }
    return all;
  }
};

absl::Status OpenOnDevice(CallContext& context, Device& device, const Cancellation& cancellation,
                          OpeningWork& work, const ParameterReferences& references,
                          v1::Session& response) {
  if (!work.place.has_value()) {
    return DescribeSession(context, work.opened, work.spec_text, response);
  }
  std::map<std::string, Tensor> parameters;
  for (const auto& [name, reference] : references.plain) {
    QG_ASSIGN_OR_RETURN(parameters[name], context.loader.Load(reference, device, &cancellation));
  }
  std::map<std::string, QuantizedTensor> codes;
  for (const auto& [name, reference] : references.quantized) {
    QG_ASSIGN_OR_RETURN(LoadedCodes loaded,
                        LoadQuantized(reference, context.loader, device, &cancellation));
    codes[name] = std::move(loaded.codes);
  }
  absl::StatusOr<std::unique_ptr<Session>> training =
      OpenSession(*device.engine, work.spec, parameters, &context.ranks, &cancellation, codes);
  if (!training.ok()) {
    // Parameters are not of the spec.
    const std::optional<Refusal> refusal = RefusalOf(training.status());
    const bool is_parameter = refusal && absl::StartsWith(refusal->field, "parameters[");
    return is_parameter ? training.status() : WithinField("spec", training.status());
  }
  return Finish(context, device, work, *std::move(training), response);
}

absl::Status RestoreOnDevice(CallContext& context, Device& device, const Cancellation& cancellation,
                             OpeningWork& work, const Digest& checkpoint, v1::Session& response) {
  if (!work.place.has_value()) {
    return DescribeSession(context, work.opened, work.spec_text, response);
  }
  QG_ASSIGN_OR_RETURN(auto buffer, context.blobs.Load(checkpoint));
  const absl::StatusOr<TensorFile> file = ParseSafetensors(std::move(buffer), "checkpoint");
  if (!file.ok()) return WithinField("checkpoint", file.status());
  absl::StatusOr<std::unique_ptr<Session>> training =
      RestoreSession(*device.engine, work.spec, *file, &context.ranks, &cancellation);
  if (!training.ok()) {
    const std::optional<Refusal> refusal = RefusalOf(training.status());
    return refusal && absl::StartsWith(refusal->field, "checkpoint")
               ? training.status()
               : WithinField("spec", training.status());
  }
  return Finish(context, device, work, *std::move(training), response);
}

absl::Status AddTensors(CallContext& context, const SessionUse& use,
                        const Cancellation& cancellation, v1::Session& response) {
  QG_ASSIGN_OR_RETURN(const std::vector<StateTensor> tensors,
                      use->training->Describe(&cancellation));
  for (const StateTensor& tensor : tensors) {
    v1::StateTensor& proto = *response.add_tensors();
    proto.set_name(tensor.name);
    *proto.mutable_type() = TensorTypeToProto({tensor.dtype, tensor.shape});
    *proto.mutable_fingerprint() = FingerprintToProto(tensor.fingerprint);
  }
  return absl::OkStatus();
}

absl::Status AddTensor(CallContext& context, const SessionUse& use, const std::string& name,
                       const Cancellation& cancellation, v1::Session& response) {
  const absl::StatusOr<Tensor> tensor = use->training->Find(name, &cancellation);
  if (!tensor.ok()) return AsField("tensor", tensor.status());
  Engine& engine = *use->device.engine;
  QG_ASSIGN_OR_RETURN(const Fingerprint fingerprint, engine.FingerprintOf(*tensor, &cancellation));
  return OutputWriter(context.blobs, engine, KeepOutputs::kLarge)
      .Write(name, *tensor, fingerprint, response.mutable_tensor());
}

/// What is known of a trace's session without using it: its tensors may refer to what is gone once
/// the trace has ended, so that only the trace itself reads them.
absl::StatusOr<DeviceWork> PrepareGetOfTrace(CallContext& context, const SessionRecord& record,
                                             const v1::GetSessionRequest& request,
                                             v1::Session& response) {
  if (request.with_tensors() || !request.tensor().empty()) {
    return RefusePrecondition(
        request.with_tensors() ? "with_tensors" : "tensor",
        request.with_tensors() ? "true" : Printable(request.tensor()),
        absl::StrCat("the session is of the trace ", record.run_id,
                     ", which alone reads its tensors; its events have what each step gave"));
  }
  QG_ASSIGN_OR_RETURN(std::string spec, context.sessions.SpecOf(record.id));
  const auto device =
      std::find_if(context.devices.begin(), context.devices.end(),
                   [&](const std::unique_ptr<Device>& one) { return one->id == record.device; });
  if (device == context.devices.end()) return error::Internal("a session's device is unknown");
  return DeviceWork{"",
                    [&context, &response, id = record.id, spec = std::move(spec)](
                        Device&, const Cancellation&) -> absl::Status {
                      QG_RETURN_IF_ERROR(DescribeSession(context, id, spec, response));
                      return CheckMessageSize(response);
                    },
                    device->get()};
}

}  // namespace

absl::Status CheckMessageSize(const google::protobuf::MessageLite& response) {
  const auto bytes = static_cast<int64_t>(response.ByteSizeLong());
  if (bytes <= kMessageBytesMax) return absl::OkStatus();
  return error::LimitExceeded("response bytes", bytes, kMessageBytesMax);
}

absl::StatusOr<DeviceWork> PrepareOpenSession(CallContext& context,
                                              const v1::OpenSessionRequest& request,
                                              v1::Session& response) {
  QG_ASSIGN_OR_RETURN(OpeningWork work, BeginOpening(context, request));
  ParameterReferences references;
  QG_ASSIGN_OR_RETURN(references.plain,
                      NamedTensorsFromProto(request.parameters(), "parameters",
                                            context.tensor_bytes_max, &references.quantized));
  const std::vector<TensorReference*> all = references.All();
  int64_t bytes = 0;
  QG_RETURN_IF_ERROR(context.loader.Resolve(all));
  for (const auto& [name, weight] : references.quantized) {
    QG_ASSIGN_OR_RETURN(const QuantizedPlan outline, OutlineOf(weight));
    QG_RETURN_IF_ERROR(WithinField(weight.field, outline.CheckValues()));
  }
  for (const TensorReference* reference : all) {
    bytes += static_cast<int64_t>(OutlineOf(*reference).byte_size());
  }
  // Checked before anything is loaded: a session holds at least its parameters.
  const int64_t bytes_max = context.sessions.limits().bytes_max;
  if (bytes > bytes_max) return error::LimitExceeded("parameters", bytes, bytes_max);
  QG_ASSIGN_OR_RETURN(Device * device, DeviceForSession(context, work.spec));
  std::string recipe = work.spec.recipe.name();
  return DeviceWork{
      std::move(recipe),
      [&context, &response, work = std::move(work), references = std::move(references)](
          Device& on, const Cancellation& cancellation) mutable {
        return OpenOnDevice(context, on, cancellation, work, references, response);
      },
      device};
}

absl::StatusOr<DeviceWork> PrepareRestoreSession(CallContext& context,
                                                 const v1::RestoreSessionRequest& request,
                                                 v1::Session& response) {
  QG_ASSIGN_OR_RETURN(OpeningWork work, BeginOpening(context, request));
  QG_ASSIGN_OR_RETURN(const Digest checkpoint, DigestFromProto(request.checkpoint(), "checkpoint"));
  if (!context.blobs.Contains(checkpoint)) return error::BlobsMissing("checkpoint", {checkpoint});
  const int64_t bytes_max = context.sessions.limits().bytes_max;
  if (checkpoint.size > bytes_max) {
    return error::LimitExceeded("checkpoint", checkpoint.size, bytes_max);
  }
  QG_ASSIGN_OR_RETURN(Device * device, DeviceForSession(context, work.spec));
  std::string recipe = work.spec.recipe.name();
  return DeviceWork{std::move(recipe),
                    [&context, &response, checkpoint, work = std::move(work)](
                        Device& on, const Cancellation& cancellation) mutable {
                      return RestoreOnDevice(context, on, cancellation, work, checkpoint, response);
                    },
                    device};
}

absl::StatusOr<DeviceWork> PrepareGetSession(CallContext& context,
                                             const v1::GetSessionRequest& request,
                                             v1::Session& response) {
  QG_ASSIGN_OR_RETURN(const SessionRecord record, context.sessions.Find(request.session_id()));
  if (!record.run_id.empty() && record.phase == SessionPhase::kOpen) {
    return PrepareGetOfTrace(context, record, request, response);
  }
  QG_ASSIGN_OR_RETURN(SessionUse use, context.sessions.Use(request.session_id(), record.run_id));
  Device* const device = &use->device;
  return DeviceWork{
      "",
      [&context, &request, &response, use = std::move(use)](
          Device&, const Cancellation& cancellation) -> absl::Status {
        const std::lock_guard lock(use->mutex);
        QG_RETURN_IF_ERROR(DescribeSession(context, use.id(), use->spec, response));
        *response.mutable_memory() = SavedMemoryToProto(use->training->saved_memory());
        if (request.with_tensors()) {
          QG_RETURN_IF_ERROR(AddTensors(context, use, cancellation, response));
        }
        if (!request.tensor().empty()) {
          QG_RETURN_IF_ERROR(AddTensor(context, use, request.tensor(), cancellation, response));
        }
        return CheckMessageSize(response);
      },
      device};
}

absl::StatusOr<DeviceWork> PrepareCheckpoint(CallContext& context,
                                             const v1::CheckpointRequest& request,
                                             v1::CheckpointResponse& response) {
  QG_ASSIGN_OR_RETURN(SessionUse use, context.sessions.Use(request.session_id()));
  Device* const device = &use->device;
  return DeviceWork{
      "",
      [&context, &response, use = std::move(use)](
          Device&, const Cancellation& cancellation) -> absl::Status {
        const std::lock_guard lock(use->mutex);
        QG_ASSIGN_OR_RETURN(const TensorFile file, use->training->Checkpoint(&cancellation));
        QG_ASSIGN_OR_RETURN(const Tensor bytes, SafetensorsBytes(file.tensors, file.metadata));
        QG_ASSIGN_OR_RETURN(const Digest digest, context.blobs.Put(bytes.bytes()));
        *response.mutable_digest() = DigestToProto(digest);
        response.set_step(use->training->step_count());
        return absl::OkStatus();
      },
      device};
}

absl::Status ListSessions(CallContext& context, const v1::ListSessionsRequest& request,
                          v1::ListSessionsResponse& response) {
  QG_ASSIGN_OR_RETURN(const Page page, PageFromProto(request.page_size(), request.page_token()));
  const auto records = context.sessions.List(page.before_id, page.size);
  response = SessionPageToProto(records, page.size, context.sessions.Now());
  return absl::OkStatus();
}

absl::Status CloseSession(CallContext& context, const v1::CloseSessionRequest& request,
                          v1::Session& response) {
  QG_ASSIGN_OR_RETURN(const SessionRecord record, context.sessions.Close(request.session_id()));
  response = SessionRecordToProto(record, context.sessions.Now());
  return absl::OkStatus();
}

}  // namespace quantgate
