// Loops of the exact GEMM for AVX-512; this file alone is compiled for it.
#include <immintrin.h>

#include "kernels/gemm/exact/exact_kernels.h"

namespace quantgate {
namespace {

// 8 x 24 outputs: 24 accumulators, 3 columns and 1 row of the 32 registers.
constexpr int kLanes = 8;
constexpr int kPanelVectors = 3;
constexpr int kPanelRows = 8;
using Vector = __m512d;

inline Vector Load(const double* p) { return _mm512_loadu_pd(p); }
inline void Store(double* p, Vector v) { _mm512_storeu_pd(p, v); }
inline Vector Broadcast(double x) { return _mm512_set1_pd(x); }
inline Vector MultiplyAdd(Vector a, Vector b, Vector c) { return _mm512_fmadd_pd(a, b, c); }
inline Vector ProductError(Vector a, Vector b, Vector product) {
  return _mm512_fmsub_pd(a, b, product);
}

#include "kernels/gemm/exact/exact_kernels_body.h"

}  // namespace

const ExactKernels& ExactKernelsAvx512() { return kKernels; }

}  // namespace quantgate
