// A linear step by hand: expected quantizations (expected_copy.h), one GEMM after the other on the
// reference engine, every operand brought to the TN layout. No layer code, nothing of the engine
// that is looked at (docs/quantizers.md sections 9 and 10).
#pragma once

#include <map>
#include <optional>
#include <string>

#include "kernels/layer/layer_state.h"
#include "kernels/validate/scenarios/scenario_context.h"

namespace quantgate {

/// What a linear step takes; 2-D tensors on the host.
struct LinearOperands {
  Tensor x;
  Tensor weight;
  Tensor bias;         ///< Absent: none.
  Tensor grad_output;  ///< Absent: forward only.
  Tensor main_grad;    ///< f32; absent: dw is returned.
  RequiresGrad requires_grad;
  uint64_t seed = 0;
  uint32_t first_call_id = 0;
  std::map<TensorRole, Tensor> scales;  ///< f32 [1], under delayed scaling; 1 where absent.
  /// Tensors with whose amaxes those of a role are quantized; their own where absent.
  std::map<TensorRole, Tensor> wholes = {};
  /// The activation dtype, where fused operations made x and grad_output: f32 of these goes to the
  /// quantizers unrounded. None: the recipe's or x's, and both are rounded to it first.
  std::optional<DType> activation = {};
};

/// "y"; "dx", "dw" or "main_grad", and "db" as asked for.
using NamedOutputs = std::map<std::string, Tensor>;

absl::StatusOr<NamedOutputs> ExpectedLinear(Engine& reference, const LinearOperands& operands,
                                            const Recipe& recipe);

/// The pairwise sum over rows of docs/numerics.md section 1, rounded once to `out`.
absl::StatusOr<Tensor> ExpectedColumnSums(const Tensor& source, DType out);

/// The tensor in another high-precision dtype.
absl::StatusOr<Tensor> ExpectedCast(const Tensor& tensor, DType out);

}  // namespace quantgate
