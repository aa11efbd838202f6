// Portable loops of the exact GEMM.
#include "kernels/gemm/exact_kernels.h"

namespace quantgate {
namespace {

constexpr int kLanes = 1;
constexpr int kPanelVectors = 4;
constexpr int kPanelRows = 2;
using Vector = double;

inline Vector Load(const double* p) { return *p; }
inline void Store(double* p, Vector v) { *p = v; }
inline Vector Broadcast(double x) { return x; }
// The products are exact in fp64, so two roundings or one make no difference.
inline Vector MultiplyAdd(Vector a, Vector b, Vector c) { return a * b + c; }

#include "kernels/gemm/exact_kernels_body.h"

}  // namespace

const ExactKernels& ExactKernelsScalar() { return kKernels; }

}  // namespace quantgate
