// NVFP4 on a GPU, with the same bytes as quantize_nvfp4.cc (docs/quantizers.md section 6). Private
// to kernels/quantize; others call quantize_cuda.h.
#pragma once

#include "absl/status/status.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

/// Which kernels run. kTuned takes the tuned ones if they have the rule and the source (bf16 by
/// two_level, to nearest even or stochastically, without 4over6 or row scaling), else the plain
/// ones. kPlain always takes the plain ones. Both give the same bytes.
enum class Nvfp4Path { kTuned, kPlain };

/// Quantizes `source` (f32, bf16 or f16 in device memory; any rank >= 1) by a rule that
/// CheckQuantization accepts. Each copy that is not null gets its data, scale_inv, amax and all
/// other fields as QuantizeCpu sets them. spec.hadamard is that of the columnwise copy; a rowwise
/// one never has it. Amaxes stay on the device; nothing waits for the stream.
///
/// `device_counts`: i64 [kQuantizationCountKinds] in the order of QuantizationCounts, to which the
/// counts of the rowwise copy, or of the columnwise one if it is the only one, are added. Nothing
/// is counted if the tensor is absent.
absl::Status QuantizeNvfp4Cuda(CudaDevice& device, const Tensor& source, const QuantizerSpec& spec,
                               QuantizedCopy* rowwise, QuantizedCopy* columnwise,
                               const QuantizeArguments& arguments, Tensor& device_counts,
                               Nvfp4Path path = Nvfp4Path::kTuned);

/// Writes the values of a rowwise copy, rounded to nearest even, to `out` (f32, bf16 or f16), which
/// has the shape of the source.
absl::Status DequantizeNvfp4Cuda(CudaDevice& device, const QuantizedCopy& copy, Tensor& out,
                                 Nvfp4Path path = Nvfp4Path::kTuned);

}  // namespace quantgate
