// Stochastic rounding to E2M1 as throws of coins: tensors whose blocks all have one scale, and what
// counts of roundings must be. The bounds are six standard deviations of a binomial count: one run
// in 5e8 of a fair generator would leave them, and the draws are the same in every run.
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

/// f32, under a block scale of 256 everywhere: an element that is looked at is value_of(row) units.
absl::StatusOr<Tensor> TensorOfUnits(absl::FunctionRef<float(int64_t row)> value_of);
bool IsLookedAt(int64_t row, int64_t column);

/// Decoded codes of a copy by (row, column) of the source.
std::vector<float> NoiseCodes(const QuantizedCopy& copy, Usage usage);

/// All elements are 2.5 units, half way between codes: how often two draws agree. That is half of
/// the pairs of a[row][column] and b[partner(row, column)], or they share random bytes. A negative
/// partner: none.
void ExpectIndependent(ScenarioContext& context, const std::string& pair,
                       const std::vector<float>& a, const std::vector<float>& b,
                       absl::FunctionRef<int64_t(int64_t row, int64_t column)> partner);
int64_t SameElement(int64_t row, int64_t column);

/// Counts of roundings up between every two neighbouring codes, at several distances.
class RungCounts {
 public:
  RungCounts();
  /// A tensor whose rows go through all the distances.
  absl::StatusOr<Tensor> Source() const;
  /// A draw of it.
  void Take(ScenarioContext& context, const std::vector<float>& codes);
  /// Each is the binomial's; of numbers that are codes none moves. `what`: "rowwise".
  void Expect(ScenarioContext& context, const std::string& what) const;

 private:
  /// Between two neighbouring codes, `odd` / 512 of the way: never at an edge of the 256 bytes.
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
