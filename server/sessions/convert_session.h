// Conversions of sessions between messages and domain types. Failures are INVALID_ARGUMENT naming
// the field.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "quantgate/v1/sessions_service.pb.h"
#include "server/sessions/session_store.h"
#include "server/wire/quantized_parts.h"
#include "server/wire/tensor_reference.h"

namespace quantgate {

absl::StatusOr<SessionSpec> SessionSpecFromProto(const v1::SessionSpec& proto,
                                                 const std::string& field);
/// The lease that a request asks for; 0 asks for the default. INVALID_ARGUMENT for a negative lease
/// or one beyond SessionLimits::lease_max.
absl::StatusOr<absl::Duration> LeaseFromProto(int32_t seconds, const SessionLimits& limits);
/// Sets every field of the message except spec, tensors, tensor and memory.
v1::Session SessionRecordToProto(const SessionRecord& record, absl::Time now);
/// The first kSessionOperandsMax operands, and the sums of all.
v1::SessionMemory SavedMemoryToProto(const SavedMemory& memory);
/// A page of the listing with at most `page_size` sessions; fewer where a message has no room for
/// more: sessions with many microbatches have long records.
v1::ListSessionsResponse SessionPageToProto(const std::vector<SessionRecord>& records,
                                            int page_size, absl::Time now);
/// Returns `spec` with the session's present recipe in place of its recipe and backward override.
v1::SessionSpec SessionSpecToProto(v1::SessionSpec spec, const Recipe& recipe);

/// What there is to say of a recipe in the session of this spec: which rules decide nothing
/// (NotesOfRules). The spec must be one that opened a session.
absl::StatusOr<std::vector<std::string>> NotesOfRecipe(const v1::SessionSpec& spec,
                                                       const Recipe& recipe);

/// One step as a request describes it, before its tensor is loaded.
struct SessionStep {
  enum class Kind {
    kTrain,
    kEvaluate,
    kRecompute,
    kBackward,
    kWgrad,
    kOptimize,
    kChangeRecipe,
    kOffload,
    kReload
  } kind = Kind::kTrain;
  TensorReference tensor;                       ///< x of a forward, grad_output of a backward.
  std::optional<QuantizedReference> quantized;  ///< In place of `tensor`: it is given as codes.
  ForwardStep forward;
  std::string microbatch;
  OptimizerStep optimizer;
  std::optional<Recipe> recipe;
  /// Whether a change of recipe keeps the session's backward override.
  bool keeps_override = false;
};
/// "train", "evaluate", ...: for metrics and listings.
std::string_view SessionStepName(SessionStep::Kind kind);
/// The field of v1.SessionStepRequest that holds a step of this kind: "forward", "backward", ...
std::string_view SessionStepField(SessionStep::Kind kind);

absl::StatusOr<SessionStep> SessionStepFromProto(const v1::SessionStepRequest& proto,
                                                 int64_t tensor_bytes_max);
/// The same without its tensor, which the request need not have.
absl::StatusOr<SessionStep> SessionStepWithoutTensor(const v1::SessionStepRequest& proto,
                                                     int64_t tensor_bytes_max);

}  // namespace quantgate
