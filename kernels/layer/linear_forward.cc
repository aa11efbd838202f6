#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/layer/linear_operands.h"
#include "kernels/layer/linear_weight.h"

namespace quantgate {
namespace {

class ForwardPass {
 public:
  ForwardPass(StepRecorder& recorder, const LinearUnit& unit, LayerState& state,
              const LinearInput& input, std::shared_ptr<const StepOptions> options)
      : recorder_(recorder),
        unit_(unit),
        names_(unit.names),
        flow_(unit.flow),
        state_(state),
        input_(input),
        options_(std::move(options)) {}

  absl::StatusOr<LinearForward> Run();

 private:
  absl::Status PrepareStates();
  absl::Status PrepareX();
  absl::StatusOr<Tensor> Fprop();
  void KeepOperands();
  absl::StatusOr<LinearSaved> Save();
  std::string WeightContent() const;

  StepRecorder& recorder_;
  const LinearUnit& unit_;
  const LinearNames& names_;
  const LinearDataflow& flow_;
  LayerState& state_;
  const LinearInput& input_;
  std::shared_ptr<const StepOptions> options_;

  KeptOperand x_;
  KeptOperand weight_;
  KeptOperand weight_workspace_;
};

absl::Status ForwardPass::PrepareStates() {
  if (!flow_.is_delayed && !flow_.is_calibration) return absl::OkStatus();
  for (const TensorRole role : {TensorRole::kInput, TensorRole::kWeight, TensorRole::kGradOutput}) {
    QG_RETURN_IF_ERROR(PrepareDelayedState(recorder_, names_.StateOf(role),
                                           options_->recipe.delayed_scaling(), state_.delayed));
  }
  return absl::OkStatus();
}

absl::Status ForwardPass::PrepareX() {
  QG_ASSIGN_OR_RETURN(const Tensor matrix,
                      input_.x.Reinterpret(input_.x.dtype(), {unit_.m, unit_.k}));
  if (unit_.facts.x_is_unrounded) {
    x_.original = matrix;
    return absl::OkStatus();
  }
  QG_ASSIGN_OR_RETURN(x_.original,
                      recorder_.Cast(names_.Stage("cast x"), matrix, flow_.activation_dtype));
  return absl::OkStatus();
}

absl::StatusOr<Tensor> ForwardPass::Fprop() {
  GemmDesc desc;
  desc.layout = GemmLayout::kTN;
  desc.out_dtype = flow_.activation_dtype;
  if (input_.bias.has_value()) {
    QG_ASSIGN_OR_RETURN(desc.bias,
                        recorder_.Cast(names_.Stage("cast bias"), input_.bias, flow_.bias_dtype));
  }
  return RunLinearGemm(recorder_, names_, kStageFprop, GemmRole::kFprop, options_->recipe, names_.y,
                       std::move(desc), DirectionOf(names_.x, x_, Usage::kRowwise),
                       DirectionOf(names_.weight, weight_, Usage::kRowwise));
}

// What each mode keeps is the row "saved input", "saved weight" of the table in docs/quantizers.md
// section 9. As in Transformer Engine's Linear, x is kept only for wgrad, the weight always.
void ForwardPass::KeepOperands() {
  const Parameter& weight = state_.parameters.at(names_.weight);
  if (flow_.reads_originals()) {
    if (weight.is_quantized()) {
      weight_ = KeptOperand{{}, OnlyUsages(weight.quantized, flow_.weight_usages), {}};
      if (!weight_.has_codes()) weight_.codes = weight.quantized;
    } else {
      weight_workspace_.codes = std::move(weight_.codes);
      weight_ = KeptOperand{weight.value, {}, {}};
    }
    // What was given as codes is read back from them.
    x_ = unit_.facts.x_is_codes ? KeptOperand{{}, x_.codes, {}} : KeptOperand{input_.x, {}, {}};
    return;
  }
  if (flow_.backward_override == BackwardOverride::kNone) {
    // fprop was the only reader of the rowwise codes.
    x_.codes.rowwise.reset();
  }
  if (x_.has_codes()) x_.original = Tensor();
  if (weight_.has_codes() && !flow_.keeps_weight()) weight_.original = Tensor();
}

std::string ForwardPass::WeightContent() const {
  const Parameter& weight = state_.parameters.at(names_.weight);
  if (!weight.is_quantized() || !weight_.original.has_value()) {
    return ContentOf(weight_, unit_.facts.weight_dtype);
  }
  const std::string codes =
      weight_.has_codes() ? absl::StrCat(CodesContent(weight_.codes), " and ") : "";
  return absl::StrCat(codes, std::string(DTypeName(weight_.original.dtype())),
                      " dequantized from the parameter");
}

absl::StatusOr<LinearSaved> ForwardPass::Save() {
  QG_RETURN_IF_ERROR(recorder_.Timed(names_.Stage("fingerprint saved operands"), [&] {
    KeepOperands();
    if (flow_.needs_dw) {
      QG_RETURN_IF_ERROR(Keep(recorder_, names_.x, ContentOf(x_, input_.x.dtype()), x_));
    }
    QG_RETURN_IF_ERROR(Keep(recorder_, names_.weight, WeightContent(), weight_));
    if (!weight_workspace_.has_codes()) return absl::OkStatus();
    return Keep(recorder_, absl::StrCat(names_.weight, " workspace"),
                CodesContent(weight_workspace_.codes), weight_workspace_);
  }));
  if (!flow_.needs_dw) x_ = KeptOperand();
  LinearSaved saved{unit_,         options_,           input_.x.shape(),
                    std::move(x_), std::move(weight_), std::move(weight_workspace_)};
  return saved;
}

absl::StatusOr<LinearForward> ForwardPass::Run() {
  for (const std::string& note :
       LinearNotes(flow_, unit_.m, unit_.n, unit_.k, recorder_.arithmetic())) {
    recorder_.AddNote(note);
  }
  QG_RETURN_IF_ERROR(PrepareStates());
  QG_RETURN_IF_ERROR(PrepareX());
  LinearWeight weight(recorder_, unit_, state_, *options_);
  if (flow_.is_calibration) {
    QG_RETURN_IF_ERROR(Calibrate(recorder_, names_.Stage("calibrate x"), x_.original,
                                 options_->recipe.QuantizerFor(TensorRole::kInput).rowwise,
                                 state_.delayed[names_.input_state]));
    QG_RETURN_IF_ERROR(weight.Calibrate());
  }
  if (unit_.facts.x_is_codes) {
    x_.codes = input_.codes;
  } else if (flow_.reads_x_codes()) {
    QG_ASSIGN_OR_RETURN(
        x_.codes, QuantizeOperand(recorder_, unit_, TensorRole::kInput, kStageQuantizeX, names_.x,
                                  x_.original, flow_.x_usages, *options_, state_.delayed));
  }
  QG_ASSIGN_OR_RETURN(weight_, weight.Prepare());

  QG_ASSIGN_OR_RETURN(const Tensor matrix, Fprop());
  Shape shape = input_.x.shape();
  shape.back() = unit_.n;
  LinearForward result;
  QG_ASSIGN_OR_RETURN(result.y, matrix.Reinterpret(matrix.dtype(), std::move(shape)));
  if (flow_.has_backward()) {
    QG_ASSIGN_OR_RETURN(result.saved, Save());
  }
  return result;
}

}  // namespace

absl::StatusOr<LinearForward> ForwardLinear(StepRecorder& recorder, const LinearUnit& unit,
                                            LayerState& state, const LinearInput& input,
                                            std::shared_ptr<const StepOptions> options) {
  return ForwardPass(recorder, unit, state, input, std::move(options)).Run();
}

}  // namespace quantgate
