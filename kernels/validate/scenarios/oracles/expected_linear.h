// A linear step by hand: expected quantizations (expected_copy.h), then one GEMM after the other on
// the reference engine, with every operand in the TN layout. Uses no layer code and not the engine
// under test (docs/quantizers.md sections 9 and 10).
#pragma once

#include <map>
#include <optional>
#include <string>

#include "kernels/layer/layer_state.h"
#include "kernels/validate/scenarios/scenario_context.h"

namespace quantgate {

/// The arguments of a linear step; 2-D tensors on the host.
struct LinearOperands {
  Tensor x;
  Tensor weight;
  Tensor bias;         ///< May be absent.
  Tensor grad_output;  ///< Absent: forward only.
  Tensor main_grad;    ///< f32; absent: dw is returned.
  RequiresGrad requires_grad;
  uint64_t seed = 0;
  uint32_t first_call_id = 0;
  std::map<TensorRole, Tensor> scales;  ///< f32 [1], under delayed scaling; 1 if absent.
  /// By role, the tensor whose amaxes the role's tensor is quantized with; if absent, its own.
  std::map<TensorRole, Tensor> wholes = {};
  /// The activation dtype, if fused operations made x and grad_output, which are then quantized
  /// from f32 without rounding. Absent: the recipe's or x's dtype, to which both are rounded first.
  std::optional<DType> activation = {};
};

/// "y"; "dx", "dw" or "main_grad", and "db", as asked for.
using NamedOutputs = std::map<std::string, Tensor>;

absl::StatusOr<NamedOutputs> ExpectedLinear(Engine& reference, const LinearOperands& operands,
                                            const Recipe& recipe);

/// The pairwise sum over rows of docs/numerics.md section 1, rounded once to `out`.
absl::StatusOr<Tensor> ExpectedColumnSums(const Tensor& source, DType out);

/// The tensor cast to another high-precision dtype.
absl::StatusOr<Tensor> ExpectedCast(const Tensor& tensor, DType out);

}  // namespace quantgate
