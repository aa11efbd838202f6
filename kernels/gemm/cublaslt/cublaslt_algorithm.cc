#include "kernels/gemm/cublaslt/cublaslt_algorithm.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/scaling_check.h"

namespace quantgate {
namespace {

absl::Status CublasLtLacks(const std::string& field, const std::string& value,
                           const std::string& rule) {
  return StatusOf(
      {.code = absl::StatusCode::kUnimplemented, .field = field, .value = value, .rule = rule});
}

std::string NameOfDType(DType dtype) { return std::string(DTypeName(dtype)); }

absl::Status CheckFormat(const std::string& side, const GemmOperand& operand) {
  if (operand.scaling == ScaleMode::kMx32) {
    return CublasLtLacks(side + ".scaling", "mx32",
                         "cuBLASLt on sm_90 has no MXFP8; the model of sm100 has");
  }
  if (operand.scaling == ScaleMode::kNv16) {
    return CublasLtLacks(side + ".scaling", "nv16",
                         "cuBLASLt on sm_90 has no NVFP4; the model of sm100 has");
  }
  if (IsFp8Block(operand.scaling) && ScaleBlockOf(operand.scaling).k != 128) {
    return CublasLtLacks(side + ".scaling", std::string(ScaleModeName(operand.scaling)),
                         "cuBLASLt on sm_90 has fp32 scales of 128; the models of sm100 and exact "
                         "have others");
  }
  const DType dtype = operand.data.dtype();
  if (!IsFp8(dtype) && !IsHighPrecision(dtype)) {
    return CublasLtLacks(side, TensorText(operand.data),
                         "cuBLASLt on sm_90 has no FP6 and FP4 operands; the model of sm100 has");
  }
  return absl::OkStatus();
}

/// Types and layouts of FP8 operands.
absl::Status CheckFp8Types(const GemmDesc& desc) {
  if (desc.layout != GemmLayout::kTN) {
    return CublasLtLacks(
        "layout", desc.layout == GemmLayout::kNN ? "nn" : "nt",
        "cuBLASLt on sm_90 takes FP8 operands in layout tn only: transpose the codes");
  }
  const DType a = desc.a.data.dtype(), b = desc.b.data.dtype();
  if (a == DType::kF8E5M2 && b == DType::kF8E5M2) {
    return CublasLtLacks("b", NameOfDType(b),
                         "cuBLASLt on sm_90 has no e5m2 x e5m2, and a is f8_e5m2");
  }
  if (desc.out_dtype == DType::kF8E5M2 && a != DType::kF8E5M2 && b != DType::kF8E5M2) {
    return CublasLtLacks("out_dtype", NameOfDType(desc.out_dtype),
                         "cuBLASLt on sm_90 gives it where an operand is f8_e5m2");
  }
  const bool is_block = IsFp8Block(desc.a.scaling);
  if (is_block && desc.arithmetic.accumulation == Accumulation::kFast) {
    return Refuse("arithmetic", desc.arithmetic.ToString(),
                  "block-scaled operands have no fast accumulation");
  }
  return absl::OkStatus();
}

absl::Status CheckMultiple(const std::string& field, int64_t value, int multiple,
                           const std::string& what) {
  if (value % multiple == 0) return absl::OkStatus();
  return Refuse(field, absl::StrCat(value),
                absl::StrCat("cuBLASLt on sm_90 takes a multiple of ", multiple, " ", what));
}

absl::Status CheckFp8Dims(const GemmDesc& desc, const GemmShape& shape) {
  QG_RETURN_IF_ERROR(CheckMultiple("k", shape.k, 16, "with FP8 operands"));
  const int n_multiple = 16 / DTypeBytes(desc.out_dtype);
  QG_RETURN_IF_ERROR(CheckMultiple("n", shape.n, n_multiple,
                                   "with FP8 operands and output " + NameOfDType(desc.out_dtype)));
  if (desc.a.scaling != ScaleMode::k1x128) return absl::OkStatus();
  return CheckMultiple("m", shape.m, 4, "where a has 1x128 scales");
}

absl::Status CheckOutput(const GemmDesc& desc) {
  const bool has_fp8_operands = IsFp8(desc.a.data.dtype());
  const DType out = desc.out_dtype;
  if (!has_fp8_operands) {
    const DType operand = desc.a.data.dtype();
    if (out != operand && out != DType::kF32) {
      return CublasLtLacks(
          "out_dtype", NameOfDType(out),
          absl::StrCat("cuBLASLt on sm_90 gives f32 or the operands' type, and a is ",
                       NameOfDType(operand)));
    }
  }
  if (desc.c.has_value() && IsFp8(out) && desc.c.dtype() != DType::kBF16) {
    return CublasLtLacks("c", TensorText(desc.c), "cuBLASLt adds a bf16 c to an FP8 output");
  }
  if (!desc.bias.has_value()) return absl::OkStatus();
  const DType expected = CublasLtBiasType(desc.a.data.dtype(), out);
  if (desc.bias.dtype() == expected) return absl::OkStatus();
  return CublasLtLacks(
      "bias", TensorText(desc.bias),
      absl::StrCat("cuBLASLt adds one of ", NameOfDType(expected), " to ", NameOfDType(out),
                   " outputs of ", NameOfDType(desc.a.data.dtype()), " operands"));
}

}  // namespace

std::string CublasLtAlgorithm::ToString() const {
  return absl::StrCat("id=", id, " tile=", tile, " stages=", stages, " splitk=", split_k,
                      " reduction=", reduction_scheme, " swizzle=", swizzle,
                      " custom=", custom_option, " inner=", inner_shape, " cluster=", cluster_shape,
                      " workspace=", workspace_bytes);
}

DType CublasLtBiasType(DType operand, DType out) {
  if (out == DType::kBF16 || out == DType::kF16) return out;
  return IsFp8(operand) ? DType::kBF16 : DType::kF32;
}

absl::StatusOr<GemmShape> CheckCublasLtGemm(const GemmDesc& desc) {
  QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(desc));
  if (desc.arithmetic.family != ArithmeticFamily::kCublasLt) {
    return Refuse("arithmetic", desc.arithmetic.ToString(),
                  "cuBLASLt runs only arithmetic cublaslt");
  }
  QG_RETURN_IF_ERROR(CheckFormat("a", desc.a));
  QG_RETURN_IF_ERROR(CheckFormat("b", desc.b));
  if (IsFp8(desc.a.data.dtype())) {
    QG_RETURN_IF_ERROR(CheckFp8Types(desc));
    QG_RETURN_IF_ERROR(CheckFp8Dims(desc, shape));
  }
  QG_RETURN_IF_ERROR(CheckOutput(desc));
  return shape;
}

}  // namespace quantgate
