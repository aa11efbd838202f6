// Tensors without rows: experts that got no tokens.
#include <bit>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/validate/scenarios/oracles/quantize_checks.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

absl::StatusOr<QuantizedTensor> QuantizeEmpty(ScenarioContext& context, TensorRole role) {
  QG_ASSIGN_OR_RETURN(const Tensor source, Tensor::Allocate(DType::kBF16, {0, 64}));
  const Quantizer& quantizer = context.recipe().QuantizerFor(role);
  QuantizeArguments arguments;
  if (quantizer.rowwise.scaling == Scaling::kDelayed) {
    QG_ASSIGN_OR_RETURN(arguments.scale, Tensor::FromScalar(1.0f));
  }
  return QuantizeOn(context, source, quantizer, {true, true}, arguments);
}

absl::Status CheckQuantized(ScenarioContext& context) {
  for (const TensorRole role : {TensorRole::kInput, TensorRole::kGradOutput}) {
    QG_ASSIGN_OR_RETURN(const QuantizedTensor quantized, QuantizeEmpty(context, role));
    QG_ASSIGN_OR_RETURN(const QuantizedTensor on_host, CopiesOnHost(context.engine(), quantized));
    context.ExpectShape("empty tensor", quantized.shape, {0, 64});
    for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
      const QuantizedCopy& copy = *on_host.copy(usage);
      const std::string name = absl::StrCat(std::string(UsageName(usage)), " ");
      context.ExpectEqual(name + "codes", copy.data.element_count(), 0);
      const bool has_scales =
          copy.format == QuantizerFormat::kFp8Tensor || copy.format == QuantizerFormat::kFp8Rowwise;
      for (int64_t i = 0; has_scales && i < copy.scale_inv.element_count(); ++i) {
        context.ExpectSameFloat(name + "scale_inv", copy.scale_inv.as<float>()[i], 1.0f);
      }
      for (int64_t i = 0; copy.amax.has_value() && i < copy.amax.element_count(); ++i) {
        context.ExpectSameFloat(name + "amax", copy.amax.as<float>()[i], 0.0f);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDequantized(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const QuantizedTensor quantized, QuantizeEmpty(context, TensorRole::kInput));
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    const bool is_refused =
        usage == Usage::kColumnwise && quantized.columnwise->format == QuantizerFormat::kNvfp4;
    for (const DType out : {DType::kBF16, DType::kF32}) {
      const auto values =
          context.engine().Dequantize(quantized, usage, out, context.cancellation());
      context.ExpectCode(absl::StrCat("dequantize of no rows ", std::string(UsageName(usage))),
                         values.status(),
                         is_refused ? absl::StatusCode::kUnimplemented : absl::StatusCode::kOk);
      if (!values.ok()) continue;
      context.ExpectShape("dequantized", values->shape(), {0, 64});
      context.ExpectSameText("dtype", DTypeName(values->dtype()), DTypeName(out));
    }
  }
  return absl::OkStatus();
}

EngineAlterations ScaleNotWritten() {
  return {.quantize = [](Engine& engine, QuantizeCall call) -> absl::StatusOr<QuantizedTensor> {
    QG_ASSIGN_OR_RETURN(QuantizedTensor quantized, call.On(engine));
    if (call.source.element_count() > 0 || !quantized.rowwise.has_value()) return quantized;
    // Simulates memory that was never written: every word is a recognizable NaN.
    for (Tensor* part : {&quantized.rowwise->scale_inv, &quantized.rowwise->amax}) {
      if (!part->has_value() || part->dtype() != DType::kF32) continue;
      QG_ASSIGN_OR_RETURN(*part, WithAlteredBytes(engine, *part, [](Tensor& bytes) {
        for (int64_t i = 0; i < bytes.element_count(); ++i) {
          bytes.as<uint32_t>()[i] = 0x7FC0DEAD;
        }
      }));
    }
    return quantized;
  }};
}

EngineAlterations EmptyKeepsOneRow() {
  return {.dequantize = [](Engine& engine, DequantizeCall call) -> absl::StatusOr<Tensor> {
    QG_ASSIGN_OR_RETURN(const Tensor values, call.On(engine));
    if (values.element_count() > 0) return values;
    return engine.Allocate(call.out, {1, values.columns()});
  }};
}

EngineAlterations EmptyRefused() {
  return {.dequantize = [](Engine& engine, DequantizeCall call) -> absl::StatusOr<Tensor> {
    if (call.quantized.shape.front() == 0) {
      return absl::InvalidArgumentError("dequantize: the tensor has no rows");
    }
    return call.On(engine);
  }};
}

}  // namespace

ScenarioGroup EmptyScenarios() {
  ScenarioGroup group;
  group.scenarios.push_back(
      {.name = "empty-tensors-quantize-to-nothing",
       .invariant =
           "A tensor without rows has no codes, amax 0, and scale 1 per tensor and per column.",
       .criterion = "Equal.",
       .bug_classes = {39},
       .faults = {"empty-scale-not-written"},
       .recipes = {"fp8_current", "fp8_current:amax_epsilon=0.125", "fp8_delayed", "fp8_block",
                   "mxfp8", "nvfp4", "nvfp4:disable_rht=true,row_scaled_activation=true",
                   "fp8_rowwise:amax_epsilon=0.125"},
       .run = &CheckQuantized});
  group.scenarios.push_back(
      {.name = "empty-tensors-dequantize-to-nothing",
       .invariant = "A quantized tensor without rows dequantizes to one without rows.",
       .criterion = "OK and the shape of the source in every usage that the format dequantizes.",
       .bug_classes = {48},
       .faults = {"empty-dequantized-to-one-row", "empty-dequantize-refused"},
       .recipes = {"bf16", "fp8_current", "fp8_delayed", "fp8_block", "mxfp8", "nvfp4",
                   "fp8_rowwise"},
       .run = &CheckDequantized});
  group.faults = {
      {"empty-scale-not-written", "Leaves scale_inv and amax of an empty tensor uninitialised.", 39,
       &ScaleNotWritten},
      {"empty-dequantized-to-one-row", "Gives one row of what stands in memory for no rows.", 48,
       &EmptyKeepsOneRow},
      {"empty-dequantize-refused", "Fails where there are no rows.", 48, &EmptyRefused},
  };
  return group;
}

}  // namespace quantgate
