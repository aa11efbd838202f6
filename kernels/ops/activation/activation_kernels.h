// The loops of activations over runs of floats, once per instruction set: kernels/numerics inlined
// and vectorised by the compiler, so every one gives the same bits.
#pragma once

#include <cstdint>

#include "kernels/base/execution.h"
#include "kernels/numerics/activation.h"

namespace quantgate {

/// A run of elements of one row; `gate` and `gate_gradient` where the kind is gated, `dy` and
/// gradients backward. No two may overlap.
struct ActivationRun {
  int64_t count = 0;
  const float *x = nullptr, *gate = nullptr, *dy = nullptr;
  float* value = nullptr;                                 ///< Forward.
  float *x_gradient = nullptr, *gate_gradient = nullptr;  ///< Backward.
};

struct ActivationKernels {
  void (*forward)(const ActivationOptions& options, const ActivationRun& run);
  void (*backward)(const ActivationOptions& options, const ActivationRun& run);
};

/// The loops for options that CheckActivationForward lets through.
ActivationKernels ScalarActivationKernels(const ActivationOptions& options);
ActivationKernels Avx2ActivationKernels(const ActivationOptions& options);
ActivationKernels Avx512ActivationKernels(const ActivationOptions& options);

}  // namespace quantgate
