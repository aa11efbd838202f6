#include "kernels/validate/reference/exact_values.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

constexpr char kEmptySumNote[] = "a sum over no rows";

absl::StatusOr<Tensor> AsMatrix(const Tensor& tensor) {
  return tensor.Reinterpret(tensor.dtype(), {tensor.rows(), tensor.columns()});
}

/// The main gradient that the output of this name accumulates into: "fc1.main_grad" belongs to
/// "fc1.weight". Absent for other outputs.
Tensor MainGradOf(const LayerRequest& request, const std::string& output) {
  constexpr char kMainGrad[] = "main_grad";
  const size_t word = output.find(kMainGrad);
  if (word == std::string::npos) return Tensor();
  std::string weight = output;
  weight.replace(word, sizeof(kMainGrad) - 1, "weight");
  const auto found = request.main_grads.find(weight);
  return found == request.main_grads.end() ? Tensor() : found->second;
}

/// A note that reads `note` at the first call and gives the same text to all calls.
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

/// What an exact result depends on beside the contents, dtypes and shapes of its operands. How a
/// model accumulates is not part of that.
std::string RulesOf(const GemmDesc& desc, DType out_dtype) {
  std::string key = absl::StrCat(static_cast<int>(desc.layout), " ", desc.alpha, " ", desc.beta,
                                 " ", std::string(DTypeName(out_dtype)));
  for (const GemmOperand* operand : {&desc.a, &desc.b}) {
    absl::StrAppend(&key, " ", std::string(ScaleModeName(operand->scaling)), " ",
                    operand->e4m3_max);
  }
  return key;
}

std::array<const Tensor*, 9> OperandsOf(const GemmDesc& desc) {
  return {&desc.a.data, &desc.a.scale_inv, &desc.a.amax, &desc.b.data, &desc.b.scale_inv,
          &desc.b.amax, &desc.c,           &desc.bias,   &desc.d_scale};
}

std::string OutlineOf(const GemmDesc& desc, DType out_dtype) {
  std::string outline = RulesOf(desc, out_dtype);
  for (const Tensor* operand : OperandsOf(desc)) {
    absl::StrAppend(&outline, " ", operand->has_value() ? TensorText(*operand) : "-");
  }
  return outline;
}

}  // namespace

absl::StatusOr<std::string> ExactValues::KeyOf(const GemmDesc& desc, DType out_dtype) {
  QG_ASSIGN_OR_RETURN(const std::string contents, contents_.KeyOf(OperandsOf(desc)));
  return RulesOf(desc, out_dtype) + contents;
}

absl::Status ExactValues::File() {
  for (const Unfiled& one : unfiled_) {
    QG_ASSIGN_OR_RETURN(const std::string key, KeyOf(one.desc, one.out_dtype));
    exact_.emplace(key, one.result);
  }
  unfiled_.clear();
  return absl::OkStatus();
}

absl::Status ExactValues::BeginVariant() {
  // Before the first variant there is nothing to forget, and File would wait for the engine.
  if (!std::exchange(has_variant_, true)) return absl::OkStatus();
  QG_RETURN_IF_ERROR(File());
  contents_.Forget();
  return absl::OkStatus();
}

absl::StatusOr<std::optional<ExactValues::Result>> ExactValues::Find(const GemmDesc& desc,
                                                                     DType out_dtype) {
  if (!outlines_.contains(OutlineOf(desc, out_dtype))) return std::optional<Result>();
  QG_RETURN_IF_ERROR(File());
  QG_ASSIGN_OR_RETURN(const std::string key, KeyOf(desc, out_dtype));
  const auto known = exact_.find(key);
  return known == exact_.end() ? std::optional<Result>() : known->second;
}

absl::StatusOr<StartedGemm> ExactValues::Start(const GemmDesc& given, DType out_dtype,
                                               bool also_f32) {
  GemmDesc desc = given;
  desc.arithmetic = Arithmetic{ArithmeticFamily::kExact};
  desc.use_split_accumulator = false;
  desc.in_place = false;  // One rounding of everything: in place and out of place are the same.
  if (desc.c.has_value() && desc.c.dtype() != out_dtype) {
    QG_ASSIGN_OR_RETURN(desc.c, engine_.Cast(desc.c, out_dtype, cancellation_));
  }
  desc.out_dtype = out_dtype;
  desc.also_f32 = also_f32;
  return engine_.StartGemm(desc, cancellation_);
}

void ExactValues::Keep(const GemmDesc& desc, DType out_dtype, const Result& result) {
  outlines_.insert(OutlineOf(desc, out_dtype));
  unfiled_.push_back({desc, out_dtype, result});
}

absl::StatusOr<ExactValues::Result> ExactValues::Compute(const GemmDesc& desc, DType out_dtype) {
  QG_ASSIGN_OR_RETURN(StartedGemm started, Start(desc, out_dtype, false));
  Result result{std::move(started.result.d), ReadOnce(std::move(started.note))};
  Keep(desc, out_dtype, result);
  return result;
}

absl::StatusOr<ExactValues::Value> ExactValues::ComputeBoth(const GemmDesc& desc) {
  QG_ASSIGN_OR_RETURN(StartedGemm started, Start(desc, desc.out_dtype, true));
  const Note note = ReadOnce(std::move(started.note));
  Keep(desc, desc.out_dtype, {started.result.d, note});
  Keep(desc, DType::kF32, {started.result.f32, note});
  return Value{std::move(started.result.d), std::move(started.result.f32), note};
}

absl::StatusOr<ExactValues::Value> ExactValues::InBothDTypes(const GemmDesc& desc) {
  QG_ASSIGN_OR_RETURN(std::optional<Result> f32, Find(desc, DType::kF32));
  std::optional<Result> own = f32;
  if (desc.out_dtype != DType::kF32) {
    QG_ASSIGN_OR_RETURN(own, Find(desc, desc.out_dtype));
    // For the original operands only the f32 value may be known.
    if (!f32.has_value() && !own.has_value()) return ComputeBoth(desc);
  }
  if (!f32.has_value()) {
    QG_ASSIGN_OR_RETURN(f32, Compute(desc, DType::kF32));
    if (desc.out_dtype == DType::kF32) own = f32;
  }
  if (!own.has_value()) {
    QG_ASSIGN_OR_RETURN(own, Compute(desc, desc.out_dtype));
  }
  return Value{own->d, f32->d, f32->note};
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
  QG_ASSIGN_OR_RETURN(const GemmDesc desc, UnquantizedDesc(name));
  QG_ASSIGN_OR_RETURN(const Result result, Compute(desc, DType::kF32));
  unquantized_.emplace(name, result.d);
  return absl::OkStatus();
}

absl::Status ExactValues::RunUnquantized() {
  LayerRequest request = request_;
  request.codes.clear();  // Its tensors have the values of the codes.
  request.delayed.clear();
  request.calibrate = false;
  request.seed = 0;
  // Widening is exact, and gradients have the dtype of their tensor, so neither is rounded.
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
  if (request_.layer.traits().is_one_linear()) {
    QG_RETURN_IF_ERROR(StartUnquantized(name));
    return unquantized_.at(name);
  }
  if (unquantized_.empty()) QG_RETURN_IF_ERROR(RunUnquantized());
  const auto found = unquantized_.find(name);
  if (found != unquantized_.end()) return found->second;
  return absl::InternalError(absl::StrCat("the unquantized layer has no ", name));
}

}  // namespace quantgate
