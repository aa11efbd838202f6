// The vector loop of MeasureError, compiled once per instruction set. As in gemm/exact_kernels.h,
// nothing here brings inline functions along.
#pragma once

#include <cstdint>

namespace quantgate {

/// Elements per call: a power of two, so that a call is one whole subtree of the pairwise sum.
inline constexpr int kErrorStretch = 256;

/// Series that are summed over the elements where both sides are finite; kRelative only where the
/// reference is not 0.
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

struct StretchErrors {
  double sums[kErrorSeriesCount];  ///< Pairwise; -0.0 stands for elements that are left out.
  double max_abs, max_rel;         ///< -1: no element counts.
  int64_t finite_count, relative_count;
  int64_t saturated_count, flushed_to_zero_count, subnormal_count;
};

/// One stretch of fp64 values. NaN on both sides pads a short one.
using MeasureStretch = void (*)(const double* subject, const double* reference,
                                const SubjectRange& range, StretchErrors& errors);

void MeasureStretchScalar(const double* subject, const double* reference, const SubjectRange& range,
                          StretchErrors& errors);
void MeasureStretchAvx2(const double* subject, const double* reference, const SubjectRange& range,
                        StretchErrors& errors);
void MeasureStretchAvx512(const double* subject, const double* reference, const SubjectRange& range,
                          StretchErrors& errors);

}  // namespace quantgate
