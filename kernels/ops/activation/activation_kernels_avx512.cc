#include "kernels/ops/activation/activation_kernels.h"

#define QG_LOOP \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512"), flatten))

namespace quantgate {
namespace {

#include "kernels/ops/activation/activation_kernels_body.h"

}  // namespace

ActivationKernels Avx512ActivationKernels(const ActivationOptions& options) {
  return KernelsOfOptions(options);
}

}  // namespace quantgate
