// LayerRun: a run as a request asks for it, in domain terms, before its tensors are loaded.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/validate/plan.h"
#include "server/tensor_loader.h"
#include "server/tensor_reference.h"

namespace quantgate {

struct LayerRun {
  LayerKind layer = LayerKind::kLinear;
  TensorReference x, weight, bias, grad_output, main_grad;
  std::optional<RequiresGrad> requires_grad;
  std::vector<Variant> variants;
  std::optional<int> reference;
  Requirement requirement = Requirement::kNone;
  bool keep_outputs = false;
  bool error_budget = false;
  std::map<std::string, TensorReference> subjects;       ///< By output name.
  std::map<std::string, TensorReference> delayed_state;  ///< "input.scale", ...
  bool calibrate = false;
  uint64_t seed = 0;

  /// All of them, absent ones included.
  std::vector<TensorReference*> tensors();
  /// "linear x 8 variants".
  std::string Summary() const;
};

/// "input.scale", "input.amax_history", and so for weight and grad_output.
bool IsDelayedStateName(const std::string& name);

/// The plan of a run whose tensors are outlines: every check of Plan::Create, before anything is
/// loaded. The types of all references must be known. Errors name fields below "spec".
absl::Status CheckLayerRun(const LayerRun& run);

/// The plan with its tensors.
absl::StatusOr<Plan> LoadLayerRun(const LayerRun& run, TensorLoader& loader, Device& device,
                                  const Cancellation* cancellation);

/// One shell command that repeats the run: `quantgate run ...`, `quantgate compare ...`, or, where
/// no product of recipes, overrides and arithmetics gives the variants, several joined by &&.
/// Inline tensors must be stored.
std::string ReproduceCommand(const LayerRun& run);

}  // namespace quantgate
