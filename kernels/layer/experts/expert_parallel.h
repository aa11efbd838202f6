// Experts on several ranks: each token's row is sent to the ranks of the experts that the token is
// routed to, a grouped_linear runs there, and the resulting rows are sent back and added up
// (docs/ranks.md section 8). N ranks give the bits of one rank with all tokens and experts.
//
//   dispatch  an expert's rows lie in the order (source rank, token, choice)
//   combine   y[t] = sum over the choices c, ascending, of weight[t][c] * row(t, c)
//
// The routing is given: routing weights are constants of a step, and their gradients are not
// computed. Runs and sessions route each row to one expert with weight 1, in the activation dtype
// and without padding; only scenarios ask for more (docs/scenarios.md section 4, D34).
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
  /// [tokens][choices]: numbers of experts, counted over the whole group.
  std::vector<int64_t> experts;
  int64_t choices = 1;
  Tensor weights;  ///< f32 [tokens][choices].

  int64_t tokens() const { return static_cast<int64_t>(experts.size()) / choices; }
};

/// In what form rows are sent to experts. Gradients and results are always sent as they are.
enum class ExpertPayload {
  kSource,  ///< In the activation dtype.
  /// As rowwise mxfp8 codes with their scales, made by the recipe's quantizer of inputs; experts
  /// compute on the values of the codes.
  kMxfp8,
};

struct ExpertOptions {
  /// Rank r has experts [first_expert[r], first_expert[r + 1]), at least one.
  std::vector<int64_t> first_expert = {};
  /// Each expert's rows are padded with zero rows to a multiple of this, for formats whose blocks
  /// run down the columns. Zeros change no amax and no other row.
  int64_t row_multiple = 1;
  ExpertPayload payload = ExpertPayload::kSource;
  SumAccumulation combine = SumAccumulation::kF32;
};

/// Where each row of one step is sent to and received from; on the host.
class ExpertPlan {
 public:
  /// Collective. INVALID_ARGUMENT naming field, value and rule, about first_expert, choices, expert
  /// numbers or weights.
  static absl::StatusOr<ExpertPlan> Create(ProcessGroup& group, const ExpertOptions& options,
                                           const ExpertRouting& routing,
                                           const Cancellation* cancellation);

  /// Sets the cancellation of later calls, since a plan may outlive the step that made it.
  void FollowCancellation(const Cancellation* cancellation) { cancellation_ = cancellation; }
  /// Rows of each of this rank's experts, padding included: grouped_linear's m_splits.
  const std::vector<int64_t>& m_splits() const { return m_splits_; }
  /// Sends rows [tokens][...] of this rank's tokens, of any dtype, to their experts. Returns the
  /// rows that this rank's experts received, [sum of m_splits][...]. Collective, as the calls
  /// below.
  absl::StatusOr<Tensor> Dispatch(ProcessGroup& group, const Tensor& rows) const;
  /// Dispatches codes and scales, which equal those of quantizing the dispatched rows. Only for
  /// rowwise mxfp8.
  absl::StatusOr<QuantizedTensor> Dispatch(ProcessGroup& group, const QuantizedTensor& rows) const;
  /// Dispatch of weight[t][c] * rows[t], rounded to its dtype: the gradient of Combine.
  absl::StatusOr<Tensor> DispatchWeighted(ProcessGroup& group, const Tensor& rows) const;
  /// Sends the experts' rows back and adds them up, [tokens][...], with the routing weights if
  /// `is_weighted`. Without weights it is the gradient of Dispatch.
  absl::StatusOr<Tensor> Combine(ProcessGroup& group, const Tensor& rows, bool is_weighted) const;

 private:
  void PlanSending(const ExpertOptions& options, const ExpertRouting& routing);
  void PlanReceiving(const std::vector<std::vector<int64_t>>& counts, const ExpertOptions& options,
                     const SeededFaults& faults);
  absl::StatusOr<Tensor> Exchange(ProcessGroup& group, const std::vector<Tensor>& sent) const;

  std::vector<std::vector<int64_t>> sent_choices_;  ///< By member: token * choices + choice.
  std::vector<int64_t> received_from_;              ///< Numbers of rows received, by member.
  std::vector<int64_t>
      expert_rows_;  ///< By row of the experts: its place among received rows, or kNoRow.
  std::vector<int64_t> returned_rows_;  ///< By received row: its place among the experts' rows.
  std::vector<int64_t> positions_;      ///< By choice: its row's place among those that come back.
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
  std::unique_ptr<LayerSaved> saved;  ///< Null if gradients are disabled.
};

struct ExpertForward {
  Tensor y;  ///< [tokens][O].
  ExpertSaved saved;
};

/// Forward of a grouped_linear of this rank's experts over the tokens of all ranks. `state` has
/// "weight.0" for the first expert of this rank; random numbers follow the experts' numbers in the
/// whole group. `layer.m_splits` is not read. INVALID_ARGUMENT as CheckLayer about the rows that
/// this rank received.
absl::StatusOr<ExpertForward> ForwardExperts(StepRecorder& recorder, ProcessGroup& group,
                                             const ExpertOptions& options, LayerSpec layer,
                                             LayerState& state, const Tensor& x,
                                             const ExpertRouting& routing, StepOptions step);

/// Backward of that forward: dx [tokens][K] and the gradients of this rank's experts.
absl::StatusOr<BackwardResult> BackwardExperts(StepRecorder& recorder, ProcessGroup& group,
                                               ExpertSaved saved, LayerState& state,
                                               const Tensor& grad_output);

}  // namespace quantgate
