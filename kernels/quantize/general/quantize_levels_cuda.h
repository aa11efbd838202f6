// Formats of levels on a GPU, with the same bytes as quantize_levels.cc. Private to
// kernels/quantize; others call quantize_cuda.h.
#pragma once

#include "absl/status/status.h"
#include "kernels/quantize/format_quantizers.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

/// Writes the requested copies of `request`, whose source is in device memory, and device_counts.
/// Nothing waits for the stream.
absl::Status QuantizeLevelsCuda(CudaDevice& device, const RuleRequest& request,
                                QuantizedTensor& quantized);

/// DequantizeCuda of a copy of a format of levels; `out` has the shape of the source.
absl::Status DequantizeLevelsCuda(CudaDevice& device, const QuantizedCopy& copy, Usage usage,
                                  Tensor& out);

}  // namespace quantgate
