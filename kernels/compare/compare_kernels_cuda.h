// The kernels behind compare_cuda.h. Launchers return cudaGetLastError() after the launch;
// compare_cuda.cc checks arguments, allocates and makes the reports.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/compare/error_kernels.h"
#include "kernels/compare/parity_findings.h"
#include "kernels/tensor/number_source.h"

namespace quantgate {

/// Which form of a kernel runs: the fast one or the plain one. Both give the same reports.
enum class ComparePath { kTuned, kPlain };

// --- Bits

/// What a bitwise comparison needs to know of an element type: the facts of element_codes.h as
/// numbers, so that one kernel serves all types of a width.
struct CodeRules {
  int bytes = 1;
  uint64_t sign_mask = 0;       ///< 0: codes have no sign.
  uint64_t magnitude_mask = 0;  ///< Magnitudes are ordered as values.
  uint64_t largest_number = 0;  ///< Magnitudes above it are NaN.
  uint64_t nan_code = 0;        ///< One more NaN, that of fnuz formats; 0: there is none.
  bool has_infinity = false;    ///< largest_number is infinity.
  bool is_twos_complement = false;
  bool has_zero = true;  ///< Magnitude 0 is zero.
};

/// Results in device memory; zeroed before the launch.
struct ParityTotals {
  unsigned long long mismatch_count;
  unsigned long long first_complement;  ///< ~index; 0 where nothing differs.
  unsigned long long worst_complement;
  unsigned long long worst_distance;
  unsigned long long first_bits[2], worst_bits[2];  ///< Subject, then reference.
  unsigned long long buckets[kAllBuckets];
  unsigned long long confusion[kClassCount * kClassCount];
};

/// The worst element that one block of threads saw. Zeroed before the launch.
struct WorstSeen {
  unsigned long long distance;
  unsigned long long complement;  ///< ~index; 0: none.
};

struct ParityParameters {
  const void* subject = nullptr;
  const void* reference = nullptr;
  int64_t count = 0;
  CodeRules rules;
  int multiprocessors = 0;
  ParityTotals* totals = nullptr;
  WorstSeen* worst = nullptr;  ///< [ParityWorstCount(multiprocessors)].
};
int ParityWorstCount(int multiprocessors);
cudaError_t LaunchCompareBits(const ParityParameters& parameters, ComparePath path,
                              cudaStream_t stream);

// --- Errors

/// The length of a segment: the elements of a block of the heat map, in row-major order, that one
/// warp adds to one sum. A segment is a whole subtree of the pairwise sum.
inline constexpr int kSegmentElements = 1024;
/// Numbers in memory for a segment's sums: one for each series; the last ones are unused.
inline constexpr int kSegmentSeries = 8;
/// How many segments LaunchSumSegments adds to one.
inline constexpr int kSegmentGroup = 256;

/// How a tensor is cut: into rows x columns blocks, the segments of each of which are divided among
/// `slices` blocks of threads.
struct BlockCut {
  int64_t row_count = 0, column_count = 0;
  int rows = 0, columns = 0;
  int slices = 0;
  int64_t segments = 0;  ///< Segments of the largest block: the sums have room for as many.
};

/// What one slice of a block found, besides the sums. Positions are indices within the block in
/// row-major order; -1 where no element counts.
struct SliceErrors {
  double max_abs, max_rel;
  int64_t max_abs_position, max_rel_position;
  int64_t finite_count, relative_count;
  int64_t saturated_count, flushed_to_zero_count, subnormal_count;
};

/// What each block of the heat map adds to the report, in the order in which the blocks are added.
/// Indices are those of the tensor's elements.
struct FinishedBlocks {
  static constexpr int kMax = 1024;
  double sums[kMax][kSegmentSeries];  ///< By ErrorSeries.
  double max_abs[kMax], max_rel[kMax];
  int64_t max_abs_index[kMax], max_rel_index[kMax];
  int64_t finite_count[kMax], relative_count[kMax];
  int64_t saturated_count[kMax], flushed_to_zero_count[kMax], subnormal_count[kMax];
};

/// All blocks together. The positions in `found` are not used.
struct BlockTotals {
  double sums[kSegmentSeries];
  SliceErrors found;
  int64_t max_abs_index, max_rel_index;
  uint64_t max_abs_bits[2], max_rel_bits[2];  ///< Subject, then reference.
};

struct ErrorParameters {
  NumberSource subject, reference;
  int subject_bytes = 0, reference_bytes = 0;  ///< Bytes of an element.
  SubjectRange range;
  BlockCut cut;
  double* sums = nullptr;         ///< [blocks][segments][kSegmentSeries].
  SliceErrors* slices = nullptr;  ///< [blocks][slices].
  unsigned* finished = nullptr;   ///< A counter: set to 0 here, used by LaunchFinishErrors.
};
/// Measures the errors of all segments and what each slice found.
cudaError_t LaunchMeasureSegments(const ErrorParameters& parameters, ComparePath path,
                                  cudaStream_t stream);

/// The fast form of the same kernel, for the pairs of types that are compared most. Returns false,
/// and launches nothing, where the types, the widths of the blocks or the addresses do not fit;
/// otherwise `error` is the result of the launch.
bool LaunchTunedSegments(const ErrorParameters& parameters, cudaStream_t stream,
                         cudaError_t& error);

/// Adds each kSegmentGroup sums of a block to one: from [blocks][segments] to
/// [blocks][ceil(segments / kSegmentGroup)]. `level` is the number of launches before this one.
struct SegmentSumParameters {
  BlockCut cut;
  int level = 0;
  const double* from = nullptr;
  double* to = nullptr;
};
cudaError_t LaunchSumSegments(const SegmentSumParameters& parameters, cudaStream_t stream);

/// The errors of one cell of the heat map.
struct CellErrors {
  double rms, max_abs;
};

/// The most groups of sums of a block that LaunchFinishErrors takes.
inline constexpr int kFinishGroups = 4;

/// Adds up each block's slices and sums, and then the blocks in their order. Must be the next
/// launch after LaunchMeasureSegments or LaunchSumSegments.
struct FinishErrorParameters {
  ErrorParameters errors;
  int level = 0;                     ///< How many launches of LaunchSumSegments made `sums`.
  const double* sums = nullptr;      ///< [blocks][at most kFinishGroups * kSegmentGroup][series].
  FinishedBlocks* blocks = nullptr;  ///< Working memory.
  CellErrors* cells = nullptr;       ///< [blocks]; written only.
  BlockTotals* total = nullptr;      ///< Written only.
};
cudaError_t LaunchFinishErrors(const FinishErrorParameters& parameters, cudaStream_t stream);

// --- Distances to the truth

struct DistanceCounts {
  unsigned long long finite_count, subject_nearer, reference_nearer, tied;
};

struct DistanceParameters {
  NumberSource subject, reference;
  const float* truth = nullptr;
  BlockCut cut;
  double* sums = nullptr;            ///< [blocks][segments][kSegmentSeries].
  DistanceCounts* counts = nullptr;  ///< Counts of the whole tensor; zeroed before the launch.
};
/// Sums of squared distances (DistanceSeries) of all segments, and the counts.
cudaError_t LaunchMeasureDistances(const DistanceParameters& parameters, cudaStream_t stream);

}  // namespace quantgate
