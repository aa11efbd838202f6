// CheckLayerTensors: a layer's spec and tensors, walked operation by operation.
#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/layer/attention_core.h"
#include "kernels/layer/layer_request.h"
#include "kernels/layer/linear/given_codes.h"
#include "kernels/quantize/quantized_outline.h"

namespace quantgate {
namespace {

std::string ParameterField(const std::string& name) {
  return absl::StrCat("parameters[", name, "]");
}

absl::Status CheckDType(const std::string& field, const Tensor& tensor) {
  if (IsHighPrecision(tensor.dtype())) return absl::OkStatus();
  return Refuse(field, TensorText(tensor), "its dtype must be f32, bf16 or f16");
}

absl::Status CheckShape(const std::string& field, const Tensor& tensor, const Shape& expected,
                        const std::string& reason) {
  if (tensor.shape() == expected) return absl::OkStatus();
  return Refuse(field, TensorText(tensor),
                absl::StrCat("its shape must be ", ShapeText(expected), ", ", reason));
}

class TensorsCheck {
 public:
  explicit TensorsCheck(const LayerRequest& request)
      : request_(request), kind_(WithArticle(request.layer.traits())) {}

  absl::Status Run();

 private:
  const Tensor* Find(const std::string& name) const {
    const auto found = request_.parameters.find(name);
    return found == request_.parameters.end() || !found->second.has_value() ? nullptr
                                                                            : &found->second;
  }
  absl::Status CheckPresence() const;
  absl::Status CheckX() const;
  absl::Status CheckSplits() const;
  absl::Status CheckParallel(const LayerProgram& program);
  absl::Status CheckDivision(const LayerProgram& program) const;
  absl::Status CheckProgram(const LayerProgram& program, Shape x);
  /// The shape of an operation's output, or a refusal.
  absl::StatusOr<Shape> CheckOperation(const ProgramOperation& operation,
                                       const std::vector<Shape>& values,
                                       const LayerProgram& program) const;
  absl::StatusOr<Shape> CheckLinear(const ProgramOperation& operation, const Shape& x) const;
  absl::Status CheckNormOperation(const ProgramOperation& operation, const Shape& x) const;
  absl::StatusOr<Shape> CheckAttention(const ProgramOperation& operation, const Shape& x) const;
  absl::Status CheckVector(const std::string& name, int64_t count, const std::string& of) const;
  absl::Status CheckBytes(const std::string& value, const Shape& shape) const {
    return CheckBytes(value, shape, request_.x.dtype());
  }
  absl::Status CheckBytes(const std::string& value, const Shape& shape, DType dtype) const;
  absl::Status CheckGradOutput() const;
  absl::Status CheckMainGrads() const;
  absl::Status CheckCodes() const;
  absl::Status CheckReadersOfX(const LayerProgram& program, const std::string& given) const;

  const LayerRequest& request_;
  const std::string kind_;
  std::vector<int64_t> rows_;  ///< SequenceRows of the one program.
  Shape y_;                    ///< The last program's y.
};

absl::Status TensorsCheck::CheckPresence() const {
  if (!request_.x.has_value()) {
    return Refuse("x", "absent", absl::StrCat(kind_, " layer needs it"));
  }
  const std::vector<LayerParameter> known = ParametersOf(request_.layer);
  for (const LayerParameter& parameter : known) {
    if (!parameter.is_optional && Find(parameter.name) == nullptr) {
      return Refuse(ParameterField(parameter.name), "absent",
                    absl::StrCat(kind_, " layer needs it"));
    }
  }
  for (const auto& [given, tensor] : request_.parameters) {
    const std::string& name = given;
    if (!tensor.has_value()) continue;
    const bool is_known = std::any_of(known.begin(), known.end(),
                                      [&](const LayerParameter& one) { return one.name == name; });
    if (!is_known) {
      return Refuse(
          ParameterField(name), TensorText(tensor),
          absl::StrCat("the layer's parameters are ",
                       absl::StrJoin(known, ", ", [](std::string* text, const LayerParameter& one) {
                         absl::StrAppend(text, one.name);
                       })));
    }
    QG_RETURN_IF_ERROR(CheckDType(ParameterField(name), tensor));
  }
  return absl::OkStatus();
}

absl::Status TensorsCheck::CheckX() const {
  QG_RETURN_IF_ERROR(CheckDType("x", request_.x));
  if (request_.x.rank() < 1) {
    return Refuse("x", TensorText(request_.x), "its rank must be at least 1, [..., K]");
  }
  return absl::OkStatus();
}

absl::Status TensorsCheck::CheckSplits() const {
  const LayerSpec& layer = request_.layer;
  if (!layer.traits().has_experts) return absl::OkStatus();
  for (size_t i = 0; i < layer.m_splits.size(); ++i) {
    const std::string bias = absl::StrCat("bias.", i);
    if (layer.parallel_mode != ParallelMode::kRow || Find(bias) == nullptr) continue;
    return Refuse(ParameterField(bias), TensorText(*Find(bias)),
                  "a row-parallel grouped_linear has no bias: y is one rank's part of a sum");
  }
  const int64_t rows = request_.x.rows();
  int64_t sum = 0;
  // Each is at most M before it is added, so the sum cannot overflow.
  for (size_t i = 0; i < layer.m_splits.size() && sum <= rows; ++i) {
    if (layer.m_splits[i] > rows) {
      return Refuse(absl::StrCat("layer.m_splits[", i, "]"), absl::StrCat(layer.m_splits[i]),
                    absl::StrCat("x ", TensorText(request_.x), " has ", rows, " rows"));
    }
    sum += layer.m_splits[i];
  }
  if (sum != rows) {
    return Refuse("layer.m_splits", absl::StrCat("sum ", sum, sum > rows ? " or more" : ""),
                  absl::StrCat("it must be ", rows, ", the rows of x ", TensorText(request_.x)));
  }
  const Tensor& first = *Find("weight.0");
  for (size_t i = 1; i < layer.m_splits.size(); ++i) {
    const std::string name = absl::StrCat("weight.", i);
    QG_RETURN_IF_ERROR(
        CheckShape(ParameterField(name), *Find(name), first.shape(), "as that of weight.0"));
  }
  return absl::OkStatus();
}

absl::Status TensorsCheck::CheckVector(const std::string& name, int64_t count,
                                       const std::string& of) const {
  if (name.empty()) return absl::OkStatus();
  return CheckShape(ParameterField(name), *Find(name), {count}, of);
}

absl::StatusOr<Shape> TensorsCheck::CheckLinear(const ProgramOperation& operation,
                                                const Shape& x) const {
  const Tensor& weight = *Find(operation.weight);
  const std::string field = ParameterField(operation.weight);
  if (weight.rank() != 2) {
    return Refuse(field, TensorText(weight), "its rank must be 2, [N][K]");
  }
  if (weight.shape()[0] < 1) {
    return Refuse(field, TensorText(weight), "N, its first dim, must be at least 1");
  }
  if (weight.shape()[1] < 1) {
    return Refuse(field, TensorText(weight), "K, its last dim, must be at least 1");
  }
  if (x.back() != weight.columns()) {
    const char* const hint =
        weight.shape()[0] == x.back() ? "; is the weight transposed? It is [N][K]" : "";
    if (operation.input == 0) {
      return Refuse("x", TensorText(request_.x),
                    absl::StrCat("its last dim must be K = ", weight.columns(), " of ",
                                 operation.weight, " ", TensorText(weight), hint));
    }
    return Refuse(field, TensorText(weight),
                  absl::StrCat("K, its last dim, must be ", x.back(), ", the columns of ",
                               operation.names.x, hint));
  }
  const int64_t n = weight.shape()[0];
  QG_RETURN_IF_ERROR(CheckVector(operation.bias, n, absl::StrCat("N of ", operation.weight)));
  Shape y = x;
  y.back() = n;
  y.front() = OutputFirstDim(operation.parallel_mode, y.front(), rows_, request_.parallel.get());
  return y;
}

/// Checks dim 0 of x, or of y, on each rank.
absl::Status TensorsCheck::CheckParallel(const LayerProgram& program) {
  rows_ = SequenceRows(program, request_.x.shape(), request_.parallel.get());
  if (rows_.empty()) return absl::OkStatus();
  if (request_.x.rank() < 2) {
    return Refuse("x", TensorText(request_.x),
                  "under sequence parallelism its rank must be at least 2: dim 0 is divided");
  }
  const ParallelStep& parallel = *request_.parallel;
  const std::string text = absl::StrCat("[", absl::StrJoin(rows_, ", "), "]");
  if (rows_.size() != static_cast<size_t>(parallel.size())) {
    return Refuse("parallel.rows", text,
                  absl::StrCat("it has one entry for each of the ", parallel.size(), " ranks"));
  }
  if (std::any_of(rows_.begin(), rows_.end(), [](int64_t count) { return count < 0; })) {
    return Refuse("parallel.rows", text, "it must be at least 0");
  }
  const auto first =
      std::find_if(program.operations.begin(), program.operations.end(),
                   [](const auto& one) { return one.parallel_mode != ParallelMode::kNone; });
  const bool is_column = first->parallel_mode == ParallelMode::kColumn;
  const int64_t expected = is_column ? rows_[static_cast<size_t>(parallel.rank())]
                                     : std::accumulate(rows_.begin(), rows_.end(), int64_t{0});
  if (request_.x.shape()[0] == expected) return absl::OkStatus();
  return Refuse("parallel.rows", text,
                absl::StrCat("dim 0 of x ", TensorText(request_.x), " must be ",
                             is_column ? "this rank's entry" : "their sum", ", ", expected));
}

/// Columns are divided between a column-parallel operation and the next row-parallel one, and
/// before the first one if that is row-parallel. Operations that need all columns cannot stand
/// there.
absl::Status TensorsCheck::CheckDivision(const LayerProgram& program) const {
  const auto mode_of = [](const ProgramOperation& one) { return one.parallel_mode; };
  const auto first = std::find_if(
      program.operations.begin(), program.operations.end(),
      [&](const ProgramOperation& one) { return mode_of(one) != ParallelMode::kNone; });
  if (first == program.operations.end()) return absl::OkStatus();
  std::vector<bool> is_divided = {mode_of(*first) == ParallelMode::kRow};
  for (const ProgramOperation& operation : program.operations) {
    const bool reads_divided = is_divided[static_cast<size_t>(operation.input)];
    const ParallelMode mode = mode_of(operation);
    const bool is_linear = operation.kind == OperationKind::kBasicLinear;
    const bool needs_all =
        operation.kind == OperationKind::kNorm || (is_linear && mode != ParallelMode::kRow);
    if (needs_all && reads_divided) {
      return Refuse(operation.field + (is_linear ? ".parallel_mode" : ""),
                    is_linear ? std::string(ParallelModeName(mode)) : operation.name,
                    "it reads columns that are divided over the ranks: only a row-parallel "
                    "operation contracts over them");
    }
    if (mode == ParallelMode::kRow && !reads_divided) {
      return Refuse(operation.field + ".parallel_mode", "row",
                    "it reads columns that are not divided over the ranks: those of a "
                    "column-parallel operation are");
    }
    if (operation.addend >= 0 &&
        is_divided[static_cast<size_t>(operation.addend)] != reads_divided) {
      return Refuse(operation.field + ".addend", program.values[operation.addend].name,
                    "only one of the two addends is divided over the ranks");
    }
    is_divided.push_back(is_linear ? mode == ParallelMode::kColumn : reads_divided);
  }
  return absl::OkStatus();
}

absl::Status TensorsCheck::CheckNormOperation(const ProgramOperation& operation,
                                              const Shape& x) const {
  const std::string of = operation.input == 0 ? "the last dim of x" : "the columns before it";
  QG_RETURN_IF_ERROR(CheckVector(operation.gamma, x.back(), of));
  QG_RETURN_IF_ERROR(CheckVector(operation.beta, x.back(), of));
  NormForwardDesc desc;
  desc.options = operation.norm;
  QG_ASSIGN_OR_RETURN(desc.x, OutlineTensor(DType::kBF16, x));
  desc.gamma = *Find(operation.gamma);
  return WithinField(operation.field, CheckNorm(desc));
}

absl::StatusOr<Shape> TensorsCheck::CheckAttention(const ProgramOperation& operation,
                                                   const Shape& x) const {
  if (request_.x.rank() != 2 && request_.x.rank() != 3) {
    return Refuse("x", TensorText(request_.x),
                  absl::StrCat("its rank must be 2 or 3 of ", kind_,
                               ", [S][K] or [S][B][K]: attention is along dim 0"));
  }
  const int ranks = request_.parallel == nullptr ? 1 : request_.parallel->size();
  QG_ASSIGN_OR_RETURN(const AttentionDims dims, CheckAttentionDims(operation, x, ranks));
  QG_RETURN_IF_ERROR(CheckBytes(absl::StrCat(operation.name, ".probabilities"),
                                {dims.batch, dims.heads, dims.sequence, dims.sequence},
                                DType::kF32));
  return AttentionOutputShape(dims, x);
}

absl::StatusOr<Shape> TensorsCheck::CheckOperation(const ProgramOperation& operation,
                                                   const std::vector<Shape>& values,
                                                   const LayerProgram& program) const {
  const Shape& x = values[operation.input];
  switch (operation.kind) {
    case OperationKind::kBasicLinear:
      return CheckLinear(operation, x);
    case OperationKind::kNorm:
      QG_RETURN_IF_ERROR(CheckNormOperation(operation, x));
      return x;
    case OperationKind::kBias:
      QG_RETURN_IF_ERROR(CheckVector(operation.bias, x.back(), "the columns before it"));
      return x;
    case OperationKind::kActivation: {
      QG_ASSIGN_OR_RETURN(const Tensor h, OutlineTensor(DType::kBF16, x));
      QG_RETURN_IF_ERROR(WithinField(
          operation.field, CheckActivationForward(h, operation.activation, DType::kBF16)));
      return ActivationOutputShape(x, operation.activation.kind);
    }
    case OperationKind::kAttention:
      return CheckAttention(operation, x);
    case OperationKind::kAdd:
      if (values[operation.addend] != x) {
        return Refuse(operation.field + ".addend",
                      absl::StrCat(program.values[operation.addend].name, " of ",
                                   ShapeText(values[operation.addend])),
                      absl::StrCat("its shape must be ", ShapeText(x), ", that of ",
                                   program.values[operation.input].name));
      }
      return x;
    case OperationKind::kQuantize:
    case OperationKind::kScale:
      break;
  }
  return x;
}

absl::Status TensorsCheck::CheckProgram(const LayerProgram& program, Shape x) {
  std::vector<Shape> values = {std::move(x)};
  for (const ProgramOperation& operation : program.operations) {
    QG_ASSIGN_OR_RETURN(Shape shape, CheckOperation(operation, values, program));
    values.push_back(std::move(shape));
    QG_RETURN_IF_ERROR(CheckBytes(program.values[values.size() - 1].name, values.back()));
  }
  y_ = values.back();
  return absl::OkStatus();
}

absl::Status TensorsCheck::CheckBytes(const std::string& value, const Shape& shape,
                                      DType dtype) const {
  // The largest output type; a shape whose bytes overflow is refused here, not at allocation.
  QG_ASSIGN_OR_RETURN(const int64_t count, CheckedElementCount(shape, DType::kF32, value));
  if (count <= request_.value_bytes_max / DTypeBytes(dtype)) return absl::OkStatus();
  return Refuse(value, absl::StrCat(std::string(DTypeName(dtype)), "[", ShapeText(shape), "]"),
                absl::StrCat("a tensor has at most ", request_.value_bytes_max, " bytes"));
}

absl::Status TensorsCheck::CheckGradOutput() const {
  const Tensor& grad_output = request_.grad_output;
  if (!grad_output.has_value()) return absl::OkStatus();
  QG_RETURN_IF_ERROR(CheckDType("grad_output", grad_output));
  Shape y = request_.layer.traits().has_experts ? request_.x.shape() : y_;
  y.back() = y_.back();
  return CheckShape("grad_output", grad_output, y, "as y's");
}

absl::Status TensorsCheck::CheckMainGrads() const {
  const std::vector<LayerParameter> known = ParametersOf(request_.layer);
  for (const auto& [given, main_grad] : request_.main_grads) {
    const std::string& weight = given;
    if (!main_grad.has_value()) continue;
    const std::string field = absl::StrCat("main_grads[", weight, "]");
    const std::string text = TensorText(main_grad);
    const bool is_weight = std::any_of(known.begin(), known.end(), [&](const LayerParameter& one) {
      return one.kind == ParameterKind::kWeight && one.name == weight;
    });
    if (!is_weight) return Refuse(field, text, "the layer has no such weight");
    if (!request_.grad_output.has_value()) {
      return Refuse(field, text, "nothing accumulates into it without grad_output");
    }
    if (!request_.requires_grad.weight) {
      return Refuse(field, text, "nothing accumulates into it where weight requires no gradient");
    }
    if (main_grad.dtype() != DType::kF32) return Refuse(field, text, "its dtype must be f32");
    QG_RETURN_IF_ERROR(CheckShape(field, main_grad, Find(weight)->shape(), "as weight's"));
  }
  return absl::OkStatus();
}

/// Refuses codes of x that an operation reads in high precision.
absl::Status TensorsCheck::CheckReadersOfX(const LayerProgram& program,
                                           const std::string& given) const {
  for (const ProgramOperation& operation : program.operations) {
    const bool reads_x = operation.input == 0 || operation.addend == 0;
    if (!reads_x || operation.kind == OperationKind::kBasicLinear) continue;
    return Refuse("x", given,
                  absl::StrCat(operation.name,
                               ", the operation that reads it, takes x in high "
                               "precision"));
  }
  return absl::OkStatus();
}

/// Checks which operands are given as codes; their formats depend on the recipe.
absl::Status TensorsCheck::CheckCodes() const {
  const std::vector<LayerParameter> known = ParametersOf(request_.layer);
  for (const auto& [given, codes] : request_.codes) {
    const std::string& name = given;
    const bool is_parameter = name != "x" && name != "grad_output";
    const std::string field = is_parameter ? ParameterField(name) : name;
    const std::string text = absl::StrCat("given as ", CodesText(codes));
    if (request_.parallel != nullptr) {
      return Refuse(field, text, kRanksQuantize);
    }
    const bool is_weight = std::any_of(known.begin(), known.end(), [&](const LayerParameter& one) {
      return one.kind == ParameterKind::kWeight && one.name == name;
    });
    if (is_parameter && !is_weight) return Refuse(field, text, "only weights are read as codes");
    if (is_parameter) continue;
    if (request_.layer.traits().has_experts) {
      return Refuse(
          field, text,
          absl::StrCat("the rows of each expert are quantized by themselves, in ", kind_));
    }
    if (name == "grad_output") continue;
    const std::vector<LayerProgram> programs = ProgramsOf(
        request_.layer, [&](const std::string& parameter) { return Find(parameter) != nullptr; });
    QG_RETURN_IF_ERROR(CheckReadersOfX(programs.front(), text));
  }
  return absl::OkStatus();
}

absl::Status TensorsCheck::Run() {
  QG_RETURN_IF_ERROR(CheckPresence());
  QG_RETURN_IF_ERROR(CheckX());
  QG_RETURN_IF_ERROR(CheckSplits());
  QG_RETURN_IF_ERROR(CheckCodes());
  const LayerSpec& layer = request_.layer;
  const std::vector<LayerProgram> programs =
      ProgramsOf(layer, [&](const std::string& name) { return Find(name) != nullptr; });
  for (size_t i = 0; i < programs.size(); ++i) {
    Shape x = request_.x.shape();
    if (layer.traits().has_experts) {
      x = {layer.m_splits[i], x.back()};
    } else {
      QG_RETURN_IF_ERROR(CheckDivision(programs[i]));
      QG_RETURN_IF_ERROR(CheckParallel(programs[i]));
    }
    QG_RETURN_IF_ERROR(CheckProgram(programs[i], std::move(x)));
  }
  // y of all experts together; any other y has been checked.
  QG_RETURN_IF_ERROR(CheckBytes("y", {request_.x.rows(), y_.back()}));
  QG_RETURN_IF_ERROR(CheckGradOutput());
  return CheckMainGrads();
}

}  // namespace

absl::Status CheckLayerTensors(const LayerRequest& request) {
  QG_RETURN_IF_ERROR(CheckLayerSpec(request.layer));
  return TensorsCheck(request).Run();
}

}  // namespace quantgate
