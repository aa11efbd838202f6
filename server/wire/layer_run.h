// LayerRun: a run as a request asks for it, in domain terms, before its tensors are loaded.
#pragma once

#include "server/wire/layer_run.h"

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/validate/plan.h"
#include "quantgate/v1/layer.pb.h"
#include "server/wire/quantized_parts.h"
#include "server/wire/tensor_reference.h"

namespace quantgate {

struct LayerRun {
  LayerRunRequest request;  ///< Without its tensors.
  /// References to the tensors of `request`, by the names of VisitTensors.
  std::map<std::string, TensorReference> tensors;
  /// Operands that are given as codes, by the same names; `tensors` lacks these.
  std::map<std::string, QuantizedReference> quantized;
  bool keep_outputs = false;
  bool stream_outputs = false;
  v1::RunSpec kept_request;  ///< The result of KeptRequest.

  std::vector<TensorReference*> references();
  /// "linear x 8 variants".
  std::string Summary() const;
};

/// The plan of a run whose tensors are outlines: every check of Plan::Create, before anything is
/// loaded. The types of all references must be known. Errors name fields below "spec".
absl::StatusOr<Plan> OutlineLayerRun(const LayerRun& run);

/// The request as the run's report keeps it: `spec`, of which `run` was made, with digests in place
/// of bytes that came with it, and with the types of all stored tensors. The types of all
/// references must be known.
v1::RunSpec KeptRequest(const v1::RunSpec& spec, const LayerRun& run);

/// The command that repeats the run: `quantgate run --spec run:ID`.
std::string RepeatCommand(const std::string& run_id);

}  // namespace quantgate
