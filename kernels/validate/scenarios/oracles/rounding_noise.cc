#include "kernels/validate/scenarios/oracles/rounding_noise.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/numerics/cast.h"

namespace quantgate {
namespace {

// Markers: along rows and columns every 16th element is 6 units, so that the scale of each block is
// 256. Element 0 is the amax of the tensor, 2688, under which the tensor's own scale is 1;
// IsLookedAt leaves out the blocks that it is in.
bool IsMarker(int64_t row, int64_t column) { return (row + column) % 16 == 0; }

}  // namespace

bool IsLookedAt(int64_t row, int64_t column) {
  return row >= 16 && column >= 16 && !IsMarker(row, column);
}

absl::StatusOr<Tensor> TensorOfUnits(absl::FunctionRef<float(int64_t row)> value_of) {
  QG_ASSIGN_OR_RETURN(Tensor source, Tensor::Allocate(DType::kF32, {kNoiseSize, kNoiseSize}));
  for (int64_t i = 0; i < source.element_count(); ++i) {
    const int64_t row = i / kNoiseSize, column = i % kNoiseSize;
    source.as<float>()[i] = kNoiseUnit * (IsMarker(row, column) ? 6.0f : value_of(row));
  }
  source.as<float>()[0] = 2688.0f;
  return source;
}

std::vector<float> NoiseCodes(const QuantizedCopy& copy, Usage usage) {
  std::vector<float> codes(kNoiseSize * kNoiseSize);
  for (int64_t line = 0; line < kNoiseSize; ++line) {
    for (int64_t i = 0; i < kNoiseSize; ++i) {
      const uint8_t pair = copy.data.as<uint8_t>()[(line * kNoiseSize + i) / 2];
      const float value = DecodeFloat<E2M1>(i % 2 == 0 ? pair & 0xF : pair >> 4);
      codes[usage == Usage::kRowwise ? line * kNoiseSize + i : i * kNoiseSize + line] = value;
    }
  }
  return codes;
}

int64_t SameElement(int64_t row, int64_t column) { return row * kNoiseSize + column; }

void ExpectIndependent(ScenarioContext& context, const std::string& pair,
                       const std::vector<float>& a, const std::vector<float>& b,
                       absl::FunctionRef<int64_t(int64_t row, int64_t column)> partner) {
  int64_t count = 0, agreements = 0;
  for (int64_t row = 0; row < kNoiseSize; ++row) {
    for (int64_t column = 0; column < kNoiseSize; ++column) {
      const int64_t of_b = partner(row, column);
      if (of_b < 0 || !IsLookedAt(row, column)) continue;
      agreements += (a[SameElement(row, column)] > 2.5f) == (b[of_b] > 2.5f);
      ++count;
    }
  }
  const double deviation = std::sqrt(static_cast<double>(count)) / 2;
  const double excess = std::abs(static_cast<double>(agreements) - count / 2.0);
  context.Expect(excess <= 6 * deviation, absl::StrCat("agreements of ", pair),
                 absl::StrCat(agreements, " of ", count),
                 absl::StrCat(count / 2, " within ", 6 * deviation));
}

/// The fraction of the 256 bytes r with r / 256 >= (512 - odd) / 512.
double RungCounts::Rung::probability_up() const {
  return odd == 0 ? 0 : (256 - (512 - odd + 1) / 2) / 256.0;
}

RungCounts::RungCounts() {
  static constexpr float kNumbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int i = 0; i + 1 < 8; ++i) {
    for (const int odd : {65, 257, 461}) rungs_.push_back({kNumbers[i], kNumbers[i + 1], odd});
  }
  // Values that are codes must not round.
  for (int i = 0; i + 1 < 8; ++i) rungs_.push_back({kNumbers[i], kNumbers[i + 1], 0});
}

absl::StatusOr<Tensor> RungCounts::Source() const {
  return TensorOfUnits([&](int64_t row) { return rungs_[RungOf(row)].value(); });
}

void RungCounts::Take(ScenarioContext& context, const std::vector<float>& codes) {
  for (int64_t i = 0; i < kNoiseSize * kNoiseSize; ++i) {
    if (!IsLookedAt(i / kNoiseSize, i % kNoiseSize)) continue;
    Rung& rung = rungs_[RungOf(i / kNoiseSize)];
    const float code = codes[i];
    if (code != rung.low && code != rung.high) {
      context.Expect(false, absl::StrCat("code of ", rung.value()), absl::StrCat(code),
                     absl::StrCat(rung.low, " or ", rung.high));
    }
    rung.ups += code == rung.high;
    ++rung.count;
  }
}

void RungCounts::Expect(ScenarioContext& context, const std::string& what) const {
  for (const Rung& rung : rungs_) {
    const double n = static_cast<double>(rung.count), p = rung.probability_up();
    const double bound = 6 * std::sqrt(n * p * (1 - p));
    context.Expect(std::abs(static_cast<double>(rung.ups) - n * p) <= bound,
                   absl::StrCat(what, " roundings up of ", rung.value()),
                   absl::StrCat(rung.ups, " of ", n), absl::StrCat(n * p, " within ", bound));
  }
}

}  // namespace quantgate
