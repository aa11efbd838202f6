// Stochastic rounding to E2M1: no bias, and no random byte used twice.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/oracles/quantize_checks.h"
#include "kernels/validate/scenarios/oracles/rounding_noise.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

absl::StatusOr<std::array<std::vector<float>, 2>> Draw(ScenarioContext& context,
                                                       const Tensor& source, uint32_t call_id) {
  const Quantizer& quantizer = context.recipe().QuantizerFor(TensorRole::kGradOutput);
  QG_ASSIGN_OR_RETURN(
      const QuantizedTensor quantized,
      QuantizeOn(context, source, quantizer, {true, true}, {.seed = 90, .call_id = call_id}));
  QG_ASSIGN_OR_RETURN(const QuantizedTensor on_host, CopiesOnHost(context.engine(), quantized));
  return std::array{NoiseCodes(*on_host.rowwise, Usage::kRowwise),
                    NoiseCodes(*on_host.columnwise, Usage::kColumnwise)};
}

// Every element is 2.5 units, half way between two codes: it rounds up with probability 1/2.
absl::Status CheckIndependence(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Tensor source, TensorOfUnits([](int64_t) { return 2.5f; }));
  QG_ASSIGN_OR_RETURN(const auto first, Draw(context, source, 0));
  QG_ASSIGN_OR_RETURN(const auto second, Draw(context, source, 1));
  ExpectIndependent(context, "rowwise and columnwise noise of an element", first[0], first[1],
                    SameElement);
  ExpectIndependent(context, "the i-th bytes of rowwise and columnwise noise", first[0], first[1],
                    [](int64_t row, int64_t column) { return SameElement(column, row); });
  ExpectIndependent(context, "two calls, rowwise", first[0], second[0], SameElement);
  ExpectIndependent(context, "two calls, columnwise", first[1], second[1], SameElement);
  return absl::OkStatus();
}

absl::Status CheckUnbiased(ScenarioContext& context) {
  constexpr uint32_t kCalls = 4;
  std::array<RungCounts, 2> counts;
  QG_ASSIGN_OR_RETURN(const Tensor source, counts[0].Source());
  for (uint32_t call = 0; call < kCalls; ++call) {
    QG_ASSIGN_OR_RETURN(const auto codes, Draw(context, source, call));
    for (size_t side = 0; side < 2; ++side) counts[side].Take(context, codes[side]);
  }
  counts[0].Expect(context, "rowwise");
  counts[1].Expect(context, "columnwise");
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
    // These tensors have one scale in all blocks: the transposed rowwise codes are those that the
    // same bytes give columnwise.
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

/// A kernel whose conversion is compiled for no instruction of this GPU gives what its result was
/// initialised with.
EngineAlterations ZerosForRandom() {
  return {.quantize = [](Engine& engine, QuantizeCall call) -> absl::StatusOr<QuantizedTensor> {
    QG_ASSIGN_OR_RETURN(QuantizedTensor quantized, call.On(engine));
    for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
      std::optional<QuantizedCopy>& copy = quantized.copy(usage);
      const ElementRounding rounding = call.quantizer.spec(usage).element_rounding;
      if (!copy.has_value() || rounding != ElementRounding::kStochastic) continue;
      QG_ASSIGN_OR_RETURN(copy->data, WithAlteredBytes(engine, copy->data, [](Tensor& codes) {
                            std::fill_n(codes.as<uint8_t>(), codes.byte_size(), uint8_t{0});
                          }));
    }
    return quantized;
  }};
}

/// Random numbers in (0, 1] in place of [0, 1): one byte in 256 too many rounds up.
EngineAlterations NumbersMoved() {
  return {.quantize = [](Engine& engine, QuantizeCall call) -> absl::StatusOr<QuantizedTensor> {
    QG_ASSIGN_OR_RETURN(call.source, WithAlteredBytes(engine, call.source, [](Tensor& source) {
                          for (int64_t i = 0; i < source.element_count(); ++i) {
                            const float value = ValueAt(source, i);
                            const float scaled = value / kNoiseUnit;
                            const float step = scaled >= 4 ? 2.0f : scaled >= 2 ? 1.0f : 0.5f;
                            if (scaled < 6) SetValue(source, i, value + kNoiseUnit * step / 256);
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
       .bug_classes = {23, 53},
       .faults = {"stochastic-rounding-to-nearest", "stochastic-rounding-off-by-one-byte",
                  "stochastic-rounding-to-zeros"},
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
      {"stochastic-rounding-to-zeros",
       "Gives zeros for what is rounded stochastically, as where the GPU has no such instruction.",
       53, &ZerosForRandom},
      {"stochastic-rounding-off-by-one-byte", "Draws from (0, 1] in place of [0, 1).", 23,
       &NumbersMoved},
  };
  return group;
}

}  // namespace quantgate
