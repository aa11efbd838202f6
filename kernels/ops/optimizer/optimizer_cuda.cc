#include "kernels/ops/optimizer/optimizer_cuda.h"

#include "kernels/base/cuda_status.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/float_operands.h"
#include "kernels/ops/optimizer/optimizer_kernels.h"

namespace quantgate {

absl::StatusOr<AdamResult> AdamStepCuda(CudaDevice& device, const AdamDesc& desc) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckAdam(desc));
  AdamResult result;
  for (Tensor* tensor : {&result.master, &result.m, &result.v}) {
    QG_ASSIGN_OR_RETURN(*tensor, device.Allocate(DType::kF32, desc.master.shape()));
  }
  const OptimizerParameters parameters = {.gradient = FloatsOf(desc.gradient),
                                          .master = desc.master.as<float>(),
                                          .m = desc.m.as<float>(),
                                          .v = desc.v.as<float>(),
                                          .new_master = result.master.as<float>(),
                                          .new_m = result.m.as<float>(),
                                          .new_v = result.v.as<float>(),
                                          .count = desc.master.element_count()};
  QG_CUDA_RETURN_IF_ERROR(LaunchAdam(AdamFactorsOf(desc.options, desc.step), parameters,
                                     KernelPath::kTuned, device.stream()));
  return result;
}

absl::StatusOr<SgdResult> SgdStepCuda(CudaDevice& device, const SgdDesc& desc) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckSgd(desc));
  const SgdFactors factors = SgdFactorsOf(desc);
  SgdResult result;
  QG_ASSIGN_OR_RETURN(result.master, device.Allocate(DType::kF32, desc.master.shape()));
  OptimizerParameters parameters = {.gradient = FloatsOf(desc.gradient),
                                    .master = desc.master.as<float>(),
                                    .new_master = result.master.as<float>(),
                                    .count = desc.master.element_count()};
  if (factors.has_buffer) parameters.m = desc.momentum.as<float>();
  if (factors.has_momentum) {
    QG_ASSIGN_OR_RETURN(result.momentum, device.Allocate(DType::kF32, desc.master.shape()));
    parameters.new_m = result.momentum.as<float>();
  }
  QG_CUDA_RETURN_IF_ERROR(LaunchSgd(factors, parameters, KernelPath::kTuned, device.stream()));
  return result;
}

absl::StatusOr<SplitTensor> SplitMasterCuda(CudaDevice& device, const Tensor& master) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckSplitMaster(master));
  SplitTensor split;
  QG_ASSIGN_OR_RETURN(split.parameter, device.Allocate(DType::kBF16, master.shape()));
  QG_ASSIGN_OR_RETURN(split.remainder, device.Allocate(DType::kI16, master.shape()));
  QG_CUDA_RETURN_IF_ERROR(LaunchSplitMaster(master.as<uint32_t>(), split.parameter.as<uint16_t>(),
                                            split.remainder.as<uint16_t>(), master.element_count(),
                                            KernelPath::kTuned, device.stream()));
  return split;
}

absl::StatusOr<Tensor> JoinMasterCuda(CudaDevice& device, const SplitTensor& split) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckJoinMaster(split));
  QG_ASSIGN_OR_RETURN(Tensor master, device.Allocate(DType::kF32, split.parameter.shape()));
  QG_CUDA_RETURN_IF_ERROR(LaunchJoinMaster(
      split.parameter.as<uint16_t>(), split.remainder.as<uint16_t>(), master.as<uint32_t>(),
      master.element_count(), KernelPath::kTuned, device.stream()));
  return master;
}

}  // namespace quantgate
