// Stochastic rounding to E2M1: no bias, and no random byte used twice. The bounds are six standard
// deviations of a binomial count: one run in 5e8 of a fair generator would leave them, and the
// draws are the same in every run.
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/numerics/cast.h"
#include "kernels/validate/scenarios/expected_copy.h"
#include "kernels/validate/scenarios/quantize_checks.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

constexpr int64_t kSize = 256;
constexpr float kUnit = 256.0f;  // The scaled value is the source's divided by this.

// One element of every 16 in rows and in columns is 6 units, so that each block's scale is 256; the
// first has the tensor's amax, 2688, under which the tensor's own scale is 1. Its blocks are not
// looked at.
bool IsMarker(int64_t row, int64_t column) { return (row + column) % 16 == 0; }
bool IsLookedAt(int64_t row, int64_t column) {
  return row >= 16 && column >= 16 && !IsMarker(row, column);
}

/// A tensor whose other elements are value_of(row) units.
template <class ValueOf>
absl::StatusOr<Tensor> TensorOfUnits(ValueOf value_of) {
  QG_ASSIGN_OR_RETURN(Tensor source, Tensor::Allocate(DType::kF32, {kSize, kSize}));
  for (int64_t i = 0; i < source.element_count(); ++i) {
    const int64_t row = i / kSize, column = i % kSize;
    source.as<float>()[i] = kUnit * (IsMarker(row, column) ? 6.0f : value_of(row));
  }
  source.as<float>()[0] = 2688.0f;
  return source;
}

/// Decoded codes of a copy by (row, column) of the source.
std::vector<float> CodesOf(const QuantizedCopy& copy, Usage usage) {
  std::vector<float> codes(kSize * kSize);
  for (int64_t line = 0; line < kSize; ++line) {
    for (int64_t i = 0; i < kSize; ++i) {
      const uint8_t pair = copy.data.as<uint8_t>()[(line * kSize + i) / 2];
      const float value = DecodeFloat<E2M1>(i % 2 == 0 ? pair & 0xF : pair >> 4);
      codes[usage == Usage::kRowwise ? line * kSize + i : i * kSize + line] = value;
    }
  }
  return codes;
}

absl::StatusOr<std::array<std::vector<float>, 2>> Draw(ScenarioContext& context,
                                                       const Tensor& source, uint32_t call_id) {
  const Quantizer& quantizer = context.recipe().QuantizerFor(TensorRole::kGradOutput);
  QG_ASSIGN_OR_RETURN(
      const QuantizedTensor quantized,
      QuantizeOn(context, source, quantizer, {true, true}, {.seed = 90, .call_id = call_id}));
  QG_ASSIGN_OR_RETURN(const QuantizedTensor on_host, CopiesOnHost(context, quantized));
  return std::array{CodesOf(*on_host.rowwise, Usage::kRowwise),
                    CodesOf(*on_host.columnwise, Usage::kColumnwise)};
}

/// Counts how often two draws of fair coins agree; far from half is a shared random byte.
void ExpectIndependent(ScenarioContext& context, const std::string& pair,
                       const std::vector<float>& a, const std::vector<float>& b,
                       bool transposes_b) {
  int64_t count = 0, agreements = 0;
  for (int64_t row = 0; row < kSize; ++row) {
    for (int64_t column = 0; column < kSize; ++column) {
      if (!IsLookedAt(row, column)) continue;
      const int64_t of_b = transposes_b ? column * kSize + row : row * kSize + column;
      agreements += (a[row * kSize + column] > 2.5f) == (b[of_b] > 2.5f);
      ++count;
    }
  }
  const double deviation = std::sqrt(static_cast<double>(count)) / 2;
  const double excess = std::abs(static_cast<double>(agreements) - count / 2.0);
  context.Expect(excess <= 6 * deviation, absl::StrCat("agreements of ", pair),
                 absl::StrCat(agreements, " of ", count),
                 absl::StrCat(count / 2, " within ", 6 * deviation));
}

// Every element is 2.5 units: up or down with probability one half.
absl::Status CheckIndependence(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Tensor source, TensorOfUnits([](int64_t) { return 2.5f; }));
  QG_ASSIGN_OR_RETURN(const auto first, Draw(context, source, 0));
  QG_ASSIGN_OR_RETURN(const auto second, Draw(context, source, 1));
  ExpectIndependent(context, "rowwise and columnwise noise of an element", first[0], first[1],
                    false);
  ExpectIndependent(context, "the i-th bytes of rowwise and columnwise noise", first[0], first[1],
                    true);
  ExpectIndependent(context, "two calls, rowwise", first[0], second[0], false);
  ExpectIndependent(context, "two calls, columnwise", first[1], second[1], false);
  return absl::OkStatus();
}

/// Between two neighbouring codes, `odd` / 512 of the way: never at an edge of the 256 bytes.
struct Rung {
  float low, high;
  int odd;
  float value() const { return low + (high - low) * static_cast<float>(odd) / 512.0f; }
  /// Bytes r with r / 256 >= (512 - odd) / 512 of 256.
  double probability_up() const { return (256 - (512 - odd + 1) / 2) / 256.0; }
};

std::vector<Rung> Rungs() {
  static constexpr float kNumbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  std::vector<Rung> rungs;
  for (int i = 0; i + 1 < 8; ++i) {
    for (const int odd : {65, 257, 461}) rungs.push_back({kNumbers[i], kNumbers[i + 1], odd});
  }
  // The numbers themselves stay where they are.
  for (int i = 0; i + 1 < 8; ++i) rungs.push_back({kNumbers[i], kNumbers[i + 1], 0});
  return rungs;
}

absl::Status CheckUnbiased(ScenarioContext& context) {
  constexpr uint32_t kCalls = 4;
  const std::vector<Rung> rungs = Rungs();
  const auto rung_of = [&](int64_t row) -> size_t { return row % rungs.size(); };
  QG_ASSIGN_OR_RETURN(const Tensor source,
                      TensorOfUnits([&](int64_t row) { return rungs[rung_of(row)].value(); }));
  std::array<std::vector<int64_t>, 2> ups, counts;
  for (int side = 0; side < 2; ++side) {
    ups[side].resize(rungs.size());
    counts[side].resize(rungs.size());
  }
  for (uint32_t call = 0; call < kCalls; ++call) {
    QG_ASSIGN_OR_RETURN(const auto codes, Draw(context, source, call));
    for (int side = 0; side < 2; ++side) {
      for (int64_t i = 0; i < kSize * kSize; ++i) {
        if (!IsLookedAt(i / kSize, i % kSize)) continue;
        const size_t rung = rung_of(i / kSize);
        const float code = codes[side][i];
        if (code != rungs[rung].low && code != rungs[rung].high) {
          context.Expect(false, absl::StrCat("code of ", rungs[rung].value()), absl::StrCat(code),
                         absl::StrCat(rungs[rung].low, " or ", rungs[rung].high));
        }
        ups[side][rung] += code == rungs[rung].high;
        ++counts[side][rung];
      }
    }
  }
  for (int side = 0; side < 2; ++side) {
    for (size_t i = 0; i < rungs.size(); ++i) {
      const double n = static_cast<double>(counts[side][i]);
      const double p = rungs[i].odd == 0 ? 0 : rungs[i].probability_up();
      const double bound = 6 * std::sqrt(n * p * (1 - p));
      context.Expect(
          std::abs(static_cast<double>(ups[side][i]) - n * p) <= bound,
          absl::StrCat(side == 0 ? "rowwise" : "columnwise", " roundings up of ", rungs[i].value()),
          absl::StrCat(ups[side][i], " of ", n), absl::StrCat(n * p, " within ", bound));
    }
  }
  return absl::OkStatus();
}

/// The columnwise kernel begins with the random state that the rowwise one began with.
EngineAlterations SharedByDirections() {
  return {.quantize = [](Engine& engine, QuantizeCall call) -> absl::StatusOr<QuantizedTensor> {
    QG_ASSIGN_OR_RETURN(QuantizedTensor quantized, call.On(engine));
    if (!call.usages.rowwise || !call.usages.columnwise) return quantized;
    QG_ASSIGN_OR_RETURN(const Tensor source, engine.ToHost(call.source, nullptr));
    QG_ASSIGN_OR_RETURN(call.source, Transposed(source));
    call.usages = {true, false};
    QG_ASSIGN_OR_RETURN(const QuantizedTensor turned, call.On(engine));
    quantized.columnwise->data = turned.rowwise->data;
    return quantized;
  }};
}

/// Each element takes the byte in columnwise codes that it took in rowwise ones.
EngineAlterations SharedByElement() {
  return {.quantize = [](Engine& engine, QuantizeCall call) -> absl::StatusOr<QuantizedTensor> {
    QG_ASSIGN_OR_RETURN(QuantizedTensor quantized, call.On(engine));
    if (!call.usages.rowwise || !call.usages.columnwise) return quantized;
    // The codes are the same where the scales are, as in these tensors.
    QuantizedTensor rowwise = quantized;
    rowwise.columnwise.reset();
    rowwise.is_hybrid = false;
    rowwise.rowwise->block_dim = 2;
    QG_RETURN_IF_ERROR(engine.UpdateUsages(rowwise, {true, true}, nullptr));
    quantized.columnwise->data = rowwise.columnwise->data;
    return quantized;
  }};
}

EngineAlterations SharedByCalls() {
  return {.quantize = [](Engine& engine, QuantizeCall call) {
    call.arguments.call_id = 0;
    return call.On(engine);
  }};
}

EngineAlterations ToNearest() {
  return {.quantize = [](Engine& engine, QuantizeCall call) {
    call.quantizer.rowwise.element_rounding = ElementRounding::kNearestEven;
    call.quantizer.columnwise.element_rounding = ElementRounding::kNearestEven;
    return call.On(engine);
  }};
}

/// Random numbers in (0, 1] in place of [0, 1): one byte in 256 too many rounds up.
EngineAlterations NumbersMoved() {
  return {.quantize = [](Engine& engine, QuantizeCall call) -> absl::StatusOr<QuantizedTensor> {
    QG_ASSIGN_OR_RETURN(call.source, WithAlteredBytes(engine, call.source, [](Tensor& source) {
                          for (int64_t i = 0; i < source.element_count(); ++i) {
                            const float value = ValueAt(source, i);
                            const float scaled = value / kUnit;
                            const float step = scaled >= 4 ? 2.0f : scaled >= 2 ? 1.0f : 0.5f;
                            if (scaled < 6) SetValue(source, i, value + kUnit * step / 256);
                          }
                        }));
    return call.On(engine);
  }};
}

}  // namespace

ScenarioGroup RandomScenarios() {
  ScenarioGroup group;
  group.scenarios.push_back(
      {.name = "rounding-noise-independent",
       .invariant = "Rounding noise of the two directions, and of two calls, is independent.",
       .criterion = "Elements half way between codes: roundings agree in half of the pairs, within "
                    "six standard deviations, compared by element and by position in memory.",
       .bug_classes = {22},
       .faults = {"random-bytes-shared-by-directions", "random-bytes-shared-by-element",
                  "random-bytes-shared-by-calls"},
       .recipes = {"nvfp4:disable_rht=true"},
       .run = &CheckIndependence});
  group.scenarios.push_back(
      {.name = "stochastic-rounding-unbiased",
       .invariant = "An element rounds up with the probability of its distance in 256ths, a code's "
                    "own number never moves.",
       .criterion = "Counts in every interval between codes within six standard deviations of the "
                    "binomial; exact for numbers that are codes.",
       .bug_classes = {23},
       .faults = {"stochastic-rounding-to-nearest", "stochastic-rounding-off-by-one-byte"},
       .recipes = {"nvfp4:disable_rht=true"},
       .run = &CheckUnbiased});
  group.faults = {
      {"random-bytes-shared-by-directions",
       "Starts the columnwise kernel with the random state of the rowwise one.", 22,
       &SharedByDirections},
      {"random-bytes-shared-by-element", "Rounds an element by the same byte in both directions.",
       22, &SharedByElement},
      {"random-bytes-shared-by-calls", "Does not advance the random state between calls.", 22,
       &SharedByCalls},
      {"stochastic-rounding-to-nearest", "Rounds gradients to nearest.", 23, &ToNearest},
      {"stochastic-rounding-off-by-one-byte", "Draws from (0, 1] in place of [0, 1).", 23,
       &NumbersMoved},
  };
  return group;
}

}  // namespace quantgate
