// Experts on several ranks: the rows of each token travel to the ranks of the experts that it was
// routed to, a grouped_linear runs there, and its rows come back and are added up
// (docs/ranks.md section 8). N ranks have the bits of one rank with all tokens and experts.
//
//   dispatch  an expert's rows lie in the order (source rank, token, choice)
//   combine   y[t] = sum over the choices c, ascending, of weight[t][c] * row(t, c)
//
// Who is routed where is given: routing weights are constants of a step, their gradients are not
// computed. Runs and sessions route each row to one expert with weight 1, and let it travel as it
// is and without padding; only scenarios ask for more (docs/scenarios.md section 4, D34).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/comm/group/process_group.h"
#include "kernels/layer/layer_step.h"
#include "kernels/ops/rows/row_moves.h"

namespace quantgate {

struct ExpertRouting {
  /// Of each token, one after the other, its choices: numbers of experts of the whole group.
  std::vector<int64_t> experts;
  int64_t choices = 1;
  Tensor weights;  ///< f32 [tokens][choices].

  int64_t tokens() const { return static_cast<int64_t>(experts.size()) / choices; }
};

/// In what form rows travel to experts. Gradients and results always travel as they are.
enum class ExpertPayload {
  kSource,  ///< The activation dtype.
  /// Rowwise mxfp8 codes with their scales, by the recipe's quantizer of inputs; experts take the
  /// values that they stand for.
  kMxfp8,
};

struct ExpertOptions {
  /// Rank r has experts [first_expert[r], first_expert[r + 1]), one at least.
  std::vector<int64_t> first_expert = {};
  /// Each expert's rows are padded with zeros to a multiple of this: formats whose blocks run along
  /// them take no others. Zeros change no amax and no other row.
  int64_t row_multiple = 1;
  ExpertPayload payload = ExpertPayload::kSource;
  SumAccumulation combine = SumAccumulation::kF32;
};

/// Where each row of one step goes and comes from; on the host.
class ExpertPlan {
 public:
  /// Collective. INVALID_ARGUMENT naming field, value and rule: layout, choices, expert numbers,
  /// weights.
  static absl::StatusOr<ExpertPlan> Create(ProcessGroup& group, const ExpertOptions& options,
                                           const ExpertRouting& routing,
                                           const Cancellation* cancellation);

  /// Whose calls these are from now on: a plan may outlive the step that made it.
  void FollowCancellation(const Cancellation* cancellation) { cancellation_ = cancellation; }
  /// Rows of each of this rank's experts, padding included: grouped_linear's m_splits.
  const std::vector<int64_t>& m_splits() const { return m_splits_; }
  /// This rank's tokens [tokens][...], of any dtype, to the rows of its experts [sum of
  /// m_splits][...]. Collective, as are the others.
  absl::StatusOr<Tensor> Dispatch(ProcessGroup& group, const Tensor& rows) const;
  /// Codes and scales together: what quantizing the dispatched rows gives, rowwise mxfp8 only.
  absl::StatusOr<QuantizedTensor> Dispatch(ProcessGroup& group, const QuantizedTensor& rows) const;
  /// Dispatch of weight[t][c] * rows[t], rounded to its dtype: the gradient of Combine.
  absl::StatusOr<Tensor> DispatchWeighted(ProcessGroup& group, const Tensor& rows) const;
  /// The experts' rows back to [tokens][...], weighted, or as they are: the gradient of Dispatch.
  absl::StatusOr<Tensor> Combine(ProcessGroup& group, const Tensor& rows, bool is_weighted) const;

 private:
  void PlanSending(const ExpertOptions& options, const ExpertRouting& routing);
  void PlanReceiving(const std::vector<std::vector<int64_t>>& counts, const ExpertOptions& options,
                     const SeededFaults& faults);
  absl::StatusOr<Tensor> Exchange(ProcessGroup& group, const std::vector<Tensor>& sent) const;

  std::vector<std::vector<int64_t>> sent_choices_;  ///< By member: token * choices + choice.
  std::vector<int64_t> received_from_;              ///< Rows of each member,
  std::vector<int64_t> expert_rows_;                ///< that, one after the other, become these.
  std::vector<int64_t> returned_rows_;              ///< And which of these go back, likewise.
  std::vector<int64_t> positions_;                  ///< Of each choice among what comes back.
  std::vector<int64_t> m_splits_;
  int64_t choices_ = 1;
  Tensor weights_;
  SumAccumulation combine_ = SumAccumulation::kF32;
  const Cancellation* cancellation_ = nullptr;
};

/// What a forward of experts keeps for its backward.
struct ExpertSaved {
  ExpertPlan plan;
  LayerSpec layer;
  std::unique_ptr<LayerSaved> saved;  ///< Null where grad is not enabled.
};

struct ExpertForward {
  Tensor y;  ///< [tokens][O].
  ExpertSaved saved;
};

/// A grouped_linear of this rank's experts (`state` has "weight.0" for the first of them) over the
/// tokens of all ranks. `layer.m_splits` is not read. Random numbers are those of the expert's
/// number in the whole group. INVALID_ARGUMENT as CheckLayer for what reaches this rank.
absl::StatusOr<ExpertForward> ForwardExperts(StepRecorder& recorder, ProcessGroup& group,
                                             const ExpertOptions& options, LayerSpec layer,
                                             LayerState& state, const Tensor& x,
                                             const ExpertRouting& routing, StepOptions step);

/// dx [tokens][K], and the gradients of this rank's experts.
absl::StatusOr<BackwardResult> BackwardExperts(StepRecorder& recorder, ProcessGroup& group,
                                               ExpertSaved saved, LayerState& state,
                                               const Tensor& grad_output);

}  // namespace quantgate
