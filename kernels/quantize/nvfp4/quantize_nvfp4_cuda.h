// NVFP4 on a GPU: the bytes of quantize_nvfp4.cc (docs/quantizers.md section 6). Private to
// kernels/quantize; quantize_cuda.h is what others call.
#pragma once

#include "absl/status/status.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

/// Which kernels: the tuned ones where they know the rule and the source (bf16 by two_level, to
/// nearest even or stochastically, without 4over6 or row scaling), or the plain ones, which know
/// all. Both give the same bytes.
enum class Nvfp4Path { kTuned, kPlain };

/// Quantizes `source` (f32, bf16 or f16 in device memory; any rank >= 1) by a rule that
/// CheckQuantization has taken. Each copy that is not null gets its data, scale_inv, amax and all
/// other fields as QuantizeCpu sets them. spec.hadamard is that of the columnwise copy; a rowwise
/// one never has it. Amaxes stay on the device; nothing waits for the stream.
///
/// `device_counts`: i64 [kQuantizationCountKinds] in the order of QuantizationCounts, to which the
/// counts of the rowwise copy, or of the columnwise one where that is the only one, are added. An
/// absent tensor: nobody counts.
absl::Status QuantizeNvfp4Cuda(CudaDevice& device, const Tensor& source, const QuantizerSpec& spec,
                               QuantizedCopy* rowwise, QuantizedCopy* columnwise,
                               const QuantizeArguments& arguments, Tensor& device_counts,
                               Nvfp4Path path = Nvfp4Path::kTuned);

/// The values of a rowwise copy, RNE to out.dtype() (f32, bf16, f16). `out` has the shape of the
/// source.
absl::Status DequantizeNvfp4Cuda(CudaDevice& device, const QuantizedCopy& copy, Tensor& out,
                                 Nvfp4Path path = Nvfp4Path::kTuned);

}  // namespace quantgate
