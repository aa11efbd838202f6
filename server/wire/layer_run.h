// LayerRun: a run as a request asks for it, in domain terms, before its tensors are loaded.
#pragma once

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/validate/plan.h"
#include "quantgate/v1/layer.pb.h"
#include "server/wire/tensor_reference.h"

namespace quantgate {

struct LayerRun {
  LayerSpec layer;
  TensorReference x, grad_output;
  std::map<std::string, TensorReference> parameters;  ///< By name.
  std::map<std::string, TensorReference> main_grads;  ///< By weight.
  std::optional<RequiresGrad> requires_grad;
  std::vector<Variant> variants;
  std::optional<int> reference;
  Requirement requirement = Requirement::kNone;
  bool keep_outputs = false;
  bool stream_outputs = false;
  v1::RunSpec request;  ///< As KeptRequest gives it.
  bool error_budget = false;
  std::map<std::string, TensorReference> subjects;       ///< By output name.
  std::map<std::string, TensorReference> delayed_state;  ///< "input.scale", ...
  bool calibrate = false;
  uint64_t seed = 0;
  int64_t tensor_bytes_max = std::numeric_limits<int64_t>::max();  ///< Of what it computes.

  /// All of them, absent ones included.
  std::vector<TensorReference*> tensors();
  /// By the names that Plan::WithTensors gives them; absent ones are left out.
  std::map<std::string, const TensorReference*> TensorsByName() const;
  /// "linear x 8 variants".
  std::string Summary() const;
};

/// "input.scale", "input.amax_history", and so for weight and grad_output, with a prefix or index:
/// "fc1.input.scale", "weight.0.amax_history".
bool IsDelayedStateName(absl::string_view name);

/// The plan of a run whose tensors are outlines: every check of Plan::Create, before anything is
/// loaded. The types of all references must be known. Errors name fields below "spec".
absl::StatusOr<Plan> OutlineLayerRun(const LayerRun& run);

}  // namespace quantgate
