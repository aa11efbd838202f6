// CheckGemm, GemmText and the operand views: what a GEMM is, before it is done.
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/operand_view.h"

namespace quantgate {
namespace {

absl::Status Invalid(std::string_view field, const std::string& value, const std::string& rule) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(field), " is ", value, ": ", rule));
}

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

absl::Status CheckData(std::string_view field, const Tensor& data) {
  if (!data.has_value()) return Invalid(field, "absent", "a GEMM needs both operands");
  if (data.rank() != 2) return Invalid(field, TensorText(data), "operands are 2-D");
  if (!IsFp8(data.dtype()) && !IsHighPrecision(data.dtype())) {
    return Invalid(field, TensorText(data),
                   "operands are f32, bf16, f16, f8_e4m3 or f8_e5m2; dequantize others first");
  }
  return absl::OkStatus();
}

absl::Status CheckScaling(std::string_view field, const GemmOperand& operand, int64_t rows) {
  const std::string scale_field = absl::StrCat(std::string(field), ".scale_inv");
  if (operand.scaling == ScaleMode::kNone) {
    if (!operand.scale_inv.has_value()) return absl::OkStatus();
    return Invalid(scale_field, TensorText(operand.scale_inv),
                   "it must be absent where scaling is none");
  }
  if (!IsFp8(operand.data.dtype())) {
    return Invalid(scale_field, "given",
                   absl::StrCat("only FP8 operands have scales, and ", std::string(field), " is ",
                                Name(operand.data.dtype())));
  }
  if (!operand.scale_inv.has_value()) {
    return Invalid(scale_field, "absent", "scaling other than none needs it");
  }
  if (operand.scaling != ScaleMode::kTensor && operand.scaling != ScaleMode::kOuter) {
    return absl::UnimplementedError(absl::StrCat(std::string(field), ".scaling: block scales"));
  }
  const int64_t expected = operand.scaling == ScaleMode::kTensor ? 1 : rows;
  const Tensor& scale = operand.scale_inv;
  if (scale.dtype() != DType::kF32 || scale.shape() != Shape{expected}) {
    return Invalid(scale_field, TensorText(scale), absl::StrCat("expected f32[", expected, "]"));
  }
  return absl::OkStatus();
}

absl::Status CheckEpilogue(const GemmDesc& desc, const GemmShape& shape) {
  if (!IsFp8(desc.out_dtype) && !IsHighPrecision(desc.out_dtype)) {
    return Invalid("out_dtype", Name(desc.out_dtype),
                   "outputs are f32, bf16, f16, f8_e4m3 or f8_e5m2");
  }
  if (!std::isfinite(desc.alpha))
    return Invalid("alpha", absl::StrCat(desc.alpha), "must be finite");
  if (!std::isfinite(desc.beta)) return Invalid("beta", absl::StrCat(desc.beta), "must be finite");
  if (desc.c.has_value() != (desc.beta != 0)) {
    return Invalid("c", desc.c.has_value() ? TensorText(desc.c) : "absent",
                   absl::StrCat("c is given exactly when beta is not 0, and beta is ", desc.beta));
  }
  // cuBLASLt adds only a bf16 c to an FP8 output.
  const bool c_may_be_bf16 = IsFp8(desc.out_dtype);
  if (desc.c.has_value() && desc.c.dtype() != desc.out_dtype &&
      !(c_may_be_bf16 && desc.c.dtype() == DType::kBF16)) {
    return Invalid(
        "c", TensorText(desc.c),
        absl::StrCat("expected ", Name(desc.out_dtype), c_may_be_bf16 ? " or bf16" : ""));
  }
  if (desc.c.has_value() && desc.c.shape() != Shape{shape.m, shape.n}) {
    return Invalid("c", TensorText(desc.c),
                   absl::StrCat("expected the output's shape ", shape.m, "x", shape.n));
  }
  if (desc.in_place && desc.beta == 0) {
    return Invalid("in_place", "true", "accumulating in place needs c and a beta other than 0");
  }
  if (desc.in_place && IsFp8(desc.out_dtype)) {
    return Invalid("in_place", "true", "FP8 outputs are not accumulated in place");
  }
  if (desc.bias.has_value() &&
      (!IsHighPrecision(desc.bias.dtype()) || desc.bias.shape() != Shape{shape.n})) {
    return Invalid("bias", TensorText(desc.bias),
                   absl::StrCat("expected f32, bf16 or f16 [", shape.n, "]"));
  }
  if (desc.d_scale.has_value()) {
    if (!IsFp8(desc.out_dtype)) {
      return Invalid(
          "d_scale", TensorText(desc.d_scale),
          absl::StrCat("only FP8 outputs have one, and out_dtype is ", Name(desc.out_dtype)));
    }
    if (desc.d_scale.dtype() != DType::kF32 || desc.d_scale.shape() != Shape{1}) {
      return Invalid("d_scale", TensorText(desc.d_scale), "expected f32[1]");
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

/// Shape without the checks, for GemmText of a bad desc too.
GemmShape ShapeOf(const GemmDesc& desc) {
  const auto dim = [](const Tensor& tensor, int index) {
    return tensor.has_value() && tensor.rank() == 2 ? tensor.shape()[index] : int64_t(-1);
  };
  const bool a_transposed = desc.layout == GemmLayout::kNT;
  const bool b_transposed = desc.layout != GemmLayout::kTN;
  return {dim(desc.a.data, a_transposed ? 1 : 0), dim(desc.b.data, b_transposed ? 1 : 0),
          dim(desc.a.data, a_transposed ? 0 : 1)};
}

OperandView View(const Tensor& data, int64_t rows, int64_t k, bool k_contiguous) {
  return {data.data(), data.dtype(), rows, k, k_contiguous ? k : 1, k_contiguous ? 1 : rows};
}

}  // namespace

absl::StatusOr<GemmShape> CheckGemm(const GemmDesc& desc) {
  QG_RETURN_IF_ERROR(CheckData("a", desc.a.data));
  QG_RETURN_IF_ERROR(CheckData("b", desc.b.data));
  const DType a = desc.a.data.dtype();
  const DType b = desc.b.data.dtype();
  if (IsFp8(a) != IsFp8(b) || (!IsFp8(a) && a != b)) {
    return Invalid(
        "b", Name(b),
        absl::StrCat("operands are both FP8 or of one high-precision type, and a is ", Name(a)));
  }
  const GemmShape shape = ShapeOf(desc);
  const int64_t b_k = desc.b.data.shape()[desc.layout == GemmLayout::kTN ? 1 : 0];
  const std::string layout(LayoutName(desc.layout));
  if (b_k != shape.k) {
    return Invalid(
        "b", TensorText(desc.b.data),
        absl::StrCat("its k of ", b_k, " differs from a's k of ", shape.k, " in layout ", layout));
  }
  const Arithmetic arithmetic = desc.arithmetic.Resolved();
  if (a == DType::kF32 && arithmetic.family == ArithmeticFamily::kSm90 && arithmetic.split_k > 1) {
    // Each of cuBLASLt's tf32 kernels cuts K its own way (docs/tensor-cores.md section 3.2).
    return absl::UnimplementedError(
        absl::StrCat("arithmetic is ", arithmetic.ToString(),
                     ": split-K of f32 (tf32) operands is not modelled"));
  }
  if (shape.k < 1) return Invalid("k", absl::StrCat(shape.k), "must be at least 1");
  if (shape.n < 1) return Invalid("n", absl::StrCat(shape.n), "must be at least 1");
  QG_RETURN_IF_ERROR(CheckScaling("a", desc.a, shape.m));
  QG_RETURN_IF_ERROR(CheckScaling("b", desc.b, shape.n));
  if ((desc.a.scaling == ScaleMode::kOuter) != (desc.b.scaling == ScaleMode::kOuter)) {
    return Invalid("b.scaling", desc.b.scaling == ScaleMode::kOuter ? "outer" : "not outer",
                   "outer-vector scales are given for both operands or for none");
  }
  QG_RETURN_IF_ERROR(CheckEpilogue(desc, shape));
  return shape;
}

std::string GemmText(const GemmDesc& desc) {
  const GemmShape shape = ShapeOf(desc);
  std::string text = absl::StrCat("m=", shape.m, " n=", shape.n, " k=", shape.k, " ",
                                  OperandText(desc.a), " x ", OperandText(desc.b), " -> ",
                                  Name(desc.out_dtype), ", ", desc.arithmetic.ToString());
  const bool accumulation_from_recipe =
      desc.arithmetic.Resolved().family == ArithmeticFamily::kSm90 &&
      desc.arithmetic.accumulation == Accumulation::kRecipe;
  if (desc.a.data.has_value() && IsFp8(desc.a.data.dtype()) && accumulation_from_recipe) {
    absl::StrAppend(&text, desc.use_split_accumulator ? " split" : " fast");
  }
  if (desc.layout != GemmLayout::kTN) {
    absl::StrAppend(&text, ", layout ", std::string(LayoutName(desc.layout)));
  }
  if (desc.alpha != 1) absl::StrAppend(&text, ", alpha=", desc.alpha);
  if (desc.beta != 0) absl::StrAppend(&text, ", beta=", desc.beta);
  if (desc.in_place) absl::StrAppend(&text, " in place");
  if (desc.bias.has_value()) absl::StrAppend(&text, ", bias");
  if (desc.d_scale.has_value()) absl::StrAppend(&text, ", d_scale");
  return text;
}

OperandView ViewOfA(const GemmDesc& desc, const GemmShape& shape) {
  return View(desc.a.data, shape.m, shape.k, desc.layout != GemmLayout::kNT);
}

OperandView ViewOfB(const GemmDesc& desc, const GemmShape& shape) {
  return View(desc.b.data, shape.n, shape.k, desc.layout == GemmLayout::kTN);
}

}  // namespace quantgate
