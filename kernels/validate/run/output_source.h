// Where an output of a layer comes from: what a report needs in order to say what it should be.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/layer/layer.h"
#include "kernels/validate/reference/operation_reference.h"

namespace quantgate {

/// One of these; none: a sum over no rows. Pointers are into the LayerResult.
struct OutputSource {
  const GemmRecord* gemm = nullptr;
  Tensor summed;                          ///< A bias's gradient: the gradient whose rows it sums.
  Tensor quantized;                       ///< What a quantize operation was given.
  std::vector<OperationCall> operations;  ///< As EvaluateOperations takes them.
  std::vector<OutputSource> parts;        ///< Of experts, one after the other along the rows.
};

/// Of `output`, an output or intermediate of `result`, which was made of `request`: by the plan
/// that it was made by.
absl::StatusOr<OutputSource> SourceOf(Engine& engine, const LayerRequest& request,
                                      const LayerResult& result, const std::string& output,
                                      const Cancellation* cancellation);

/// The GEMM that gave `output`; null for none.
const GemmRecord* FindGemm(const LayerResult& result, const std::string& output);
/// What was given under this name: "x", "grad_output", a parameter, an expert's rows ("x.2"); an
/// absent tensor for another name.
Tensor FindGiven(const LayerRequest& request, const std::string& name);
/// The output or intermediate of this name; an absent tensor for none.
Tensor FindComputed(const LayerResult& result, const std::string& name);

}  // namespace quantgate
