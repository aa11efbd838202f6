#include "kernels/ops/activation/activation_kernels.h"

#define QG_LOOP __attribute__((flatten))

namespace quantgate {
namespace {

#include "kernels/ops/activation/activation_kernels_body.h"

}  // namespace

ActivationKernels ScalarActivationKernels(const ActivationOptions& options) {
  return KernelsOfOptions(options);
}

}  // namespace quantgate
