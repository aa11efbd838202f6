// What attention has beside its GEMMs, forward and backward: heads taken apart, rotary positions,
// the masked softmax (docs/numerics.md section 9). Every rounding is that of eager PyTorch with a
// softmax in fp32.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// Which scores of a query take part in its softmax.
enum class AttentionMask {
  kNone,    ///< All.
  kCausal,  ///< Those of keys that do not come after the query.
};
std::string_view AttentionMaskName(AttentionMask mask);  ///< "none", "causal".
/// INVALID_ARGUMENT naming the value and the known names.
absl::StatusOr<AttentionMask> ParseAttentionMask(std::string_view name);

/// [A][B] followed by any dims to [B][A] followed by the same dims; any dtype of whole bytes.
/// INVALID_ARGUMENT where the source has fewer than two dims.
absl::StatusOr<Tensor> SwapDimsCpu(const Tensor& source, const ExecutionContext& context);

/// Cosines and sines of rotary positions.
struct RotaryTable {
  Tensor cosines, sines;  ///< [positions][columns / 2] in the activation dtype.
};
/// On the host. With all operations in fp32 and rounded to nearest even:
///   angle(p, i) = p * (1 / base^(2 i / columns)), i < columns / 2,
/// its cosine and sine rounded to fp32, and these to `dtype`. INVALID_ARGUMENT unless `columns` is
/// even and at least 2 and `base` finite and positive.
absl::StatusOr<RotaryTable> MakeRotaryTable(float base, int64_t positions, int64_t columns,
                                            DType dtype);

/// What Rotate reads. With a table's c and s of the row, and h = D / 2, each head x gives
///   x[i] c[i] - x[i + h] s[i]  and  x[i + h] c[i] + x[i] s[i],  i < h,
/// each product and each sum rounded to the dtype. Backward applies the transposed rotation to a
/// gradient, with the same roundings.
struct RotaryDesc {
  Tensor heads;       ///< [N][S][D]: f32, bf16 or f16.
  RotaryTable table;  ///< [S][D / 2] in the dtype of heads.
  /// Of every `period` heads the first `rotated` are rotated, and the others copied.
  int64_t period = 1, rotated = 1;
  bool is_backward = false;
};
inline std::vector<Tensor*> TensorsOf(RotaryDesc& desc) {
  return {&desc.heads, &desc.table.cosines, &desc.table.sines};
}

/// What SoftmaxForward reads. A row is one query of one head.
struct SoftmaxDesc {
  /// [..., S_q][S_k], products of queries and keys: f32, bf16 or f16; S_k at least 1.
  Tensor scores;
  float scale = 1;  ///< Finite; multiplies the scores, which are then rounded to their dtype.
  /// Causal: query i has keys 0 to i + S_k - S_q; S_k must be at least S_q.
  AttentionMask mask = AttentionMask::kNone;
};
inline std::vector<Tensor*> TensorsOf(SoftmaxDesc& desc) { return {&desc.scores}; }

/// What SoftmaxForward returns, of the shape of the scores. What the mask leaves out is +0.
///   z = round(scores * scale);  e = exp(z - max(z));  p = e / pairwise_sum(e), all in fp32.
struct SoftmaxResult {
  Tensor probabilities;  ///< f32: p.
  Tensor rounded;        ///< p in the dtype of the scores. Shares p where that is f32.
};

/// What SoftmaxBackward reads. Its result, in the dtype and shape of the gradient, is
///   round(round((g - pairwise_sum(g * p)) * p) * scale), and +0 where the mask leaves out.
struct SoftmaxBackwardDesc {
  Tensor gradient;       ///< [..., S_q][S_k], of the rounded probabilities: f32, bf16 or f16.
  Tensor probabilities;  ///< f32, of SoftmaxForward.
  float scale = 1;
  AttentionMask mask = AttentionMask::kNone;
};
inline std::vector<Tensor*> TensorsOf(SoftmaxBackwardDesc& desc) {
  return {&desc.gradient, &desc.probabilities};
}

/// What the functions below and those of ops_cuda.h refuse: INVALID_ARGUMENT naming field, value
/// and rule.
absl::Status CheckSwapDims(const Tensor& source);
absl::Status CheckRotary(const RotaryDesc& desc);
absl::Status CheckSoftmax(const SoftmaxDesc& desc);
absl::Status CheckSoftmax(const SoftmaxBackwardDesc& desc);

absl::StatusOr<Tensor> RotateCpu(const RotaryDesc& desc, const ExecutionContext& context);
absl::StatusOr<SoftmaxResult> SoftmaxForwardCpu(const SoftmaxDesc& desc,
                                                const ExecutionContext& context);
absl::StatusOr<Tensor> SoftmaxBackwardCpu(const SoftmaxBackwardDesc& desc,
                                          const ExecutionContext& context);

}  // namespace quantgate
