#include "kernels/validate/exact_values.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/engine/deferred_reports.h"

namespace quantgate {
namespace {

constexpr char kEmptySumNote[] = "a sum over no rows";

absl::StatusOr<Tensor> AsMatrix(const Tensor& tensor) {
  return tensor.Reinterpret(tensor.dtype(), {tensor.rows(), tensor.columns()});
}

/// The main gradient that the output of this name accumulates into: "fc1.main_grad" is of
/// "fc1.weight". None for another output.
Tensor MainGradOf(const LayerRequest& request, const std::string& output) {
  constexpr char kMainGrad[] = "main_grad";
  const size_t word = output.find(kMainGrad);
  if (word == std::string::npos) return Tensor();
  std::string weight = output;
  weight.replace(word, sizeof(kMainGrad) - 1, "weight");
  const auto found = request.main_grads.find(weight);
  return found == request.main_grads.end() ? Tensor() : found->second;
}

/// For all who ask.
ExactValues::Note ReadOnce(Deferred<std::string> note) {
  struct Memory {
    Deferred<std::string> note;
    std::optional<absl::StatusOr<std::string>> read;
  };
  auto memory = std::make_shared<Memory>(Memory{std::move(note), {}});
  return [memory = std::move(memory)] {
    if (!memory->read.has_value()) memory->read = std::move(memory->note)();
    return *memory->read;
  };
}

/// Everything that an exact result depends on; how a model would accumulate is not part of it.
std::string KeyOf(const GemmDesc& desc, DType out_dtype, const std::string& contents) {
  std::string key = absl::StrCat(static_cast<int>(desc.layout), " ", desc.alpha, " ", desc.beta,
                                 " ", std::string(DTypeName(out_dtype)));
  for (const GemmOperand* operand : {&desc.a, &desc.b}) {
    absl::StrAppend(&key, " ", std::string(ScaleModeName(operand->scaling)), " ",
                    operand->e4m3_max);
  }
  return key + contents;
}

}  // namespace

absl::StatusOr<std::string> ExactValues::ContentsOf(const GemmDesc& desc) {
  return contents_.KeyOf({&desc.a.data, &desc.a.scale_inv, &desc.a.amax, &desc.b.data,
                          &desc.b.scale_inv, &desc.b.amax, &desc.c, &desc.bias, &desc.d_scale});
}

absl::StatusOr<ExactValues::Result> ExactValues::Exact(GemmDesc desc, DType out_dtype,
                                                       const std::string& contents) {
  const std::string key = KeyOf(desc, out_dtype, contents);
  if (const auto known = exact_.find(key); known != exact_.end()) return known->second;
  QG_ASSIGN_OR_RETURN(const Result result, Compute(std::move(desc), out_dtype));
  exact_.emplace(key, result);
  return result;
}

absl::StatusOr<ExactValues::Result> ExactValues::Compute(GemmDesc desc, DType out_dtype) {
  desc.arithmetic = Arithmetic{ArithmeticFamily::kExact};
  desc.use_split_accumulator = false;
  desc.in_place = false;  // One rounding of everything: in place and out of place are the same.
  if (desc.c.has_value() && desc.c.dtype() != out_dtype) {
    QG_ASSIGN_OR_RETURN(desc.c, engine_.Cast(desc.c, out_dtype, cancellation_));
  }
  desc.out_dtype = out_dtype;
  QG_ASSIGN_OR_RETURN(StartedGemm started, StartGemm(engine_, desc, cancellation_));
  return Result{std::move(started.result.d), ReadOnce(std::move(started.note))};
}

absl::StatusOr<ExactValues::Value> ExactValues::InBothDTypes(const GemmDesc& desc) {
  QG_ASSIGN_OR_RETURN(const std::string contents, ContentsOf(desc));
  QG_ASSIGN_OR_RETURN(Result f32, Exact(desc, DType::kF32, contents));
  if (desc.out_dtype == DType::kF32) return Value{f32.d, f32.d, f32.note};
  QG_ASSIGN_OR_RETURN(const Result own, Exact(desc, desc.out_dtype, contents));
  return Value{own.d, f32.d, f32.note};
}

absl::StatusOr<ExactValues::Value> ExactValues::OfGemm(const GemmDesc& desc) {
  return InBothDTypes(desc);
}

absl::StatusOr<ExactValues::Value> ExactValues::OfEmptySum(const std::string& name, DType dtype) {
  if (const Tensor main_grad = MainGradOf(request_, name); main_grad.has_value()) {
    return Value{main_grad, main_grad, NoteOf(kEmptySumNote)};
  }
  GeneratorSpec zeros;
  zeros.distribution = Distribution::kAllZero;
  zeros.dtype = dtype;
  zeros.shape = LayerOutputShape(request_, name);
  QG_ASSIGN_OR_RETURN(Tensor own, engine_.Generate(zeros, cancellation_));
  zeros.dtype = DType::kF32;
  QG_ASSIGN_OR_RETURN(Tensor f32, engine_.Generate(zeros, cancellation_));
  return Value{own, f32, NoteOf(kEmptySumNote)};
}

absl::StatusOr<GemmDesc> ExactValues::ColumnSumDesc(const Tensor& grad_output) {
  QG_ASSIGN_OR_RETURN(Tensor matrix, AsMatrix(grad_output));
  // A row of ones, exact in every dtype.
  QG_ASSIGN_OR_RETURN(Tensor ones_f32, Tensor::Allocate(DType::kF32, {1, matrix.rows()}));
  std::fill_n(ones_f32.as<float>(), matrix.rows(), 1.0f);
  GemmDesc desc;
  QG_ASSIGN_OR_RETURN(desc.a.data, engine_.Cast(ones_f32, matrix.dtype(), cancellation_));
  desc.b.data = matrix;
  desc.layout = GemmLayout::kNN;
  return desc;
}

absl::StatusOr<ExactValues::Value> ExactValues::OfBiasGradient(const Tensor& grad_output,
                                                               DType dtype) {
  QG_ASSIGN_OR_RETURN(GemmDesc desc, ColumnSumDesc(grad_output));
  desc.out_dtype = dtype;
  return InBothDTypes(desc);
}

absl::StatusOr<GemmDesc> ExactValues::UnquantizedDesc(const std::string& name) {
  if (name == "db") return ColumnSumDesc(request_.grad_output);
  const Tensor& weight = request_.parameters.at("weight");
  GemmDesc desc;
  Tensor a = name == "y" ? request_.x : request_.grad_output;
  Tensor b = name == "y" || name == "dx" ? weight : request_.x;
  if (a.dtype() != b.dtype()) {
    // Widening is exact, so the operands are still the originals.
    QG_ASSIGN_OR_RETURN(a, engine_.Cast(a, DType::kF32, cancellation_));
    QG_ASSIGN_OR_RETURN(b, engine_.Cast(b, DType::kF32, cancellation_));
  }
  QG_ASSIGN_OR_RETURN(desc.a.data, AsMatrix(a));
  QG_ASSIGN_OR_RETURN(desc.b.data, AsMatrix(b));
  if (name == "y") {
    desc.layout = GemmLayout::kTN;
    const auto bias = request_.parameters.find("bias");
    if (bias != request_.parameters.end()) desc.bias = bias->second;
  } else if (name == "dx") {
    desc.layout = GemmLayout::kNN;
  } else {
    desc.layout = GemmLayout::kNT;
    if (name == "main_grad") {
      desc.c = request_.main_grads.at("weight");
      desc.beta = 1.0f;
    }
  }
  return desc;
}

absl::Status ExactValues::StartUnquantized(const std::string& name) {
  const bool contracts_over_m = name != "y" && name != "dx";
  if (contracts_over_m && request_.x.rows() == 0) {
    QG_ASSIGN_OR_RETURN(const Value empty, OfEmptySum(name, DType::kF32));
    unquantized_.emplace(name, empty.f32);
    return absl::OkStatus();
  }
  QG_ASSIGN_OR_RETURN(GemmDesc desc, UnquantizedDesc(name));
  QG_ASSIGN_OR_RETURN(const Result result, Compute(desc, DType::kF32));
  unquantized_.emplace(name, result.d);
  unfiled_.emplace_back(std::move(desc), result);
  return absl::OkStatus();
}

absl::Status ExactValues::FileUnquantized() {
  for (const auto& [desc, result] : unfiled_) {
    QG_ASSIGN_OR_RETURN(const std::string contents, ContentsOf(desc));
    exact_.emplace(KeyOf(desc, DType::kF32, contents), result);
  }
  unfiled_.clear();
  return absl::OkStatus();
}

absl::Status ExactValues::RunUnquantized() {
  LayerRequest request = request_;
  request.delayed.clear();
  request.calibrate = false;
  request.seed = 0;
  // Widening is exact; gradients have the dtype of what they are of, and so are not rounded either.
  std::vector<Tensor*> tensors = {&request.x, &request.grad_output};
  for (auto& [name, parameter] : request.parameters) tensors.push_back(&parameter);
  for (Tensor* tensor : tensors) {
    if (!tensor->has_value()) continue;
    QG_ASSIGN_OR_RETURN(*tensor, engine_.Cast(*tensor, DType::kF32, cancellation_));
  }
  QG_ASSIGN_OR_RETURN(const Recipe recipe, Recipe::Parse("bf16:activation_dtype=f32"));
  QG_ASSIGN_OR_RETURN(LayerResult result,
                      RunLayer(engine_, request, recipe, Arithmetic{ArithmeticFamily::kExact},
                               cancellation_, IgnoreStage));
  for (auto* named : {&result.outputs, &result.intermediates}) {
    for (NamedTensor& tensor : *named) {
      unquantized_.emplace(tensor.name, std::move(tensor.tensor));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> ExactValues::Unquantized(const std::string& name) {
  if (const auto known = unquantized_.find(name); known != unquantized_.end()) return known->second;
  if (request_.layer.kind == LayerKind::kLinear) {
    QG_RETURN_IF_ERROR(StartUnquantized(name));
    QG_RETURN_IF_ERROR(FileUnquantized());
    return unquantized_.at(name);
  }
  if (unquantized_.empty()) QG_RETURN_IF_ERROR(RunUnquantized());
  const auto found = unquantized_.find(name);
  if (found != unquantized_.end()) return found->second;
  return absl::InternalError(absl::StrCat("the unquantized layer has no ", name));
}

}  // namespace quantgate
