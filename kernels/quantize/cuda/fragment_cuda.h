// The operations of fragment.h on a GPU; errors as there.
#pragma once

#include "kernels/quantize/fragment.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

absl::StatusOr<Tensor> MeasureFragmentCuda(CudaDevice& device, const TensorFragment& fragment,
                                           const QuantizerSpec& spec, Usage usage);
absl::StatusOr<QuantizedFragment> QuantizeFragmentCuda(CudaDevice& device,
                                                       const TensorFragment& fragment,
                                                       const QuantizerSpec& spec, Usage usage,
                                                       const FragmentAmaxes& amaxes,
                                                       const Tensor& scale);

}  // namespace quantgate
