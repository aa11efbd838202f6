// Why subjects of a trace do not meet what is required of them (docs/reports.md section 10.5).
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/validate/diagnosis/session_model.h"
#include "server/sessions/convert_session.h"

namespace quantgate {

/// The steps of one variant, as far as a diagnosis takes them again or reads what they read. It
/// shares the session's tensors, and no call may come while somebody else uses the session.
class TraceDiagnoser {
 public:
  /// `parameters`: the names of the session's. `keeps_forwards`: whether a forward or a backward
  /// may be diagnosed; what the session held before a forward is then kept until its backward is
  /// over.
  TraceDiagnoser(std::vector<std::string> parameters, bool keeps_forwards)
      : parameters_(std::move(parameters)), keeps_forwards_(keeps_forwards) {}

  /// Before each step of the session that `spec` describes. `is_judged`: whether this very step may
  /// be diagnosed.
  absl::Status Before(const SessionStep& step, Session& session, const SessionSpec& spec,
                      bool is_judged, const Cancellation* cancellation);
  /// The variant goes on with another session.
  void Restarted();

  /// Of the last step. `subjects`: those that fail, and those that are as expected. `bytes_max`:
  /// what a copy of the session may hold. The session is afterwards as it was.
  absl::StatusOr<Diagnosis> Diagnose(Engine& engine, Session& session,
                                     const std::vector<NamedTensor>& outputs,
                                     const std::vector<NamedTensor>& subjects, int64_t bytes_max,
                                     const Cancellation* cancellation,
                                     const DiagnosisBudget& budget) const;

 private:
  struct Moment {
    SessionSteps steps;  ///< Without `before` and bytes_max.
    std::function<void()> go_back;
  };
  absl::Status BeforeForward(const SessionStep& step, Session& session, const SessionSpec& spec,
                             const Cancellation* cancellation);
  absl::Status BeforeBackward(const SessionStep& step, Session& session, const SessionSpec& spec,
                              const Cancellation* cancellation);
  absl::StatusOr<LayerCase> CaseOf(Engine& engine, Session& session,
                                   const std::vector<NamedTensor>& outputs,
                                   const std::vector<NamedTensor>& subjects,
                                   const Cancellation* cancellation) const;

  const std::vector<std::string> parameters_;
  const bool keeps_forwards_;
  std::map<std::string, Moment> moments_;     ///< By microbatch.
  std::string over_;                          ///< The microbatch whose moment the last step ended.
  const Moment* last_ = nullptr;              ///< Of the last step; null: it is not taken again,
  std::string why_not_;                       ///< since this.
  std::map<std::string, Tensor> read_;        ///< What the last step read beside parameters.
  std::map<std::string, Tensor> main_grads_;  ///< Before the last backward, by weight.
  std::map<std::string, Tensor> scales_;      ///< Of the last forward's beginning, by state.
};

}  // namespace quantgate
