// Stochastic rounding to E2M1 as coin tosses: tensors whose blocks all have one scale, and checks
// of the numbers of roundings up. The bounds are six standard deviations of a binomial count: one
// run in 5e8 of a fair generator would exceed them, and the draws are the same in every run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/validate/scenarios/scenario_context.h"

namespace quantgate {

/// Rows and columns of the tensors.
inline constexpr int64_t kNoiseSize = 256;
/// The scaled value is the source's divided by this.
inline constexpr float kNoiseUnit = 256.0f;

/// An f32 tensor whose blocks all have the scale 256. Every element that is looked at is
/// value_of(row) units; the others set the scale.
absl::StatusOr<Tensor> TensorOfUnits(absl::FunctionRef<float(int64_t row)> value_of);
bool IsLookedAt(int64_t row, int64_t column);

/// Decoded codes of a copy by (row, column) of the source.
std::vector<float> NoiseCodes(const QuantizedCopy& copy, Usage usage);

/// Expects half of the pairs a[row][column] and b[partner(row, column)] to be rounded the same way,
/// within the bound; otherwise the two draws share random bytes. All elements are 2.5 units, half
/// way between codes. A negative partner means that there is none.
void ExpectIndependent(ScenarioContext& context, const std::string& pair,
                       const std::vector<float>& a, const std::vector<float>& b,
                       absl::FunctionRef<int64_t(int64_t row, int64_t column)> partner);
int64_t SameElement(int64_t row, int64_t column);

/// Counts roundings up between every two neighbouring codes, at several distances from them.
class RungCounts {
 public:
  RungCounts();
  /// A tensor whose rows cycle through all the distances.
  absl::StatusOr<Tensor> Source() const;
  /// Adds the codes of one draw of that tensor.
  void Take(ScenarioContext& context, const std::vector<float>& codes);
  /// Expects every count to be within the bound of its binomial, and values that are codes to stay.
  /// `what` names the codes in the report: "rowwise".
  void Expect(ScenarioContext& context, const std::string& what) const;

 private:
  /// A value `odd` / 512 of the way between two neighbouring codes. Odd numerators keep it off the
  /// edges between two of the 256 random bytes; 0 makes it the lower code itself.
  struct Rung {
    float low, high;
    int odd;
    int64_t ups = 0, count = 0;

    float value() const { return low + (high - low) * static_cast<float>(odd) / 512.0f; }
    double probability_up() const;
  };
  size_t RungOf(int64_t row) const { return static_cast<size_t>(row) % rungs_.size(); }

  std::vector<Rung> rungs_;
};

}  // namespace quantgate
