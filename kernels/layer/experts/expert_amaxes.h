// Reducing the amaxes of a grouped_linear's experts over the group that a step names
// (docs/ranks.md section 4.1).
#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/layer/layer_state.h"
#include "kernels/layer/step_recorder.h"

namespace quantgate {

/// The amaxes of one forward or one backward on one rank. When the first expert's amax of a role is
/// asked for, one MAX reduces the vector of the amaxes of all experts of the whole layer [TE: one
/// all-reduce of the amaxes of a grouped quantization]. With one call for each expert, ranks with
/// different experts would wait for each other before every GEMM. So all ranks make the same calls,
/// whichever experts they have; a rank contributes 0 for an expert that it does not have or has no
/// rows of.
class ExpertAmaxes {
 public:
  /// Makes the tensors that `role` quantizes, one for each of this rank's experts in order.
  using Sources = std::function<absl::StatusOr<std::vector<Tensor>>(TensorRole role)>;

  /// `options` and everything that `sources` refers to must outlive this object.
  ExpertAmaxes(const StepOptions& options, Sources sources)
      : options_(options), sources_(std::move(sources)) {}

  /// The arguments, with the reduced amaxes, that this rank's expert number `expert` is quantized
  /// with. No amaxes where the step names no group for the role or quantizing calls none. `usages`
  /// must be the same for all experts.
  absl::StatusOr<QuantizeArguments> ArgumentsFor(StepRecorder& recorder, TensorRole role,
                                                 int expert, Usages usages);
  /// The tensor that this rank's expert number `expert` then quantizes: `sources` is called once
  /// for all experts. Absent where ArgumentsFor gives no amaxes.
  absl::StatusOr<Tensor> SourceFor(StepRecorder& recorder, TensorRole role, int expert,
                                   Usages usages);

 private:
  absl::StatusOr<const std::vector<Tensor>*> SourcesFor(TensorRole role);
  absl::StatusOr<std::vector<QuantizeArguments>> Reduce(StepRecorder& recorder, TensorRole role,
                                                        Usages usages);

  const StepOptions& options_;
  const Sources sources_;
  std::map<TensorRole, std::vector<Tensor>> sources_made_;
  std::map<TensorRole, std::vector<QuantizeArguments>> reduced_;
};

}  // namespace quantgate
