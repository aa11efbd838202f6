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

struct NormOptions {
  NormKind kind = NormKind::kLayerNorm;
  bool zero_centered_gamma = false;  ///< The weight is gamma + 1.
  float epsilon = 1e-5f;             ///< Finite, at least 0.
  friend bool operator==(const NormOptions&, const NormOptions&) = default;
};

/// Tensors are f32, bf16 or f16, each of its own dtype. N >= 1.
struct NormForwardDesc {
  Tensor x;      ///< [..., N].
  Tensor gamma;  ///< [N].
  Tensor beta;   ///< [N]; layernorm only, absent: none is added.
  NormOptions options;
  DType out = DType::kBF16;  ///< Of y: f32, bf16 or f16.
};
inline std::vector<Tensor*> TensorsOf(NormForwardDesc& desc) {
  return {&desc.x, &desc.gamma, &desc.beta};
}

struct NormForwardResult {
  Tensor y;     ///< x's shape.
  Tensor mean;  ///< f32 [M], M rows; layernorm only.
  Tensor rstd;  ///< f32 [M].
};

struct NormGradientsWanted {
  bool dx = true;
  bool dgamma = true;
  bool dbeta = false;  ///< layernorm only.
};

struct NormBackwardDesc {
  Tensor dz;        ///< [..., N], x's shape.
  Tensor x, gamma;  ///< As forward took them,
  Tensor mean;      ///< and what it gave: f32 [M], layernorm only,
  Tensor rstd;      ///< f32 [M].
  Tensor residual;  ///< x's shape; absent, or a gradient added to dx before its rounding.
  NormOptions options;
  NormGradientsWanted wanted;
};
inline std::vector<Tensor*> TensorsOf(NormBackwardDesc& desc) {
  return {&desc.dz, &desc.x, &desc.gamma, &desc.mean, &desc.rstd, &desc.residual};
}

/// Those that are wanted.
struct NormGradients {
  Tensor dx;      ///< x's dtype and shape.
  Tensor dgamma;  ///< gamma's dtype, [N]; +0 of no rows.
  Tensor dbeta;   ///< Likewise.
};

/// What the functions below and their device versions refuse: INVALID_ARGUMENT naming field, value
/// and rule.
absl::Status CheckNorm(const NormForwardDesc& desc);
absl::Status CheckNorm(const NormBackwardDesc& desc);

absl::StatusOr<NormForwardResult> NormForwardCpu(const NormForwardDesc& desc,
                                                 const ExecutionContext& context);
absl::StatusOr<NormGradients> NormBackwardCpu(const NormBackwardDesc& desc,
                                              const ExecutionContext& context);

}  // namespace quantgate
