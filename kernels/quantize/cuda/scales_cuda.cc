// Scales on a GPU: layouts, states of delayed scaling, and summaries for reports.
#include <algorithm>
#include <bit>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/cuda_status.h"
#include "kernels/quantize/cuda/quantize_cuda.h"
#include "kernels/quantize/cuda/scale_kernels_cuda.h"

namespace quantgate {
namespace {

absl::StatusOr<DelayedScalingState> NextState(CudaDevice& device, const DelayedScalingState& state,
                                              DelayedStateJob job) {
  DelayedScalingState next;
  QG_ASSIGN_OR_RETURN(next.scale, device.Allocate(DType::kF32, state.scale.shape()));
  QG_ASSIGN_OR_RETURN(next.amax_history, device.Allocate(DType::kF32, state.amax_history.shape()));
  job.old_scale = state.scale.as<float>();
  job.old_history = state.amax_history.as<float>();
  job.length = state.amax_history.element_count();
  job.scale = next.scale.as<float>();
  job.history = next.amax_history.as<float>();
  QG_CUDA_RETURN_IF_ERROR(LaunchDelayedState(job, device.stream()));
  return next;
}

const float* ScalarOf(const Tensor& tensor) {
  return tensor.has_value() && tensor.element_count() == 1 ? tensor.as<float>() : nullptr;
}

std::optional<float> ValueOf(const float* pointer, float value) {
  return pointer == nullptr ? std::nullopt : std::optional<float>(value);
}

bool SameBits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

QuantizationCounts CountsOf(const int64_t* counts) {
  return {.normal = counts[0],
          .zero = counts[1],
          .subnormal = counts[2],
          .flushed_to_zero = counts[3],
          .saturated = counts[4],
          .infinite = counts[5],
          .nan = counts[6]};
}

const QuantizedCopy& FirstCopy(const QuantizedTensor& quantized) {
  return quantized.rowwise.has_value() ? *quantized.rowwise : *quantized.columnwise;
}

/// Whether everything that a summary reads is on the host. The codes may have been dropped.
bool IsOnHost(const QuantizedTensor& quantized) {
  const Tensor& scales = FirstCopy(quantized).scale_inv;
  return !quantized.device_counts.has_value() &&
         (!scales.has_value() || scales.space() == MemorySpace::kHost);
}

SummaryScalars ScalarsOf(const QuantizedTensor& quantized) {
  const QuantizedCopy& first = FirstCopy(quantized);
  const Tensor& counts = quantized.device_counts;
  SummaryScalars scalars;
  scalars.counts = counts.has_value() ? counts.as<int64_t>() : nullptr;
  scalars.amax = ScalarOf(first.amax);
  if (quantized.columnwise.has_value()) {
    scalars.amax_columnwise = ScalarOf(quantized.columnwise->amax);
  }
  scalars.scale = ScalarOf(first.scale);
  if (TraitsOf(first.format).scales == ScaleKind::kTensor)
    scalars.scale_inv = ScalarOf(first.scale_inv);
  return scalars;
}

/// Gathers the SummaryRecord of one tensor on the device.
absl::StatusOr<Tensor> Gather(CudaDevice& device, const QuantizedTensor& quantized) {
  QG_ASSIGN_OR_RETURN(Tensor record,
                      device.AllocateZeroed(DType::kU8, {int64_t{sizeof(SummaryRecord)}}));
  const QuantizedCopy& first = FirstCopy(quantized);
  if (TraitsOf(first.format).has_many_scales()) {
    const Tensor& scales = first.scale_inv;
    QG_CUDA_RETURN_IF_ERROR(LaunchCountScales(scales.data(), scales.dtype() == DType::kF32,
                                              scales.element_count(), record.as<SummaryRecord>(),
                                              device.stream()));
  }
  QG_CUDA_RETURN_IF_ERROR(
      LaunchGatherSummary(ScalarsOf(quantized), record.as<SummaryRecord>(), device.stream()));
  device.MarkResults();
  return record;
}

/// Whether a summary needs no gathering: everything is on the host, or has only scalars.
bool IsOfScalars(const QuantizedTensor& quantized) {
  if (IsOnHost(quantized)) return true;
  return quantized.device_counts.has_value() &&
         !TraitsOf(FirstCopy(quantized).format).has_many_scales();
}

QuantizationSummary SummaryOf(const QuantizedTensor& quantized, const SummaryRecord& record) {
  const SummaryScalars scalars = ScalarsOf(quantized);
  QuantizationSummary summary;
  summary.amax = ValueOf(scalars.amax, record.amax);
  const bool is_same = (scalars.amax == nullptr) == (scalars.amax_columnwise == nullptr) &&
                       SameBits(record.amax, record.amax_columnwise);
  if (!is_same) summary.amax_columnwise = ValueOf(scalars.amax_columnwise, record.amax_columnwise);
  summary.scale = ValueOf(scalars.scale, record.scale);
  summary.scale_inv = ValueOf(scalars.scale_inv, record.scale_inv);
  summary.counts = scalars.counts == nullptr ? quantized.counts : CountsOf(record.counts);
  for (int code = 0; code < kScaleCodes; ++code) {
    const auto count = static_cast<int64_t>(record.scale_codes[code]);
    if (count != 0) summary.scale_codes[code] = count;
  }
  return summary;
}

/// The scalars of a tensor in device memory, as results to read into a record.
void AddResults(const SummaryScalars& scalars, SummaryRecord& record,
                std::vector<CudaDevice::Result>& results) {
  const auto add = [&](const void* device, void* host, size_t bytes) {
    if (device != nullptr) results.push_back({device, host, bytes});
  };
  add(scalars.counts, record.counts, sizeof(record.counts));
  add(scalars.amax, &record.amax, sizeof(float));
  add(scalars.amax_columnwise, &record.amax_columnwise, sizeof(float));
  add(scalars.scale, &record.scale, sizeof(float));
  add(scalars.scale_inv, &record.scale_inv, sizeof(float));
}

/// What ConvertScales says of the first scale that could not be moved.
absl::Status CheckMoved(CudaDevice& device, const Tensor& scales, const ScaleMove& move) {
  unsigned long long failure = 0;
  QG_RETURN_IF_ERROR(device.Read(move.failure, &failure, sizeof(failure)));
  if (failure == 0) return absl::OkStatus();
  const auto first = static_cast<int64_t>(~failure / 2);
  const int64_t line = first / move.grid.blocks, block = first % move.grid.blocks;
  if (~failure % 2 != 0) return CopiesDifferError(move.from_layout, line, block);
  float scale = 0;
  const float* const stored = scales.as<float>() + move.grid.Index(move.from_layout, line, block);
  QG_RETURN_IF_ERROR(device.Read(stored, &scale, sizeof(scale)));
  return NotE8m0Error(move.to_layout, line, block, scale);
}

}  // namespace

absl::StatusOr<Tensor> ConvertScalesCuda(CudaDevice& device, const Tensor& scales,
                                         const ScaleArray& array, ScaleLayout from,
                                         ScaleLayout to) {
  QG_RETURN_IF_ERROR(CheckScales(scales, array, from));
  QG_ASSIGN_OR_RETURN(const ScaleArrayType wanted, ScaleArrayTypeOf(array, to));
  ScaleMove move;
  QG_ASSIGN_OR_RETURN(move.grid, ScaleGridOf(array));
  QG_ASSIGN_OR_RETURN(Tensor converted, device.AllocateZeroed(wanted.dtype, wanted.shape));
  move.from_layout = from;
  move.to_layout = to;
  move.is_from_f32 = scales.dtype() == DType::kF32;
  move.is_to_f32 = wanted.dtype == DType::kF32;
  move.from = scales.data();
  move.to = converted.data();
  Tensor failure;
  if (MayFailToMove(array, from, to)) {
    QG_ASSIGN_OR_RETURN(failure, device.AllocateZeroed(DType::kI64, {1}));
    move.failure = failure.as<unsigned long long>();
  }
  QG_CUDA_RETURN_IF_ERROR(LaunchMoveScales(move, device.stream()));
  if (failure.has_value()) {
    QG_RETURN_IF_ERROR(CheckMoved(device, scales, move));
  }
  return converted;
}

absl::StatusOr<DelayedScalingState> WithCastCuda(CudaDevice& device,
                                                 const DelayedScalingState& state,
                                                 const Tensor& amax) {
  DelayedStateJob job;
  job.event = DelayedStateJob::Event::kCast;
  job.amax = amax.as<float>();
  return NextState(device, state, job);
}

absl::StatusOr<DelayedScalingState> WithCalibrationCuda(CudaDevice& device,
                                                        const DelayedScalingState& state,
                                                        const Tensor& amax) {
  DelayedStateJob job;
  job.event = DelayedStateJob::Event::kCalibration;
  job.amax = amax.as<float>();
  return NextState(device, state, job);
}

absl::StatusOr<DelayedScalingState> WithUpdateCuda(CudaDevice& device,
                                                   const DelayedScalingState& state,
                                                   const DelayedScalingOptions& options,
                                                   float max_finite) {
  DelayedStateJob job;
  job.event = DelayedStateJob::Event::kUpdate;
  job.update = options.update;
  job.algorithm = options.algorithm;
  job.max_finite = max_finite;
  job.margin = options.margin;
  return NextState(device, state, job);
}

bool NeedsSummary(const QuantizedTensor& quantized) { return !IsOfScalars(quantized); }

absl::Status StartSummaryCuda(CudaDevice& device, QuantizedTensor& quantized) {
  if (!NeedsSummary(quantized)) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(quantized.device_summary, Gather(device, quantized));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<QuantizationSummary>> SummarizeCuda(
    CudaDevice& device, std::span<const QuantizedTensor> quantized) {
  std::vector<SummaryRecord> records(quantized.size());
  std::vector<CudaDevice::Result> results;
  std::vector<Tensor> gathered;
  for (size_t i = 0; i < quantized.size(); ++i) {
    if (IsOnHost(quantized[i])) continue;
    if (IsOfScalars(quantized[i])) {
      AddResults(ScalarsOf(quantized[i]), records[i], results);
      continue;
    }
    Tensor record = quantized[i].device_summary;
    if (!record.has_value()) {
      QG_ASSIGN_OR_RETURN(record, Gather(device, quantized[i]));
    }
    results.push_back({record.data(), &records[i], sizeof(SummaryRecord)});
    gathered.push_back(std::move(record));
  }
  QG_RETURN_IF_ERROR(device.ReadResults(results));
  std::vector<QuantizationSummary> summaries;
  for (size_t i = 0; i < quantized.size(); ++i) {
    summaries.push_back(IsOnHost(quantized[i]) ? SummarizeCpu(quantized[i])
                                               : SummaryOf(quantized[i], records[i]));
  }
  return summaries;
}

}  // namespace quantgate
