// What norms, element-wise operations and optimizers do to a run of floats on the CPU, compiled
// once per instruction set. The scalar kernels call kernels/numerics; the vector kernels restate
// it, and nothing in them brings inline functions along.
#pragma once

#include <cstdint>

#include "kernels/base/execution.h"
#include "kernels/numerics/optimizer.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// What all rows of a norm have in common.
struct NormRow {
  int64_t columns = 0;
  const float* gamma = nullptr;  ///< After NormGamma.
  const float* beta = nullptr;   ///< Null: none.
  float inverse_count = 0;
  float epsilon = 0;
  bool is_centered = false;  ///< LayerNorm.
};

struct NormStatistics {
  float mean = 0;  ///< +0 for RMSNorm.
  float rstd = 0;
};

/// In and out of the optimizers. What is written overlaps nothing else.
struct OptimizerRun {
  const float* gradient = nullptr;
  const float *master = nullptr, *m = nullptr, *v = nullptr;
  float *new_master = nullptr, *new_m = nullptr, *new_v = nullptr;
};

struct RowKernels {
  /// By RowType.
  void (*load[3])(const void* from, int64_t count, float* to);
  /// Rounded to nearest even, NaN canonical.
  void (*store[3])(const float* from, int64_t count, void* to);
  /// to[i] += addend[i].
  void (*add)(const float* addend, int64_t count, float* to);
  /// to[i] *= factor.
  void (*scale)(float factor, int64_t count, float* to);
  /// The pairwise sum of at least one value; `scratch` holds as many, and may be `values`.
  float (*sum)(const float* values, int64_t count, float* scratch);
  /// One row of x to one of y, unrounded. `scratch` holds a row.
  void (*norm_forward)(const NormRow& row, float* x, float* scratch, NormStatistics& statistics);
  /// One row of dz to one of dx, unrounded; of x to xhat. `scratch` holds a row.
  void (*norm_backward)(const NormRow& row, const NormStatistics& statistics, float* x, float* dz,
                        float* scratch);
  /// x[i] to dz[i] * xhat[i].
  void (*norm_gamma_terms)(const NormStatistics& statistics, const float* dz, int64_t count,
                           float* x);
  /// SGD's momentum is m; without it new_m is null, without a buffer m is.
  void (*adam)(const AdamFactors& factors, const OptimizerRun& run, int64_t count);
  void (*sgd)(const SgdFactors& factors, const OptimizerRun& run, int64_t count);
};

extern const RowKernels kScalarRowKernels, kAvx2RowKernels, kAvx512RowKernels;
const RowKernels& RowKernelsOf(Isa isa);

/// Index of RowKernels::load and store: f32, bf16, f16.
inline int RowType(DType dtype) { return dtype == DType::kF32 ? 0 : dtype == DType::kBF16 ? 1 : 2; }

/// Elements [begin, begin + count) of a tensor of f32, bf16 or f16 as floats.
inline void LoadRow(const RowKernels& kernels, const Tensor& from, int64_t begin, int64_t count,
                    float* to) {
  kernels.load[RowType(from.dtype())](from.data() + begin * DTypeBytes(from.dtype()), count, to);
}
/// Asks for the memory of the same elements ahead of LoadRow: rows apart are streams of addresses
/// that the processor does not foresee.
inline void PrefetchRow(const Tensor& from, int64_t begin, int64_t count) {
  constexpr int64_t kLine = 64;
  const int64_t bytes = DTypeBytes(from.dtype());
  const std::byte* at = from.data() + begin * bytes;
  for (int64_t i = 0; i < count * bytes; i += kLine) __builtin_prefetch(at + i);
}
inline void StoreRow(const RowKernels& kernels, const float* from, int64_t begin, int64_t count,
                     Tensor& to) {
  kernels.store[RowType(to.dtype())](from, count, to.data() + begin * DTypeBytes(to.dtype()));
}

}  // namespace quantgate
