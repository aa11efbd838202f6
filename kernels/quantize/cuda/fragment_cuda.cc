#include "kernels/quantize/cuda/quantize_cuda.h"

#include "kernels/base/cuda_status.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/cuda/fragment_kernels.h"

namespace quantgate {
namespace {

FragmentParameters ParametersOf(const TensorFragment& fragment, const QuantizerSpec& spec,
                                Usage usage) {
  const DType source = fragment.values.dtype();
  FragmentParameters parameters;
  parameters.values = fragment.values.data();
  parameters.encoding = source == DType::kF32    ? NumberEncoding::kF32
                        : source == DType::kBF16 ? NumberEncoding::kBF16
                                                 : NumberEncoding::kF16;
  parameters.begin = fragment.begin;
  parameters.count = fragment.count();
  parameters.grid = MakeFragmentGrid(spec, usage, fragment.whole);
  parameters.rule = MakeFragmentRule(fragment, spec);
  parameters.has_tensor_amax = spec.traits().scales == ScaleKind::kTwoLevel;
  return parameters;
}

/// A tensor with device memory for an outline.
absl::Status AllocateAs(CudaDevice& device, Tensor& outline) {
  if (!outline.has_value()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(outline, device.Allocate(outline.dtype(), outline.shape()));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Tensor> MeasureFragmentCuda(CudaDevice& device, const TensorFragment& fragment,
                                           const QuantizerSpec& spec, Usage usage) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckFragment(fragment, spec, usage));
  const int64_t count = FragmentAmaxCount(spec, usage, fragment.whole);
  QG_ASSIGN_OR_RETURN(Tensor amaxes, device.AllocateZeroed(DType::kF32, {count}));
  QG_CUDA_RETURN_IF_ERROR(LaunchMeasureFragment(ParametersOf(fragment, spec, usage),
                                                amaxes.as<uint32_t>(), device.stream()));
  return amaxes;
}

absl::StatusOr<QuantizedFragment> QuantizeFragmentCuda(CudaDevice& device,
                                                       const TensorFragment& fragment,
                                                       const QuantizerSpec& spec, Usage usage,
                                                       const FragmentAmaxes& amaxes,
                                                       const Tensor& scale) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckFragmentArguments(fragment, spec, usage, amaxes, scale));
  const FragmentParameters parameters = ParametersOf(fragment, spec, usage);
  QG_ASSIGN_OR_RETURN(QuantizedFragment quantized, OutlineFragment(fragment, spec, usage));
  QG_RETURN_IF_ERROR(AllocateAs(device, quantized.codes));
  QG_RETURN_IF_ERROR(AllocateAs(device, quantized.whole.scale_inv));
  QG_RETURN_IF_ERROR(AllocateAs(device, quantized.whole.amax));
  QG_ASSIGN_OR_RETURN(Tensor factors, device.Allocate(DType::kF32, {parameters.grid.units}));
  Tensor& stored = quantized.whole.scale_inv;
  const bool has_fp32_scales = stored.dtype() == DType::kF32;
  const FragmentScales scales = {
      .amaxes = amaxes.values.as<float>() + amaxes.first,
      .given_scale = scale.has_value() ? scale.as<float>() : nullptr,
      .factors = factors.as<float>(),
      .scale_inv = has_fp32_scales ? stored.as<float>() : nullptr,
      .codes = has_fp32_scales ? nullptr : stored.as<uint8_t>(),
      .amax = quantized.whole.amax.has_value() ? quantized.whole.amax.as<float>() : nullptr};
  QG_CUDA_RETURN_IF_ERROR(LaunchFragmentScales(parameters, scales, device.stream()));
  QG_CUDA_RETURN_IF_ERROR(
      LaunchEncodeFragment(parameters, factors.as<float>(), quantized.codes.as<uint8_t>(),
                           static_cast<int64_t>(quantized.codes.byte_size()), device.stream()));
  // The one factor of per-tensor FP8 is its scale.
  if (spec.traits().scales == ScaleKind::kTensor) quantized.whole.scale = factors;
  return quantized;
}

}  // namespace quantgate
