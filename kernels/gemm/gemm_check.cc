// CheckGemm and GemmText: the checks and the text of a GEMM's description.
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/integer_gemm.h"
#include "kernels/gemm/models/rules.h"
#include "kernels/gemm/scaling_check.h"

namespace quantgate {
namespace {

std::string Name(DType dtype) { return std::string(DTypeName(dtype)); }

std::string_view LayoutName(GemmLayout layout) {
  switch (layout) {
    case GemmLayout::kTN:
      return "tn";
    case GemmLayout::kNN:
      return "nn";
    case GemmLayout::kNT:
      return "nt";
  }
  return "unknown";
}

bool IsCode(DType dtype) { return IsFp8(dtype) || IsFp6OrFp4(dtype); }

absl::Status CheckData(std::string_view field, const GemmOperand& operand, bool k_contiguous) {
  const Tensor& data = operand.data;
  if (!data.has_value()) return RefuseAbsent(field, "a GEMM needs both operands");
  if (data.rank() != 2) return Refuse(field, TensorText(data), "operands are 2-D");
  if (IsFnuz(data.dtype())) {
    return StatusOf({.code = absl::StatusCode::kUnimplemented,
                     .field = std::string(field),
                     .value = TensorText(data),
                     .rule = "no arithmetic here multiplies AMD's FP8 formats; dequantize them"});
  }
  const bool is_integer = data.dtype() == DType::kI8 || data.dtype() == DType::kU8;
  if (!IsCode(data.dtype()) && !IsHighPrecision(data.dtype()) && !is_integer) {
    return Refuse(
        field, TensorText(data),
        "operands are f32, bf16, f16, i8, u8, f8_e4m3, f8_e5m2, f6_e2m3, f6_e3m2 or f4_e2m1x2; "
        "dequantize others first");
  }
  // Columnwise MX codes lie as the source does (docs/quantizers.md section 10.1).
  if (data.dtype() == DType::kF4E2M1x2 && !k_contiguous && operand.scaling != ScaleMode::kMx32) {
    return Refuse(field, TensorText(data),
                  "FP4 codes without mx32 scales are packed along k: layout tn");
  }
  return absl::OkStatus();
}

absl::Status CheckEpilogue(const GemmDesc& desc, const GemmShape& shape) {
  if (!IsFp8(desc.out_dtype) && !IsHighPrecision(desc.out_dtype)) {
    return Refuse("out_dtype", Name(desc.out_dtype),
                  "outputs are f32, bf16, f16, f8_e4m3 or f8_e5m2");
  }
  if (!std::isfinite(desc.alpha))
    return Refuse("alpha", absl::StrCat(desc.alpha), "must be finite");
  if (!std::isfinite(desc.beta)) return Refuse("beta", absl::StrCat(desc.beta), "must be finite");
  if (desc.c.has_value() != (desc.beta != 0)) {
    return Refuse("c", TensorText(desc.c),
                  absl::StrCat("c is given exactly when beta is not 0, and beta is ", desc.beta));
  }
  // cuBLASLt adds only a bf16 c to an FP8 output.
  const bool c_may_be_bf16 = IsFp8(desc.out_dtype);
  if (desc.c.has_value() && desc.c.dtype() != desc.out_dtype &&
      !(c_may_be_bf16 && desc.c.dtype() == DType::kBF16)) {
    return Refuse("c", TensorText(desc.c),
                  absl::StrCat("must be ", Name(desc.out_dtype), c_may_be_bf16 ? " or bf16" : ""));
  }
  if (desc.c.has_value() && desc.c.shape() != Shape{shape.m, shape.n}) {
    return Refuse("c", TensorText(desc.c),
                  absl::StrCat("must have the output's shape, ", shape.m, "x", shape.n));
  }
  if (desc.d.has_value() &&
      (desc.d.dtype() != desc.out_dtype || desc.d.shape() != Shape{shape.m, shape.n})) {
    return Refuse("d", TensorText(desc.d),
                  absl::StrCat("must be ", Name(desc.out_dtype), "[", shape.m, "x", shape.n, "]"));
  }
  const bool is_16_bits = desc.out_dtype == DType::kBF16 || desc.out_dtype == DType::kF16;
  if (desc.also_f32 && (desc.arithmetic.family != ArithmeticFamily::kExact || !is_16_bits)) {
    return Refuse("also_f32", "true",
                  absl::StrCat("only exact rounds to f32 beside bf16 or f16, and this is ",
                               desc.arithmetic.ToString(), " to ", Name(desc.out_dtype)));
  }
  if (desc.in_place && desc.beta == 0) {
    return Refuse("in_place", "true", "accumulating in place needs c and a beta other than 0");
  }
  if (desc.in_place && IsFp8(desc.out_dtype)) {
    return Refuse("in_place", "true", "FP8 outputs are not accumulated in place");
  }
  if (desc.bias.has_value() &&
      (!IsHighPrecision(desc.bias.dtype()) || desc.bias.shape() != Shape{shape.n})) {
    return Refuse("bias", TensorText(desc.bias),
                  absl::StrCat("must be f32, bf16 or f16 [", shape.n, "]"));
  }
  if (desc.d_scale.has_value()) {
    if (!IsFp8(desc.out_dtype)) {
      return Refuse(
          "d_scale", TensorText(desc.d_scale),
          absl::StrCat("only FP8 outputs have one, and out_dtype is ", Name(desc.out_dtype)));
    }
    if (desc.d_scale.dtype() != DType::kF32 || desc.d_scale.shape() != Shape{1}) {
      return Refuse("d_scale", TensorText(desc.d_scale), "must be f32[1]");
    }
  }
  return absl::OkStatus();
}

std::string OperandText(const GemmOperand& operand) {
  if (!operand.data.has_value()) return "absent";
  if (operand.scaling == ScaleMode::kNone) return Name(operand.data.dtype());
  return absl::StrCat(Name(operand.data.dtype()), "[", std::string(ScaleModeName(operand.scaling)),
                      "]");
}

/// A dim of an operand in elements (FP4 has two in each byte); -1 where it is not a matrix.
int64_t DimOf(const Tensor& tensor, int index) {
  if (!tensor.has_value() || tensor.rank() != 2) return -1;
  return tensor.shape()[index] * (tensor.dtype() == DType::kF4E2M1x2 && index == 1 ? 2 : 1);
}

/// The shape without checks, so that GemmText also works for an invalid desc.
GemmShape ShapeOf(const GemmDesc& desc) {
  const bool a_transposed = desc.layout == GemmLayout::kNT;
  const bool b_transposed = desc.layout != GemmLayout::kTN;
  return {DimOf(desc.a.data, a_transposed ? 1 : 0), DimOf(desc.b.data, b_transposed ? 1 : 0),
          DimOf(desc.a.data, a_transposed ? 0 : 1)};
}

}  // namespace

absl::StatusOr<GemmShape> CheckGemm(const GemmDesc& desc) {
  QG_RETURN_IF_ERROR(CheckData("a", desc.a, desc.layout != GemmLayout::kNT));
  QG_RETURN_IF_ERROR(CheckData("b", desc.b, desc.layout == GemmLayout::kTN));
  const DType a = desc.a.data.dtype();
  const DType b = desc.b.data.dtype();
  const bool has_integers = HasIntegers(desc);
  if (!has_integers && (IsCode(a) != IsCode(b) || (!IsCode(a) && a != b))) {
    return Refuse("b", Name(b),
                  absl::StrCat("operands are both codes (FP8, FP6, FP4) or of one high-precision "
                               "type, and a is ",
                               Name(a)));
  }
  const GemmShape shape = ShapeOf(desc);
  const int64_t b_k = DimOf(desc.b.data, desc.layout == GemmLayout::kTN ? 1 : 0);
  const std::string layout(LayoutName(desc.layout));
  if (b_k != shape.k) {
    return Refuse(
        "b", TensorText(desc.b.data),
        absl::StrCat("its k of ", b_k, " differs from a's k of ", shape.k, " in layout ", layout));
  }
  if (desc.arithmetic.split_k < 1) {
    return Refuse("arithmetic.split_k", absl::StrCat(desc.arithmetic.split_k),
                  "must be at least 1");
  }
  if (shape.k < 1) return Refuse("k", absl::StrCat(shape.k), "must be at least 1");
  if (shape.n < 1) return Refuse("n", absl::StrCat(shape.n), "must be at least 1");
  if (has_integers) {
    QG_RETURN_IF_ERROR(CheckIntegerGemm(desc, shape));
    QG_RETURN_IF_ERROR(CheckEpilogue(desc, shape));
    return shape;
  }
  if (desc.arithmetic.family == ArithmeticFamily::kInt32) {
    return Refuse("arithmetic", "int32",
                  absl::StrCat("it adds integers of 8 bits (i8, u8), and a is ", Name(a)));
  }
  QG_RETURN_IF_ERROR(CheckScaling(desc, shape));
  if (IsTensorCore(ResolvedFor(desc).family)) {
    QG_RETURN_IF_ERROR(RuleFor(desc).status());
  }
  QG_RETURN_IF_ERROR(CheckEpilogue(desc, shape));
  return shape;
}

std::string GemmText(const GemmDesc& desc) {
  const GemmShape shape = ShapeOf(desc);
  std::string text = absl::StrCat("m=", shape.m, " n=", shape.n, " k=", shape.k, " ",
                                  OperandText(desc.a), " x ", OperandText(desc.b), " -> ",
                                  Name(desc.out_dtype), ", ", desc.arithmetic.ToString());
  if (desc.a.data.has_value() && desc.b.data.has_value() &&
      desc.arithmetic.accumulation == Accumulation::kRecipe) {
    const Arithmetic resolved = ResolvedFor(desc);
    if (resolved.accumulation == Accumulation::kSplit) absl::StrAppend(&text, " split");
    if (resolved.accumulation == Accumulation::kFast) absl::StrAppend(&text, " fast");
  }
  if (desc.layout != GemmLayout::kTN) {
    absl::StrAppend(&text, ", layout ", std::string(LayoutName(desc.layout)));
  }
  if (desc.alpha != 1) absl::StrAppend(&text, ", alpha=", desc.alpha);
  if (desc.beta != 0) absl::StrAppend(&text, ", beta=", desc.beta);
  if (desc.in_place) absl::StrAppend(&text, " in place");
  if (desc.bias.has_value()) absl::StrAppend(&text, ", bias");
  if (desc.d_scale.has_value()) absl::StrAppend(&text, ", d_scale");
  if (desc.also_f32) absl::StrAppend(&text, ", also f32");
  return text;
}

}  // namespace quantgate
