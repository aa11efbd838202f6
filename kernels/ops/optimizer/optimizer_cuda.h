// Optimizer steps (optimizer.h) on a GPU: the same bytes. Operands are in device memory; results
// are, and are written once the device's stream gets there. Errors as on the CPU, and those of
// CudaDevice.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/ops/optimizer/optimizer.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

absl::StatusOr<AdamResult> AdamStepCuda(CudaDevice& device, const AdamDesc& desc);
absl::StatusOr<SgdResult> SgdStepCuda(CudaDevice& device, const SgdDesc& desc);
absl::StatusOr<SplitTensor> SplitMasterCuda(CudaDevice& device, const Tensor& master);
absl::StatusOr<Tensor> JoinMasterCuda(CudaDevice& device, const SplitTensor& split);

}  // namespace quantgate
