// What holds for the quantizer of every recipe.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/oracles/quantize_checks.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

constexpr TensorRole kRoles[] = {TensorRole::kInput, TensorRole::kWeight, TensorRole::kGradOutput};

/// Arguments of a quantization. Under delayed scaling they have a scale that no amax of these
/// tensors gives.
absl::StatusOr<QuantizeArguments> ArgumentsFor(const Quantizer& quantizer, uint32_t call_id) {
  QuantizeArguments arguments{.seed = 5, .call_id = call_id};
  if (quantizer.rowwise.scaling == Scaling::kDelayed) {
    QG_ASSIGN_OR_RETURN(arguments.scale, Tensor::FromScalar(37.0f));
  }
  return arguments;
}

absl::Status CheckCodes(ScenarioContext& context) {
  for (const Distribution distribution :
       {Distribution::kNormal, Distribution::kLogNormalOutliers, Distribution::kSpecialsLaced}) {
    for (const TensorRole role : kRoles) {
      const Quantizer& quantizer = context.recipe().QuantizerFor(role);
      QG_ASSIGN_OR_RETURN(const Tensor source,
                          context.Generate(distribution, 11, DType::kBF16, {64, 160}));
      QG_ASSIGN_OR_RETURN(const QuantizeArguments arguments,
                          ArgumentsFor(quantizer, static_cast<uint32_t>(role)));
      const std::string name = absl::StrCat(std::string(TensorRoleName(role)), " ",
                                            std::string(DistributionName(distribution)));
      QG_RETURN_IF_ERROR(
          ExpectQuantizesAsSpecified(context, name, source, quantizer, {true, true}, arguments));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOneDirection(ScenarioContext& context) {
  for (const TensorRole role : kRoles) {
    const Quantizer& quantizer = context.recipe().QuantizerFor(role);
    QG_ASSIGN_OR_RETURN(const QuantizeArguments arguments, ArgumentsFor(quantizer, 3));
    QG_ASSIGN_OR_RETURN(const Tensor source, context.Generate(Distribution::kLogNormalOutliers, 7,
                                                              DType::kBF16, {128, 64}));
    QG_ASSIGN_OR_RETURN(const QuantizedTensor both,
                        QuantizeOn(context, source, quantizer, {true, true}, arguments));
    QG_ASSIGN_OR_RETURN(const QuantizedTensor expected, CopiesOnHost(context.engine(), both));
    for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
      const bool is_rowwise = usage == Usage::kRowwise;
      QG_ASSIGN_OR_RETURN(
          const QuantizedTensor alone,
          QuantizeOn(context, source, quantizer, {is_rowwise, !is_rowwise}, arguments));
      const std::string name = absl::StrCat(std::string(TensorRoleName(role)), " ",
                                            std::string(UsageName(usage)), " alone");
      QG_RETURN_IF_ERROR(context.ExpectSameCopy(name, alone.copy(usage), expected.copy(usage)));
    }
  }
  return absl::OkStatus();
}

// Several tensors are quantized before any of them is read, as with microbatches in flight.
absl::Status CheckScalesStay(ScenarioContext& context) {
  constexpr int kTensors = 3;
  const Quantizer& quantizer = context.recipe().QuantizerFor(TensorRole::kInput);
  Tensor sources[kTensors];
  QuantizedTensor quantized[kTensors];
  for (int i = 0; i < kTensors; ++i) {
    QG_ASSIGN_OR_RETURN(sources[i], context.Generate(Distribution::kNormal, 40 + i, DType::kBF16,
                                                     {64, 128}, i == 1 ? 64.0f : 0.5f));
    QG_ASSIGN_OR_RETURN(quantized[i], QuantizeOn(context, sources[i], quantizer, {true, true}));
  }
  for (int i = 0; i < kTensors; ++i) {
    context.SetStep(i);
    QG_ASSIGN_OR_RETURN(const QuantizedTensor expected,
                        ExpectedQuantization(sources[i], quantizer, {true, true}));
    QG_RETURN_IF_ERROR(ExpectSameQuantization(context, "microbatch", quantized[i], expected));
    QG_RETURN_IF_ERROR(ExpectDequantizesAsSpecified(context, "microbatch", quantized[i],
                                                    Usage::kRowwise, DType::kBF16));
  }
  return absl::OkStatus();
}

/// Gives every later tensor the first scale_inv that was made, if it has the same shape.
EngineAlterations StaleScaleInverse() {
  auto first = std::make_shared<Tensor>();
  return {
      .quantize = [first](Engine& engine, QuantizeCall call) -> absl::StatusOr<QuantizedTensor> {
        QG_ASSIGN_OR_RETURN(QuantizedTensor quantized, call.On(engine));
        if (!quantized.rowwise.has_value()) return quantized;
        if (!first->has_value()) *first = quantized.rowwise->scale_inv;
        if (first->shape() == quantized.rowwise->scale_inv.shape()) {
          quantized.rowwise->scale_inv = *first;
        }
        return quantized;
      }};
}

/// Writes the scales of each tensor over those of the tensor before, as in a shared buffer.
EngineAlterations SharedScaleBuffer() {
  auto last = std::make_shared<Tensor>();
  return {.quantize = [last](Engine& engine, QuantizeCall call) -> absl::StatusOr<QuantizedTensor> {
    QG_ASSIGN_OR_RETURN(QuantizedTensor quantized, call.On(engine));
    if (!quantized.rowwise.has_value()) return quantized;
    const Tensor& scales = quantized.rowwise->scale_inv;
    if (last->has_value() && last->byte_size() == scales.byte_size()) {
      QG_ASSIGN_OR_RETURN(const Tensor on_host, engine.ToHost(scales, nullptr));
      QG_RETURN_IF_ERROR(engine.Write(on_host.bytes(), *last, 0));
    }
    *last = scales;
    return quantized;
  }};
}

EngineAlterations ColumnwiseFromCodes() {
  return {.quantize = [](Engine& engine, QuantizeCall call) {
    if (call.usages.rowwise && call.usages.columnwise) {
      call.quantizer.columnwise_source = ColumnwiseSource::kRowwiseDequantized;
      // A rule of its own needs a delayed scale of its own.
      call.arguments.columnwise_scale = call.arguments.scale;
    }
    return call.On(engine);
  }};
}

EngineAlterations ReciprocalScale() {
  return {.quantize = [](Engine& engine, QuantizeCall call) {
    for (QuantizerSpec* spec : {&call.quantizer.rowwise, &call.quantizer.columnwise}) {
      const ScaleKind scales = spec->traits().scales;
      if (scales == ScaleKind::kTensor || scales == ScaleKind::kF32 || scales == ScaleKind::kLine) {
        spec->scale_rule = ScaleRule::kReciprocal;
      }
    }
    return call.On(engine);
  }};
}

EngineAlterations RoundHalfAway() {
  return {.quantize = [](Engine& engine, QuantizeCall call) {
    for (QuantizerSpec* spec : {&call.quantizer.rowwise, &call.quantizer.columnwise}) {
      if (spec->is_quantized()) spec->element_rounding = ElementRounding::kNearestAway;
    }
    return call.On(engine);
  }};
}

}  // namespace

ScenarioGroup QuantizerScenarios() {
  ScenarioGroup group;
  group.scenarios.push_back(
      {.name = "codes-follow-specification",
       .invariant = "Codes, scales and amaxes of every role are those of the recipe's formulas.",
       .criterion = "Bit-equal to a recomputation by scalar functions, element by element.",
       .faults = {"scale-by-reciprocal", "ties-away-from-zero"},
       .recipes = {"fp8_current", "fp8_current:power_2_scales=true", "fp8_delayed", "fp8_block",
                   "mxfp8", "mxfp8:enable_2d_quantization=true", "mxfp6_e2m3", "mxfp6_e3m2",
                   "mxfp4", "mxfp4:enable_2d_quantization=true", "nvfp4",
                   "nvfp4:disable_2d_quantization=true,disable_rht=true",
                   "nvfp4:disable_rht=true,nvfp4_4over6=all",
                   "hybrid:fprop=mxfp8,dgrad=nvfp4,wgrad=fp8_block", "fp8_rowwise",
                   "fp8_rowwise:power_2_scales=true,amax_epsilon=0.125"},
       .run = &CheckCodes});
  group.scenarios.push_back(
      {.name = "one-direction-equals-both",
       .invariant = "Asking for one direction gives the bytes that asking for both gives.",
       .criterion = "Bit-equal copies.",
       .bug_classes = {2},
       .faults = {"columnwise-from-rowwise-codes"},
       .recipes = {"fp8_current", "fp8_delayed", "fp8_block", "mxfp8", "mxfp4", "nvfp4",
                   "hybrid:fprop=mxfp8,dgrad=nvfp4,wgrad=fp8_block", "fp8_rowwise"},
       .run = &CheckOneDirection});
  group.scenarios.push_back(
      {.name = "scale-belongs-to-its-tensor",
       .invariant = "A quantized tensor keeps its own scales when others are quantized after it.",
       .criterion = "Copies bit-equal to a recomputation after three quantizations; dequantized "
                    "values those of the codes and scales.",
       .bug_classes = {4},
       .faults = {"stale-scale-inv", "scale-inv-in-shared-buffer"},
       .recipes = {"fp8_current", "fp8_block", "mxfp8", "nvfp4", "fp8_rowwise"},
       .run = &CheckScalesStay});
  group.faults = {
      {"scale-by-reciprocal", "Multiplies the amax by a rounded 1/448 and takes the reciprocal.", 0,
       &ReciprocalScale},
      {"ties-away-from-zero", "Rounds elements half way between two codes away from zero.", 0,
       &RoundHalfAway},
      {"columnwise-from-rowwise-codes",
       "Makes the columnwise copy from the rowwise codes where both are asked for.", 2,
       &ColumnwiseFromCodes},
      {"stale-scale-inv", "Gives tensors the scale_inv of the first one.", 4, &StaleScaleInverse},
      {"scale-inv-in-shared-buffer", "Writes a tensor's scale_inv over that of the tensor before.",
       4, &SharedScaleBuffer},
  };
  return group;
}

}  // namespace quantgate
