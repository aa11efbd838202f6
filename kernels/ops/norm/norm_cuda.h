// Norms (norm.h) on a GPU: the same bytes. Operands are in device memory; results are, and are
// written once the device's stream gets there. Errors as on the CPU, and those of CudaDevice.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/ops/norm/norm.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

absl::StatusOr<NormForwardResult> NormForwardCuda(CudaDevice& device, const NormForwardDesc& desc);
absl::StatusOr<NormGradients> NormBackwardCuda(CudaDevice& device, const NormBackwardDesc& desc);

}  // namespace quantgate
