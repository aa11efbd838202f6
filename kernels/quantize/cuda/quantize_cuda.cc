// The GPU quantizer: runs the kernels of the formats, and does identity itself.
#include "kernels/quantize/cuda/quantize_cuda.h"

#include <memory>
#include <utility>

#include "kernels/base/cuda_status.h"
#include "kernels/quantize/cuda/quantize_tiles_cuda.h"
#include "kernels/quantize/format_quantizers.h"
#include "kernels/quantize/general/quantize_general_cuda.h"
#include "kernels/quantize/nvfp4/quantize_nvfp4_cuda.h"
#include "kernels/quantize/quantized_outline.h"
#include "kernels/tensor/device/tensor_cuda.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

/// As FormatRequest.
struct CudaRequest {
  CudaDevice& device;
  const Tensor& source;
  const QuantizerSpec& spec;
  Usages usages;
  const QuantizeArguments& arguments;
  bool hadamard = false;
};

unsigned long long* CountsOf(QuantizedTensor& quantized) {
  return quantized.device_counts.as<unsigned long long>();
}

/// Keeps the source, or its cast.
absl::Status KeepSource(const CudaRequest& request, QuantizedTensor& quantized) {
  CudaDevice& device = request.device;
  const Tensor& source = request.source;
  QuantizedCopy copy;
  copy.element = request.spec.ElementOf(source.dtype());
  copy.is_cast = request.spec.casts();
  QG_ASSIGN_OR_RETURN(copy.data, CastTensorCuda(device, source, copy.element));
  if (request.usages.rowwise) quantized.rowwise = copy;
  if (request.usages.columnwise) quantized.columnwise = copy;
  QG_ASSIGN_OR_RETURN(quantized.device_counts,
                      device.AllocateZeroed(DType::kI64, {kQuantizationCountKinds}));
  QG_CUDA_RETURN_IF_ERROR(LaunchCountKept({.source = source.data(),
                                           .kept = copy.data.data(),
                                           .source_format = FormatOf(source.dtype()),
                                           .kept_format = FormatOf(copy.element),
                                           .count = source.element_count()},
                                          CountsOf(quantized), device.facts().multiprocessors,
                                          device.stream()));
  return absl::OkStatus();
}

TileQuantization JobOf(const CudaRequest& request, QuantizedTensor& quantized) {
  const QuantizerSpec& spec = request.spec;
  TileQuantization job;
  job.source = request.source.data();
  job.source_format = FormatOf(request.source.dtype());
  job.rows = request.source.rows();
  job.columns = request.source.columns();
  job.element = FormatOf(spec.element);
  job.scales = spec.traits().scales;
  job.block_length = spec.traits().block_length;
  job.turns_columnwise = spec.traits().turns_columnwise;
  job.has_tiles = spec.block_dim == 2;
  job.scale_options = {
      .rule = spec.scale_rule, .power_2 = spec.power_2_scale, .amax_epsilon = spec.amax_epsilon};
  if (job.scales == ScaleKind::kF32 || job.scales == ScaleKind::kLine) {
    job.scale_options.value_for_infinity = LargestFiniteOf(request.source.dtype());
  }
  job.subnormals = spec.subnormals();
  job.rounding = spec.element_rounding;
  job.overflow = spec.overflow;
  job.counts = CountsOf(quantized);
  return job;
}

/// Allocates one copy and sets in `job` where the kernels write codes and scales. Per-tensor scales
/// are not set.
absl::Status AllocateCopy(const CudaRequest& request, Usage usage, QuantizedTensor& quantized,
                          uint8_t*& codes, void*& scales) {
  if (!HasUsage(request.usages, usage)) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(QuantizedCopy copy, OutlineCopy(request.spec, usage, request.source.dtype(),
                                                      request.source.shape()));
  QG_ASSIGN_OR_RETURN(copy.data, request.device.Allocate(copy.element, copy.data.shape()));
  codes = copy.data.as<uint8_t>();
  if (request.spec.traits().has_many_scales()) {
    QG_ASSIGN_OR_RETURN(copy.scale_inv,
                        request.device.Allocate(copy.scale_inv.dtype(), copy.scale_inv.shape()));
    scales = copy.scale_inv.data();
  }
  quantized.copy(usage) = std::move(copy);
  return absl::OkStatus();
}

/// Allocates the copies of `job` and fills them.
absl::Status FillCopies(const CudaRequest& request, TileQuantization job,
                        QuantizedTensor& quantized) {
  QG_RETURN_IF_ERROR(
      AllocateCopy(request, Usage::kRowwise, quantized, job.row_codes, job.row_scales));
  QG_RETURN_IF_ERROR(
      AllocateCopy(request, Usage::kColumnwise, quantized, job.column_codes, job.column_scales));
  const CudaDevice& device = request.device;
  if (job.scales == ScaleKind::kLine) {
    QG_CUDA_RETURN_IF_ERROR(LaunchLineScales(job, device.facts().multiprocessors, device.stream()));
  }
  if (TunedTilesTake(job)) return QG_CUDA_STATUS(LaunchTunedTiles(job, device.stream()));
  return QG_CUDA_STATUS(LaunchPlainTiles(job, device.facts().multiprocessors, device.stream()));
}

absl::Status QuantizeBlocks(const CudaRequest& request, QuantizedTensor& quantized) {
  QG_ASSIGN_OR_RETURN(quantized.device_counts,
                      request.device.AllocateZeroed(DType::kI64, {kQuantizationCountKinds}));
  return FillCopies(request, JobOf(request, quantized), quantized);
}

absl::Status QuantizeLines(const CudaRequest& request, QuantizedTensor& quantized) {
  CudaDevice& device = request.device;
  QG_ASSIGN_OR_RETURN(quantized.device_counts,
                      device.AllocateZeroed(DType::kI64, {kQuantizationCountKinds}));
  TileQuantization job = JobOf(request, quantized);
  QG_ASSIGN_OR_RETURN(Tensor lines, device.AllocateZeroed(DType::kF32, {job.rows + job.columns}));
  if (request.usages.rowwise) job.row_lines = lines.as<uint32_t>();
  if (request.usages.columnwise) job.column_lines = lines.as<uint32_t>() + job.rows;
  return FillCopies(request, job, quantized);
}

/// The small results of a per-tensor quantization, in one block of memory.
struct TensorResults {
  std::shared_ptr<Buffer> buffer;
  Tensor counts, amax, scale, scale_inv;

  static absl::StatusOr<TensorResults> Allocate(CudaDevice& device) {
    constexpr size_t kAmaxAt = 64, kScaleAt = 80, kScaleInvAt = 96, kBytes = 112;
    QG_ASSIGN_OR_RETURN(const std::shared_ptr<Buffer> buffer, device.AllocateBytes(kBytes));
    TensorResults results;
    results.buffer = buffer;
    QG_ASSIGN_OR_RETURN(results.counts,
                        Tensor::View(DType::kI64, {kQuantizationCountKinds}, buffer));
    QG_ASSIGN_OR_RETURN(results.amax, Tensor::View(DType::kF32, {1}, buffer, kAmaxAt));
    QG_ASSIGN_OR_RETURN(results.scale, Tensor::View(DType::kF32, {1}, buffer, kScaleAt));
    QG_ASSIGN_OR_RETURN(results.scale_inv, Tensor::View(DType::kF32, {1}, buffer, kScaleInvAt));
    return results;
  }
};

/// Makes the scale, and under current scaling the amax from which it is made; waits for neither.
absl::Status MakeScale(const CudaRequest& request, TensorResults& results) {
  CudaDevice& device = request.device;
  const Tensor& source = request.source;
  const QuantizerSpec& spec = request.spec;
  TensorScaleJob job;
  job.max_finite = spec.element == DType::kF8E4M3 ? MaxFinite<E4M3>() : MaxFinite<E5M2>();
  job.options = {
      .rule = spec.scale_rule, .power_2 = spec.power_2_scale, .amax_epsilon = spec.amax_epsilon};
  job.subnormals = spec.subnormals();
  job.is_empty = source.element_count() == 0;
  job.amax = results.amax.as<float>();
  job.scale = results.scale.as<float>();
  job.scale_inv = results.scale_inv.as<float>();
  Tensor given_scale;
  if (spec.scaling == Scaling::kDelayed) {
    QG_ASSIGN_OR_RETURN(given_scale, device.ToDevice(request.arguments.scale));
    job.given_scale = given_scale.as<float>();
    job.zeroed = reinterpret_cast<unsigned long long*>(results.buffer->data());
    job.zeroed_words = static_cast<int>(results.buffer->size() / sizeof(*job.zeroed));
    return QG_CUDA_STATUS(LaunchTensorScale(job, device.stream()));
  }
  QG_CUDA_RETURN_IF_ERROR(
      cudaMemsetAsync(results.buffer->data(), 0, results.buffer->size(), device.stream()));
  if (request.arguments.group_amax_rowwise.has_value()) {
    QG_ASSIGN_OR_RETURN(const Tensor group, device.ToDevice(request.arguments.group_amax_rowwise));
    QG_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(results.amax.data(), group.data(), sizeof(float),
                                            cudaMemcpyDeviceToDevice, device.stream()));
    job.is_empty = false;
  } else {
    QG_CUDA_RETURN_IF_ERROR(LaunchAmax(source.data(), FormatOf(source.dtype()),
                                       source.element_count(), results.amax.as<uint32_t>(),
                                       device.facts().multiprocessors, device.stream()));
  }
  return QG_CUDA_STATUS(LaunchTensorScale(job, device.stream()));
}

absl::Status QuantizeTensor(const CudaRequest& request, QuantizedTensor& quantized) {
  QG_ASSIGN_OR_RETURN(TensorResults results, TensorResults::Allocate(request.device));
  QG_RETURN_IF_ERROR(MakeScale(request, results));
  quantized.device_counts = results.counts;
  TileQuantization job = JobOf(request, quantized);
  job.tensor_scale = results.scale.as<float>();
  // Under current scaling MakeScale has found the amax; under delayed scaling the cast finds it.
  if (request.spec.scaling == Scaling::kDelayed) job.amax_bits = results.amax.as<uint32_t>();
  QG_RETURN_IF_ERROR(FillCopies(request, job, quantized));
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    if (!HasUsage(request.usages, usage)) continue;
    quantized.copy(usage)->amax = results.amax;
    quantized.copy(usage)->scale = results.scale;
    quantized.copy(usage)->scale_inv = results.scale_inv;
  }
  return absl::OkStatus();
}

absl::Status QuantizeNvfp4(const CudaRequest& request, QuantizedTensor& quantized) {
  QG_ASSIGN_OR_RETURN(quantized.device_counts,
                      request.device.AllocateZeroed(DType::kI64, {kQuantizationCountKinds}));
  QuantizerSpec spec = request.spec;
  spec.hadamard = request.hadamard;
  QuantizedCopy* rowwise = request.usages.rowwise ? &quantized.rowwise.emplace() : nullptr;
  QuantizedCopy* columnwise = request.usages.columnwise ? &quantized.columnwise.emplace() : nullptr;
  return QuantizeNvfp4Cuda(request.device, request.source, spec, rowwise, columnwise,
                           request.arguments, quantized.device_counts);
}

absl::Status QuantizeFormat(const CudaRequest& request, QuantizedTensor& quantized) {
  switch (request.spec.traits().scales) {
    case ScaleKind::kNone:
      return KeepSource(request, quantized);
    case ScaleKind::kTensor:
      return QuantizeTensor(request, quantized);
    case ScaleKind::kLine:
      return QuantizeLines(request, quantized);
    case ScaleKind::kF32:
    case ScaleKind::kE8m0:
      return QuantizeBlocks(request, quantized);
    case ScaleKind::kTwoLevel:
      return QuantizeNvfp4(request, quantized);
    case ScaleKind::kLevels:
      break;
  }
  return absl::InternalError("quantize: unknown format");
}

}  // namespace

absl::StatusOr<QuantizedTensor> QuantizeCuda(CudaDevice& device, const Tensor& source,
                                             const Quantizer& quantizer, Usages usages,
                                             const QuantizeArguments& arguments) {
  auto quantized = QuantizeByRules(
      source, quantizer, usages, arguments,
      [&](const RuleRequest& rule, QuantizedTensor& quantized) {
        if (TakesGeneralPath(rule.spec, rule.source)) {
          return QuantizeGenerallyCuda(device, rule, quantized);
        }
        return QuantizeFormat(
            {device, rule.source, rule.spec, rule.usages, rule.arguments, rule.hadamard},
            quantized);
      },
      [&](const QuantizedTensor& quantized, DType out_dtype) {
        return DequantizeCuda(device, quantized, Usage::kRowwise, out_dtype);
      });
  if (quantized.ok()) device.MarkResults();
  return quantized;
}

}  // namespace quantgate
