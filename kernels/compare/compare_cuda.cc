#include "kernels/compare/compare_cuda.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/cuda_status.h"
#include "kernels/base/round_up.h"
#include "kernels/compare/compare_kernels_cuda.h"
#include "kernels/compare/element_codes.h"
#include "kernels/compare/element_values.h"
#include "kernels/compare/error_summary.h"
#include "kernels/compare/parity_findings.h"
#include "kernels/tensor/number_source.h"

namespace quantgate {
namespace {

/// The facts of element_codes.h as the kernels take them.
CodeRules RulesOf(DType dtype) {
  return WithCodes(dtype, []<class Codes>(Codes) {
    using Storage = typename Codes::Storage;
    CodeRules rules;
    rules.bytes = sizeof(Storage);
    rules.magnitude_mask = std::numeric_limits<Storage>::max();
    rules.largest_number = rules.magnitude_mask;
    if constexpr (requires { typename Codes::C; }) {
      rules.sign_mask = Codes::C::kSignMask;
      rules.magnitude_mask = static_cast<Storage>(~Codes::C::kSignMask);
      rules.largest_number = Codes::kLargestNumber;
      rules.has_infinity = Codes::IsInfinite(Codes::kLargestNumber);
      if (Codes::IsNan(Codes::C::kSignMask)) rules.nan_code = Codes::C::kSignMask;
    } else if constexpr (std::is_same_v<Codes, IntegerCodes<Storage>>) {
      rules.sign_mask = Codes::kSignMask;
      rules.is_twos_complement = true;
    } else if constexpr (std::is_same_v<Codes, E8M0Codes>) {
      rules.largest_number = 0xFE;
      rules.has_zero = false;
    }
    return rules;
  });
}

ParityFindings FindingsOf(const ParityTotals& totals) {
  ParityFindings findings;
  findings.mismatch_count = static_cast<int64_t>(totals.mismatch_count);
  if (findings.mismatch_count > 0) {
    findings.first = static_cast<int64_t>(~totals.first_complement);
    findings.worst = static_cast<int64_t>(~totals.worst_complement);
    findings.worst_distance = totals.worst_distance;
  }
  for (int i = 0; i < kAllBuckets; ++i) {
    findings.buckets[i] = static_cast<int64_t>(totals.buckets[i]);
  }
  for (int i = 0; i < kClassCount; ++i) {
    for (int j = 0; j < kClassCount; ++j) {
      findings.confusion[i][j] = static_cast<int64_t>(totals.confusion[i * kClassCount + j]);
    }
  }
  return findings;
}

/// Cuts blocks into enough slices for a few waves on the whole GPU, at two slices a multiprocessor
/// at a time, but so that every warp of a slice has a segment.
BlockCut CutOf(const CudaDevice& device, const BlockGrid& grid, int slices_per_sm) {
  constexpr int kWarps = 8;  // In a block of threads.
  BlockCut cut = {.row_count = grid.row_count,
                  .column_count = grid.column_count,
                  .rows = grid.rows,
                  .columns = grid.columns};
  if (grid.count() == 0) return cut;
  const auto largest = [](int64_t extent, int blocks) { return (extent + blocks - 1) / blocks; };
  const int64_t elements =
      largest(grid.row_count, grid.rows) * largest(grid.column_count, grid.columns);
  cut.segments = (elements + kSegmentElements - 1) / kSegmentElements;
  const int64_t wanted =
      (int64_t{device.facts().multiprocessors} * slices_per_sm + grid.count() - 1) / grid.count();
  // A power of two, since most numbers of segments are multiples of it.
  cut.slices = static_cast<int>(std::bit_floor(
      static_cast<uint64_t>(std::min((cut.segments + kWarps - 1) / kWarps, wanted))));
  return cut;
}

int BlocksOf(const BlockCut& cut) { return cut.rows * cut.columns; }

absl::StatusOr<Tensor> AllocateSums(CudaDevice& device, const BlockCut& cut, int64_t segments) {
  return device.Allocate(DType::kF64, {BlocksOf(cut), segments, kSegmentSeries});
}

/// Sums of each block's segments, or of groups of segments.
struct SegmentSums {
  const double* data = nullptr;
  int64_t segments = 0;  ///< Sums of the largest block.
  int level = 0;         ///< How many launches have grouped the sums.
  Tensor memory;         ///< Owns `data` where that is of groups.
};

/// Adds groups until a block has at most `most` sums.
absl::Status SumGroups(CudaDevice& device, const BlockCut& cut, int64_t most, SegmentSums& sums) {
  while (sums.segments > most) {
    sums.segments = DivideUp(sums.segments, kSegmentGroup);
    QG_ASSIGN_OR_RETURN(Tensor groups, AllocateSums(device, cut, sums.segments));
    const SegmentSumParameters parameters = {
        .cut = cut, .level = sums.level, .from = sums.data, .to = groups.as<double>()};
    QG_CUDA_RETURN_IF_ERROR(LaunchSumSegments(parameters, device.stream()));
    sums.data = groups.as<double>();
    sums.memory = std::move(groups);
    ++sums.level;
  }
  return absl::OkStatus();
}

/// Where infinities cancel, x86 sets the sign bit of the NaN and GPUs do not; reports have the x86
/// one.
double HostNan(double sum) { return sum == sum ? sum : -std::numeric_limits<double>::quiet_NaN(); }

BlockErrors ErrorsOf(const BlockTotals& totals) {
  BlockErrors errors;
  for (int i = 0; i < kErrorSeriesCount; ++i) errors.sums.values[i] = HostNan(totals.sums[i]);
  const SliceErrors& found = totals.found;
  errors.max_abs = {found.max_abs, totals.max_abs_index};
  errors.max_rel = {found.max_rel, totals.max_rel_index};
  errors.finite_count = found.finite_count;
  errors.relative_count = found.relative_count;
  errors.saturated_count = found.saturated_count;
  errors.flushed_to_zero_count = found.flushed_to_zero_count;
  errors.subnormal_count = found.subnormal_count;
  return errors;
}

/// The device memory of an error report, all of it in one allocation.
struct ErrorMemory {
  std::shared_ptr<Buffer> buffer;
  double* sums = nullptr;
  SliceErrors* slices = nullptr;
  FinishedBlocks* blocks = nullptr;
  unsigned* finished = nullptr;

  static absl::StatusOr<ErrorMemory> Allocate(CudaDevice& device, const BlockCut& cut) {
    constexpr int64_t kAlignment = 256;
    const int64_t blocks = BlocksOf(cut);
    int64_t bytes = 0;
    const auto take = [&bytes](int64_t size) {
      return std::exchange(bytes, RoundUp(bytes + size, kAlignment));
    };
    const int64_t sums_at = take(blocks * cut.segments * kSegmentSeries * int64_t{sizeof(double)});
    const int64_t slices_at = take(blocks * cut.slices * int64_t{sizeof(SliceErrors)});
    const int64_t blocks_at = take(sizeof(FinishedBlocks));
    const int64_t finished_at = take(sizeof(unsigned));
    ErrorMemory memory;
    QG_ASSIGN_OR_RETURN(memory.buffer, device.AllocateBytes(static_cast<size_t>(bytes)));
    std::byte* data = memory.buffer->data();
    memory.sums = reinterpret_cast<double*>(data + sums_at);
    memory.slices = reinterpret_cast<SliceErrors*>(data + slices_at);
    memory.blocks = reinterpret_cast<FinishedBlocks*>(data + blocks_at);
    memory.finished = reinterpret_cast<unsigned*>(data + finished_at);
    return memory;
  }
};

/// Launches all kernels of an error report. They write the results to memory that the host reads;
/// the memory between them is given back while the device works.
absl::Status EnqueueErrors(CudaDevice& device, const Tensor& subject, const Tensor& reference,
                           const BlockCut& cut, ComparePath path, BlockTotals* total) {
  QG_ASSIGN_OR_RETURN(const ErrorMemory memory, ErrorMemory::Allocate(device, cut));
  const ErrorParameters parameters = {.subject = NumbersOf(subject),
                                      .reference = NumbersOf(reference),
                                      .subject_bytes = DTypeBytes(subject.dtype()),
                                      .reference_bytes = DTypeBytes(reference.dtype()),
                                      .range = RangeOfSubject(subject.dtype()),
                                      .cut = cut,
                                      .sums = memory.sums,
                                      .slices = memory.slices,
                                      .finished = memory.finished};
  QG_CUDA_RETURN_IF_ERROR(LaunchMeasureSegments(parameters, path, device.stream()));
  SegmentSums sums = {.data = memory.sums, .segments = cut.segments, .memory = {}};
  QG_RETURN_IF_ERROR(SumGroups(device, cut, kFinishGroups * kSegmentGroup, sums));
  const FinishErrorParameters finish = {.errors = parameters,
                                        .level = sums.level,
                                        .sums = sums.data,
                                        .blocks = memory.blocks,
                                        .cells = reinterpret_cast<CellErrors*>(total + 1),
                                        .total = total};
  return QG_CUDA_STATUS(LaunchFinishErrors(finish, device.stream()));
}

absl::StatusOr<StartedReport<ParityReport>> StartParity(CudaDevice& device, const Tensor& subject,
                                                        const Tensor& reference, ComparePath path) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckSameShapeAndType(subject, reference));
  const int multiprocessors = device.facts().multiprocessors;
  const int64_t bytes = static_cast<int64_t>(sizeof(ParityTotals) +
                                             ParityWorstCount(multiprocessors) * sizeof(WorstSeen));
  QG_ASSIGN_OR_RETURN(Tensor results, device.AllocateZeroed(DType::kU8, {bytes}));
  auto* totals = results.as<ParityTotals>();
  const ParityParameters parameters = {.subject = subject.data(),
                                       .reference = reference.data(),
                                       .count = subject.element_count(),
                                       .rules = RulesOf(subject.dtype()),
                                       .multiprocessors = multiprocessors,
                                       .totals = totals,
                                       .worst = reinterpret_cast<WorstSeen*>(totals + 1)};
  QG_CUDA_RETURN_IF_ERROR(LaunchCompareBits(parameters, path, device.stream()));
  const auto finish = [count = parameters.count, shape = subject.shape(), dtype = subject.dtype()](
                          const std::byte* host) -> absl::StatusOr<ParityReport> {
    const auto& found = *reinterpret_cast<const ParityTotals*>(host);
    const ParityFindings findings = FindingsOf(found);
    if (findings.mismatch_count == 0) return ParityReportOf(findings, count, {}, {});
    const auto pair = [&](int64_t index, const unsigned long long(&bits)[2]) {
      return PairOfBits(shape, dtype, dtype, {index, bits[0], bits[1]});
    };
    return ParityReportOf(findings, count, pair(findings.first, found.first_bits),
                          pair(findings.worst, found.worst_bits));
  };
  QG_ASSIGN_OR_RETURN(CudaDevice::PendingRead read, device.StartRead(results));
  return StartedReport<ParityReport>{std::move(read), finish};
}

absl::StatusOr<StartedReport<ErrorReport>> StartErrors(CudaDevice& device, const Tensor& subject,
                                                       const Tensor& reference, ComparePath path) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckErrorSides(subject, reference));
  constexpr int kSlicesPerSm = 4;
  const BlockGrid grid(subject);
  if (grid.count() == 0) {
    const auto empty = [](int64_t) { return ElementPair(); };
    return StartedReport<ErrorReport>{{}, [grid, empty](const std::byte*) {
                                        return SummarizeErrors(grid, HeatMapOf(grid), {}, empty);
                                      }};
  }
  constexpr size_t kCellsMax = size_t{kHeatMapRowsMax} * kHeatMapColumnsMax;
  static_assert(kCellsMax <= FinishedBlocks::kMax);
  static_assert(sizeof(BlockTotals) + kCellsMax * sizeof(CellErrors) <=
                CudaDevice::kPendingReadBytes);
  QG_ASSIGN_OR_RETURN(CudaDevice::PendingRead results, device.TakeReadMemory());
  QG_RETURN_IF_ERROR(EnqueueErrors(device, subject, reference, CutOf(device, grid, kSlicesPerSm),
                                   path, reinterpret_cast<BlockTotals*>(results.bytes.get())));
  // The edges of the heat map's cells are computed while the device is busy.
  auto finish = [grid, heat_map = HeatMapOf(grid), shape = subject.shape(),
                 subject_dtype = subject.dtype(), reference_dtype = reference.dtype()](
                    const std::byte* host) mutable -> absl::StatusOr<ErrorReport> {
    const auto& total = *reinterpret_cast<const BlockTotals*>(host);
    const auto* cells = reinterpret_cast<const CellErrors*>(&total + 1);
    for (int i = 0; i < grid.count(); ++i) {
      heat_map.cells[i].rms_error = HostNan(cells[i].rms);
      heat_map.cells[i].max_abs_error = cells[i].max_abs;
    }
    return SummarizeTotal(grid, std::move(heat_map), ErrorsOf(total), [&](int64_t index) {
      const uint64_t(&bits)[2] =
          index == total.max_abs_index ? total.max_abs_bits : total.max_rel_bits;
      return PairOfBits(shape, subject_dtype, reference_dtype, {index, bits[0], bits[1]});
    });
  };
  return StartedReport<ErrorReport>{std::move(results), std::move(finish)};
}

}  // namespace

absl::StatusOr<ParityReport> CompareBitsOnPath(CudaDevice& device, const Tensor& subject,
                                               const Tensor& reference, ComparePath path) {
  return ReadReport(device, StartParity(device, subject, reference, path));
}

absl::StatusOr<ErrorReport> MeasureErrorOnPath(CudaDevice& device, const Tensor& subject,
                                               const Tensor& reference, ComparePath path) {
  return ReadReport(device, StartErrors(device, subject, reference, path));
}

absl::StatusOr<StartedReport<ParityReport>> StartCompareBitsCuda(CudaDevice& device,
                                                                 const Tensor& subject,
                                                                 const Tensor& reference) {
  return StartParity(device, subject, reference, ComparePath::kTuned);
}

absl::StatusOr<StartedReport<ErrorReport>> StartMeasureErrorCuda(CudaDevice& device,
                                                                 const Tensor& subject,
                                                                 const Tensor& reference) {
  return StartErrors(device, subject, reference, ComparePath::kTuned);
}

absl::StatusOr<NearerReport> MeasureNearerCuda(CudaDevice& device, const Tensor& subject,
                                               const Tensor& reference, const Tensor& truth) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckNearerSides(subject, reference, truth));
  const BlockGrid grid(subject);
  constexpr int kSlicesPerSm = 32;
  const BlockCut cut = CutOf(device, grid, kSlicesPerSm);
  QG_ASSIGN_OR_RETURN(Tensor sums, AllocateSums(device, cut, cut.segments));
  QG_ASSIGN_OR_RETURN(Tensor counts, device.AllocateZeroed(DType::kI64, {4}));
  const DistanceParameters parameters = {.subject = NumbersOf(subject),
                                         .reference = NumbersOf(reference),
                                         .truth = truth.as<float>(),
                                         .cut = cut,
                                         .sums = sums.as<double>(),
                                         .counts = counts.as<DistanceCounts>()};
  QG_CUDA_RETURN_IF_ERROR(LaunchMeasureDistances(parameters, device.stream()));
  SegmentSums block_sums = {.data = sums.as<double>(), .segments = cut.segments, .memory = sums};
  QG_RETURN_IF_ERROR(SumGroups(device, cut, 1, block_sums));
  QG_ASSIGN_OR_RETURN(const Tensor host_sums, device.ToHost(block_sums.memory));
  QG_ASSIGN_OR_RETURN(const Tensor host_counts, device.ToHost(counts));
  const DistanceCounts& found = *host_counts.as<DistanceCounts>();
  ScopedIeeeEnvironment ieee;
  NearerSums total;
  for (int i = 0; i < BlocksOf(cut); ++i) {
    SeriesTerms<kDistanceSeriesCount> block;
    for (int series = 0; series < kDistanceSeriesCount; ++series) {
      block.values[series] = host_sums.as<double>()[i * kSegmentSeries + series];
    }
    total.sums = total.sums + block;
  }
  total.finite_count = static_cast<int64_t>(found.finite_count);
  total.subject_nearer = static_cast<int64_t>(found.subject_nearer);
  total.reference_nearer = static_cast<int64_t>(found.reference_nearer);
  total.tied = static_cast<int64_t>(found.tied);
  return NearerReportOf(total);
}

}  // namespace quantgate
