#include "kernels/layer/linear/linear_check.h"

#include <initializer_list>
#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/comm/overlap/overlap.h"
#include "kernels/gemm/cublaslt/cublaslt_algorithm.h"
#include "kernels/gemm/scaling_check.h"
#include "kernels/layer/linear/linear_operands.h"
#include "kernels/quantize/quantized_outline.h"

namespace quantgate {
namespace {

/// A dim that quantized GEMMs take only in multiples.
struct DimRule {
  const LinearField& field;
  const char* dim;
  int64_t value;
};

absl::Status CheckMultiple(const DimRule& rule, int64_t multiple, const std::string& recipe,
                           const char* reason) {
  if (rule.value % multiple == 0) return absl::OkStatus();
  return Refuse(rule.field.name, TensorText(rule.field.tensor),
                absl::StrCat(rule.dim, " is ", rule.value, " and must be a multiple of ", multiple,
                             " under ", recipe, ": ", reason));
}

/// The dims of a unit and their names in messages.
struct UnitDims {
  UnitDims(const LinearUnit& unit, const LinearFields& fields)
      : m{fields.m, "M", unit.m}, n{fields.n, "N", unit.n}, k{fields.k, "K", unit.k} {}
  DimRule m, n, k;
};

constexpr char kGemmDim[] = "it is a GEMM dim";

// What cuBLASLt's FP8 GEMMs take on Hopper (tests/hardware/README.md, rule 7): contractions in
// multiples of 16, N in multiples of 8 for 16-bit outputs. M % 8 and N % 8 in general are
// Transformer Engine's rule for modules (docs/quantizers.md section 10.1).
absl::Status CheckFp8Alignment(GemmRole gemm, const UnitDims& dims) {
  const std::string recipe = "an FP8 recipe";
  switch (gemm) {
    case GemmRole::kFprop:
      QG_RETURN_IF_ERROR(CheckMultiple(dims.k, 16, recipe, "fprop contracts over K"));
      QG_RETURN_IF_ERROR(
          CheckMultiple(dims.m, 8, recipe, "the product of its leading dims is a GEMM dim"));
      return CheckMultiple(dims.n, 8, recipe, "N is a GEMM dim");
    case GemmRole::kDgrad:
      QG_RETURN_IF_ERROR(CheckMultiple(dims.n, 16, recipe, "dgrad contracts over N"));
      QG_RETURN_IF_ERROR(CheckMultiple(dims.m, 8, recipe, kGemmDim));
      return CheckMultiple(dims.k, 8, recipe, kGemmDim);
    case GemmRole::kWgrad:
      QG_RETURN_IF_ERROR(CheckMultiple(dims.m, 16, recipe, "wgrad contracts over M"));
      QG_RETURN_IF_ERROR(CheckMultiple(dims.n, 8, recipe, kGemmDim));
      return CheckMultiple(dims.k, 8, recipe, kGemmDim);
  }
  return absl::OkStatus();
}

/// Micro formats quantize whole blocks, in both dims also where one direction is asked for.
absl::Status CheckWholeBlocks(QuantizerFormat format, std::initializer_list<DimRule> dims) {
  for (const DimRule& dim : dims) {
    QG_RETURN_IF_ERROR(CheckMultiple(dim, BlockLength(format),
                                     std::string(QuantizerFormatName(format)),
                                     "both dims of a quantized tensor are in whole blocks"));
  }
  return absl::OkStatus();
}

absl::Status CheckAlignment(GemmRole gemm, QuantizerFormat format, const UnitDims& dims,
                            bool is_empty) {
  if (TraitsOf(format).is_micro) {
    return CheckWholeBlocks(format, {dims.m, dims.n, dims.k});
  }
  return is_empty ? absl::OkStatus() : CheckFp8Alignment(gemm, dims);
}

/// Refuses what the quantizers themselves refuse, such as a Hadamard transform of f32.
absl::Status CheckQuantized(const std::string& field, TensorRole role, DType source,
                            const Shape& shape, Usages usages, const Recipe& recipe) {
  if (!usages.rowwise && !usages.columnwise) return absl::OkStatus();
  const absl::Status status = CheckQuantization(source, shape, recipe.QuantizerFor(role), usages);
  if (status.ok()) return status;
  return StatusOf(
      {.code = status.code(),
       .field = field,
       .value = absl::StrCat(std::string(DTypeName(source)), "[", ShapeText(shape), "]"),
       .rule = std::string(status.message())});
}

absl::Status CheckQuantizations(const LinearUnit& unit, const LinearFields& fields) {
  const Recipe& recipe = *unit.recipe;
  const LinearDataflow& flow = unit.flow;
  const DType x = unit.facts.x_is_unrounded ? DType::kF32 : flow.activation_dtype;
  QG_RETURN_IF_ERROR(
      CheckQuantized(unit.names.x, TensorRole::kInput, x, {unit.m, unit.k}, flow.x_usages, recipe));
  if (!unit.facts.weight_is_codes) {
    QG_RETURN_IF_ERROR(CheckQuantized(fields.n.name, TensorRole::kWeight, unit.facts.weight_dtype,
                                      {unit.n, unit.k}, flow.weight_usages, recipe));
  }
  QG_RETURN_IF_ERROR(CheckQuantized(unit.names.grad_output, TensorRole::kGradOutput,
                                    flow.activation_dtype, {unit.m, unit.n},
                                    flow.grad_output_usages, recipe));
  QG_RETURN_IF_ERROR(CheckQuantized(unit.names.y, TensorRole::kOutput, flow.activation_dtype,
                                    {unit.m, unit.n}, {flow.quantizes_output, false}, recipe));
  return CheckQuantized(unit.names.dx, TensorRole::kGradInput, flow.activation_dtype,
                        {unit.m, unit.k}, {flow.quantizes_grad_input, false}, recipe);
}

/// Outlines of the operands and GEMMs of one unit.
class GemmOutlines {
 public:
  explicit GemmOutlines(const LinearUnit& unit)
      : unit_(unit), flow_(unit.flow), recipe_(*unit.recipe) {}

  absl::StatusOr<GemmDesc> Fprop() const {
    GemmDesc desc;
    desc.layout = GemmLayout::kTN;
    desc.out_dtype = flow_.activation_dtype;
    QG_ASSIGN_OR_RETURN(desc.a, Operand(TensorRole::kInput, Usage::kRowwise));
    QG_ASSIGN_OR_RETURN(desc.b, Operand(TensorRole::kWeight, Usage::kRowwise));
    if (unit_.adds_bias_in_gemm()) {
      QG_ASSIGN_OR_RETURN(desc.bias, OutlineTensor(flow_.bias_dtype, {unit_.n}));
    }
    return desc;
  }

  absl::StatusOr<GemmDesc> Dgrad() const {
    GemmDesc desc;
    const bool quantized = flow_.quantizes_dgrad;
    desc.layout =
        quantized ? DgradLayout(recipe_.QuantizerFor(TensorRole::kWeight)) : GemmLayout::kNN;
    desc.out_dtype = flow_.activation_dtype;
    QG_ASSIGN_OR_RETURN(desc.a, Operand(TensorRole::kGradOutput, Usage::kRowwise));
    QG_ASSIGN_OR_RETURN(desc.b, Operand(TensorRole::kWeight, Usage::kColumnwise));
    return desc;
  }

  absl::StatusOr<GemmDesc> Wgrad() const {
    GemmDesc desc;
    const bool quantized = flow_.quantizes_wgrad;
    desc.layout =
        quantized ? WgradLayout(recipe_.QuantizerFor(TensorRole::kInput)) : GemmLayout::kNT;
    desc.out_dtype = flow_.activation_dtype;
    QG_ASSIGN_OR_RETURN(desc.a, Operand(TensorRole::kGradOutput, Usage::kColumnwise));
    QG_ASSIGN_OR_RETURN(desc.b, Operand(TensorRole::kInput, Usage::kColumnwise));
    if (unit_.facts.has_main_grad) {
      desc.out_dtype = DType::kF32;
      QG_ASSIGN_OR_RETURN(desc.c, OutlineTensor(DType::kF32, {unit_.n, unit_.k}));
      desc.beta = 1.0f;
      desc.in_place = true;
    }
    return desc;
  }

 private:
  Shape ShapeOf(TensorRole role) const {
    if (role == TensorRole::kInput) return {unit_.m, unit_.k};
    return role == TensorRole::kWeight ? Shape{unit_.n, unit_.k} : Shape{unit_.m, unit_.n};
  }

  /// What a GEMM reads of this direction; in the activation dtype unless the step makes a copy.
  absl::StatusOr<GemmOperand> Operand(TensorRole role, Usage usage) const {
    const Usages usages = role == TensorRole::kInput    ? flow_.x_usages
                          : role == TensorRole::kWeight ? flow_.weight_usages
                                                        : flow_.grad_output_usages;
    const QuantizerSpec& spec = recipe_.QuantizerFor(role).spec(usage);
    const bool is_made = usage == Usage::kRowwise ? usages.rowwise : usages.columnwise;
    if (!is_made || !spec.makes_copy()) {
      QG_ASSIGN_OR_RETURN(const Tensor plain, OutlineTensor(flow_.activation_dtype, ShapeOf(role)));
      return PlainOperand(plain);
    }
    const DType source =
        role == TensorRole::kWeight ? unit_.facts.weight_dtype : flow_.activation_dtype;
    QG_ASSIGN_OR_RETURN(const QuantizedCopy copy, OutlineCopy(spec, usage, source, ShapeOf(role)));
    return OperandOf(copy);
  }

  const LinearUnit& unit_;
  const LinearDataflow& flow_;
  const Recipe& recipe_;
};

/// Blackwell reads fp32 block scales by their exponent bits, so the recipe must make powers of two.
absl::Status CheckBlockScales(const GemmDesc& desc, const Recipe& recipe, GemmRole role) {
  if (!NeedsPowersOfTwo(desc)) return absl::OkStatus();
  const Usage a_usage = role == GemmRole::kWgrad ? Usage::kColumnwise : Usage::kRowwise;
  const Usage b_usage = role == GemmRole::kFprop ? Usage::kRowwise : Usage::kColumnwise;
  const TensorRole a_role = role == GemmRole::kFprop ? TensorRole::kInput : TensorRole::kGradOutput;
  const TensorRole b_role = role == GemmRole::kWgrad ? TensorRole::kInput : TensorRole::kWeight;
  if (recipe.QuantizerFor(a_role).spec(a_usage).power_2_scale &&
      recipe.QuantizerFor(b_role).spec(b_usage).power_2_scale) {
    return absl::OkStatus();
  }
  const bool has_sm90 = ScaleBlockOf(desc.a.scaling).k == 128;
  return Refuse("arithmetic", desc.arithmetic.ToString(),
                absl::StrCat("Blackwell takes block scales that are powers of two; give the recipe "
                             "power_2_scales=true, or ",
                             has_sm90 ? "an sm90 arithmetic" : "the arithmetic exact"));
}

absl::Status CheckOne(absl::StatusOr<GemmDesc> desc, const LinearUnit& unit, GemmRole role,
                      const Arithmetic& arithmetic) {
  QG_RETURN_IF_ERROR(desc.status());
  desc->arithmetic = arithmetic;
  desc->use_split_accumulator = UsesSplit(*unit.recipe, role, desc->a);
  absl::Status status = CheckBlockScales(*desc, *unit.recipe, role);
  const bool is_hardware = desc->arithmetic.family == ArithmeticFamily::kCublasLt;
  if (status.ok()) status = (is_hardware ? CheckCublasLtGemm(*desc) : CheckGemm(*desc)).status();
  if (status.ok()) return status;
  return WithinField(unit.names.Stage(std::string(GemmRoleName(role))), status);
}

/// Checks a GEMM that gathers its operand a, or sums its result, while it runs.
absl::Status CheckCut(absl::StatusOr<GemmDesc> desc, const LinearUnit& unit, GemmRole role,
                      OverlapCollective collective, const ReductionProfile& profile) {
  QG_RETURN_IF_ERROR(desc.status());
  const LinearParallel& parallel = unit.parallel;
  absl::Status status;
  if (collective == OverlapCollective::kAllGather) {
    const std::string& operand = role == GemmRole::kFprop ? unit.names.x : unit.names.grad_output;
    status = CheckOverlapShards(operand, desc->a, parallel.rows);
  } else {
    desc->bias = Tensor();
    status = CheckReduceScatterGemm({.gemm = *std::move(desc),
                                     .rows = parallel.rows,
                                     .method = parallel.overlap.MethodOf(role),
                                     .profile = profile,
                                     .pieces = parallel.overlap.pieces,
                                     .splits = parallel.overlap.splits},
                                    parallel.size);
  }
  if (status.ok()) return status;
  const std::optional<Refusal> refusal = RefusalOf(status);
  status = WithinField(unit.names.Stage(std::string(GemmRoleName(role))), status);
  // Fields of the request stay; of a GEMM's dims the method is refused.
  const bool is_of_request =
      !refusal.has_value() || refusal->field == "profile" || refusal->field == "splits";
  if (is_of_request) return status;
  const GemmRole named = RoleToName(parallel.overlap, role);
  return StatusOf({.code = refusal->code,
                   .field = absl::StrCat("overlap.", std::string(GemmRoleName(named))),
                   .value = std::string(OverlapMethodName(parallel.overlap.MethodOf(named))),
                   .rule = std::string(status.message())});
}

/// wgrad's operand that travels beside dgrad: x of a column-parallel unit, grad_output of a
/// row-parallel one. Its codes are gathered as they are, which those of blocks that two ranks share
/// cannot be.
absl::Status CheckGatherBeside(const LinearUnit& unit) {
  const LinearParallel& parallel = unit.parallel;
  const OverlapPlan& plan = parallel.overlap;
  const bool is_column = parallel.is_column();
  const bool travels =
      is_column ? plan.dgrad == OverlapMethod::kBulk
                : plan.dgrad != OverlapMethod::kNone && plan.wgrad != OverlapMethod::kNone;
  const Usages usages = is_column ? unit.flow.x_usages : unit.flow.grad_output_usages;
  const GatherMethod method = is_column ? parallel.x_gather : parallel.grad_output_gather;
  if (!travels || !usages.columnwise || method == GatherMethod::kCodes) return absl::OkStatus();
  const GemmRole role = is_column ? GemmRole::kDgrad : GemmRole::kWgrad;
  return Refuse(absl::StrCat("overlap.", std::string(GemmRoleName(role))),
                OverlapMethodName(plan.MethodOf(role)),
                absl::StrCat("blocks of ", is_column ? "x" : "grad_output",
                             " have rows of two ranks, so their codes are not gathered by "
                             "themselves"));
}

}  // namespace

absl::Status CheckLinearUnit(const LinearUnit& unit, const LinearFields& fields) {
  const LinearDataflow& flow = unit.flow;
  const UnitDims dims(unit, fields);
  const auto check = [&](bool runs, GemmRole gemm, TensorRole role, Usage usage) {
    if (!runs) return absl::OkStatus();
    const QuantizerFormat format = unit.recipe->QuantizerFor(role).spec(usage).format;
    return CheckAlignment(gemm, format, dims, flow.is_empty);
  };
  QG_RETURN_IF_ERROR(
      check(flow.quantizes_fprop, GemmRole::kFprop, TensorRole::kInput, Usage::kRowwise));
  QG_RETURN_IF_ERROR(
      check(flow.quantizes_dgrad, GemmRole::kDgrad, TensorRole::kWeight, Usage::kColumnwise));
  QG_RETURN_IF_ERROR(
      check(flow.quantizes_wgrad, GemmRole::kWgrad, TensorRole::kInput, Usage::kColumnwise));
  return CheckQuantizations(unit, fields);
}

absl::Status CheckLinearUnitOverlap(const LinearUnit& unit, const ReductionProfile& profile) {
  using enum OverlapCollective;
  const OverlapPlan& plan = unit.parallel.overlap;
  const GemmOutlines outlines(unit);
  const bool is_column = unit.parallel.is_column();
  if (plan.fprop != OverlapMethod::kNone) {
    QG_RETURN_IF_ERROR(CheckCut(outlines.Fprop(), unit, GemmRole::kFprop,
                                is_column ? kAllGather : kReduceScatter, profile));
  }
  if (plan.dgrad != OverlapMethod::kNone && plan.dgrad != OverlapMethod::kBulk) {
    QG_RETURN_IF_ERROR(CheckCut(outlines.Dgrad(), unit, GemmRole::kDgrad,
                                is_column ? kReduceScatter : kAllGather, profile));
  }
  QG_RETURN_IF_ERROR(CheckGatherBeside(unit));
  if (plan.wgrad != OverlapMethod::kBulk) return absl::OkStatus();
  return CheckOverlapProfile(profile);
}

absl::Status CheckLinearUnitGemms(const LinearUnit& unit, const Arithmetic& arithmetic) {
  const GemmOutlines outlines(unit);
  const LinearDataflow& flow = unit.flow;
  QG_RETURN_IF_ERROR(CheckOne(outlines.Fprop(), unit, GemmRole::kFprop, arithmetic));
  if (flow.needs_dx) {
    QG_RETURN_IF_ERROR(CheckOne(outlines.Dgrad(), unit, GemmRole::kDgrad, arithmetic));
  }
  // A sum over no rows is no GEMM.
  if (!flow.needs_dw || flow.is_empty) return absl::OkStatus();
  return CheckOne(outlines.Wgrad(), unit, GemmRole::kWgrad, arithmetic);
}

absl::Status RefuseResultRule(const std::string& field, const Recipe& recipe, TensorRole role) {
  return Refuse(field, recipe.ShortText(),
                absl::StrCat("a rule for ", std::string(TensorRoleName(role)),
                             " goes with one rank: a part of a result would have scales that the "
                             "whole does not have"));
}

}  // namespace quantgate
