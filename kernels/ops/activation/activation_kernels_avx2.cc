#include "kernels/ops/activation/activation_kernels.h"

#define QG_LOOP __attribute__((target("avx2,fma"), flatten))

namespace quantgate {
namespace {

#include "kernels/ops/activation/activation_kernels_body.h"

}  // namespace

ActivationKernels Avx2ActivationKernels(const ActivationOptions& options) {
  return KernelsOfOptions(options);
}

}  // namespace quantgate
