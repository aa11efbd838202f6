// Portable loops of the exact GEMM in vectors of two doubles, which every x86-64 and AArch64 CPU
// has.
#include "kernels/gemm/exact/exact_kernels.h"

namespace quantgate {
namespace {

// 4 x 4 outputs.
constexpr int kLanes = 2;
constexpr int kPanelVectors = 2;
constexpr int kPanelRows = 4;
typedef double Vector __attribute__((vector_size(16)));
typedef double Unaligned __attribute__((vector_size(16), aligned(8), may_alias));

inline Vector Load(const double* p) { return *reinterpret_cast<const Unaligned*>(p); }
inline void Store(double* p, Vector v) { *reinterpret_cast<Unaligned*>(p) = v; }
inline Vector Broadcast(double x) { return Vector{x, x}; }
// The products are exact in fp64, so an unfused multiply and add gives the same bits.
inline Vector MultiplyAdd(Vector a, Vector b, Vector c) { return a * b + c; }

// a * b - product, exactly, without a fused operation (Dekker 1971): each factor is split in two
// halves of 26 bits.
inline Vector ProductError(Vector a, Vector b, Vector product) {
  constexpr double kSplit = 134217729;  // 2^27 + 1
  const Vector a_high = a * kSplit - (a * kSplit - a);
  const Vector b_high = b * kSplit - (b * kSplit - b);
  const Vector a_low = a - a_high;
  const Vector b_low = b - b_high;
  return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low;
}

#include "kernels/gemm/exact/exact_kernels_body.h"

}  // namespace

const ExactKernels& ExactKernelsScalar() { return kKernels; }

}  // namespace quantgate
