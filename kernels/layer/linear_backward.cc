#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/layer/linear_step.h"

namespace quantgate {

absl::Status LinearStep::BiasGradient(const Tensor& grad_output) {
  // From the unquantized gradient in every mode, also where the weight is frozen
  // (docs/quantizers.md section 10.4).
  QG_ASSIGN_OR_RETURN(db_, Timed(kStageBiasGradient, [&] {
                        return engine_.ColumnSums(grad_output, flow_.activation_dtype,
                                                  cancellation_);
                      }));
  return absl::OkStatus();
}

absl::Status LinearStep::PrepareGradOutput(const Tensor& grad_output) {
  grad_output_.original = grad_output;
  if (flow_.is_calibration) {
    QG_RETURN_IF_ERROR(Calibrate(kStageCalibrateGradOutput, TensorRole::kGradOutput, grad_output));
  }
  if (!flow_.quantizes_grad_output()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(grad_output_.codes,
                      Quantize(kStageQuantizeGradOutput, TensorRole::kGradOutput, grad_output,
                               flow_.grad_output_usages));
  return absl::OkStatus();
}

absl::Status LinearStep::CheckSaved() {
  return Timed(kStageCheckSaved, [&]() -> absl::Status {
    if (flow_.needs_dw) {
      QG_RETURN_IF_ERROR(StartFingerprintOf(x_, &SavedOperand::at_use));
      // wgrad of an empty batch is zero without reading anything.
      result_.saved[x_.record].used = !flow_.is_empty;
    }
    QG_RETURN_IF_ERROR(StartFingerprintOf(weight_, &SavedOperand::at_use));
    result_.saved[weight_.record].used = flow_.needs_dx;
    if (!weight_workspace_.codes.rowwise.has_value()) return absl::OkStatus();
    return StartFingerprintOf(weight_workspace_, &SavedOperand::at_use);
  });
}

absl::StatusOr<LinearStep::NamedOperand> LinearStep::OverrideOperand(const std::string& name,
                                                                     Saved& saved,
                                                                     const char* dequantize_stage,
                                                                     const char* cast_stage) {
  if (flow_.reads_dequantized()) {
    QG_ASSIGN_OR_RETURN(Tensor dequantized, Timed(dequantize_stage, [&] {
                          return engine_.Dequantize(saved.codes, Usage::kRowwise,
                                                    flow_.activation_dtype, cancellation_);
                        }));
    return NamedOperand{PlainOperand(dequantized), absl::StrCat(name, " dequantized")};
  }
  // Under `dequantized` without codes, what was saved has the activation dtype: no cast.
  QG_ASSIGN_OR_RETURN(Tensor cast, CastTo(cast_stage, saved.original, flow_.activation_dtype));
  QG_ASSIGN_OR_RETURN(Tensor matrix, cast.Reinterpret(cast.dtype(), {cast.rows(), cast.columns()}));
  return NamedOperand{PlainOperand(matrix), name};
}

GemmLayout DgradLayout(const Quantizer& weight) {
  const bool is_turned =
      weight.columnwise.is_quantized() && weight.columnwise.format != QuantizerFormat::kMxfp8;
  return is_turned ? GemmLayout::kTN : GemmLayout::kNN;
}

GemmLayout WgradLayout(const Quantizer& x) {
  const bool is_turned =
      x.columnwise.is_quantized() && x.columnwise.format != QuantizerFormat::kMxfp8;
  return is_turned ? GemmLayout::kTN : GemmLayout::kNT;
}

absl::Status LinearStep::Dgrad(const Tensor& grad_output) {
  GemmDesc desc;
  desc.out_dtype = flow_.activation_dtype;
  desc.layout = GemmLayout::kNN;
  NamedOperand a{PlainOperand(grad_output), "grad_output"};
  NamedOperand b;
  if (flow_.backward_override == BackwardOverride::kNone) {
    if (flow_.quantizes_dgrad) {
      desc.layout = DgradLayout(recipe_.QuantizerFor(TensorRole::kWeight));
      a = DirectionOf("grad_output", grad_output_, Usage::kRowwise);
    }
    b = DirectionOf("weight", weight_, Usage::kColumnwise);
  } else {
    QG_ASSIGN_OR_RETURN(
        b, OverrideOperand("weight", weight_, kStageDequantizeWeight, kStageCastSavedWeight));
  }
  QG_ASSIGN_OR_RETURN(Tensor dx,
                      RunGemm(kStageDgrad, GemmRole::kDgrad, "dx", std::move(desc), a, b));
  return AddOutput("dx", dx, request_.x.shape());
}

absl::Status LinearStep::Wgrad(const Tensor& grad_output) {
  const bool accumulates = request_.main_grad.has_value();
  const std::string name = accumulates ? "main_grad" : "dw";
  const DType out_dtype = accumulates ? DType::kF32 : flow_.activation_dtype;
  if (flow_.is_empty) {
    // A sum over no rows: zeros, or nothing added to the main gradient, whose bits stay.
    GeneratorSpec zeros;
    zeros.distribution = Distribution::kAllZero;
    zeros.dtype = out_dtype;
    zeros.shape = {n_, k_};
    QG_ASSIGN_OR_RETURN(Tensor dw, Timed(kStageWgrad, [&] {
                          return accumulates ? absl::StatusOr<Tensor>(request_.main_grad)
                                             : engine_.Generate(zeros, cancellation_);
                        }));
    return AddOutput(name, dw, {n_, k_});
  }

  GemmDesc desc;
  desc.out_dtype = out_dtype;
  if (accumulates) {
    desc.beta = 1.0f;
    desc.c = request_.main_grad;
    desc.in_place = true;
  }
  desc.layout = GemmLayout::kNT;
  NamedOperand a{PlainOperand(grad_output), "grad_output"};
  NamedOperand b;
  if (flow_.backward_override == BackwardOverride::kNone) {
    if (flow_.quantizes_wgrad) desc.layout = WgradLayout(recipe_.QuantizerFor(TensorRole::kInput));
    a = DirectionOf("grad_output", grad_output_, Usage::kColumnwise);
    b = DirectionOf("x", x_, Usage::kColumnwise);
  } else {
    QG_ASSIGN_OR_RETURN(b, OverrideOperand("x", x_, kStageDequantizeX, kStageCastSavedX));
  }
  QG_ASSIGN_OR_RETURN(Tensor dw,
                      RunGemm(kStageWgrad, GemmRole::kWgrad, name, std::move(desc), a, b));
  return AddOutput(name, dw, {n_, k_});
}

absl::Status LinearStep::Backward() {
  QG_ASSIGN_OR_RETURN(Tensor given,
                      request_.grad_output.Reinterpret(request_.grad_output.dtype(), {m_, n_}));
  QG_ASSIGN_OR_RETURN(Tensor grad_output,
                      CastTo(kStageCastGradOutput, given, flow_.activation_dtype));
  if (flow_.needs_db) QG_RETURN_IF_ERROR(BiasGradient(grad_output));
  QG_RETURN_IF_ERROR(PrepareGradOutput(grad_output));
  QG_RETURN_IF_ERROR(CheckSaved());
  if (flow_.needs_dx) QG_RETURN_IF_ERROR(Dgrad(grad_output));
  if (flow_.needs_dw) QG_RETURN_IF_ERROR(Wgrad(grad_output));
  if (flow_.is_delayed && flow_.quantizes_grad_output()) {
    QG_RETURN_IF_ERROR(UpdateScales(kStageUpdateBackward, {TensorRole::kGradOutput}));
  }
  return flow_.needs_db ? AddOutput("db", db_, {n_}) : absl::OkStatus();
}

absl::StatusOr<LinearResult> RunLinear(Engine& engine, const LinearRequest& request,
                                       const Recipe& recipe, const Arithmetic& arithmetic,
                                       const Cancellation* cancellation, StageObserver on_stage) {
  QG_RETURN_IF_ERROR(CheckLinear(request, recipe));
  QG_RETURN_IF_ERROR(CheckLinearGemms(request, recipe, arithmetic));
  LinearStep step(engine, request, recipe, arithmetic, cancellation, on_stage);
  QG_RETURN_IF_ERROR(step.Forward());
  if (step.flow().has_backward()) QG_RETURN_IF_ERROR(step.Backward());
  return step.Finish();
}

}  // namespace quantgate
