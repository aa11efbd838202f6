#include "kernels/layer/linear/linear_check.h"

#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"

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

/// The dims of a unit and who is asked for them in messages.
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

/// What the quantizers themselves do not take: a Hadamard transform of f32, say.
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

absl::Status CheckQuantizations(const LinearUnit& unit, const LinearFields& fields,
                                const Recipe& recipe) {
  const LinearDataflow& flow = unit.flow;
  const DType x = unit.facts.x_is_unrounded ? DType::kF32 : flow.activation_dtype;
  QG_RETURN_IF_ERROR(
      CheckQuantized(unit.names.x, TensorRole::kInput, x, {unit.m, unit.k}, flow.x_usages, recipe));
  if (!unit.facts.weight_is_codes) {
    QG_RETURN_IF_ERROR(CheckQuantized(fields.n.name, TensorRole::kWeight, unit.facts.weight_dtype,
                                      {unit.n, unit.k}, flow.weight_usages, recipe));
  }
  return CheckQuantized(unit.names.grad_output, TensorRole::kGradOutput, flow.activation_dtype,
                        {unit.m, unit.n}, flow.grad_output_usages, recipe);
}

}  // namespace

absl::Status CheckLinearUnit(const LinearUnit& unit, const LinearFields& fields,
                             const Recipe& recipe) {
  const LinearDataflow& flow = unit.flow;
  const UnitDims dims(unit, fields);
  const auto check = [&](bool runs, GemmRole gemm, TensorRole role, Usage usage) {
    if (!runs) return absl::OkStatus();
    return CheckAlignment(gemm, recipe.QuantizerFor(role).spec(usage).format, dims, flow.is_empty);
  };
  QG_RETURN_IF_ERROR(
      check(flow.quantizes_fprop, GemmRole::kFprop, TensorRole::kInput, Usage::kRowwise));
  QG_RETURN_IF_ERROR(
      check(flow.quantizes_dgrad, GemmRole::kDgrad, TensorRole::kWeight, Usage::kColumnwise));
  QG_RETURN_IF_ERROR(
      check(flow.quantizes_wgrad, GemmRole::kWgrad, TensorRole::kInput, Usage::kColumnwise));
  return CheckQuantizations(unit, fields, recipe);
}

}  // namespace quantgate
