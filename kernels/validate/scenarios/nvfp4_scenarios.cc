// NVFP4: two-level scales, the Hadamard transform of columnwise copies, 4over6.
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/hadamard.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/oracles/quantize_checks.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

absl::Status CheckDerivation(ScenarioContext& context) {
  const Quantizer& quantizer = context.recipe().QuantizerFor(TensorRole::kWeight);
  QG_ASSIGN_OR_RETURN(const Tensor source, context.Generate(Distribution::kLogNormalOutliers, 13,
                                                            DType::kBF16, {64, 96}));
  QG_ASSIGN_OR_RETURN(QuantizedTensor quantized,
                      QuantizeOn(context, source, quantizer, {true, false}));
  const bool is_tiled = quantizer.rowwise.block_dim == 2;
  const absl::Status status =
      context.engine().UpdateUsages(quantized, {true, true}, context.cancellation());
  context.ExpectCode(is_tiled ? "columnwise from 16x16 tiles" : "columnwise from 1x16 blocks",
                     status,
                     is_tiled ? absl::StatusCode::kOk : absl::StatusCode::kFailedPrecondition);
  QG_ASSIGN_OR_RETURN(const QuantizedTensor expected,
                      ExpectedQuantization(source, quantizer, {true, is_tiled}));
  return ExpectSameQuantization(context, "weight", quantized, expected);
}

// ---- The Hadamard transform

constexpr int64_t kGradientRows = 32, kGradientColumns = 48;

/// Entry (i, j) of diag(d) H; the transform is a quarter of this matrix (docs/quantizers.md section
/// 6.4).
double TransformEntry(int64_t i, int64_t j) {
  static constexpr int kSigns[16] = {1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1};
  int parity = 0;
  for (int64_t bits = i & j; bits != 0; bits >>= 1) parity ^= bits & 1;
  return kSigns[i] * (parity == 0 ? 1.0 : -1.0);
}

/// A tensor whose transformed columns are E2M1 numbers, with a 6 in every group of 16. So the amax
/// is 6, every block scale is 448, and the codes are the transformed numbers themselves.
absl::StatusOr<Tensor> TensorWithExactTransform(ScenarioContext& context, uint64_t seed) {
  static constexpr float kNumbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  QG_ASSIGN_OR_RETURN(const Tensor uniform,
                      context.Generate(Distribution::kUniform, seed, DType::kF32,
                                       {kGradientRows, kGradientColumns}));
  QG_ASSIGN_OR_RETURN(Tensor source,
                      Tensor::Allocate(DType::kBF16, {kGradientRows, kGradientColumns}));
  for (int64_t row = 0; row < kGradientRows; row += 16) {
    for (int64_t column = 0; column < kGradientColumns; ++column) {
      double y[16];
      for (int64_t j = 0; j < 16; ++j) {
        const float u = ValueAt(uniform, (row + j) * kGradientColumns + column);  // [-1, 1).
        const double magnitude = j == column % 16 ? 6 : kNumbers[static_cast<int>((u + 1) * 4)];
        y[j] = u < 0 ? -magnitude : magnitude;
      }
      // The matrix is orthogonal: its transpose brings the numbers back, in eighths below 32.
      for (int64_t i = 0; i < 16; ++i) {
        double g = 0;
        for (int64_t j = 0; j < 16; ++j) g += y[j] * TransformEntry(i, j) / 4;
        SetValue(source, (row + i) * kGradientColumns + column, static_cast<float>(g));
      }
    }
  }
  return source;
}

/// Decodes the columnwise codes without scaling, and expects the amax 6 and block scales of 448
/// under which they are the numbers themselves.
absl::StatusOr<std::vector<double>> TransformedNumbers(ScenarioContext& context,
                                                       const std::string& name,
                                                       const QuantizedTensor& quantized) {
  QG_ASSIGN_OR_RETURN(const QuantizedTensor on_host, CopiesOnHost(context.engine(), quantized));
  const QuantizedCopy& copy = *on_host.columnwise;
  context.ExpectSameFloat(name + " columnwise amax", *copy.amax.as<float>(), 6.0f);
  for (int64_t i = 0; i < copy.scale_inv.element_count(); ++i) {
    context.ExpectEqual(name + " block scale", copy.scale_inv.as<uint8_t>()[i], 0x7E);
  }
  std::vector<double> numbers(kGradientRows * kGradientColumns);  // [K][M].
  for (size_t i = 0; i < numbers.size(); ++i) {
    const uint8_t pair = copy.data.as<uint8_t>()[i / 2];
    numbers[i] = DecodeFloat<E2M1>(i % 2 == 0 ? pair & 0xF : pair >> 4);
  }
  return numbers;
}

absl::Status CheckTransformCancels(ScenarioContext& context) {
  std::array<Tensor, 2> sources;
  std::array<std::vector<double>, 2> transformed;
  const TensorRole roles[] = {TensorRole::kInput, TensorRole::kGradOutput};
  for (int side = 0; side < 2; ++side) {
    const Quantizer& quantizer = context.recipe().QuantizerFor(roles[side]);
    const std::string name(TensorRoleName(roles[side]));
    QG_ASSIGN_OR_RETURN(sources[side], TensorWithExactTransform(context, 100 + side));
    QG_ASSIGN_OR_RETURN(const QuantizedTensor quantized,
                        QuantizeOn(context, sources[side], quantizer, {true, true}));
    QG_ASSIGN_OR_RETURN(transformed[side], TransformedNumbers(context, name, quantized));
    QG_ASSIGN_OR_RETURN(const QuantizedCopy rowwise,
                        ExpectedCopy(sources[side], quantizer.rowwise, Usage::kRowwise));
    QG_RETURN_IF_ERROR(context.ExpectSameCopy(name + " rowwise", quantized.rowwise, rowwise));
  }
  // Sums of 32 products of eighths below 32 are exact in double, in any order.
  for (int64_t n = 0; n < kGradientColumns; ++n) {
    for (int64_t k = 0; k < kGradientColumns; ++k) {
      double plain = 0, through = 0;
      for (int64_t m = 0; m < kGradientRows; ++m) {
        plain += static_cast<double>(ValueAt(sources[0], m * kGradientColumns + k)) *
                 static_cast<double>(ValueAt(sources[1], m * kGradientColumns + n));
        through += transformed[0][k * kGradientRows + m] * transformed[1][n * kGradientRows + m];
      }
      context.Expect(plain == through, absl::StrCat("(xR)(dyR)^T at ", n, ", ", k),
                     absl::StrCat(through), absl::StrCat(plain));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAmaxAfterTransform(ScenarioContext& context) {
  for (const TensorRole role : {TensorRole::kInput, TensorRole::kGradOutput}) {
    const std::string name(TensorRoleName(role));
    QG_ASSIGN_OR_RETURN(const Tensor source, context.Generate(Distribution::kOneHuge, 3,
                                                              DType::kBF16, {64, 32}, 0x1p-100f));
    QG_ASSIGN_OR_RETURN(
        const QuantizedTensor quantized,
        QuantizeOn(context, source, context.recipe().QuantizerFor(role), {true, true}));
    QG_ASSIGN_OR_RETURN(const QuantizedTensor on_host, CopiesOnHost(context.engine(), quantized));
    QG_ASSIGN_OR_RETURN(const Tensor transformed, ExpectedHadamard(source));
    const float rowwise = ExpectedAmax(source), columnwise = ExpectedAmax(transformed);
    context.Expect(rowwise != columnwise, name + " amaxes", "equal", "different");
    context.ExpectSameFloat(name + " amax rowwise", *on_host.rowwise->amax.as<float>(), rowwise);
    context.ExpectSameFloat(name + " amax columnwise", *on_host.columnwise->amax.as<float>(),
                            columnwise);
  }
  return absl::OkStatus();
}

absl::Status CheckOwnAmaxes(ScenarioContext& context) {
  QuantizedTensor quantized[2], expected[2];
  const TensorRole roles[] = {TensorRole::kGradOutput, TensorRole::kInput};
  for (int side = 0; side < 2; ++side) {
    const Quantizer& quantizer = context.recipe().QuantizerFor(roles[side]);
    const QuantizeArguments arguments{.seed = 2, .call_id = static_cast<uint32_t>(side)};
    QG_ASSIGN_OR_RETURN(const Tensor source, context.Generate(Distribution::kLogNormalOutliers,
                                                              60 + side, DType::kBF16, {64, 48}));
    QG_ASSIGN_OR_RETURN(quantized[side],
                        QuantizeOn(context, source, quantizer, {true, true}, arguments));
    QG_ASSIGN_OR_RETURN(expected[side],
                        ExpectedQuantization(source, quantizer, {true, true}, arguments));
    const float rowwise = *expected[side].rowwise->amax.as<float>();
    const float columnwise = *expected[side].columnwise->amax.as<float>();
    context.Expect(rowwise != columnwise, "amaxes of the directions", "equal", "different");
  }
  GemmDesc desc;
  desc.a = OperandOf(*quantized[0].columnwise);
  desc.b = OperandOf(*quantized[1].columnwise);
  QG_ASSIGN_OR_RETURN(const GemmResult subject,
                      context.engine().Gemm(desc, context.cancellation()));
  desc.a = OperandOf(*expected[0].columnwise);
  desc.b = OperandOf(*expected[1].columnwise);
  QG_ASSIGN_OR_RETURN(const GemmResult reference,
                      context.reference().Gemm(desc, context.cancellation()));
  return context.ExpectSameBits("dw", subject.d, reference.d);
}

// ---- What travels with the tensor

absl::Status CheckBoundTravels(ScenarioContext& context) {
  for (const TensorRole role : {TensorRole::kInput, TensorRole::kWeight}) {
    const Quantizer& quantizer = context.recipe().QuantizerFor(role);
    const std::string name(TensorRoleName(role));
    QG_ASSIGN_OR_RETURN(const Tensor source, context.Generate(Distribution::kLogNormalOutliers, 17,
                                                              DType::kBF16, {64, 64}));
    QG_ASSIGN_OR_RETURN(const QuantizedTensor expected,
                        ExpectedQuantization(source, quantizer, {true, true}));
    QG_ASSIGN_OR_RETURN(QuantizedTensor quantized,
                        QuantizeOn(context, source, quantizer, {true, true}));
    QG_RETURN_IF_ERROR(ExpectSameQuantization(context, name, quantized, expected));
    QG_ASSIGN_OR_RETURN(const Tensor values,
                        ExpectedValues(*expected.rowwise, Usage::kRowwise, 64, 64, DType::kF32));
    for (const bool is_updated : {false, true}) {
      if (is_updated) {
        QG_RETURN_IF_ERROR(
            context.engine().UpdateUsages(quantized, {true, false}, context.cancellation()));
        QG_RETURN_IF_ERROR(
            context.ExpectSameCopy(name + " alone", quantized.rowwise, expected.rowwise));
      }
      QG_ASSIGN_OR_RETURN(const Tensor dequantized,
                          context.engine().Dequantize(quantized, Usage::kRowwise, DType::kF32,
                                                      context.cancellation()));
      QG_RETURN_IF_ERROR(context.ExpectSameBits(name + " dequantized", dequantized, values));
    }
  }
  return absl::OkStatus();
}

// ---- Faults

EngineAlterations ColumnwiseByTransposing() {
  return {.update_usages = [](Engine& engine, QuantizedTensor& quantized, Usages usages,
                              const Cancellation* cancellation) {
    if (!quantized.rowwise.has_value()) {
      return engine.UpdateUsages(quantized, usages, cancellation);
    }
    // Claims that each scale covers a 2-D tile, so that columnwise codes are made by transposing.
    const int block_dim = std::exchange(quantized.rowwise->block_dim, 2);
    const absl::Status status = engine.UpdateUsages(quantized, usages, cancellation);
    quantized.rowwise->block_dim = block_dim;
    return status;
  }};
}

EngineAlterations ScaleGridNotTransposed() {
  return {.update_usages = [](Engine& engine, QuantizedTensor& quantized, Usages usages,
                              const Cancellation* cancellation) {
    const bool derives = usages.columnwise && !quantized.columnwise.has_value();
    QG_RETURN_IF_ERROR(engine.UpdateUsages(quantized, usages, cancellation));
    if (!derives) return absl::OkStatus();
    Tensor& scales = quantized.columnwise->scale_inv;
    QG_ASSIGN_OR_RETURN(scales,
                        quantized.rowwise->scale_inv.Reinterpret(scales.dtype(), scales.shape()));
    return absl::OkStatus();
  }};
}

/// Alters every second quantization that transforms columns, which is that of one operand of wgrad.
EngineAlterations EverySecondTransform(
    absl::StatusOr<QuantizedTensor> (*alter)(Engine& engine, QuantizeCall call)) {
  auto calls = std::make_shared<int>(0);
  return {.quantize = [calls, alter](Engine& engine, QuantizeCall call) {
    const bool transforms = call.quantizer.columnwise.hadamard && call.usages.columnwise;
    if (!transforms || (*calls)++ % 2 == 0) return call.On(engine);
    return alter(engine, std::move(call));
  }};
}

EngineAlterations TransformOnOneSide() {
  return EverySecondTransform([](Engine& engine, QuantizeCall call) {
    call.quantizer.columnwise.hadamard = false;
    return call.On(engine);
  });
}

EngineAlterations OtherSigns() {
  return EverySecondTransform(
      [](Engine& engine, QuantizeCall call) -> absl::StatusOr<QuantizedTensor> {
        QG_ASSIGN_OR_RETURN(QuantizedTensor quantized, call.On(engine));
        // Negates what the transform negates: the signs cancel, and a transform without signs
        // remains.
        QG_ASSIGN_OR_RETURN(call.source, WithAlteredBytes(engine, call.source, [](Tensor& source) {
                              for (int64_t i = 0; i < source.element_count(); ++i) {
                                const int64_t row = i / source.columns();
                                if (((kHadamardSigns >> (row % 16)) & 1) == 0) continue;
                                SetValue(source, i, -ValueAt(source, i));
                              }
                            }));
        QG_ASSIGN_OR_RETURN(const QuantizedTensor unsigned_one, call.On(engine));
        quantized.columnwise = unsigned_one.columnwise;
        return quantized;
      });
}

EngineAlterations TransformOnRowwise() {
  return {.quantize = [](Engine& engine, QuantizeCall call) -> absl::StatusOr<QuantizedTensor> {
    QG_ASSIGN_OR_RETURN(QuantizedTensor quantized, call.On(engine));
    if (!call.quantizer.columnwise.hadamard || !call.usages.rowwise) return quantized;
    QG_ASSIGN_OR_RETURN(const Tensor source, engine.ToHost(call.source, nullptr));
    QG_ASSIGN_OR_RETURN(const Tensor turned, Transposed(source));
    QG_ASSIGN_OR_RETURN(const Tensor transformed, ExpectedHadamard(turned));
    QG_ASSIGN_OR_RETURN(call.source, Transposed(transformed));
    call.usages = {true, false};
    QG_ASSIGN_OR_RETURN(const QuantizedTensor rowwise, call.On(engine));
    quantized.rowwise = rowwise.rowwise;
    return quantized;
  }};
}

EngineAlterations AmaxBeforeTransform() {
  return {.quantize = [](Engine& engine, QuantizeCall call) -> absl::StatusOr<QuantizedTensor> {
    if (call.quantizer.columnwise.hadamard) {
      QG_ASSIGN_OR_RETURN(const Tensor source, engine.ToHost(call.source, nullptr));
      QG_ASSIGN_OR_RETURN(call.arguments.group_amax_columnwise,
                          Tensor::FromScalar(ExpectedAmax(source)));
    }
    return call.On(engine);
  }};
}

EngineAlterations RowAmaxForColumns() {
  return {.quantize = [](Engine& engine, QuantizeCall call) -> absl::StatusOr<QuantizedTensor> {
    QG_ASSIGN_OR_RETURN(QuantizedTensor quantized, call.On(engine));
    if (quantized.rowwise.has_value() && quantized.columnwise.has_value() &&
        quantized.rowwise->amax.has_value()) {
      quantized.columnwise->amax = quantized.rowwise->amax;
    }
    return quantized;
  }};
}

EngineAlterations OneAmaxForBoth() {
  return {.gemm = [](Engine& engine, GemmDesc desc, const Cancellation* cancellation) {
    if (desc.a.amax.has_value() && desc.b.amax.has_value()) desc.b.amax = desc.a.amax;
    return engine.Gemm(desc, cancellation);
  }};
}

EngineAlterations DequantizeWith448() {
  return {.dequantize = [](Engine& engine, DequantizeCall call) {
    if (call.quantized.rowwise.has_value()) call.quantized.rowwise->e4m3_max = 448;
    return call.On(engine);
  }};
}

EngineAlterations BoundLostOnUpdate() {
  return {.update_usages = [](Engine& engine, QuantizedTensor& quantized, Usages usages,
                              const Cancellation* cancellation) {
    const absl::Status status = engine.UpdateUsages(quantized, usages, cancellation);
    if (quantized.rowwise.has_value()) quantized.rowwise->e4m3_max = 448;
    return status;
  }};
}

EngineAlterations RowScalesLost() {
  return {.dequantize = [](Engine& engine, DequantizeCall call) -> absl::StatusOr<Tensor> {
    std::optional<QuantizedCopy>& copy = call.quantized.rowwise;
    if (copy.has_value() && copy->is_row_scaled()) {
      QG_ASSIGN_OR_RETURN(const Tensor amaxes, engine.ToHost(copy->amax, nullptr));
      QG_ASSIGN_OR_RETURN(const Tensor first, Tensor::FromScalar(*amaxes.as<float>()));
      QG_ASSIGN_OR_RETURN(copy->amax, engine.ToDevice(first, nullptr));
    }
    return call.On(engine);
  }};
}

}  // namespace

ScenarioGroup Nvfp4Scenarios() {
  ScenarioGroup group;
  group.scenarios.push_back(
      {.name = "nvfp4-columnwise-only-from-tiles",
       .invariant = "Columnwise codes are made from rowwise ones of 16x16 tiles alone.",
       .criterion = "1x16 blocks: FAILED_PRECONDITION, nothing changed; tiles: bit-equal to a "
                    "quantization of the source.",
       .bug_classes = {12},
       .faults = {"nvfp4-columnwise-by-transposing", "nvfp4-scale-grid-not-transposed"},
       .recipes = {"nvfp4:disable_2d_quantization=true", "nvfp4"},
       .run = &CheckDerivation});
  group.scenarios.push_back(
      {.name = "hadamard-cancels-in-wgrad",
       .invariant = "Both operands of wgrad are transformed alike and no rowwise copy is: "
                    "(xR)(dyR)^T is x dy^T.",
       .criterion = "Equal in exact arithmetic on tensors whose transforms are E2M1 numbers; "
                    "rowwise copies bit-equal to a recomputation.",
       .bug_classes = {24},
       .faults = {"hadamard-on-one-side", "hadamard-with-other-signs", "hadamard-on-rowwise-copy"},
       .recipes = {"nvfp4:disable_stochastic_rounding=true"},
       .run = &CheckTransformCancels});
  group.scenarios.push_back(
      {.name = "amax-after-hadamard",
       .invariant = "The columnwise amax is that of the transformed tensor rounded to bf16.",
       .criterion =
           "Bit-equal to the maximum over a transform of its own, and not the rowwise one.",
       .bug_classes = {25},
       .faults = {"amax-before-hadamard"},
       .recipes = {"nvfp4", "nvfp4:disable_stochastic_rounding=true"},
       .run = &CheckAmaxAfterTransform});
  group.scenarios.push_back(
      {.name = "directions-keep-their-amax",
       .invariant = "A GEMM of columnwise copies is scaled by the columnwise amaxes.",
       .criterion = "dw bit-equal to the reference engine's on recomputed copies, where the amaxes "
                    "of the directions differ.",
       .bug_classes = {26},
       .faults = {"row-amax-for-columnwise-copy", "one-amax-for-both-operands"},
       .recipes = {"nvfp4"},
       .run = &CheckOwnAmaxes});
  group.scenarios.push_back(
      {.name = "scale-bound-travels-with-tensor",
       .invariant = "The bound of block scales and per-row amaxes stay with the tensor.",
       .criterion = "Copies bit-equal to a recomputation, dequantized values those of codes and "
                    "scales, before and after a change of usages.",
       .bug_classes = {27},
       .faults = {"dequantized-with-448-for-256", "bound-lost-on-usage-update", "row-amaxes-lost"},
       .recipes = {"nvfp4:disable_rht=true,nvfp4_4over6=all",
                   "nvfp4:disable_rht=true,nvfp4_4over6=all,nvfp4_4over6_err_mode=mse",
                   "nvfp4:disable_rht=true,row_scaled_activation=true"},
       .run = &CheckBoundTravels});
  group.faults = {
      {"nvfp4-columnwise-by-transposing",
       "Transposes codes and scales of 1x16 blocks when a columnwise copy is asked for.", 12,
       &ColumnwiseByTransposing},
      {"nvfp4-scale-grid-not-transposed",
       "Transposes the codes of tiles and leaves their scales as they stand.", 12,
       &ScaleGridNotTransposed},
      {"hadamard-on-one-side", "Transforms one of the two operands of wgrad.", 24,
       &TransformOnOneSide},
      {"hadamard-with-other-signs", "Transforms one operand without the random signs.", 24,
       &OtherSigns},
      {"hadamard-on-rowwise-copy", "Transforms the rowwise copy too.", 24, &TransformOnRowwise},
      {"amax-before-hadamard", "Takes the columnwise amax before the transform.", 25,
       &AmaxBeforeTransform},
      {"row-amax-for-columnwise-copy", "Stores the rowwise amax with the columnwise codes.", 26,
       &RowAmaxForColumns},
      {"one-amax-for-both-operands", "Scales a GEMM by the amax of one operand twice.", 26,
       &OneAmaxForBoth},
      {"dequantized-with-448-for-256", "Dequantizes as if block scales were bounded by 448.", 27,
       &DequantizeWith448},
      {"bound-lost-on-usage-update", "Forgets the bound of block scales when usages change.", 27,
       &BoundLostOnUpdate},
      {"row-amaxes-lost", "Dequantizes every row with the first row's amax.", 27, &RowScalesLost},
  };
  return group;
}

}  // namespace quantgate
