// One step of a linear layer: operands, GEMMs and gradients under every recipe and mode.
#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/validate/scenarios/linear_subject.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

absl::Status CheckByHand(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(LinearOperands operands,
                      MakeLinearOperands(context, DType::kBF16, 64, 96, 128, 4));
  QG_RETURN_IF_ERROR(ExpectLinearAsByHand(context, "", operands).status());
  QG_ASSIGN_OR_RETURN(operands.main_grad,
                      context.Generate(Distribution::kNormal, 99, DType::kF32, {96, 128}));
  return ExpectLinearAsByHand(context, "with a main gradient: ", operands).status();
}

// The tensors are f32, but the recipe has bf16 activations: the step is expected to equal that of x
// and grad_output cast to bf16 beforehand.
absl::Status CheckActivationCast(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const LinearOperands given,
                      MakeLinearOperands(context, DType::kF32, 64, 64, 96, 6));
  LinearOperands cast = given;
  QG_ASSIGN_OR_RETURN(cast.x, ExpectedCast(given.x, DType::kBF16));
  QG_ASSIGN_OR_RETURN(cast.grad_output, ExpectedCast(given.grad_output, DType::kBF16));
  QG_ASSIGN_OR_RETURN(const LinearRun run, RunLinearOn(context, given, context.recipe()));
  QG_ASSIGN_OR_RETURN(const NamedOutputs expected,
                      ExpectedLinear(context.reference(), cast, context.recipe()));
  return ExpectSameOutputs(context, "", run.outputs, expected);
}

// All three GEMMs sum over 256 products, enough for fast and split accumulation to differ.
absl::Status CheckSplitAccumulator(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const LinearOperands operands,
                      MakeLinearOperands(context, DType::kBF16, 256, 256, 256, 8));
  QG_ASSIGN_OR_RETURN(const LinearRun run, RunLinearOn(context, operands, context.recipe()));
  for (const GemmRecord& gemm : run.gemms) {
    GemmDesc desc = gemm.desc;
    for (Tensor* part :
         {&desc.a.data, &desc.a.scale_inv, &desc.b.data, &desc.b.scale_inv, &desc.bias}) {
      QG_ASSIGN_OR_RETURN(*part, context.ToHost(*part));
    }
    Tensor by_name[2];
    for (const bool split : {false, true}) {
      QG_ASSIGN_OR_RETURN(desc.arithmetic, Arithmetic::Parse(split ? "sm90:split" : "sm90:fast"));
      QG_ASSIGN_OR_RETURN(const GemmResult result,
                          context.reference().Gemm(desc, context.cancellation()));
      by_name[split] = result.d;
    }
    QG_ASSIGN_OR_RETURN(const ParityReport parity,
                        context.reference().CompareBits(by_name[0], by_name[1], nullptr));
    context.Expect(!parity.equal, gemm.output + " fast and split", "equal", "different");
    const bool wants_split = context.recipe().UsesSplitAccumulator(gemm.role);
    QG_RETURN_IF_ERROR(context.ExpectSameBits(gemm.output, gemm.result.d, by_name[wants_split]));
  }
  context.ExpectEqual("GEMMs", static_cast<int64_t>(run.gemms.size()), 3);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Fingerprint>> FingerprintsOf(ScenarioContext& context,
                                                        const std::vector<Tensor>& tensors) {
  std::vector<Fingerprint> fingerprints;
  for (const Tensor& tensor : tensors) {
    QG_ASSIGN_OR_RETURN(const Tensor on_host, context.ToHost(tensor));
    QG_ASSIGN_OR_RETURN(const Fingerprint fingerprint,
                        context.reference().FingerprintOf(on_host, nullptr));
    fingerprints.push_back(fingerprint);
  }
  return fingerprints;
}

absl::Status CheckSavedUnchanged(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(LinearOperands operands,
                      MakeLinearOperands(context, DType::kBF16, 64, 64, 96, 12));
  // The user's own tensors in the engine's memory, which saved operands may alias.
  std::vector<Tensor> given;
  for (Tensor* tensor : {&operands.x, &operands.weight, &operands.bias, &operands.grad_output}) {
    QG_ASSIGN_OR_RETURN(*tensor, context.ToEngine(*tensor));
    given.push_back(*tensor);
  }
  QG_ASSIGN_OR_RETURN(const auto before, FingerprintsOf(context, given));
  QG_ASSIGN_OR_RETURN(const LinearRun run, RunLinearOn(context, operands, context.recipe()));
  QG_ASSIGN_OR_RETURN(const auto after, FingerprintsOf(context, given));
  static constexpr const char* kNames[] = {"x", "weight", "bias", "grad_output"};
  for (size_t i = 0; i < before.size(); ++i) {
    context.ExpectSameText(absl::StrCat(kNames[i], " after the step"), after[i].Hex(),
                           before[i].Hex());
  }
  for (const SavedOperand& saved : run.saved) {
    context.ExpectSameText(absl::StrCat("saved ", saved.name, " at use"), saved.at_use.Hex(),
                           saved.at_save.Hex());
  }
  context.Expect(!run.saved.empty(), "saved operands", "none", "some");
  return absl::OkStatus();
}

/// Rounds to nearest even with 10 mantissa bits, as tf32 operands are rounded (docs/tensor-cores.md
/// section 3). `value` must be finite and well below the largest float.
float RoundedToTf32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t half_less_one = 0xFFF + ((bits >> 13) & 1);
  return std::bit_cast<float>((bits + half_less_one) & ~uint32_t{0x1FFF});
}

// grad_output is the identity, so that dx is the weight as the GEMM rounds it.
absl::Status CheckComputeType(ScenarioContext& context) {
  constexpr int64_t kSize = 32;
  QG_ASSIGN_OR_RETURN(LinearOperands operands,
                      MakeLinearOperands(context, DType::kF32, kSize, kSize, kSize, 14));
  QG_ASSIGN_OR_RETURN(operands.weight,
                      context.Generate(Distribution::kNormal, 15, DType::kF32, {kSize, kSize}));
  Tensor expected;
  QG_ASSIGN_OR_RETURN(expected, Tensor::Allocate(DType::kF32, {kSize, kSize}));
  int64_t rounded = 0;
  for (int64_t i = 0; i < kSize * kSize; ++i) {
    operands.grad_output.as<float>()[i] = i / kSize == i % kSize ? 1.0f : 0.0f;
    expected.as<float>()[i] = RoundedToTf32(operands.weight.as<float>()[i]);
    rounded += expected.as<float>()[i] != operands.weight.as<float>()[i];
  }
  context.Expect(rounded > 0, "weights that tf32 rounds", "none", "some");
  QG_ASSIGN_OR_RETURN(const LinearRun run, RunLinearOn(context, operands, context.recipe()));
  QG_RETURN_IF_ERROR(context.ExpectSameBits("dx", run.outputs.at("dx"), expected));
  bool is_stated = false;
  for (const std::string& note : run.notes) is_stated |= absl::StrContains(note, "tf32");
  context.Expect(is_stated, "compute type in the notes", "not stated", "tf32");
  return absl::OkStatus();
}

EngineAlterations SplitIs(bool split) {
  return {.gemm = [split](Engine& engine, GemmDesc desc, const Cancellation* cancellation) {
    desc.use_split_accumulator = split;
    return engine.Gemm(desc, cancellation);
  }};
}
EngineAlterations NeverSplit() { return SplitIs(false); }
EngineAlterations AlwaysSplit() { return SplitIs(true); }

EngineAlterations NoCastBeforeQuantization() {
  return {.cast = [](Engine& engine, const Tensor& source, DType out,
                     const Cancellation* cancellation) -> absl::StatusOr<Tensor> {
    if (source.dtype() == DType::kF32 && out == DType::kBF16 && source.rank() == 2) return source;
    return engine.Cast(source, out, cancellation);
  }};
}

/// The column sums of db, in backward, overwrite the first half of operand a of the first GEMM,
/// which is forward's, as if that memory were scratch by then.
EngineAlterations ScratchOverOperand() {
  auto operand = std::make_shared<Tensor>();
  return {.gemm =
              [operand](Engine& engine, GemmDesc desc, const Cancellation* cancellation) {
                if (!operand->has_value()) *operand = desc.a.data;
                return engine.Gemm(desc, cancellation);
              },
          .column_sums = [operand](Engine& engine, const Tensor& source, DType out,
                                   const Cancellation* cancellation) -> absl::StatusOr<Tensor> {
            const std::vector<std::byte> zeros(operand->byte_size() / 2);
            QG_RETURN_IF_ERROR(engine.Write(zeros, *operand, 0));
            return engine.ColumnSums(source, out, cancellation);
          }};
}

EngineAlterations IeeeFloatGemm() {
  return {.gemm = [](Engine& engine, GemmDesc desc, const Cancellation* cancellation) {
    if (desc.a.data.dtype() == DType::kF32) {
      desc.arithmetic = Arithmetic{.family = ArithmeticFamily::kFp32};
    }
    return engine.Gemm(desc, cancellation);
  }};
}

EngineAlterations SumsInOrder() {
  return {.column_sums = [](Engine& engine, const Tensor& source, DType out,
                            const Cancellation*) -> absl::StatusOr<Tensor> {
    QG_ASSIGN_OR_RETURN(const Tensor on_host, engine.ToHost(source, nullptr));
    QG_ASSIGN_OR_RETURN(Tensor sums, Tensor::Allocate(out, {source.columns()}));
    for (int64_t column = 0; column < source.columns(); ++column) {
      float sum = 0;
      // Rounds every partial sum to the output type, which loses small addends.
      for (int64_t row = 0; row < source.rows(); ++row) {
        SetValue(sums, column, sum + ValueAt(on_host, row * source.columns() + column));
        sum = ValueAt(sums, column);
      }
    }
    return engine.ToDevice(sums, nullptr);
  }};
}

EngineAlterations AlphaOfOneOperand() {
  return {.gemm = [](Engine& engine, GemmDesc desc,
                     const Cancellation* cancellation) -> absl::StatusOr<GemmResult> {
    if (desc.a.scaling == ScaleMode::kTensor) desc.b.scale_inv = desc.a.scale_inv;
    return engine.Gemm(desc, cancellation);
  }};
}

}  // namespace

ScenarioGroup LinearScenarios() {
  ScenarioGroup group;
  group.scenarios.push_back(
      {.name = "linear-equals-second-path",
       .invariant = "A linear step is the quantizations and GEMMs that its recipe and mode say.",
       .criterion = "y, dx, dw, main_grad and db bit-equal to scalar quantizations and GEMMs of "
                    "the reference engine, called one by one.",
       .bug_classes = {53},
       .faults = {"scale-inv-of-one-operand-twice", "bias-gradient-summed-in-output-type",
                  "stochastic-rounding-to-zeros"},
       .recipes = {"bf16", "fp8_current", "fp8_delayed", "fp8_block", "mxfp8", "mxfp6_e2m3",
                   "mxfp6_e3m2", "mxfp4", "mxfp4:backward_override=dequantized", "nvfp4",
                   "fp8_current:backward_override=high_precision",
                   "fp8_block:backward_override=dequantized",
                   "mxfp8:backward_override=high_precision", "mxfp8:backward_override=dequantized",
                   "nvfp4:backward_override=dequantized",
                   "hybrid:fprop=mxfp8,dgrad=nvfp4,wgrad=fp8_block", "fp8_rowwise",
                   "fp8_rowwise:backward_override=dequantized",
                   "hybrid:fprop=fp8_rowwise,dgrad=mxfp8,wgrad=fp8_rowwise"},
       .run = &CheckByHand});
  group.scenarios.push_back(
      {.name = "input-cast-to-activation-dtype",
       .invariant = "Tensors of another dtype are cast to the activation dtype before anything "
                    "else.",
       .criterion = "Outputs bit-equal to a step by hand whose tensors were cast before.",
       .bug_classes = {7},
       .faults = {"activation-cast-missing"},
       .recipes = {"mxfp8:activation_dtype=bf16", "fp8_current:activation_dtype=bf16",
                   "hybrid:fprop=mxfp8,dgrad=fp8_block,wgrad=fp8_block,activation_dtype=bf16",
                   "mxfp8:activation_dtype=bf16,backward_override=high_precision"},
       .run = &CheckActivationCast});
  group.scenarios.push_back(
      {.name = "split-accumulator-as-recipe-says",
       .invariant = "Each FP8 GEMM accumulates as the recipe says of it.",
       .criterion = "Bit-equal to sm90:fast or sm90:split by name on the same operands, which "
                    "differ on them.",
       .bug_classes = {15},
       .faults = {"split-accumulator-ignored", "split-accumulator-always"},
       .recipes = {"fp8_current",
                   "fp8_current:split_accumulator_fprop=true,split_accumulator_dgrad=false,"
                   "split_accumulator_wgrad=false"},
       .run = &CheckSplitAccumulator});
  group.scenarios.push_back(
      {.name = "saved-operands-unchanged",
       .invariant = "Nobody writes to what forward saved, nor to the user's tensors.",
       .criterion = "Equal fingerprints at save and at use, and of the user's tensors before and "
                    "after the step.",
       .bug_classes = {37},
       .faults = {"scratch-over-saved-operand"},
       .recipes = {"bf16", "fp8_current:backward_override=high_precision", "mxfp8",
                   "nvfp4:backward_override=dequantized"},
       .run = &CheckSavedUnchanged});
  group.scenarios.push_back(
      {.name = "high-precision-f32-is-tf32",
       .invariant = "High-precision backward of f32 activations runs in tf32 and says so.",
       .criterion = "dx bit-equal to the weight rounded to 10 mantissa bits; a note names tf32.",
       .bug_classes = {43},
       .faults = {"f32-gemm-in-ieee"},
       .recipes = {"mxfp8:backward_override=high_precision",
                   "fp8_current:backward_override=high_precision"},
       .run = &CheckComputeType});
  group.faults = {
      {"scale-inv-of-one-operand-twice", "Scales a per-tensor GEMM by a's scale_inv twice.", 0,
       &AlphaOfOneOperand},
      {"bias-gradient-summed-in-output-type", "Adds up the bias gradient in bf16.", 0,
       &SumsInOrder},
      {"activation-cast-missing", "Quantizes tensors as they are given.", 7,
       &NoCastBeforeQuantization},
      {"split-accumulator-ignored", "Accumulates every GEMM fast.", 15, &NeverSplit},
      {"split-accumulator-always", "Splits every GEMM.", 15, &AlwaysSplit},
      {"scratch-over-saved-operand", "Uses a saved operand's memory as scratch in backward.", 37,
       &ScratchOverOperand},
      {"f32-gemm-in-ieee", "Multiplies f32 operands unrounded.", 43, &IeeeFloatGemm},
  };
  return group;
}

}  // namespace quantgate
