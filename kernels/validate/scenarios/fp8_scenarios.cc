// FP8 with one scale per tensor or per 128 elements.
#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/numerics/cast.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/oracles/quantize_checks.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

constexpr float kEpsilon = 0.125f;  // The amax_epsilon of the recipes that CheckEpsilon runs under.

// The amax of both tensors (tiny values, zeros) is below epsilon, so that the expected scale is 448
// / epsilon.
absl::Status CheckEpsilon(ScenarioContext& context) {
  for (const Distribution distribution : {Distribution::kNormal, Distribution::kAllZero}) {
    for (const TensorRole role : {TensorRole::kInput, TensorRole::kWeight}) {
      QG_ASSIGN_OR_RETURN(const Tensor source,
                          context.Generate(distribution, 3, DType::kBF16, {16, 128}, 0x1p-12f));
      QG_ASSIGN_OR_RETURN(const QuantizedTensor quantized,
                          QuantizeOn(context, source, context.recipe().QuantizerFor(role), {}));
      QG_ASSIGN_OR_RETURN(const QuantizedTensor on_host, CopiesOnHost(context.engine(), quantized));
      const Tensor& scale_inv = on_host.rowwise->scale_inv;
      for (int64_t i = 0; i < scale_inv.element_count(); ++i) {
        context.ExpectSameFloat(absl::StrCat(std::string(TensorRoleName(role)), " scale_inv"),
                                scale_inv.as<float>()[i], 1.0f / (448.0f / kEpsilon));
      }
      for (int64_t i = 0; i < source.element_count(); ++i) {
        const uint8_t code = EncodeFloat<E4M3>(ValueAt(source, i) * (448.0f / kEpsilon));
        context.ExpectEqual("code", on_host.rowwise->data.as<uint8_t>()[i], code);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckShapes(ScenarioContext& context) {
  const Quantizer& quantizer = context.recipe().QuantizerFor(TensorRole::kInput);
  const Shape shape = {64, 160};
  QG_ASSIGN_OR_RETURN(const Tensor source,
                      context.Generate(Distribution::kNormal, 21, DType::kBF16, shape));
  QG_ASSIGN_OR_RETURN(const Tensor whole, ExpectedValues(*ExpectedCopy(source, quantizer.columnwise,
                                                                       Usage::kColumnwise),
                                                         Usage::kColumnwise, 64, 160, DType::kF32));
  for (const Usages usages : {Usages{true, false}, Usages{false, true}, Usages{true, true}}) {
    QG_ASSIGN_OR_RETURN(const QuantizedTensor quantized,
                        QuantizeOn(context, source, quantizer, usages));
    context.ExpectShape("quantized tensor", quantized.shape, shape);
    const Usage usage = usages.columnwise ? Usage::kColumnwise : Usage::kRowwise;
    QG_ASSIGN_OR_RETURN(
        const Tensor values,
        context.engine().Dequantize(quantized, usage, DType::kF32, context.cancellation()));
    context.ExpectShape("dequantized", values.shape(), shape);
  }
  // Each half of the rows, quantized columnwise under the amax of the whole tensor, must dequantize
  // to its rows of the whole.
  QuantizeArguments arguments;
  QG_ASSIGN_OR_RETURN(arguments.group_amax_rowwise, Tensor::FromScalar(ExpectedAmax(source)));
  for (int64_t begin = 0; begin < 64; begin += 32) {
    QG_ASSIGN_OR_RETURN(const Tensor part, TakeRows(source, begin, 32));
    QG_ASSIGN_OR_RETURN(const QuantizedTensor quantized,
                        QuantizeOn(context, part, quantizer, {false, true}, arguments));
    QG_ASSIGN_OR_RETURN(const Tensor values,
                        context.engine().Dequantize(quantized, Usage::kColumnwise, DType::kF32,
                                                    context.cancellation()));
    QG_ASSIGN_OR_RETURN(const Tensor expected, TakeRows(whole, begin, 32));
    QG_RETURN_IF_ERROR(
        context.ExpectSameBits(absl::StrCat("part from row ", begin), values, expected));
  }
  return absl::OkStatus();
}

/// Index of scale (line, block) in the framework's padded array (docs/quantizers.md section 4).
int64_t PaddedIndex(int block_dim, int64_t line, int64_t block, int64_t padded_columns) {
  return block_dim == 1 ? block * padded_columns + line : line * padded_columns + block;
}

absl::Status CheckBlockLayout(ScenarioContext& context) {
  constexpr int64_t kRows = 262, kColumns = 640;  // Neither is a multiple of 4 blocks.
  for (const TensorRole role : {TensorRole::kInput, TensorRole::kWeight}) {
    const Quantizer& quantizer = context.recipe().QuantizerFor(role);
    const int block_dim = quantizer.rowwise.block_dim;
    QG_ASSIGN_OR_RETURN(const Tensor source, context.Generate(Distribution::kNormal, 5,
                                                              DType::kBF16, {kRows, kColumns}));
    QG_ASSIGN_OR_RETURN(const QuantizedTensor expected,
                        ExpectedQuantization(source, quantizer, {true, false}));
    const Tensor& logical = expected.rowwise->scale_inv;
    QG_ASSIGN_OR_RETURN(const Tensor on_engine, context.ToEngine(logical));
    const ScaleArray array{QuantizerFormat::kFp8Block, block_dim, Usage::kRowwise, kRows, kColumns};
    QG_ASSIGN_OR_RETURN(const Tensor converted,
                        context.engine().ConvertScales(on_engine, array, ScaleLayout::kLogical,
                                                       ScaleLayout::kPadded));
    const Shape padded_shape = block_dim == 1 ? Shape{5, 264} : Shape{3, 8};
    context.ExpectShape("padded scales", converted.shape(), padded_shape);
    QG_ASSIGN_OR_RETURN(Tensor padded, Tensor::Allocate(DType::kF32, padded_shape));
    std::fill_n(padded.as<float>(), padded.element_count(), 0.0f);
    for (int64_t line = 0; line < logical.rows(); ++line) {
      for (int64_t block = 0; block < logical.columns(); ++block) {
        padded.as<float>()[PaddedIndex(block_dim, line, block, padded_shape[1])] =
            logical.as<float>()[line * logical.columns() + block];
      }
    }
    QG_RETURN_IF_ERROR(context.ExpectSameBits("padded scales", converted, padded));
    QG_ASSIGN_OR_RETURN(const Tensor back,
                        context.engine().ConvertScales(converted, array, ScaleLayout::kPadded,
                                                       ScaleLayout::kLogical));
    QG_RETURN_IF_ERROR(context.ExpectSameBits("scales from the padded array", back, logical));
  }
  return absl::OkStatus();
}

/// d of x [16][256], all `x_value`, and a weight [16][256], all `weight_value`, quantized on the
/// engine under test.
absl::StatusOr<GemmResult> ConstantProduct(ScenarioContext& context, float x_value,
                                           float weight_value, const char* arithmetic) {
  GemmDesc desc;
  const std::tuple<TensorRole, float, GemmOperand*> sides[] = {
      {TensorRole::kInput, x_value, &desc.a}, {TensorRole::kWeight, weight_value, &desc.b}};
  for (const auto& [role, value, operand] : sides) {
    QG_ASSIGN_OR_RETURN(Tensor source, Tensor::Allocate(DType::kBF16, {16, 256}));
    for (int64_t i = 0; i < source.element_count(); ++i) SetValue(source, i, value);
    QG_ASSIGN_OR_RETURN(const QuantizedTensor quantized,
                        QuantizeOn(context, source, context.recipe().QuantizerFor(role), {}));
    *operand = OperandOf(*quantized.rowwise);
  }
  QG_ASSIGN_OR_RETURN(desc.arithmetic, Arithmetic::Parse(arithmetic));
  desc.use_split_accumulator = true;
  return context.engine().Gemm(desc, context.cancellation());
}

// Every element is the largest of its block, so that its code is 448 and its scale_inv is
// value / 448: 1.5 and 1.25, or 2 and 0.5. The sums of 256 equal products are exact.
absl::Status CheckScalesAsExponents(ScenarioContext& context) {
  const struct {
    float x, weight;
    bool are_powers_of_two;
  } cases[] = {{896, 224, true}, {672, 560, false}};
  for (const auto& [x, weight, are_powers_of_two] : cases) {
    for (const char* arithmetic : {"sm90", "sm100"}) {
      const bool is_refused = !are_powers_of_two && arithmetic == std::string_view("sm100");
      const auto result = ConstantProduct(context, x, weight, arithmetic);
      const std::string name =
          absl::StrCat("GEMM of scales ", x / 448, " and ", weight / 448, " under ", arithmetic);
      context.ExpectCode(name, result.status(),
                         is_refused ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kOk);
      if (!result.ok()) continue;
      QG_ASSIGN_OR_RETURN(const Tensor d, context.ToHost(result->d));
      for (int64_t i = 0; i < d.element_count(); ++i) {
        context.ExpectSameFloat(name, ValueAt(d, i), 256 * x * weight);
      }
    }
  }
  return absl::OkStatus();
}

EngineAlterations WithoutEpsilon() {
  return {.quantize = [](Engine& engine, QuantizeCall call) {
    call.quantizer.rowwise.amax_epsilon = 0;
    call.quantizer.columnwise.amax_epsilon = 0;
    return call.On(engine);
  }};
}

EngineAlterations ShapeOfStorage() {
  return {.quantize = [](Engine& engine, QuantizeCall call) -> absl::StatusOr<QuantizedTensor> {
    QG_ASSIGN_OR_RETURN(QuantizedTensor quantized, call.On(engine));
    if (!call.usages.rowwise) quantized.shape = quantized.columnwise->data.shape();
    return quantized;
  }};
}

/// A kernel that reads fp32 scales by their exponent bits, without the check that they are powers
/// of two.
EngineAlterations ExponentsOfScales() {
  return {.gemm = [](Engine& engine, GemmDesc desc,
                     const Cancellation* cancellation) -> absl::StatusOr<GemmResult> {
    for (GemmOperand* operand : {&desc.a, &desc.b}) {
      const bool is_block = ScaleBlockOf(operand->scaling).dtype == DType::kF32 &&
                            ScaleBlockOf(operand->scaling).k > 1;
      if (!is_block || desc.arithmetic.family != ArithmeticFamily::kSm100) continue;
      QG_ASSIGN_OR_RETURN(operand->scale_inv,
                          WithAlteredBytes(engine, operand->scale_inv, [](Tensor& scales) {
                            for (int64_t i = 0; i < scales.element_count(); ++i) {
                              scales.as<uint32_t>()[i] &= 0x7F800000u;
                            }
                          }));
    }
    return engine.Gemm(desc, cancellation);
  }};
}

/// Alters conversions to the padded layout: puts scale (line, block) of 1-D blocks at index_of().
EngineAlterations PaddedWith(int64_t (*index_of)(int64_t line, int64_t block, const Shape& logical,
                                                 const Shape& padded)) {
  return {.convert_scales = [index_of](Engine& engine,
                                       ConvertScalesCall call) -> absl::StatusOr<Tensor> {
    QG_ASSIGN_OR_RETURN(const Tensor converted, call.On(engine));
    if (call.to != ScaleLayout::kPadded || call.array.block_dim != 1) return converted;
    QG_ASSIGN_OR_RETURN(const Tensor logical, engine.ToHost(call.scales, nullptr));
    return WithAlteredBytes(engine, converted, [&](Tensor& padded) {
      for (int64_t i = 0; i < logical.element_count(); ++i) {
        const int64_t to =
            index_of(i / logical.columns(), i % logical.columns(), logical.shape(), padded.shape());
        padded.as<float>()[to] = logical.as<float>()[i];
      }
    });
  }};
}

EngineAlterations UnpaddedStride() {
  return PaddedWith([](int64_t line, int64_t block, const Shape& logical, const Shape&) {
    return block * logical[0] + line;
  });
}

EngineAlterations UntransposedScales() {
  return PaddedWith([](int64_t line, int64_t block, const Shape& logical, const Shape&) {
    return line * logical[1] + block;
  });
}

}  // namespace

ScenarioGroup Fp8Scenarios() {
  ScenarioGroup group;
  group.scenarios.push_back(
      {.name = "amax-epsilon-floors-scale",
       .invariant = "An amax below amax_epsilon is taken as amax_epsilon, that of zeros too.",
       .criterion = "scale_inv is RN(1 / RN(448 / epsilon)) in every block, codes follow from it.",
       .bug_classes = {14},
       .faults = {"amax-epsilon-dropped"},
       .recipes = {"fp8_current:amax_epsilon=0.125,fp8_format=e4m3",
                   "fp8_block:amax_epsilon=0.125,power_2_scales=false"},
       .run = &CheckEpsilon});
  group.scenarios.push_back(
      {.name = "columnwise-keeps-logical-shape",
       .invariant = "A tensor held columnwise alone has the shape of its source, and its parts "
                    "put together are the whole.",
       .criterion = "Equal shapes in all usages; dequantized parts bit-equal to rows of the whole.",
       .bug_classes = {11},
       .faults = {"columnwise-shape-of-storage"},
       .recipes = {"fp8_current", "fp8_current:power_2_scales=true"},
       .run = &CheckShapes});
  group.scenarios.push_back(
      {.name = "block-scales-in-padded-layout",
       .invariant = "Block scales stand where the padded layout has them, and come back.",
       .criterion = "Every scale at [block][row], rows rounded up to 4; padding zero; the way back "
                    "is the identity.",
       .bug_classes = {30},
       .faults = {"padded-scales-unrounded-stride", "padded-scales-not-transposed"},
       .recipes = {"fp8_block"},
       .run = &CheckBlockLayout});
  group.scenarios.push_back(
      {.name = "scales-as-exponents-are-powers-of-two",
       .invariant = "A GEMM that reads fp32 block scales as exponents refuses those that are no "
                    "powers of two, and no other GEMM loses their mantissas.",
       .criterion = "INVALID_ARGUMENT under sm100 for scales 1.5 and 1.25; else sums of 256 equal "
                    "products, exact.",
       .bug_classes = {61},
       .faults = {"scales-read-by-exponent"},
       .recipes = {"fp8_block:power_2_scales=false"},
       .run = &CheckScalesAsExponents});
  group.faults = {
      {"amax-epsilon-dropped", "Ignores the recipe's amax_epsilon.", 14, &WithoutEpsilon},
      {"columnwise-shape-of-storage",
       "Reports the transposed storage's shape for a tensor held columnwise alone.", 11,
       &ShapeOfStorage},
      {"padded-scales-unrounded-stride", "Strides padded block scales by M, not by M rounded to 4.",
       30, &UnpaddedStride},
      {"scales-read-by-exponent",
       "Reads fp32 block scales by their exponents alone where E8M0 is needed.", 61,
       &ExponentsOfScales},
      {"padded-scales-not-transposed", "Writes 1-D block scales row by row.", 30,
       &UntransposedScales},
  };
  return group;
}

}  // namespace quantgate
