// What norms, element-wise operations and optimizers do to a run of floats on the CPU, compiled
// once per instruction set. The scalar kernels call kernels/numerics; the vector kernels restate it
// and call no inline function of a header, whose copy for their instruction set the linker could
// choose for all. Private to kernels/ops.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/execution.h"
#include "kernels/numerics/optimizer.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// The parameters that all rows of a norm share.
struct NormRow {
  int64_t columns = 0;
  const float* gamma = nullptr;  ///< After NormGamma.
  const float* beta = nullptr;   ///< Null if there is none.
  float inverse_count = 0;
  float epsilon = 0;
  bool is_centered = false;  ///< True for LayerNorm.
};

/// The statistics of one row.
struct NormStatistics {
  float mean = 0;  ///< +0 for RMSNorm.
  float rstd = 0;
};

/// Inputs and outputs of the optimizers. Outputs overlap nothing else.
struct OptimizerRun {
  const float* gradient = nullptr;
  const float *master = nullptr, *m = nullptr, *v = nullptr;
  float *new_master = nullptr, *new_m = nullptr, *new_v = nullptr;
};

/// The functions of one instruction set.
struct RowKernels {
  /// Converts to floats; indexed by RowType.
  void (*load[3])(const void* from, int64_t count, float* to);
  /// Converts from floats, rounded to nearest even, NaN canonical; indexed by RowType.
  void (*store[3])(const float* from, int64_t count, void* to);
  /// to[i] += addend[i].
  void (*add)(const float* addend, int64_t count, float* to);
  /// to[i] *= factor.
  void (*scale)(float factor, int64_t count, float* to);
  /// The pairwise sum of at least one value. `scratch` holds as many and may be `values`.
  float (*sum)(const float* values, int64_t count, float* scratch);
  /// Turns a row of x into one of y, not rounded. `scratch` holds a row.
  void (*norm_forward)(const NormRow& row, float* x, float* scratch, NormStatistics& statistics);
  /// Turns a row of dz into one of dx, not rounded, and the row of x into xhat. `scratch` holds a
  /// row.
  void (*norm_backward)(const NormRow& row, const NormStatistics& statistics, float* x, float* dz,
                        float* scratch);
  /// Turns x[i] into dz[i] * xhat[i].
  void (*norm_gamma_terms)(const NormStatistics& statistics, const float* dz, int64_t count,
                           float* x);
  /// For sgd the momentum is m: new_m is null without momentum, m is null without a buffer.
  void (*adam)(const AdamFactors& factors, const OptimizerRun& run, int64_t count);
  void (*sgd)(const SgdFactors& factors, const OptimizerRun& run, int64_t count);
};

extern const RowKernels kScalarRowKernels, kAvx2RowKernels, kAvx512RowKernels;
inline const RowKernels& RowKernelsOf(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return kAvx512RowKernels;
    case Isa::kAvx2:
      return kAvx2RowKernels;
    case Isa::kScalar:
      break;
  }
  return kScalarRowKernels;
}

/// A number of elements that stay in the L1 cache from load to store.
inline constexpr int64_t kElementRun = 2048;

/// Calls body(begin, count) in parallel for runs of at most kElementRun elements that cover [0,
/// count). Returns the error of a cancelled context.
template <class Body>
absl::Status ForRuns(const ExecutionContext& context, int64_t count, const Body& body) {
  constexpr int64_t kGrainElements = 1 << 16;
  ParallelFor(context, count, kGrainElements, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kElementRun) {
      body(at, std::min(kElementRun, end - at));
    }
  });
  return context.CheckCancelled();
}

/// The index of f32, bf16 or f16 in RowKernels::load and store.
inline int RowType(DType dtype) { return dtype == DType::kF32 ? 0 : dtype == DType::kBF16 ? 1 : 2; }

/// Loads the elements [begin, begin + count) of an f32, bf16 or f16 tensor as floats.
inline void LoadRow(const RowKernels& kernels, const Tensor& from, int64_t begin, int64_t count,
                    float* to) {
  kernels.load[RowType(from.dtype())](from.data() + begin * DTypeBytes(from.dtype()), count, to);
}
/// Prefetches the memory of the same elements for LoadRow, since the processor does not predict the
/// addresses of rows that lie apart.
inline void PrefetchRow(const Tensor& from, int64_t begin, int64_t count) {
  constexpr int64_t kLine = 64;
  const int64_t bytes = DTypeBytes(from.dtype());
  const std::byte* at = from.data() + begin * bytes;
  for (int64_t i = 0; i < count * bytes; i += kLine) __builtin_prefetch(at + i);
}
/// Stores `count` floats to the elements from `begin` on.
inline void StoreRow(const RowKernels& kernels, const float* from, int64_t begin, int64_t count,
                     Tensor& to) {
  kernels.store[RowType(to.dtype())](from, count, to.data() + begin * DTypeBytes(to.dtype()));
}

}  // namespace quantgate
