#include "kernels/ops/activation/activation_cuda.h"

#include "kernels/base/cuda_status.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/activation/activation_launch_cuda.h"
#include "kernels/ops/float_operands.h"

namespace quantgate {
namespace {

/// The output's rows and columns: one row where there is no gate and rows do not matter.
ActivationParameters ParametersOf(CudaDevice& device, const Tensor& h,
                                  const ActivationOptions& options) {
  ActivationParameters parameters;
  parameters.options = options;
  parameters.h = FloatsOf(h);
  const bool is_gated = IsGated(options.kind);
  parameters.rows = is_gated ? h.rows() : 1;
  parameters.columns = is_gated ? h.columns() / 2 : h.element_count();
  parameters.multiprocessors = device.facts().multiprocessors;
  return parameters;
}

}  // namespace

absl::StatusOr<Tensor> ActivationForwardCuda(CudaDevice& device, const Tensor& h,
                                             const ActivationOptions& options, DType out,
                                             KernelPath path) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckActivationForward(h, options, out));
  QG_ASSIGN_OR_RETURN(Tensor y,
                      device.Allocate(out, ActivationOutputShape(h.shape(), options.kind)));
  ActivationParameters parameters = ParametersOf(device, h, options);
  parameters.out = WritableFloatsOf(y);
  QG_CUDA_RETURN_IF_ERROR(LaunchActivation(parameters, path, device.stream()));
  return y;
}

absl::StatusOr<Tensor> ActivationBackwardCuda(CudaDevice& device, const Tensor& dy, const Tensor& h,
                                              const ActivationOptions& options, DType out,
                                              KernelPath path) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckActivationBackward(dy, h, options, out));
  QG_ASSIGN_OR_RETURN(Tensor dh, device.Allocate(out, h.shape()));
  if (h.element_count() == 0) return dh;  // Nothing, and perhaps no address, of dy.
  ActivationParameters parameters = ParametersOf(device, h, options);
  parameters.dy = FloatsOf(dy);
  parameters.out = WritableFloatsOf(dh);
  QG_CUDA_RETURN_IF_ERROR(LaunchActivation(parameters, path, device.stream()));
  return dh;
}

}  // namespace quantgate
