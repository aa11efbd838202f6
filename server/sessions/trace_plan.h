// TracePlan: a trace (Sessions.RunTrace) in domain terms, checked before any of it is computed.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/validate/plan.h"
#include "quantgate/v1/sessions_service.pb.h"
#include "server/runs/call_context.h"
#include "server/sessions/convert_session.h"
#include "server/sessions/session_store.h"
#include "server/wire/quantized_parts.h"
#include "server/wire/tensor_reference.h"

namespace quantgate {

/// A session as one variant of a trace has it: the trace's layers under the variant's recipe, on
/// its ranks.
struct TraceSession {
  v1::SessionSpec proto;
  SessionSpec spec;
  std::string label;  ///< Variant::Label.
};

/// Variant::Label of a session.
std::string LabelOf(const SessionSpec& spec);

/// One step of a round.
struct PlannedTraceStep {
  std::string kind;        ///< The field of v1.SessionTrace.Step that has it: "forward", ...
  std::string field;       ///< "trace.steps[3].forward".
  std::string microbatch;  ///< As the request names it.
  SessionStep step;        ///< Without its tensor; unused in a restart.
  std::string tensor;      ///< Key of TracePlan::tensors; empty for a step without tensor.
  struct Restart {
    std::vector<int> variants;  ///< Empty: all.
    std::optional<v1::Parallel> parallel;

    bool IsOf(int variant) const {
      return variants.empty() ||
             std::find(variants.begin(), variants.end(), variant) != variants.end();
    }
  };
  std::optional<Restart> restart;
  std::map<std::string, std::string> subjects;  ///< Keys of TracePlan::tensors, by output.
  int subjects_of = 0;
  Requirement subjects_requirement = Requirement::kNone;
};

struct TracePlan {
  v1::SessionSpec spec;                ///< v1.SessionTrace.spec.
  std::vector<v1::Variant> variants;   ///< At least one; with the ranks that they begin on.
  std::vector<TraceSession> sessions;  ///< One for each variant, as it begins.
  std::vector<SessionPlace> places;    ///< Likewise.
  std::map<std::string, TensorReference> tensors;   ///< By name in the trace, or by field.
  std::map<std::string, QuantizedReference> codes;  ///< Likewise: those that are given as codes.
  std::map<std::string, std::string> parameters;    ///< Keys of `tensors`, by the name given.
  /// The parameters that every variant's session has, "LAYER.NAME", each expert's by its own name:
  /// neither stacks of experts nor the main gradients and optimizer state that may be given.
  std::vector<std::string> parameter_names;
  std::vector<PlannedTraceStep> steps;
  int rounds = 1;
  int reference = 0;
  Requirement requirement = Requirement::kNone;  ///< kNone or kBitwise.
  bool keep_outputs = false;
  Device* device = nullptr;

  int64_t step_count() const { return static_cast<int64_t>(steps.size()) * rounds; }
};

/// Checks the request as far as that needs neither bytes of tensors nor the parts of several ranks
/// (kernels/training/session_outline.h), and reserves the places of its sessions. INVALID_ARGUMENT
/// and FAILED_PRECONDITION name a field below "trace", "tensors" or "requirement", and in the text
/// the variant and step; RESOURCE_EXHAUSTED where there is no place.
absl::StatusOr<TracePlan> CheckTrace(CallContext& context, const v1::RunTraceRequest& request);

/// The session of variant `index` of `plan` on these ranks (null: on one). Where nothing divides
/// weights, layers are whole. Refusals name fields of the variant or of the trace's spec.
absl::StatusOr<TraceSession> TraceSessionOf(const TracePlan& plan, int index,
                                            const v1::Parallel* parallel);

/// "bf16 / none / auto, step 3 (backward): " before the text of an error, for people; `number`
/// counts from 1 over all rounds.
absl::Status AtTraceStep(const std::string& label, int64_t number, const PlannedTraceStep& step,
                         const absl::Status& status);
/// Puts the field of a refusal by Session's Open or Restore where the trace has it.
absl::Status AtTraceField(const TracePlan& plan, int index, const absl::Status& status);

}  // namespace quantgate
