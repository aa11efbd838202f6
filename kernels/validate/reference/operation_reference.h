// What the operations of a layer that are no GEMM should give: each evaluated from its own inputs
// in fp64, with the bound that the roundings of the same formula in fp32 stay below
// (docs/reports.md section 4).
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"
#include "kernels/ops/activation/activation.h"
#include "kernels/ops/norm/norm.h"

namespace quantgate {

/// One output of an operation, and what it is computed from. Tensors that its kind does not name
/// are absent.
struct OperationCall {
  enum class Kind {
    kNorm,                ///< x, gamma, perhaps beta.
    kNormDx,              ///< x, gamma, gradient.
    kNormDgamma,          ///< x, gradient.
    kNormDbeta,           ///< gradient.
    kActivation,          ///< x.
    kActivationGradient,  ///< x, gradient.
    kAdd,                 ///< x, addend: a bias where it has one row.
    kScale,               ///< x.
    kCopy,                ///< x, as it is.
  };
  Kind kind = Kind::kNorm;
  NormOptions norm;
  ActivationOptions activation;
  float factor = 1;  ///< kScale.
  /// Of several: its fp32 result is added to those before it, and not its rounded one.
  bool is_joined = false;
  Tensor x, gamma, beta, gradient, addend;
};

/// In host memory, of the output's shape.
struct OperationReference {
  Tensor value;  ///< f64.
  Tensor error;  ///< f64: how far the fp32 result may lie from `value` before its rounding.
  std::string derivation;  ///< One line.
};

/// One operation, or the sum of what several give, each term and each sum rounded to `rounded`
/// before the next is added.
absl::StatusOr<OperationReference> EvaluateOperations(Engine& engine,
                                                      std::span<const OperationCall> calls,
                                                      DType rounded,
                                                      const Cancellation* cancellation);

/// Holds `subject`, f32, bf16 or f16 of the reference's shape, to the reference: |subject - value|
/// at most `error` and half an ulp of the subject's dtype. NaN passes only where the value is NaN,
/// an infinity where overflow lies within the bound.
absl::StatusOr<BoundCheck> CheckOperationBound(const OperationReference& reference,
                                               const Tensor& subject,
                                               const Cancellation* cancellation);

}  // namespace quantgate
