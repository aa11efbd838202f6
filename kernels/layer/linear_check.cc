#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/linear.h"
#include "kernels/layer/linear_dataflow.h"

namespace quantgate {
namespace {

absl::Status Invalid(const char* field, const std::string& value, const std::string& rule) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, "; ", rule));
}

absl::Status CheckDType(const char* field, const Tensor& tensor) {
  if (IsHighPrecision(tensor.dtype())) return absl::OkStatus();
  return Invalid(field, TensorText(tensor), "its dtype must be f32, bf16 or f16");
}

absl::Status CheckShape(const char* field, const Tensor& tensor, const Shape& expected,
                        const char* reason) {
  if (tensor.shape() == expected) return absl::OkStatus();
  return Invalid(field, TensorText(tensor),
                 absl::StrCat("its shape must be ", ShapeText(expected), ", ", reason));
}

absl::Status CheckOperands(const LinearRequest& request) {
  if (!request.x.has_value()) return Invalid("x", "absent", "a linear layer needs it");
  if (!request.weight.has_value()) return Invalid("weight", "absent", "a linear layer needs it");
  QG_RETURN_IF_ERROR(CheckDType("x", request.x));
  QG_RETURN_IF_ERROR(CheckDType("weight", request.weight));
  if (request.x.rank() < 1) {
    return Invalid("x", TensorText(request.x), "its rank must be at least 1, [..., K]");
  }
  if (request.weight.rank() != 2) {
    return Invalid("weight", TensorText(request.weight), "its rank must be 2, [N][K]");
  }
  if (request.weight.shape()[0] < 1) {
    return Invalid("weight", TensorText(request.weight), "N, its first dim, must be at least 1");
  }
  if (request.weight.shape()[1] < 1) {
    return Invalid("weight", TensorText(request.weight), "K, its last dim, must be at least 1");
  }
  if (request.x.columns() != request.weight.columns()) {
    return Invalid("x", TensorText(request.x),
                   absl::StrCat("its last dim must be K = ", request.weight.columns(),
                                " of weight ", TensorText(request.weight)));
  }
  return absl::OkStatus();
}

Shape OutputShape(const LinearRequest& request) {
  Shape shape = request.x.shape();
  shape.back() = request.weight.shape()[0];
  return shape;
}

absl::Status CheckMainGrad(const LinearRequest& request) {
  if (!request.grad_output.has_value()) {
    return Invalid("main_grad", TensorText(request.main_grad),
                   "nothing accumulates into it without grad_output");
  }
  if (!request.requires_grad.weight) {
    return Invalid("main_grad", TensorText(request.main_grad),
                   "nothing accumulates into it where weight requires no gradient");
  }
  if (request.main_grad.dtype() != DType::kF32) {
    return Invalid("main_grad", TensorText(request.main_grad), "its dtype must be f32");
  }
  return CheckShape("main_grad", request.main_grad, request.weight.shape(), "as weight's");
}

/// A dim that FP8 GEMMs take only in multiples.
absl::Status CheckMultiple(const char* field, const Tensor& tensor, const char* dim, int64_t value,
                           int64_t multiple, const char* reason) {
  if (value % multiple == 0) return absl::OkStatus();
  return Invalid(
      field, absl::StrCat(dim, " = ", value, " of ", TensorText(tensor)),
      absl::StrCat(dim, " must be a multiple of ", multiple, " under an FP8 recipe: ", reason));
}

// What cuBLASLt's FP8 GEMMs take on Hopper (tests/hardware/README.md, rule 7): contractions in
// multiples of 16, N in multiples of 8 for 16-bit outputs. M % 8 and N % 8 in general are
// Transformer Engine's rule for modules (docs/quantizers.md section 10.1).
absl::Status CheckFp8Alignment(const LinearRequest& request, const LinearDataflow& flow) {
  if (flow.is_empty) return absl::OkStatus();
  const Tensor& x = request.x;
  const Tensor& weight = request.weight;
  const int64_t m = x.rows();
  const int64_t n = weight.shape()[0];
  QG_RETURN_IF_ERROR(CheckMultiple("x", x, "K", x.columns(), 16, "fprop contracts over K"));
  QG_RETURN_IF_ERROR(
      CheckMultiple("x", x, "M", m, 8, "the product of its leading dims is a GEMM dim"));
  QG_RETURN_IF_ERROR(CheckMultiple("weight", weight, "N", n, 8, "N is a GEMM dim"));
  if (flow.grad_output_usages.rowwise) {
    QG_RETURN_IF_ERROR(CheckMultiple("weight", weight, "N", n, 16, "dgrad contracts over N"));
  }
  if (flow.grad_output_usages.columnwise) {
    QG_RETURN_IF_ERROR(CheckMultiple("x", x, "M", m, 16, "wgrad contracts over M"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLinearTensors(const LinearRequest& request) {
  QG_RETURN_IF_ERROR(CheckOperands(request));
  const Shape y_shape = OutputShape(request);
  // The largest output type; a shape whose bytes overflow is refused here, not at allocation.
  QG_RETURN_IF_ERROR(CheckedElementCount(y_shape, DType::kF32, "y").status());
  if (request.bias.has_value()) {
    QG_RETURN_IF_ERROR(CheckDType("bias", request.bias));
    QG_RETURN_IF_ERROR(
        CheckShape("bias", request.bias, {request.weight.shape()[0]}, "N of weight"));
  }
  if (request.grad_output.has_value()) {
    QG_RETURN_IF_ERROR(CheckDType("grad_output", request.grad_output));
    QG_RETURN_IF_ERROR(CheckShape("grad_output", request.grad_output, y_shape,
                                  "x's with N of weight as its last dim"));
  }
  return request.main_grad.has_value() ? CheckMainGrad(request) : absl::OkStatus();
}

absl::Status CheckLinear(const LinearRequest& request, const Recipe& recipe) {
  QG_RETURN_IF_ERROR(CheckLinearTensors(request));
  if (!recipe.is_quantized()) return absl::OkStatus();
  return CheckFp8Alignment(request, DataflowOf(request, recipe));
}

}  // namespace quantgate
