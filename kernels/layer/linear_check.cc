#include <initializer_list>
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

/// A dim that quantized GEMMs take only in multiples.
struct DimRule {
  const char* field;
  const Tensor& tensor;
  const char* dim;
  int64_t value;
};

absl::Status CheckMultiple(const DimRule& rule, int64_t multiple, const std::string& recipe,
                           const char* reason) {
  if (rule.value % multiple == 0) return absl::OkStatus();
  return Invalid(
      rule.field, absl::StrCat(rule.dim, " = ", rule.value, " of ", TensorText(rule.tensor)),
      absl::StrCat(rule.dim, " must be a multiple of ", multiple, " under ", recipe, ": ", reason));
}

/// The dims of a request and who is asked for them in messages.
struct LayerDims {
  explicit LayerDims(const LinearRequest& request)
      : m{"x", request.x, "M", request.x.rows()},
        n{"weight", request.weight, "N", request.weight.shape()[0]},
        k{"x", request.x, "K", request.x.columns()} {}
  DimRule m, n, k;
};

constexpr char kGemmDim[] = "it is a GEMM dim";

// What cuBLASLt's FP8 GEMMs take on Hopper (tests/hardware/README.md, rule 7): contractions in
// multiples of 16, N in multiples of 8 for 16-bit outputs. M % 8 and N % 8 in general are
// Transformer Engine's rule for modules (docs/quantizers.md section 10.1).
absl::Status CheckFp8Alignment(GemmRole gemm, const LayerDims& dims) {
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

/// mxfp8 and nvfp4 quantize whole blocks, in both dims also where one direction is asked for.
absl::Status CheckWholeBlocks(QuantizerFormat format, std::initializer_list<DimRule> dims) {
  for (const DimRule& dim : dims) {
    QG_RETURN_IF_ERROR(CheckMultiple(dim, BlockLength(format),
                                     std::string(QuantizerFormatName(format)),
                                     "both dims of a quantized tensor are in whole blocks"));
  }
  return absl::OkStatus();
}

absl::Status CheckAlignment(GemmRole gemm, QuantizerFormat format, const LinearRequest& request,
                            bool is_empty) {
  const LayerDims dims(request);
  if (format == QuantizerFormat::kMxfp8 || format == QuantizerFormat::kNvfp4) {
    return CheckWholeBlocks(format, {dims.m, dims.n, dims.k});
  }
  return is_empty ? absl::OkStatus() : CheckFp8Alignment(gemm, dims);
}

/// What the quantizers themselves do not take: a Hadamard transform of f32, say.
absl::Status CheckQuantized(const char* name, TensorRole role, DType source, const Shape& shape,
                            Usages usages, const Recipe& recipe) {
  if (!usages.rowwise && !usages.columnwise) return absl::OkStatus();
  const absl::Status status = CheckQuantization(source, shape, recipe.QuantizerFor(role), usages);
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(name, ": ", std::string(DTypeName(source)), "[",
                                                  ShapeText(shape), "]; ", status.message()));
}

absl::Status CheckQuantizations(const LinearRequest& request, const Recipe& recipe,
                                const LinearDataflow& flow) {
  const int64_t m = request.x.rows();
  const int64_t n = request.weight.shape()[0];
  const int64_t k = request.weight.shape()[1];
  QG_RETURN_IF_ERROR(CheckQuantized("x", TensorRole::kInput, flow.activation_dtype, {m, k},
                                    flow.x_usages, recipe));
  QG_RETURN_IF_ERROR(CheckQuantized("weight", TensorRole::kWeight, request.weight.dtype(), {n, k},
                                    flow.weight_usages, recipe));
  return CheckQuantized("grad_output", TensorRole::kGradOutput, flow.activation_dtype, {m, n},
                        flow.grad_output_usages, recipe);
}

absl::Status CheckDelayed(const LinearRequest& request, const Recipe& recipe) {
  if (!recipe.is_delayed()) return absl::OkStatus();
  if (recipe.backward_override() != BackwardOverride::kNone) {
    return Invalid("backward_override",
                   std::string(BackwardOverrideName(recipe.backward_override())),
                   "delayed scaling has no backward override");
  }
  for (const auto& [role, state] : request.delayed) {
    QG_RETURN_IF_ERROR(CheckDelayedScaling(
        state, absl::StrCat("delayed_state[", std::string(TensorRoleName(role)), "]")));
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
  QG_RETURN_IF_ERROR(CheckDelayed(request, recipe));
  const LinearDataflow flow = DataflowOf(request, recipe);
  const auto check = [&](bool runs, GemmRole gemm, TensorRole role, Usage usage) {
    if (!runs) return absl::OkStatus();
    return CheckAlignment(gemm, recipe.QuantizerFor(role).spec(usage).format, request,
                          flow.is_empty);
  };
  QG_RETURN_IF_ERROR(
      check(flow.quantizes_fprop, GemmRole::kFprop, TensorRole::kInput, Usage::kRowwise));
  QG_RETURN_IF_ERROR(
      check(flow.quantizes_dgrad, GemmRole::kDgrad, TensorRole::kWeight, Usage::kColumnwise));
  QG_RETURN_IF_ERROR(
      check(flow.quantizes_wgrad, GemmRole::kWgrad, TensorRole::kInput, Usage::kColumnwise));
  return CheckQuantizations(request, recipe, flow);
}

}  // namespace quantgate
