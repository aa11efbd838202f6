#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/layer/linear_step.h"

namespace quantgate {
namespace {

std::string PlainContent(const Tensor& given, DType kept) {
  const std::string kept_name(DTypeName(kept));
  if (given.dtype() == kept) return absl::StrCat(kept_name, " as given");
  return absl::StrCat(kept_name, " cast from ", std::string(DTypeName(given.dtype())));
}

std::string CodesContent(const QuantizedTensor& codes) {
  const Usages usages = codes.usages();
  const QuantizedCopy& copy = usages.rowwise ? *codes.rowwise : *codes.columnwise;
  const std::string element(DTypeName(copy.element));
  if (usages.rowwise && usages.columnwise) {
    return absl::StrCat(element, " rowwise and columnwise codes");
  }
  return absl::StrCat(element, usages.rowwise ? " rowwise codes" : " columnwise codes");
}

}  // namespace

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
  const Usage usage = usages.rowwise ? Usage::kRowwise : Usage::kColumnwise;
  const Quantizer quantizer = recipe_.QuantizerFor(role);
  QG_ASSIGN_OR_RETURN(QuantizedTensor quantized, Timed(stage, [&] {
                        return engine_.Quantize(source, quantizer, usages, {}, cancellation_);
                      }));
  const QuantizedCopy& copy = *quantized.copy(usage);
  result_.quantizations.push_back({role, usages, QuantizerText(quantizer), *copy.amax.as<float>(),
                                   *quantized.scale.as<float>(), *copy.scale_inv.as<float>(),
                                   quantized.counts});
  return quantized;
}

absl::StatusOr<Tensor> LinearStep::RunGemm(const char* stage, GemmRole role,
                                           const std::string& output, GemmDesc desc,
                                           const NamedOperand& a, const NamedOperand& b) {
  desc.a = a.operand;
  desc.b = b.operand;
  desc.arithmetic = arithmetic_;
  desc.use_split_accumulator = IsFp8(desc.a.data.dtype()) && recipe_.UsesSplitAccumulator(role);
  QG_ASSIGN_OR_RETURN(GemmResult gemm,
                      Timed(stage, [&] { return engine_.Gemm(desc, cancellation_); }));
  Tensor d = gemm.d;
  result_.gemms.push_back({role, output, std::move(desc), a.source, b.source, std::move(gemm)});
  return d;
}

absl::Status LinearStep::AddOutput(const std::string& name, const Tensor& value, Shape shape) {
  QG_ASSIGN_OR_RETURN(Tensor shaped, value.Reinterpret(value.dtype(), std::move(shape)));
  result_.outputs.push_back({name, std::move(shaped)});
  return absl::OkStatus();
}

absl::Status LinearStep::PrepareForwardQuantized(NamedOperand& x, NamedOperand& weight) {
  QG_ASSIGN_OR_RETURN(
      x_.codes, Quantize(kStageQuantizeX, TensorRole::kInput, x.operand.data, flow_.x_usages));
  QG_ASSIGN_OR_RETURN(weight_.codes, Quantize(kStageQuantizeWeight, TensorRole::kWeight,
                                              request_.weight, flow_.weight_usages));
  x = {OperandOf(*x_.codes.rowwise), "x quantized rowwise"};
  weight = {OperandOf(*weight_.codes.rowwise), "weight quantized rowwise"};
  return absl::OkStatus();
}

absl::Status LinearStep::PrepareForwardHighPrecision(NamedOperand& x, NamedOperand& weight) {
  QG_ASSIGN_OR_RETURN(weight_.original,
                      CastTo(kStageCastWeight, request_.weight, flow_.activation_dtype));
  x_.original = x.operand.data;
  x = {PlainOperand(x_.original), "x"};
  weight = {PlainOperand(weight_.original), "weight"};
  return absl::OkStatus();
}

absl::Status LinearStep::Forward() {
  QG_ASSIGN_OR_RETURN(Tensor x_matrix, request_.x.Reinterpret(request_.x.dtype(), {m_, k_}));
  QG_ASSIGN_OR_RETURN(Tensor x_active, CastTo(kStageCastX, x_matrix, flow_.activation_dtype));
  NamedOperand x{PlainOperand(x_active), ""};
  NamedOperand weight;
  if (flow_.is_quantized) {
    QG_RETURN_IF_ERROR(PrepareForwardQuantized(x, weight));
  } else {
    QG_RETURN_IF_ERROR(PrepareForwardHighPrecision(x, weight));
  }

  GemmDesc desc;
  desc.layout = GemmLayout::kTN;
  desc.out_dtype = flow_.activation_dtype;
  if (request_.bias.has_value()) {
    QG_ASSIGN_OR_RETURN(desc.bias, CastTo(kStageCastBias, request_.bias, flow_.bias_dtype));
  }
  QG_ASSIGN_OR_RETURN(Tensor y,
                      RunGemm(kStageFprop, GemmRole::kFprop, "y", std::move(desc), x, weight));
  Shape y_shape = request_.x.shape();
  y_shape.back() = n_;
  QG_RETURN_IF_ERROR(AddOutput("y", y, std::move(y_shape)));
  return flow_.has_backward() ? SaveOperands() : absl::OkStatus();
}

absl::StatusOr<Fingerprint> LinearStep::FingerprintOfSaved(const Saved& saved) {
  Fingerprint sum;
  std::vector<const Tensor*> parts = {&saved.original};
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    const std::optional<QuantizedCopy>& copy = saved.codes.copy(usage);
    if (copy.has_value()) parts.insert(parts.end(), {&copy->data, &copy->scale_inv});
  }
  for (const Tensor* part : parts) {
    if (!part->has_value()) continue;
    QG_ASSIGN_OR_RETURN(const Fingerprint fingerprint, engine_.FingerprintOf(*part, cancellation_));
    sum.low += fingerprint.low;
    sum.high += fingerprint.high + (sum.low < fingerprint.low ? 1 : 0);
  }
  return sum;
}

absl::Status LinearStep::Save(const std::string& name, const std::string& content, Saved& saved) {
  SavedOperand record;
  record.name = name;
  record.content = content;
  QG_ASSIGN_OR_RETURN(record.at_save, FingerprintOfSaved(saved));
  saved.record = result_.saved.size();
  result_.saved.push_back(std::move(record));
  return absl::OkStatus();
}

// What each mode keeps is the row "saved input", "saved weight" of the table in docs/quantizers.md
// section 9. As in Transformer Engine's Linear, x is kept only for wgrad, the weight always.
absl::Status LinearStep::SaveOperands() {
  return Timed(kStageSave, [&]() -> absl::Status {
    std::string x_content;
    std::string weight_content;
    if (!flow_.is_quantized) {
      x_content = PlainContent(request_.x, flow_.activation_dtype);
      weight_content = PlainContent(request_.weight, flow_.activation_dtype);
    } else if (flow_.reads_originals()) {
      x_ = Saved{request_.x, {}, 0};
      weight_workspace_.codes = std::move(weight_.codes);
      weight_ = Saved{request_.weight, {}, 0};
      x_content = PlainContent(request_.x, request_.x.dtype());
      weight_content = PlainContent(request_.weight, request_.weight.dtype());
    } else {
      if (x_.codes.usages().columnwise) {
        // fprop was the only reader of the rowwise codes.
        x_.codes.rowwise.reset();
      }
      x_content = CodesContent(x_.codes);
      weight_content = CodesContent(weight_.codes);
    }
    if (flow_.needs_dw) QG_RETURN_IF_ERROR(Save("x", x_content, x_));
    QG_RETURN_IF_ERROR(Save("weight", weight_content, weight_));
    if (!flow_.reads_originals()) return absl::OkStatus();
    return Save("weight workspace", CodesContent(weight_workspace_.codes), weight_workspace_);
  });
}

}  // namespace quantgate
