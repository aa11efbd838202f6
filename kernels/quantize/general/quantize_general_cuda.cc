#include "kernels/quantize/general/quantize_general_cuda.h"

#include <utility>

#include "kernels/base/cuda_status.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/cuda/quantize_tiles_cuda.h"
#include "kernels/quantize/general/general_kernels.h"
#include "kernels/quantize/general/quantize_general.h"
#include "kernels/quantize/general/quantize_levels_cuda.h"
#include "kernels/quantize/quantized_outline.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

/// f32 [1]: the amax of a group if there is one, else that of the source.
absl::StatusOr<Tensor> FindTensorAmax(CudaDevice& device, const Tensor& source,
                                      const Tensor& group) {
  if (group.has_value()) {
    QG_ASSIGN_OR_RETURN(const Tensor on_device, device.ToDevice(group));
    return on_device.Reinterpret(DType::kF32, {1});
  }
  QG_ASSIGN_OR_RETURN(Tensor amax, device.AllocateZeroed(DType::kF32, {1}));
  QG_CUDA_RETURN_IF_ERROR(LaunchAmax(source.data(), FormatOf(source.dtype()),
                                     source.element_count(), amax.as<uint32_t>(),
                                     device.facts().multiprocessors, device.stream()));
  return amax;
}

/// Sets what the scale of a per-tensor quantization is made of and where it goes.
absl::Status PrepareTensorScale(CudaDevice& device, const RuleRequest& request,
                                GeneralQuantization& job, QuantizedCopy& copy,
                                Tensor& given_scale) {
  const bool is_delayed = request.spec.scaling == Scaling::kDelayed;
  const Tensor group = is_delayed ? Tensor() : request.arguments.group_amax_rowwise;
  QG_ASSIGN_OR_RETURN(copy.amax, FindTensorAmax(device, request.source, group));
  QG_ASSIGN_OR_RETURN(copy.scale_inv, device.Allocate(DType::kF32, {1}));
  QG_ASSIGN_OR_RETURN(copy.scale, device.Allocate(DType::kF32, {1}));
  if (is_delayed) {
    QG_ASSIGN_OR_RETURN(given_scale, device.ToDevice(request.arguments.scale));
    job.given_scale = given_scale.as<float>();
  }
  job.is_empty = request.source.element_count() == 0 && !group.has_value();
  job.tensor_amax = copy.amax.as<float>();
  job.tensor_scale = copy.scale.as<float>();
  job.tensor_scale_inv = copy.scale_inv.as<float>();
  return absl::OkStatus();
}

/// Allocates block scales, and finds the amax of the tensor where they are under one of it.
absl::Status PrepareBlockScales(CudaDevice& device, const RuleRequest& request, Usage usage,
                                GeneralQuantization& job, QuantizedCopy& copy) {
  QG_ASSIGN_OR_RETURN(copy.scale_inv,
                      device.Allocate(copy.scale_inv.dtype(), copy.scale_inv.shape()));
  job.scales = copy.scale_inv.data();
  if (!copy.amax.has_value()) return absl::OkStatus();
  const Tensor& group = usage == Usage::kRowwise ? request.arguments.group_amax_rowwise
                                                 : request.arguments.group_amax_columnwise;
  QG_ASSIGN_OR_RETURN(copy.amax, FindTensorAmax(device, request.source, group));
  job.tensor_amax = copy.amax.as<float>();
  return absl::OkStatus();
}

absl::Status QuantizeDirection(CudaDevice& device, const RuleRequest& request, Usage usage,
                               unsigned long long* counts, QuantizedTensor& quantized) {
  const QuantizerSpec& spec = request.spec;
  const Tensor& source = request.source;
  GeneralQuantization job;
  job.rule = MakeLibraryRule(spec, source.dtype());
  job.grid = MakeGeneralGrid(source.rows(), source.columns(), spec, usage);
  job.element = FormatOf(spec.element);
  job.source_format = FormatOf(source.dtype());
  job.source = source.data();
  job.counts = counts;
  QG_ASSIGN_OR_RETURN(QuantizedCopy copy, OutlineCopy(spec, usage, source.dtype(), source.shape()));
  QG_ASSIGN_OR_RETURN(copy.data, device.Allocate(copy.data.dtype(), copy.data.shape()));
  job.codes = copy.data.as<uint8_t>();
  const auto unit_bytes = static_cast<int64_t>(sizeof(UnitScale));
  QG_ASSIGN_OR_RETURN(Tensor units, device.Allocate(DType::kU8, {job.grid.units * unit_bytes}));
  job.units = reinterpret_cast<UnitScale*>(units.data());
  Tensor given_scale;
  if (spec.traits().scales == ScaleKind::kTensor) {
    QG_RETURN_IF_ERROR(PrepareTensorScale(device, request, job, copy, given_scale));
  } else {
    QG_RETURN_IF_ERROR(PrepareBlockScales(device, request, usage, job, copy));
  }
  const int multiprocessors = device.facts().multiprocessors;
  QG_CUDA_RETURN_IF_ERROR(LaunchGeneralScales(job, multiprocessors, device.stream()));
  QG_CUDA_RETURN_IF_ERROR(LaunchGeneralCodes(job, multiprocessors, device.stream()));
  quantized.copy(usage) = std::move(copy);
  return absl::OkStatus();
}

}  // namespace

absl::Status QuantizeGenerallyCuda(CudaDevice& device, const RuleRequest& request,
                                   QuantizedTensor& quantized) {
  QG_ASSIGN_OR_RETURN(quantized.device_counts,
                      device.AllocateZeroed(DType::kI64, {kQuantizationCountKinds}));
  auto* counts = quantized.device_counts.as<unsigned long long>();
  for (const Usage usage : {Usage::kColumnwise, Usage::kRowwise}) {
    if (!HasUsage(request.usages, usage)) continue;
    const bool is_counted = usage == Usage::kRowwise || !request.usages.rowwise;
    const auto quantize =
        request.spec.traits().has_levels() ? &QuantizeLevelsCuda : &QuantizeDirection;
    QG_RETURN_IF_ERROR(quantize(device, request, usage, is_counted ? counts : nullptr, quantized));
  }
  return absl::OkStatus();
}

}  // namespace quantgate
