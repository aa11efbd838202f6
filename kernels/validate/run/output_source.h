// What a layer's output was computed from, so that a report can say what the output should be.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/layer/layer.h"
#include "kernels/validate/reference/operation_reference.h"

namespace quantgate {

/// One of the members is set; none if the output is a sum over no rows. Pointers are into the
/// LayerResult.
struct OutputSource {
  const GemmRecord* gemm = nullptr;       ///< The GEMM that gave the output.
  Tensor summed;                          ///< For a bias gradient: the tensor whose rows it sums.
  Tensor quantized;                       ///< The input of a quantize operation.
  std::vector<OperationCall> operations;  ///< Arguments of EvaluateOperations.
  /// The three operations are attention's kAttentionDq, kAttentionDk and kAttentionDv; what they
  /// give is not added up but joined, as the heads of each group lie in qkv's output.
  bool joins_heads = false;
  /// The operations give [heads][S][D], and the output is [S][heads * D].
  bool swaps_dims = false;
  std::vector<OutputSource> parts;  ///< One for each expert, concatenated along the rows.
};

/// The source of `output`, an output or intermediate of `result`, which RunLayer made of `request`.
/// Follows result.plan.
absl::StatusOr<OutputSource> SourceOf(Engine& engine, const LayerRequest& request,
                                      const LayerResult& result, const std::string& output,
                                      const Cancellation* cancellation);

/// The GEMM that gave `output`; null if none did.
const GemmRecord* FindGemm(const LayerResult& result, const std::string& output);
/// The given tensor of this name: "x", "grad_output", a parameter, or an expert's rows ("x.2").
/// Absent if there is none.
Tensor FindGiven(const LayerRequest& request, const std::string& name);
/// The output or intermediate of this name; absent if there is none.
Tensor FindComputed(const LayerResult& result, const std::string& name);

}  // namespace quantgate
