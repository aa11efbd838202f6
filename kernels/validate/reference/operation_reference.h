// References for operations of a layer other than GEMMs: each is evaluated from its own inputs in
// fp64, with a bound on the roundings of the same formula in fp32 (docs/reports.md
// section 4).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"
#include "kernels/gemm/arithmetic.h"
#include "kernels/ops/activation/activation.h"
#include "kernels/ops/attention/attention.h"
#include "kernels/ops/norm/norm.h"

namespace quantgate {

/// Attention of queries, keys and values that are rotated already, from its scores to its context.
struct AttentionCall {
  /// [B * G * (R + 2)][S][D]: of each of B batches and G groups R query heads, the key head and the
  /// value head; f32, bf16 or f16.
  Tensor heads;
  int64_t heads_per_group = 1;  ///< R.
  float scale = 1;
  AttentionMask mask = AttentionMask::kNone;
  Arithmetic arithmetic;  ///< Of every GEMM, whose outputs have the dtype of the heads.
};

/// One output of an operation, and its inputs. Inputs that the kind does not list are absent.
struct OperationCall {
  enum class Kind {
    kNorm,                ///< x, gamma, optionally beta.
    kNormDx,              ///< x, gamma, gradient.
    kNormDgamma,          ///< x, gradient.
    kNormDbeta,           ///< gradient.
    kActivation,          ///< x.
    kActivationGradient,  ///< x, gradient.
    kAdd,                 ///< x, addend; an addend of one row is a bias.
    kScale,               ///< x.
    kCopy,                ///< x, which is returned as it is.
    kRotary,              ///< rotary.
    kAttention,           ///< attention: the context, [B * G * R][S][D].
    /// attention, gradient (of the context): the queries' gradients, [B * G * R][S][D].
    kAttentionDq,
    /// Likewise the keys', [B * G][S][D]: those of a group's query heads, each rounded to the dtype
    /// of the heads, are added in their order in fp32.
    kAttentionDk,
    kAttentionDv,  ///< Likewise the values'.
  };
  Kind kind = Kind::kNorm;
  NormOptions norm;
  ActivationOptions activation;
  float factor = 1;  ///< kScale.
  /// In a sum of several calls: the fp32 result is added without being rounded before.
  bool is_joined = false;
  Tensor x, gamma, beta, gradient, addend;
  RotaryDesc rotary;
  AttentionCall attention;

  /// All of its tensors, absent ones too.
  std::vector<const Tensor*> Tensors() const;
};

/// Tensors in host memory, of the output's shape.
struct OperationReference {
  Tensor value;  ///< f64.
  Tensor error;  ///< f64: the bound on |fp32 result - value|, before the result is rounded.
  std::string derivation;  ///< One line.
};

/// The reference of one operation, or of the sum of several operations' results. In a sum, each
/// term and each partial sum is rounded to `rounded` before the next term is added.
absl::StatusOr<OperationReference> EvaluateOperations(Engine& engine,
                                                      std::span<const OperationCall> calls,
                                                      DType rounded,
                                                      const Cancellation* cancellation);

/// Checks that |subject - value| is at most `error` plus half an ulp of the subject's dtype.
/// `subject`: f32, bf16 or f16, of the reference's shape. NaN passes only where the value is NaN,
/// an infinity only where overflow lies within the bound.
absl::StatusOr<BoundCheck> CheckOperationBound(const OperationReference& reference,
                                               const Tensor& subject,
                                               const Cancellation* cancellation);

}  // namespace quantgate
