// Amaxes of a grouped_linear's experts over the group that a step names (docs/ranks.md
// section 4.1).
#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/layer/layer_state.h"
#include "kernels/layer/step_recorder.h"

namespace quantgate {

/// Of one forward or one backward on one rank. What a role quantizes of all experts of the whole
/// layer is reduced by one MAX over the vector of their amaxes, when the first of them is asked for
/// [TE: one all-reduce of the amaxes of a grouped quantization]. One call for each expert would
/// have ranks with other experts wait for each other before every GEMM; so all ranks make the same
/// calls, whichever experts they have, and one without an expert, or without rows of it, brings 0.
class ExpertAmaxes {
 public:
  /// What the role quantizes, of this rank's experts in their order.
  using Sources = std::function<absl::StatusOr<std::vector<Tensor>>(TensorRole role)>;

  /// References must outlive it, those in `sources` too.
  ExpertAmaxes(const StepOptions& options, Sources sources)
      : options_(options), sources_(std::move(sources)) {}

  /// The amaxes with which this rank's expert of that number is quantized; none where the step
  /// names no group that it calls. The same usages of all experts.
  absl::StatusOr<QuantizeArguments> Of(StepRecorder& recorder, TensorRole role, int expert,
                                       Usages usages);
  /// What this rank's expert of that number quantizes of the role then, which `sources` has made
  /// once for all of them; absent where the step names no group that it calls.
  absl::StatusOr<Tensor> SourceOf(StepRecorder& recorder, TensorRole role, int expert,
                                  Usages usages);

 private:
  absl::StatusOr<const std::vector<Tensor>*> Made(TensorRole role);
  absl::StatusOr<std::vector<QuantizeArguments>> Reduce(StepRecorder& recorder, TensorRole role,
                                                        Usages usages);

  const StepOptions& options_;
  const Sources sources_;
  std::map<TensorRole, std::vector<Tensor>> made_;
  std::map<TensorRole, std::vector<QuantizeArguments>> reduced_;
};

}  // namespace quantgate
