// Quantization on a GPU: the bytes of quantizer.h, scale_layout.h, delayed_scaling.h and
// quantization_summary.h. Tensors are in device memory, those of arguments and states too; results
// are, and are written once the device's stream gets there. Only SummarizeCuda waits. Errors as on
// the CPU, and those of CudaDevice.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/quantize/quantization_summary.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/quantize/recipe/delayed_scaling.h"
#include "kernels/quantize/scale_layout.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

/// As QuantizeCpu; QuantizedTensor::device_counts stands for its counts. A delayed scale and amaxes
/// of a group may be in host memory too; a scale in device memory is taken as it is, positive and
/// finite, and a group's amax becomes that of the copies.
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
/// Gathers what SummarizeCuda reads of a quantization whose scales are to be counted.
absl::Status StartSummaryCuda(CudaDevice& device, QuantizedTensor& quantized);
/// As SummarizeCpu of each, waiting once.
absl::StatusOr<std::vector<QuantizationSummary>> SummarizeCuda(
    CudaDevice& device, std::span<const QuantizedTensor> quantized);

}  // namespace quantgate
