// The loops of activations, compiled from one body for each instruction set. The attributes of
// QG_LOOP give a loop its instruction set, whatever options the file is compiled with.
#include "kernels/ops/activation/activation_kernels.h"

namespace quantgate {
namespace {

namespace scalar_loops {
#define QG_LOOP __attribute__((flatten))
#include "kernels/ops/activation/activation_kernels_body.h"
#undef QG_LOOP
}  // namespace scalar_loops

namespace avx2_loops {
#define QG_LOOP __attribute__((target("avx2,fma"), flatten))
#include "kernels/ops/activation/activation_kernels_body.h"
#undef QG_LOOP
}  // namespace avx2_loops

namespace avx512_loops {
#define QG_LOOP \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512"), flatten))
#include "kernels/ops/activation/activation_kernels_body.h"
#undef QG_LOOP
}  // namespace avx512_loops

}  // namespace

ActivationKernels ScalarActivationKernels(const ActivationOptions& options) {
  return scalar_loops::KernelsOfOptions(options);
}

ActivationKernels Avx2ActivationKernels(const ActivationOptions& options) {
  return avx2_loops::KernelsOfOptions(options);
}

ActivationKernels Avx512ActivationKernels(const ActivationOptions& options) {
  return avx512_loops::KernelsOfOptions(options);
}

}  // namespace quantgate
