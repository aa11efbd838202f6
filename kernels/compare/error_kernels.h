// The vector loop of MeasureError, compiled once per instruction set. As in
// kernels/gemm/exact/exact_kernels.h, this header includes nothing with inline functions.
#pragma once

#include <cstdint>

namespace quantgate {

/// The length of a stretch, the elements of one call: a power of two, so that a stretch is a whole
/// subtree of the pairwise sum.
inline constexpr int kErrorStretch = 256;

/// Series that are summed over the elements where both sides are finite; kRelativeError only where
/// the reference is not 0.
enum ErrorSeries {
  kAbsError,
  kSquaredError,
  kSignedError,
  kRelativeError,
  kSquaredReference,
  kSquaredSubject,
  kProduct,
  kErrorSeriesCount
};

/// Series that MeasureNearer sums: squared distances from the truth.
enum DistanceSeries { kSubjectDistance, kReferenceDistance, kDistanceSeriesCount };

/// Facts of the subject's type, as values.
struct SubjectRange {
  double largest_finite = 0;
  double smallest_normal = 0;
};

/// What MeasureStretch finds.
struct StretchErrors {
  double sums[kErrorSeriesCount];  ///< Pairwise; an element that is left out counts as -0.0.
  double max_abs, max_rel;         ///< -1 where no element counts.
  int64_t finite_count, relative_count;
  int64_t saturated_count, flushed_to_zero_count, subnormal_count;
};

/// Measures one stretch of fp64 values; a short one is padded with NaN on both sides.
using MeasureStretch = void (*)(const double* subject, const double* reference,
                                const SubjectRange& range, StretchErrors& errors);

void MeasureStretchScalar(const double* subject, const double* reference, const SubjectRange& range,
                          StretchErrors& errors);
void MeasureStretchAvx2(const double* subject, const double* reference, const SubjectRange& range,
                        StretchErrors& errors);
void MeasureStretchAvx512(const double* subject, const double* reference, const SubjectRange& range,
                          StretchErrors& errors);

}  // namespace quantgate
