#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/gemm/scaling_check.h"
#include "kernels/layer/linear_step.h"

namespace quantgate {
namespace {

std::string PlainContent(const Tensor& given, DType kept) {
  const std::string kept_name(DTypeName(kept));
  if (given.dtype() == kept) return absl::StrCat(kept_name, " as given");
  return absl::StrCat(kept_name, " cast from ", std::string(DTypeName(given.dtype())));
}

std::string CodesContent(const QuantizedTensor& codes) {
  const auto element = [](const QuantizedCopy& copy) {
    return std::string(DTypeName(copy.element));
  };
  const bool is_copy_plain =
      codes.columnwise.has_value() && codes.columnwise->format == QuantizerFormat::kIdentity;
  std::string text;
  if (codes.rowwise.has_value()) text = absl::StrCat(element(*codes.rowwise), " rowwise");
  if (!codes.columnwise.has_value()) return absl::StrCat(text, " codes");
  if (is_copy_plain) {
    return absl::StrCat(text, text.empty() ? "" : " codes and ", element(*codes.columnwise),
                        " dequantized from rowwise codes");
  }
  if (text.empty()) return absl::StrCat(element(*codes.columnwise), " columnwise codes");
  const bool same = element(*codes.rowwise) == element(*codes.columnwise);
  return absl::StrCat(text, " and ", same ? "" : element(*codes.columnwise) + " ",
                      "columnwise codes");
}

QuantizedTensor WithoutCodes(QuantizedTensor quantized) {
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    if (quantized.copy(usage).has_value()) quantized.copy(usage)->data = Tensor();
  }
  return quantized;
}

bool HasCodes(const QuantizedTensor& codes) {
  return codes.rowwise.has_value() || codes.columnwise.has_value();
}

/// A desc that left the slices of K or the choice of hardware to the engine, with what it chose: a
/// bound is of what ran.
absl::Status SetWhatRan(const GemmResult& result, GemmDesc& desc) {
  const bool left_open =
      desc.arithmetic.any_split_k || desc.arithmetic.family == ArithmeticFamily::kAuto;
  if (!left_open) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const Arithmetic ran, Arithmetic::Parse(result.arithmetic));
  if (ran.family == ArithmeticFamily::kCublasLt) desc.arithmetic = ran;
  return absl::OkStatus();
}

}  // namespace

uint32_t CallIdOf(TensorRole role) { return static_cast<uint32_t>(role); }

bool UsesSplit(const Recipe& recipe, GemmRole role, const GemmOperand& a) {
  // Block scales are applied between partial sums whatever the recipe says of other operands.
  if (IsFp8Block(a.scaling)) return true;
  return IsFp8(a.data.dtype()) && recipe.UsesSplitAccumulator(role);
}

GemmOperand PlainOperand(const Tensor& tensor) {
  GemmOperand operand;
  operand.data = tensor;
  return operand;
}

LinearStep::LinearStep(Engine& engine, const LinearRequest& request, const Recipe& recipe,
                       const Arithmetic& arithmetic, const Cancellation* cancellation,
                       StageObserver on_stage)
    : engine_(engine),
      request_(request),
      recipe_(recipe),
      arithmetic_(arithmetic),
      cancellation_(cancellation),
      on_stage_(on_stage),
      flow_(DataflowOf(request, recipe)),
      m_(request.x.rows()),
      n_(request.weight.shape()[0]),
      k_(request.weight.shape()[1]) {
  result_.notes = LinearNotes(request, recipe, arithmetic, flow_);
}

absl::StatusOr<Tensor> LinearStep::CastTo(const char* stage, const Tensor& source, DType dtype) {
  if (source.dtype() == dtype) return source;
  return Timed(stage, [&] { return engine_.Cast(source, dtype, cancellation_); });
}

absl::StatusOr<QuantizedTensor> LinearStep::Quantize(const char* stage, TensorRole role,
                                                     const Tensor& source, Usages usages) {
  const Quantizer& quantizer = recipe_.QuantizerFor(role);
  QuantizeArguments arguments;
  arguments.seed = request_.seed;
  arguments.call_id = CallIdOf(role);
  if (flow_.is_delayed) arguments.scale = scales_.at(role).scale;
  QG_ASSIGN_OR_RETURN(QuantizedTensor quantized, Timed(stage, [&] {
                        return engine_.Quantize(source, quantizer, usages, arguments,
                                                cancellation_);
                      }));
  if (flow_.is_delayed) QG_RETURN_IF_ERROR(NoteCast(role, quantized));
  QuantizationRecord record;
  record.role = role;
  record.usages = usages;
  record.quantizer = QuantizerText(quantizer);
  result_.quantizations.push_back(std::move(record));
  quantized_.push_back(WithoutCodes(quantized));
  return quantized;
}

LinearStep::NamedOperand LinearStep::DirectionOf(const std::string& name, const Saved& operand,
                                                 Usage usage) {
  const std::optional<QuantizedCopy>& copy = operand.codes.copy(usage);
  if (!copy.has_value()) return {PlainOperand(operand.original), name};
  if (copy->format == QuantizerFormat::kIdentity) {
    return {PlainOperand(copy->data), absl::StrCat(name, " dequantized")};
  }
  return {OperandOf(*copy), absl::StrCat(name, " quantized ", std::string(UsageName(usage)))};
}

absl::StatusOr<Tensor> LinearStep::RunGemm(const char* stage, GemmRole role,
                                           const std::string& output, GemmDesc desc,
                                           const NamedOperand& a, const NamedOperand& b) {
  desc.a = a.operand;
  desc.b = b.operand;
  desc.arithmetic = arithmetic_;
  desc.use_split_accumulator = UsesSplit(recipe_, role, desc.a);
  QG_ASSIGN_OR_RETURN(GemmResult gemm,
                      Timed(stage, [&] { return engine_.Gemm(desc, cancellation_); }));
  QG_RETURN_IF_ERROR(SetWhatRan(gemm, desc));
  Tensor d = gemm.d;
  result_.gemms.push_back({role, output, std::move(desc), a.source, b.source, std::move(gemm)});
  return d;
}

absl::Status LinearStep::AddOutput(const std::string& name, const Tensor& value, Shape shape) {
  QG_ASSIGN_OR_RETURN(Tensor shaped, value.Reinterpret(value.dtype(), std::move(shape)));
  result_.outputs.push_back({name, std::move(shaped)});
  return absl::OkStatus();
}

absl::Status LinearStep::PrepareOperands() {
  if (flow_.is_calibration) {
    QG_RETURN_IF_ERROR(Calibrate(kStageCalibrateX, TensorRole::kInput, x_.original));
    QG_RETURN_IF_ERROR(Calibrate(kStageCalibrateWeight, TensorRole::kWeight, request_.weight));
  }
  if (flow_.quantizes_x()) {
    QG_ASSIGN_OR_RETURN(x_.codes,
                        Quantize(kStageQuantizeX, TensorRole::kInput, x_.original, flow_.x_usages));
  }
  if (flow_.quantizes_weight()) {
    QG_ASSIGN_OR_RETURN(weight_.codes, Quantize(kStageQuantizeWeight, TensorRole::kWeight,
                                                request_.weight, flow_.weight_usages));
  }
  if (flow_.reads_weight) {
    QG_ASSIGN_OR_RETURN(weight_.original,
                        CastTo(kStageCastWeight, request_.weight, flow_.activation_dtype));
  }
  return flow_.has_weight_copy() ? CastWeightCopy() : absl::OkStatus();
}

absl::Status LinearStep::CastWeightCopy() {
  QuantizedCopy& copy = *weight_.codes.columnwise;
  QG_ASSIGN_OR_RETURN(copy.data, CastTo(kStageCastWeightCopy, copy.data, flow_.activation_dtype));
  copy.element = copy.data.dtype();
  return absl::OkStatus();
}

absl::StatusOr<Tensor> LinearStep::Fprop() {
  GemmDesc desc;
  desc.layout = GemmLayout::kTN;
  desc.out_dtype = flow_.activation_dtype;
  if (request_.bias.has_value()) {
    QG_ASSIGN_OR_RETURN(desc.bias, CastTo(kStageCastBias, request_.bias, flow_.bias_dtype));
  }
  return RunGemm(kStageFprop, GemmRole::kFprop, "y", std::move(desc),
                 DirectionOf("x", x_, Usage::kRowwise),
                 DirectionOf("weight", weight_, Usage::kRowwise));
}

absl::Status LinearStep::Forward() {
  QG_RETURN_IF_ERROR(PrepareScales());
  QG_ASSIGN_OR_RETURN(Tensor x_matrix, request_.x.Reinterpret(request_.x.dtype(), {m_, k_}));
  QG_ASSIGN_OR_RETURN(x_.original, CastTo(kStageCastX, x_matrix, flow_.activation_dtype));
  QG_RETURN_IF_ERROR(PrepareOperands());
  QG_ASSIGN_OR_RETURN(Tensor y, Fprop());
  Shape y_shape = request_.x.shape();
  y_shape.back() = n_;
  QG_RETURN_IF_ERROR(AddOutput("y", y, std::move(y_shape)));
  if (!flow_.has_backward()) return absl::OkStatus();
  if (flow_.is_delayed) {
    QG_RETURN_IF_ERROR(
        UpdateScales(kStageUpdateForward, {TensorRole::kInput, TensorRole::kWeight}));
  }
  return SaveOperands();
}

absl::Status LinearStep::StartFingerprintOf(const Saved& saved, Fingerprint SavedOperand::*moment) {
  std::vector<const Tensor*> parts = {&saved.original};
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    const std::optional<QuantizedCopy>& copy = saved.codes.copy(usage);
    if (!copy.has_value()) continue;
    parts.insert(parts.end(), {&copy->data, &copy->scale_inv});
    // The amax of other formats is a record of the quantization; nvfp4's is part of every value.
    if (copy->format == QuantizerFormat::kNvfp4) parts.push_back(&copy->amax);
  }
  RunningFingerprint running{saved.record, moment, {}};
  for (const Tensor* part : parts) {
    if (!part->has_value()) continue;
    QG_ASSIGN_OR_RETURN(Tensor started, engine_.StartFingerprint(*part, cancellation_));
    running.parts.push_back(std::move(started));
  }
  fingerprints_.push_back(std::move(running));
  return absl::OkStatus();
}

absl::Status LinearStep::Save(const std::string& name, const std::string& content, Saved& saved) {
  SavedOperand record;
  record.name = name;
  record.content = content;
  saved.record = result_.saved.size();
  result_.saved.push_back(std::move(record));
  return StartFingerprintOf(saved, &SavedOperand::at_save);
}

// What each mode keeps is the row "saved input", "saved weight" of the table in docs/quantizers.md
// section 9. As in Transformer Engine's Linear, x is kept only for wgrad, the weight always.
void LinearStep::KeepOperands() {
  if (flow_.reads_originals()) {
    weight_workspace_.codes = std::move(weight_.codes);
    x_ = Saved{request_.x, {}, 0};
    weight_ = Saved{request_.weight, {}, 0};
    return;
  }
  if (flow_.backward_override == BackwardOverride::kNone) {
    // fprop was the only reader of the rowwise codes.
    x_.codes.rowwise.reset();
  }
  if (HasCodes(x_.codes)) x_.original = Tensor();
  if (HasCodes(weight_.codes) && !flow_.keeps_weight()) weight_.original = Tensor();
}

absl::Status LinearStep::SaveOperands() {
  return Timed(kStageSave, [&]() -> absl::Status {
    KeepOperands();
    const auto content = [](const Saved& saved, const Tensor& given) {
      std::vector<std::string> parts;
      if (HasCodes(saved.codes)) parts.push_back(CodesContent(saved.codes));
      if (saved.original.has_value()) {
        parts.push_back(PlainContent(given, saved.original.dtype()));
      }
      return absl::StrJoin(parts, " and ");
    };
    if (flow_.needs_dw) QG_RETURN_IF_ERROR(Save("x", content(x_, request_.x), x_));
    QG_RETURN_IF_ERROR(Save("weight", content(weight_, request_.weight), weight_));
    if (!HasCodes(weight_workspace_.codes)) return absl::OkStatus();
    return Save("weight workspace", CodesContent(weight_workspace_.codes), weight_workspace_);
  });
}

}  // namespace quantgate
