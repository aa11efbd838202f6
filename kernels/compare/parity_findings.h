// The counts of a bitwise comparison before they become a report, equal on every engine.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include "kernels/base/host_device.h"

namespace quantgate {

/// The number of classes of values (ValueClass).
inline constexpr int kClassCount = 7;

/// Buckets of ULP distances: 0 holds distance 0, and i >= 1 holds [2^(i-2) + 1, 2^(i-1)]. There is
/// one set for subjects above the reference and one for those below.
inline constexpr int kBucketCount = 65;
/// Bucket i of subjects above lies at kEqualBucket + i, of those below at kEqualBucket - i.
inline constexpr int kEqualBucket = kBucketCount - 1;
inline constexpr int kAllBuckets = 2 * kBucketCount - 1;

/// The distance of a NaN from a number: larger than every distance between numbers, which is
/// clamped below it.
inline constexpr uint64_t kNanDistance = std::numeric_limits<int64_t>::max();

/// What a bitwise comparison counts. Indices are -1 where nothing differs.
struct ParityFindings {
  int64_t mismatch_count = 0;
  int64_t first = -1;
  int64_t worst = -1;
  uint64_t worst_distance = 0;
  std::array<int64_t, kAllBuckets> buckets{};
  std::array<std::array<int64_t, kClassCount>, kClassCount> confusion{};
};

/// The bucket of a distance, without its side: 1 plus the bit length of distance - 1. Uses the
/// builtin, since nvcc 13.0 miscompiles libstdc++'s count of leading zeros (numerics/fused_step.h).
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
