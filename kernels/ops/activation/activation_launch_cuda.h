// The kernels behind activation_cuda.h. Launchers return what cudaGetLastError says of the launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/numerics/activation.h"
#include "kernels/ops/float_lanes_cuda.h"
#include "kernels/tensor/tensor_kernels_cuda.h"

namespace quantgate {

struct ActivationParameters {
  ActivationOptions options;
  FloatsIn h;
  FloatsIn dy;    ///< Null: forward.
  FloatsOut out;  ///< The output, or dh.
  /// Of the output; a gated h has twice the columns, any other is one row.
  int64_t rows = 0, columns = 0;
  int multiprocessors = 0;
};

/// The other variant that a function may have.
constexpr ActivationVariant OtherVariant(ActivationFunction function) {
  return function == ActivationFunction::kGelu ? ActivationVariant::kJitGelu
                                               : ActivationVariant::kFp32Sigmoid;
}

cudaError_t LaunchActivation(const ActivationParameters& parameters, KernelPath path,
                             cudaStream_t stream);

/// Whether LaunchActivationByTable takes the first `outputs`, a multiple of eight, and is quicker.
bool IsForActivationTable(const ActivationParameters& parameters, int64_t outputs);
/// The first `outputs`, from a bf16 h, with tanh or sigmoid from a table of all that bf16 can give.
cudaError_t LaunchActivationByTable(const ActivationParameters& parameters, int64_t outputs,
                                    cudaStream_t stream);

}  // namespace quantgate
