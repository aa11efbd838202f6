// Loops of the exact GEMM for AVX2 with FMA; this file alone is compiled for them.
#include <immintrin.h>

#include "kernels/gemm/exact/exact_kernels.h"

namespace quantgate {
namespace {

// 4 x 12 outputs: 12 accumulators, 3 columns and 1 row fill the 16 registers.
constexpr int kLanes = 4;
constexpr int kPanelVectors = 3;
constexpr int kPanelRows = 4;
using Vector = __m256d;

inline Vector Load(const double* p) { return _mm256_loadu_pd(p); }
inline void Store(double* p, Vector v) { _mm256_storeu_pd(p, v); }
inline Vector Broadcast(double x) { return _mm256_set1_pd(x); }
inline Vector MultiplyAdd(Vector a, Vector b, Vector c) { return _mm256_fmadd_pd(a, b, c); }
inline Vector ProductError(Vector a, Vector b, Vector product) {
  return _mm256_fmsub_pd(a, b, product);
}

#include "kernels/gemm/exact/exact_kernels_body.h"

}  // namespace

const ExactKernels& ExactKernelsAvx2() { return kKernels; }

}  // namespace quantgate
