// Recipes with a format per direction, beside those that they must equal.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/validate/scenarios/linear_subject.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/oracles/quantize_checks.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

absl::Status CheckSameFormat(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Recipe vanilla,
                      Recipe::Parse(context.recipe().knobs().find("fprop")->second));
  QG_ASSIGN_OR_RETURN(const LinearOperands operands,
                      MakeLinearOperands(context, DType::kBF16, 64, 64, 128, 20));
  QG_ASSIGN_OR_RETURN(const LinearRun run, RunLinearOn(context, operands, context.recipe()));
  QG_ASSIGN_OR_RETURN(const NamedOutputs expected,
                      ExpectedLinear(context.reference(), operands, vanilla));
  return ExpectSameOutputs(context, "", run.outputs, expected);
}

// The recipe with its backward override must give the outputs of a hybrid recipe that states the
// same dataflow by formats.
absl::Status CheckDequantizedIsHybrid(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Recipe hybrid,
                      Recipe::Create("hybrid", {{"fprop", context.recipe().name()},
                                                {"columnwise_source", "rowwise_dequantized"}}));
  QG_ASSIGN_OR_RETURN(const LinearOperands operands,
                      MakeLinearOperands(context, DType::kBF16, 64, 64, 128, 22));
  QG_ASSIGN_OR_RETURN(const LinearRun overridden, RunLinearOn(context, operands, context.recipe()));
  QG_ASSIGN_OR_RETURN(const LinearRun by_format, RunLinearOn(context, operands, hybrid));
  NamedOutputs expected;
  for (const auto& [name, tensor] : by_format.outputs) {
    QG_ASSIGN_OR_RETURN(expected[name], context.ToHost(tensor));
  }
  return ExpectSameOutputs(context, "", overridden.outputs, expected);
}

// Two steps quantize different tensors: the columnwise codes must follow the rowwise codes of their
// own step.
absl::Status CheckColumnwiseSource(ScenarioContext& context) {
  const Quantizer& quantizer = context.recipe().QuantizerFor(TensorRole::kWeight);
  for (int64_t step = 0; step < 2; ++step) {
    context.SetStep(step);
    QG_ASSIGN_OR_RETURN(const Tensor source, context.Generate(Distribution::kLogNormalOutliers,
                                                              70 + step, DType::kBF16, {64, 96}));
    QG_ASSIGN_OR_RETURN(const QuantizedTensor quantized,
                        QuantizeOn(context, source, quantizer, {true, true}));
    QG_ASSIGN_OR_RETURN(const QuantizedTensor on_host, CopiesOnHost(context.engine(), quantized));
    QG_ASSIGN_OR_RETURN(const Tensor values,
                        ExpectedValues(*on_host.rowwise, Usage::kRowwise, 64, 96, DType::kBF16));
    QG_ASSIGN_OR_RETURN(const QuantizedCopy from_codes,
                        ExpectedCopy(values, quantizer.columnwise, Usage::kColumnwise));
    QG_ASSIGN_OR_RETURN(const QuantizedCopy from_source,
                        ExpectedCopy(source, quantizer.columnwise, Usage::kColumnwise));
    QG_ASSIGN_OR_RETURN(const ParityReport parity, context.reference().CompareBits(
                                                       from_codes.data, from_source.data, nullptr));
    context.Expect(!parity.equal, "codes of the two sources", "equal", "different");
    QG_RETURN_IF_ERROR(
        context.ExpectSameCopy("weight columnwise", quantized.columnwise, from_codes));
  }
  return absl::OkStatus();
}

// A recipe must have one format per GEMM, and a GEMM refuses operands of two formats, such as
// rowwise codes of x and rowwise codes of grad_output.
absl::Status CheckPairs(ScenarioContext& context) {
  const std::string other = R"({"rowwise":"fp8_block","columnwise":"fp8_block"})";
  Recipe::Knobs all = context.recipe().knobs();
  for (const char* direction : {"input", "weight", "grad_output"}) {
    Recipe::Knobs one = context.recipe().knobs();
    one[direction] = all[direction] = other;
    context.ExpectCode(absl::StrCat("recipe whose ", direction, " is of another format"),
                       Recipe::Create("hybrid", one).status(), absl::StatusCode::kInvalidArgument);
  }
  // The format itself is accepted: the refusals above are because of the difference.
  context.ExpectCode("recipe of that format throughout", Recipe::Create("hybrid", all).status(),
                     absl::StatusCode::kOk);
  const Quantizer& x = context.recipe().QuantizerFor(TensorRole::kInput);
  const Quantizer& dy = context.recipe().QuantizerFor(TensorRole::kGradOutput);
  QG_ASSIGN_OR_RETURN(const Tensor source,
                      context.Generate(Distribution::kNormal, 23, DType::kBF16, {64, 64}));
  QG_ASSIGN_OR_RETURN(const QuantizedTensor of_x, QuantizeOn(context, source, x, {true, true}));
  QG_ASSIGN_OR_RETURN(const QuantizedTensor of_dy, QuantizeOn(context, source, dy, {true, true}));
  GemmDesc desc;
  desc.a = OperandOf(*of_dy.rowwise);
  desc.b = OperandOf(*of_x.rowwise);
  context.ExpectCode("GEMM of x rowwise and grad_output rowwise",
                     context.engine().Gemm(desc, context.cancellation()).status(),
                     absl::StatusCode::kInvalidArgument);
  desc.layout = GemmLayout::kNT;  // mxfp8 stores columnwise codes in the order of the source.
  desc.a = OperandOf(*of_dy.columnwise);
  desc.b = OperandOf(*of_x.columnwise);
  context.ExpectCode("GEMM of x columnwise and grad_output columnwise",
                     context.engine().Gemm(desc, context.cancellation()).status(),
                     absl::StatusCode::kOk);
  return absl::OkStatus();
}

EngineAlterations ColumnwiseByRowwiseRule() {
  return {.quantize = [](Engine& engine, QuantizeCall call) {
    call.quantizer.columnwise = call.quantizer.rowwise;
    return call.On(engine);
  }};
}

/// Keeps the source of all rowwise codes, and gives the source where the codes are dequantized.
EngineAlterations DequantizeGivesSource() {
  auto sources = std::make_shared<std::vector<std::pair<Tensor, Tensor>>>();
  return {
      .quantize = [sources](Engine& engine, QuantizeCall call) -> absl::StatusOr<QuantizedTensor> {
        QG_ASSIGN_OR_RETURN(QuantizedTensor quantized, call.On(engine));
        if (quantized.rowwise.has_value()) {
          sources->push_back({quantized.rowwise->data, call.source});
        }
        return quantized;
      },
      .dequantize = [sources](Engine& engine, DequantizeCall call) -> absl::StatusOr<Tensor> {
        for (const auto& [codes, source] : *sources) {
          if (call.quantized.rowwise.has_value() &&
              codes.data() == call.quantized.rowwise->data.data()) {
            return engine.Cast(source, call.out, call.cancellation);
          }
        }
        return call.On(engine);
      }};
}

EngineAlterations ColumnwiseFromSource() {
  return {.quantize = [](Engine& engine, QuantizeCall call) {
    call.quantizer.columnwise_source = ColumnwiseSource::kOriginal;
    return call.On(engine);
  }};
}

/// Where the operands' scalings differ, multiplies b by itself in place of refusing the GEMM.
EngineAlterations MultipliesMismatched() {
  return {.gemm = [](Engine& engine, GemmDesc desc,
                     const Cancellation* cancellation) -> absl::StatusOr<GemmResult> {
    if (desc.a.scaling != desc.b.scaling) desc.a = desc.b;
    return engine.Gemm(desc, cancellation);
  }};
}

}  // namespace

ScenarioGroup HybridScenarios() {
  ScenarioGroup group;
  group.scenarios.push_back(
      {.name = "same-format-hybrid-equals-vanilla",
       .invariant = "A hybrid recipe with one format for all GEMMs is that format's recipe.",
       .criterion = "y, dx, dw and db bit-equal to a step by hand under the plain recipe.",
       .bug_classes = {35},
       .faults = {"hybrid-columnwise-by-rowwise-rule"},
       .recipes = {"hybrid:fprop=fp8_current,dgrad=fp8_current,wgrad=fp8_current",
                   "hybrid:fprop=fp8_block,dgrad=fp8_block,wgrad=fp8_block",
                   "hybrid:fprop=mxfp8,dgrad=mxfp8,wgrad=mxfp8",
                   "hybrid:fprop=nvfp4,dgrad=nvfp4,wgrad=nvfp4"},
       .run = &CheckSameFormat});
  group.scenarios.push_back(
      {.name = "dequantized-equals-high-precision-backward",
       .invariant = "The override dequantized is the hybrid recipe with this format forward and "
                    "high precision, made from its codes, backward.",
       .criterion = "y, dx, dw and db bit-equal.",
       .faults = {"dequantized-reads-original"},
       .recipes = {"mxfp8:backward_override=dequantized", "fp8_block:backward_override=dequantized",
                   "fp8_current:backward_override=dequantized",
                   "nvfp4:backward_override=dequantized"},
       .run = &CheckDequantizedIsHybrid});
  group.scenarios.push_back(
      {.name = "columnwise-made-from-rowwise-codes",
       .invariant = "Under columnwise_source=rowwise_dequantized columnwise codes follow the "
                    "rowwise ones, after an update too.",
       .criterion = "Bit-equal to a quantization of the rowwise codes' values, which differs from "
                    "one of the source.",
       .bug_classes = {36},
       .faults = {"columnwise-source-ignored"},
       .recipes = {"hybrid:fprop=mxfp8,dgrad=nvfp4,wgrad=mxfp8,"
                   "columnwise_source=rowwise_dequantized",
                   "hybrid:fprop=nvfp4,dgrad=mxfp8,wgrad=mxfp8,"
                   "columnwise_source=rowwise_dequantized"},
       .run = &CheckColumnwiseSource});
  group.scenarios.push_back(
      {.name = "hybrid-directions-go-together",
       .invariant = "Operands of different formats are refused, by the recipe and by the GEMM.",
       .criterion = "INVALID_ARGUMENT from both; OK for one format throughout.",
       .bug_classes = {35},
       .faults = {"mismatched-operands-multiplied"},
       .recipes = {"hybrid:fprop=mxfp8,dgrad=nvfp4,wgrad=mxfp8"},
       .run = &CheckPairs});
  group.faults = {
      {"hybrid-columnwise-by-rowwise-rule",
       "Quantizes the columnwise direction by the rowwise direction's rule.", 35,
       &ColumnwiseByRowwiseRule},
      {"dequantized-reads-original", "Gives the source in place of the codes' values.", 0,
       &DequantizeGivesSource},
      {"columnwise-source-ignored", "Makes columnwise codes from the source always.", 36,
       &ColumnwiseFromSource},
      {"mismatched-operands-multiplied", "Multiplies operands of different formats.", 35,
       &MultipliesMismatched},
  };
  return group;
}

}  // namespace quantgate
