// The functions of quantizer.h, fragment.h, scale_layout.h and delayed_scaling.h on a GPU, with the
// same bytes. Tensors are in device memory, also those of arguments and states; results are written
// when the device's stream gets there. Only SummarizeCuda waits. Errors are those of the CPU
// functions and of CudaDevice.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/quantize/fragment.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/quantize/recipe/delayed_scaling.h"
#include "kernels/quantize/scale_layout.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

/// As QuantizeCpu, with QuantizedTensor::device_counts in place of the counts. A delayed scale and
/// the amaxes of a group may be in host memory, too. A scale in device memory must be positive and
/// finite, which is not checked; the amax of a group becomes that of the copies.
absl::StatusOr<QuantizedTensor> QuantizeCuda(CudaDevice& device, const Tensor& source,
                                             const Quantizer& quantizer, Usages usages,
                                             const QuantizeArguments& arguments);

/// As MeasureAmaxCpu.
absl::StatusOr<TensorAmaxes> MeasureAmaxCuda(CudaDevice& device, const Tensor& source,
                                             const Quantizer& quantizer, Usages usages);

/// As DequantizeCpu.
absl::StatusOr<Tensor> DequantizeCuda(CudaDevice& device, const QuantizedTensor& quantized,
                                      Usage usage, DType out_dtype);

/// As UpdateUsagesCpu.
absl::Status UpdateUsagesCuda(CudaDevice& device, QuantizedTensor& quantized, Usages usages);

/// As ConvertScales.
absl::StatusOr<Tensor> ConvertScalesCuda(CudaDevice& device, const Tensor& scales,
                                         const ScaleArray& array, ScaleLayout from, ScaleLayout to);

/// As WithCast, WithCalibration and WithUpdate; `amax` is f32 [1].
absl::StatusOr<DelayedScalingState> WithCastCuda(CudaDevice& device,
                                                 const DelayedScalingState& state,
                                                 const Tensor& amax);
absl::StatusOr<DelayedScalingState> WithCalibrationCuda(CudaDevice& device,
                                                        const DelayedScalingState& state,
                                                        const Tensor& amax);
absl::StatusOr<DelayedScalingState> WithUpdateCuda(CudaDevice& device,
                                                   const DelayedScalingState& state,
                                                   const DelayedScalingOptions& options,
                                                   float max_finite);

/// Whether StartSummaryCuda has anything to do.
bool NeedsSummary(const QuantizedTensor& quantized);
/// Gathers on the device what SummarizeCuda reads, for a quantization whose scales are to be
/// counted.
absl::Status StartSummaryCuda(CudaDevice& device, QuantizedTensor& quantized);
/// As SummarizeCpu for each; waits once.
absl::StatusOr<std::vector<QuantizationSummary>> SummarizeCuda(
    CudaDevice& device, std::span<const QuantizedTensor> quantized);

/// As MeasureFragmentCpu and QuantizeFragmentCpu.
absl::StatusOr<Tensor> MeasureFragmentCuda(CudaDevice& device, const TensorFragment& fragment,
                                           const QuantizerSpec& spec, Usage usage);
absl::StatusOr<QuantizedFragment> QuantizeFragmentCuda(CudaDevice& device,
                                                       const TensorFragment& fragment,
                                                       const QuantizerSpec& spec, Usage usage,
                                                       const FragmentAmaxes& amaxes,
                                                       const Tensor& scale);

}  // namespace quantgate
