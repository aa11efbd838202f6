// The general path on a GPU, with the same bytes as quantize_general.cc. Private to
// kernels/quantize; others call quantize_cuda.h.
#pragma once

#include "absl/status/status.h"
#include "kernels/quantize/format_quantizers.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

/// Writes the requested copies of `request`, whose source is in device memory, and device_counts.
/// Nothing waits for the stream.
absl::Status QuantizeGenerallyCuda(CudaDevice& device, const RuleRequest& request,
                                   QuantizedTensor& quantized);

}  // namespace quantgate
