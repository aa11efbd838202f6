// What a bitwise comparison counts, before it is a report: the same on every engine.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include "kernels/base/host_device.h"

namespace quantgate {

/// Classes of values (ValueClass).
inline constexpr int kClassCount = 7;

/// Bucket 0 for distance 0; i >= 1 for [2^(i-2) + 1, 2^(i-1)], one set above and one below.
inline constexpr int kBucketCount = 65;
/// Bucket i above lies at kEqualBucket + i, below at kEqualBucket - i.
inline constexpr int kEqualBucket = kBucketCount - 1;
inline constexpr int kAllBuckets = 2 * kBucketCount - 1;

/// Larger than every distance between numbers, which is clamped below it.
inline constexpr uint64_t kNanDistance = std::numeric_limits<int64_t>::max();

/// Indices are -1 where nothing differs.
struct ParityFindings {
  int64_t mismatch_count = 0;
  int64_t first = -1;
  int64_t worst = -1;
  uint64_t worst_distance = 0;
  std::array<int64_t, kAllBuckets> buckets{};
  std::array<std::array<int64_t, kClassCount>, kClassCount> confusion{};
};

/// The number of the bucket of a distance, without its side: 1 and the bits of distance - 1.
/// Counted by the builtin, since nvcc 13.0 miscompiles libstdc++'s count (numerics/fused_step.h).
QG_HOST_DEVICE constexpr int BucketOf(uint64_t distance) {
  if (distance <= 1) return static_cast<int>(distance);
  return 1 + 64 - __builtin_clzll(distance - 1);
}

struct ElementPair;
struct ParityReport;

/// The report (parity_report.h) of what was counted; the definition is in parity_report.cc. `first`
/// and `worst` are the elements at the indices that `findings` names; empty where nothing differs.
ParityReport ParityReportOf(const ParityFindings& findings, int64_t element_count,
                            ElementPair first, ElementPair worst);

}  // namespace quantgate
