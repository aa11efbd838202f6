// LayerNorm and RMSNorm over the last dim, forward and backward (docs/numerics.md section 5).
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

enum class NormKind { kLayerNorm, kRmsNorm };
std::string_view NormKindName(NormKind kind);  ///< "layernorm", "rmsnorm".
/// INVALID_ARGUMENT naming the value and the known names.
absl::StatusOr<NormKind> ParseNormKind(std::string_view name);

/// The norm and the parameters of it.
struct NormOptions {
  NormKind kind = NormKind::kLayerNorm;
  bool zero_centered_gamma = false;  ///< The factor of xhat is gamma + 1.
  float epsilon = 1e-5f;             ///< Finite, at least 0.
  friend bool operator==(const NormOptions&, const NormOptions&) = default;
};

/// What NormForward reads. Tensors are f32, bf16 or f16, not necessarily of one dtype. N >= 1.
struct NormForwardDesc {
  Tensor x;      ///< [..., N].
  Tensor gamma;  ///< [N].
  Tensor beta;   ///< [N], layernorm only; absent if none is added.
  NormOptions options;
  DType out = DType::kBF16;  ///< The dtype of y: f32, bf16 or f16.
};
inline std::vector<Tensor*> TensorsOf(NormForwardDesc& desc) {
  return {&desc.x, &desc.gamma, &desc.beta};
}

/// What NormForward returns. M is the number of rows.
struct NormForwardResult {
  Tensor y;     ///< [..., N], as x.
  Tensor mean;  ///< f32 [M], layernorm only.
  Tensor rstd;  ///< f32 [M].
};

/// Which gradients NormBackward computes.
struct NormGradientsWanted {
  bool dx = true;
  bool dgamma = true;
  bool dbeta = false;  ///< layernorm only.
};

/// What NormBackward reads.
struct NormBackwardDesc {
  Tensor dz;        ///< [..., N], as x.
  Tensor x, gamma;  ///< The same as forward.
  Tensor mean;      ///< f32 [M] of NormForwardResult, layernorm only.
  Tensor rstd;      ///< f32 [M] of NormForwardResult.
  Tensor residual;  ///< [..., N], as x: is added to dx before rounding; absent for none.
  NormOptions options;
  NormGradientsWanted wanted;
};
inline std::vector<Tensor*> TensorsOf(NormBackwardDesc& desc) {
  return {&desc.dz, &desc.x, &desc.gamma, &desc.mean, &desc.rstd, &desc.residual};
}

/// The gradients that are wanted; the others are absent.
struct NormGradients {
  Tensor dx;      ///< Dtype and shape of x.
  Tensor dgamma;  ///< [N] in the dtype of gamma; +0 without rows.
  Tensor dbeta;   ///< As dgamma.
};

/// What the functions below and those of ops_cuda.h refuse: INVALID_ARGUMENT naming field, value
/// and rule.
absl::Status CheckNorm(const NormForwardDesc& desc);
absl::Status CheckNorm(const NormBackwardDesc& desc);

absl::StatusOr<NormForwardResult> NormForwardCpu(const NormForwardDesc& desc,
                                                 const ExecutionContext& context);
absl::StatusOr<NormGradients> NormBackwardCpu(const NormBackwardDesc& desc,
                                              const ExecutionContext& context);

}  // namespace quantgate
