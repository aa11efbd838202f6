// The bitwise comparison of two tensors of one dtype and shape.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// One element of both sides: its coordinate, the exact decoded values and the zero-extended bits.
struct ElementPair {
  std::vector<int64_t> coordinate;
  double subject = 0;
  double reference = 0;
  uint64_t subject_bits = 0;
  uint64_t reference_bits = 0;
};

/// The class of a value: rows and columns of the confusion matrix.
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

/// How many elements have a distance in [lower, upper], in units in the last place (ULP) of the
/// tensor's own type; positive where the subject is above the reference. Buckets are 0, +-1, +-2,
/// +-[3,4], +-[5,8], ..., doubling. Pairs with a NaN are not counted.
struct UlpBucket {
  int64_t lower = 0;
  int64_t upper = 0;
  int64_t count = 0;
};

struct ParityReport {
  bool equal = false;  ///< Whether all bits are equal, those of zeros' signs and NaN payloads too.
  int64_t element_count = 0;
  int64_t mismatch_count = 0;
  /// The element with the lowest index that differs; meaningful when mismatch_count > 0.
  ElementPair first;
  /// The differing element with the largest ULP distance, where a NaN against a number counts as
  /// larger than all; the lowest index among equals.
  ElementPair worst;
  /// The magnitude of worst's distance; INT64_MAX only for a NaN, INT64_MAX - 1 also for what is
  /// farther apart, as 64-bit numbers of unlike signs may be.
  int64_t worst_ulp = 0;
  std::vector<UlpBucket> ulp_histogram;  ///< Non-empty buckets, ascending.
  /// confusion[subject class][reference class].
  std::array<std::array<int64_t, kValueClassCount>, kValueClassCount> class_confusion{};
};

/// Compares the tensors bit by bit. f4_e2m1x2 and u8 are compared as unsigned codes, whose
/// ULP distance is the difference of the codes, other integers by their values. INVALID_ARGUMENT
/// when dtypes or shapes differ.
absl::StatusOr<ParityReport> CompareBits(const Tensor& subject, const Tensor& reference,
                                         const ExecutionContext& context);

}  // namespace quantgate
