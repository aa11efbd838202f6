// Formats of levels on a GPU, with the same bytes as quantize_levels.cc. Private to
// kernels/quantize; others call quantize_cuda.h.
#pragma once

#include "absl/status/status.h"
#include "kernels/quantize/format_quantizers.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

/// Writes one copy of `request`, whose source is in device memory, and adds to `counts`, if they
/// are given. Nothing waits for the stream.
absl::Status QuantizeLevelsCuda(CudaDevice& device, const RuleRequest& request, Usage usage,
                                unsigned long long* counts, QuantizedTensor& quantized);

/// DequantizeCuda of a copy of a format of levels; `out` has the shape of the source.
absl::Status DequantizeLevelsCuda(CudaDevice& device, const QuantizedCopy& copy, Usage usage,
                                  Tensor& out);

}  // namespace quantgate
