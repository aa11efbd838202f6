// Bitwise comparison of two tensors of one dtype and shape.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// One element of both sides. Values are the exact decoded values; bits are zero-extended.
struct ElementPair {
  std::vector<int64_t> coordinate;
  double subject = 0;
  double reference = 0;
  uint64_t subject_bits = 0;
  uint64_t reference_bits = 0;
};

/// Classes of a value, rows and columns of the confusion matrix.
enum class ValueClass : int {
  kNegativeInfinity,
  kNegative,
  kNegativeZero,
  kPositiveZero,
  kPositive,
  kPositiveInfinity,
  kNan
};
inline constexpr int kValueClassCount = 7;
std::string_view ValueClassName(ValueClass value_class);

/// Signed distances in units in the last place of the tensor's own type, counted in buckets [lower,
/// upper]: 0, +-1, +-2, +-[3,4], +-[5,8], ... doubling. Positive: the subject is above. Pairs with
/// a NaN are not counted.
struct UlpBucket {
  int64_t lower = 0;
  int64_t upper = 0;
  int64_t count = 0;
};

struct ParityReport {
  bool equal = false;  ///< Every bit, the sign of zero and NaN payloads included.
  int64_t element_count = 0;
  int64_t mismatch_count = 0;
  /// Lowest index that differs; meaningful when mismatch_count > 0.
  ElementPair first;
  /// The largest ULP distance (a NaN against a number counts as larger than all), lowest index
  /// among equals.
  ElementPair worst;
  int64_t worst_ulp = 0;  ///< Magnitude, of `worst`; INT64_MAX (only) when one side is NaN.
  std::vector<UlpBucket> ulp_histogram;  ///< Non-empty buckets, ascending.
  /// confusion[subject class][reference class].
  std::array<std::array<int64_t, kValueClassCount>, kValueClassCount> class_confusion{};
};

/// INVALID_ARGUMENT when dtypes or shapes differ, or the dtype has no element value (f4_e2m1x2 and
/// integers are compared as unsigned codes: ULP distance is the difference of codes).
absl::StatusOr<ParityReport> CompareBits(const Tensor& subject, const Tensor& reference,
                                         const ExecutionContext& context);

}  // namespace quantgate
