#include "kernels/quantize/general/quantize_levels_cuda.h"

#include <utility>

#include "kernels/base/cuda_status.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/general/level_forms.h"
#include "kernels/quantize/general/level_kernels.h"
#include "kernels/quantize/general/quantize_levels.h"
#include "kernels/quantize/quantized_outline.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {

absl::Status QuantizeLevelsCuda(CudaDevice& device, const RuleRequest& request, Usage usage,
                                unsigned long long* counts, QuantizedTensor& quantized) {
  const QuantizerSpec& spec = request.spec;
  const Tensor& source = request.source;
  LevelQuantization job;
  job.rule = MakeLevelRule(spec, source.dtype());
  job.grid = MakeLevelGrid(source.rows(), source.columns(), spec.format, spec.group, usage);
  job.parts = LevelPartsOf(job.grid);
  job.source_format = FormatOf(source.dtype());
  job.source = source.data();
  job.counts = counts;
  QG_ASSIGN_OR_RETURN(QuantizedCopy copy, OutlineCopy(spec, usage, source.dtype(), source.shape()));
  for (Tensor* const tensor : {&copy.data, &copy.scale_inv, &copy.zero_point}) {
    if (!tensor->has_value()) continue;
    QG_ASSIGN_OR_RETURN(*tensor, device.Allocate(tensor->dtype(), tensor->shape()));
  }
  job.codes = copy.data.as<uint8_t>();
  job.scale_inv = copy.scale_inv.as<float>();
  if (copy.zero_point.has_value()) job.zero_points = copy.zero_point.data();
  const auto allocate = [&](int64_t count, size_t bytes) {
    return device.Allocate(DType::kU8, {count * static_cast<int64_t>(bytes)});
  };
  Tensor extremes;
  if (job.parts > 1) {
    QG_ASSIGN_OR_RETURN(extremes, allocate(job.grid.units * job.parts, sizeof(PartExtremes)));
    job.extremes = reinterpret_cast<PartExtremes*>(extremes.data());
  }
  QG_ASSIGN_OR_RETURN(Tensor scales, allocate(job.grid.units, sizeof(LevelScale)));
  job.scales = reinterpret_cast<LevelScale*>(scales.data());
  const int multiprocessors = device.facts().multiprocessors;
  QG_CUDA_RETURN_IF_ERROR(LaunchLevelScales(job, multiprocessors, device.stream()));
  QG_CUDA_RETURN_IF_ERROR(LaunchLevelCodes(job, multiprocessors, device.stream()));
  quantized.copy(usage) = std::move(copy);
  return absl::OkStatus();
}

absl::Status DequantizeLevelsCuda(CudaDevice& device, const QuantizedCopy& copy, Usage usage,
                                  Tensor& out) {
  LevelDequantization job;
  job.grid = MakeLevelGrid(out.rows(), out.columns(), copy.format, copy.group, usage);
  job.levels = LevelsOf(copy.element);
  job.zero_point = ZeroPointOf(copy);
  job.codes = copy.data.as<uint8_t>();
  job.scale_inv = copy.scale_inv.as<float>();
  if (copy.zero_point.has_value()) job.zero_points = copy.zero_point.data();
  job.out = out.data();
  job.out_format = FormatOf(out.dtype());
  return QG_CUDA_STATUS(
      LaunchDequantizeLevels(job, device.facts().multiprocessors, device.stream()));
}

}  // namespace quantgate
