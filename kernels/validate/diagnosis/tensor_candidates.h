// What two tensors alone, and others that they may have been mistaken for, suggest as the cause of
// their difference: predictions of the subject, by families (docs/reports.md section 10.1).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/validate/diagnosis/fit.h"
#include "kernels/validate/diagnosis/tensor_hypotheses.h"

namespace quantgate {

/// A prediction of the subject and what it means. Its values are computed when they are asked for:
/// most predictions are refuted by a few of them.
struct Candidate {
  std::string predicate;
  /// The predicted value of an element, before it is rounded to the subject's dtype.
  std::function<float(int64_t index)> at;
  std::optional<DType> through = {};  ///< A dtype that it is rounded to before.
  std::vector<std::string> figures = {};
  std::vector<int64_t> row_order = {};
  /// Whether the predicate says no more than what the subject's values are: "is 0 everywhere".
  bool needs_no_evidence = false;
};
using CandidateTaker = std::function<absl::Status(Candidate)>;

/// The number of places in each list of DifferingPlaces of a large difference.
inline constexpr int64_t kScreenedPlaces = 2048;

/// Where two tensors of one size differ: some of the places, spread over all, and the places of the
/// largest differences of equally many neighbours each. All places where there are few.
struct DifferingPlaces {
  std::vector<int64_t> spread, largest;
};
/// `changed`: the number of elements that differ.
DifferingPlaces PlacesOf(const Values& expected, const Values& subject, int64_t changed);

struct Pair {
  const TensorCase& of;
  const Values &expected, &subject;
  const DifferingPlaces& places;
  std::function<bool()> is_time_spent;
};

/// A named family of hypotheses. `candidates` gives each to `take`; what they refer to is the
/// pair's.
struct Family {
  const char* name;
  absl::Status (*candidates)(const Pair& pair, const CandidateTaker& take);
  /// Whether it has so many parameters that it only counts where no other family gives the bits.
  bool is_last_resort = false;
};

/// From the most certain: what fewer parameters of the data decide comes first.
const std::vector<Family>& Families();

/// The elements of the transpose, in its order. Refers to `values`.
std::function<float(int64_t)> TransposedOf(const Values& values);

}  // namespace quantgate
