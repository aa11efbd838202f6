#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/engine/engine.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/layer/linear/given_codes.h"
#include "kernels/layer/linear/linear_operands.h"
#include "kernels/layer/linear/linear_overlap.h"
#include "kernels/layer/linear/linear_parallel.h"

namespace quantgate {
namespace {

/// A saved operand as GEMMs read it under a backward override: in high precision, dequantized if
/// only its codes were saved, as a matrix of the activation dtype.
absl::StatusOr<NamedOperand> OverrideOperand(StepRecorder& recorder, const LinearUnit& unit,
                                             const std::string& name, const char* base,
                                             const KeptOperand& kept) {
  const LinearDataflow& flow = unit.flow;
  // There are only codes under `dequantized`, or if the operand was given as codes.
  if (!kept.original.has_value()) {
    QG_ASSIGN_OR_RETURN(
        Tensor dequantized,
        DequantizeAny(recorder, unit.names.Stage(absl::StrCat("dequantize saved ", base)),
                      kept.codes, flow.activation_dtype));
    QG_ASSIGN_OR_RETURN(
        Tensor matrix,
        dequantized.Reinterpret(dequantized.dtype(), {dequantized.rows(), dequantized.columns()}));
    return NamedOperand{PlainOperand(matrix), {name, OperandOrigin::Content::kDequantized}};
  }
  // The original was saved: under `high_precision` as it was given, which may need a cast, or under
  // `dequantized` for an operand without codes, which has the activation dtype already.
  QG_ASSIGN_OR_RETURN(
      Tensor cast, recorder.Cast(unit.names.Stage(absl::StrCat("cast saved ", base)), kept.original,
                                 flow.activation_dtype));
  QG_ASSIGN_OR_RETURN(Tensor matrix, cast.Reinterpret(cast.dtype(), {cast.rows(), cast.columns()}));
  return NamedOperand{PlainOperand(matrix), {name}};
}

int64_t BytesOfTensors(std::span<const Tensor> tensors) {
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.byte_size());
  return bytes;
}

/// dw over no rows: zeros, or the main gradient with unchanged bits.
absl::StatusOr<Tensor> EmptyWgrad(StepRecorder& recorder, const LinearUnit& unit,
                                  const Tensor& accumulated, DType dtype) {
  return recorder.Timed({StageKind::kGemm, unit.names.Stage(kStageWgrad)}, [&] {
    return accumulated.has_value()
               ? absl::StatusOr<Tensor>(accumulated)
               : Zeros(recorder.engine(), {unit.n, unit.k}, recorder.cancellation(), dtype);
  });
}

/// dw, added to `accumulated` unless that is absent. `partial_dx`, if not null, is summed over the
/// ranks while wgrad runs, and replaced by the sum.
absl::StatusOr<Tensor> WgradGemm(StepRecorder& recorder, const LinearWgrad& wgrad,
                                 const Tensor& accumulated, DType dtype, Tensor* partial_dx) {
  const LinearUnit& unit = wgrad.unit;
  const LinearDataflow& flow = unit.flow;
  GemmDesc desc;
  desc.out_dtype = dtype;
  desc.layout = GemmLayout::kNT;
  if (accumulated.has_value()) {
    desc.beta = 1.0f;
    desc.c = accumulated;
    desc.in_place = true;
  }
  const LinearNames& names = unit.names;
  NamedOperand a{PlainOperand(wgrad.grad_output.original), {names.grad_output}};
  NamedOperand b;
  if (flow.backward_override == BackwardOverride::kNone) {
    if (flow.quantizes_wgrad) {
      desc.layout = WgradLayout(unit.recipe->QuantizerFor(TensorRole::kInput));
    }
    a = DirectionOf(names.grad_output, wgrad.grad_output, Usage::kColumnwise);
    b = DirectionOf(names.x, wgrad.x, Usage::kColumnwise);
  } else {
    QG_ASSIGN_OR_RETURN(b, OverrideOperand(recorder, unit, names.x, "x", wgrad.x));
  }
  const std::string& output = unit.facts.has_main_grad ? names.main_grad : names.dw;
  GemmRecord record = LinearGemmRecord(GemmRole::kWgrad, *unit.recipe, recorder.arithmetic(),
                                       output, std::move(desc), a, b);
  if (partial_dx == nullptr) return recorder.Gemm(names.Stage(kStageWgrad), std::move(record));
  QG_ASSIGN_OR_RETURN(OverlappedReduction done,
                      LinearOverlap(recorder, unit, *wgrad.options)
                          .BulkReduceScatter(std::move(record), *partial_dx));
  *partial_dx = std::move(done.sum);
  return std::move(done.d);
}

/// dw; absent if it was added to the main gradient.
absl::StatusOr<Tensor> Wgrad(StepRecorder& recorder, const LinearWgrad& wgrad, LayerState& state,
                             Tensor* partial_dx) {
  const LinearUnit& unit = wgrad.unit;
  const bool has_main_grad = unit.facts.has_main_grad;
  Tensor accumulated;
  if (has_main_grad && wgrad.options->microbatch != Microbatch::kFirst) {
    const auto found = state.main_grads.find(unit.names.weight);
    if (found == state.main_grads.end()) {
      return RefusePrecondition(absl::StrCat("main_grads[", unit.names.weight, "]"), "absent",
                                "forward began with one");
    }
    accumulated = found->second;
  }
  const DType dtype = has_main_grad ? DType::kF32 : unit.flow.activation_dtype;
  QG_ASSIGN_OR_RETURN(Tensor dw, unit.flow.is_empty
                                     ? EmptyWgrad(recorder, unit, accumulated, dtype)
                                     : WgradGemm(recorder, wgrad, accumulated, dtype, partial_dx));
  if (!has_main_grad) return dw;
  state.main_grads[unit.names.weight] = std::move(dw);
  return Tensor();
}

class BackwardPass {
 public:
  BackwardPass(StepRecorder& recorder, LinearSaved& saved, LayerState& state,
               const LinearGradient& gradient)
      : recorder_(recorder),
        saved_(saved),
        unit_(saved.unit),
        names_(saved.unit.names),
        flow_(saved.unit.flow),
        options_(*saved.options),
        state_(state),
        gradient_(gradient) {}

  absl::StatusOr<LinearBackward> Run();

 private:
  absl::Status PrepareGradOutput();
  absl::Status UseGivenGradOutput();
  absl::Status QuantizeGradOutput();
  absl::StatusOr<KeptOperand> WgradX();
  absl::StatusOr<Tensor> BiasGradient();
  absl::Status CheckSaved();
  absl::StatusOr<Tensor> Dgrad();
  absl::StatusOr<Tensor> ColumnDgrad(GemmRecord record);
  absl::StatusOr<Tensor> RowDgrad(GemmRecord record);
  absl::StatusOr<Tensor> DgradBesideX(GemmRecord record);
  absl::StatusOr<KeptOperand> ForWgrad(KeptOperand gathered, bool dgrad_reads_it);
  absl::StatusOr<LinearWgrad> Defer(LinearWgrad wgrad);
  LinearCollectives Collectives() { return {recorder_, unit_, options_, state_}; }
  const OverlapPlan& overlap() const { return unit_.parallel.overlap; }
  bool reduces_dx_beside_wgrad() const {
    return unit_.parallel.is_column() && overlap().wgrad != OverlapMethod::kNone;
  }

  StepRecorder& recorder_;
  LinearSaved& saved_;
  const LinearUnit& unit_;
  const LinearNames& names_;
  const LinearDataflow& flow_;
  const StepOptions& options_;
  LayerState& state_;
  const LinearGradient& gradient_;
  KeptOperand grad_output_;       ///< This rank's rows until dgrad or a call before it gathers.
  std::optional<KeptOperand> x_;  ///< x of all ranks, if it was gathered beside dgrad.
};

absl::Status BackwardPass::PrepareGradOutput() {
  QG_ASSIGN_OR_RETURN(const Tensor matrix, gradient_.value.Reinterpret(gradient_.value.dtype(),
                                                                       {unit_.y_rows(), unit_.n}));
  if (gradient_.is_unrounded) {
    grad_output_.original = matrix;
    return absl::OkStatus();
  }
  QG_ASSIGN_OR_RETURN(grad_output_.original, recorder_.Cast(names_.Stage("cast grad_output"),
                                                            matrix, flow_.activation_dtype));
  return absl::OkStatus();
}

// The bias gradient sums the unquantized gradient in every mode, also if the weight is frozen
// (docs/quantizers.md section 10.4). If the gradient came as codes, it sums their values.
absl::StatusOr<Tensor> BackwardPass::BiasGradient() {
  Tensor source = grad_output_.original;
  if (gradient_.codes.has_codes() && !gradient_.is_of_codes) {
    QG_ASSIGN_OR_RETURN(source, DequantizeAny(recorder_, names_.Stage("dequantize grad_output"),
                                              gradient_.codes, flow_.activation_dtype));
  } else if (gradient_.bias_source.has_value()) {
    source = gradient_.bias_source;
  }
  QG_ASSIGN_OR_RETURN(const Tensor matrix,
                      source.Reinterpret(source.dtype(), {unit_.y_rows(), unit_.n}));
  return recorder_.Timed({StageKind::kGemm, names_.Stage("bias gradient")}, [&] {
    return recorder_.engine().ColumnSums(matrix, flow_.activation_dtype, recorder_.cancellation());
  });
}

/// grad_output that was given as codes: in the usages that GEMMs read or, under an override, its
/// values.
absl::Status BackwardPass::UseGivenGradOutput() {
  if (flow_.backward_override != BackwardOverride::kNone) {
    recorder_.AddNote(
        absl::StrCat(names_.grad_output, ": given as codes, whose values backward_override=",
                     std::string(BackwardOverrideName(flow_.backward_override)), " reads"));
    return absl::OkStatus();
  }
  QG_ASSIGN_OR_RETURN(grad_output_.codes,
                      GivenInUsages(recorder_, unit_, TensorRole::kGradOutput, gradient_.codes,
                                    flow_.grad_output_usages, state_));
  return absl::OkStatus();
}

absl::Status BackwardPass::QuantizeGradOutput() {
  if (flow_.is_calibration) {
    QG_RETURN_IF_ERROR(CalibrateOperand(recorder_, names_, names_.Stage("calibrate grad_output"),
                                        TensorRole::kGradOutput, grad_output_.original,
                                        *unit_.recipe, state_.delayed));
  }
  if (gradient_.is_of_codes) return UseGivenGradOutput();
  if (gradient_.codes.has_codes()) {
    grad_output_.codes = gradient_.codes;
    return absl::OkStatus();
  }
  if (unit_.parallel.gathers_grad_output()) {
    const bool is_in_dgrad = overlap().dgrad != OverlapMethod::kNone;
    QG_ASSIGN_OR_RETURN(grad_output_, is_in_dgrad
                                          ? Collectives().GradOutputShard(grad_output_.original)
                                          : Collectives().GatherGradOutput(grad_output_.original));
    return absl::OkStatus();
  }
  if (!flow_.reads_grad_output_codes()) return absl::OkStatus();
  const Usages usages = flow_.grad_output_usages;
  QG_ASSIGN_OR_RETURN(
      QuantizeArguments arguments,
      GroupAmaxesOf(recorder_, unit_, TensorRole::kGradOutput, usages, gradient_.expert_amaxes));
  QG_ASSIGN_OR_RETURN(
      grad_output_.codes,
      QuantizeOperand(recorder_, unit_, TensorRole::kGradOutput, kStageQuantizeGradOutput,
                      names_.grad_output, grad_output_.original, usages, options_, state_.delayed,
                      std::move(arguments)));
  return absl::OkStatus();
}

absl::Status BackwardPass::CheckSaved() {
  return recorder_.Timed({StageKind::kCompare, names_.Stage("check saved operands")}, [&] {
    std::vector<UsedOperand> operands;
    if (flow_.needs_dw) {
      // wgrad of an empty batch is zero without reading anything.
      const bool is_left = options_.defer_wgrad && !unit_.parallel.gathers_x();
      const bool is_read = !flow_.is_empty && !is_left;
      operands.push_back({saved_.x.mark, saved_.x.Parts(), is_read});
    }
    operands.push_back({saved_.weight.mark, saved_.weight.Parts(), flow_.needs_dx});
    const KeptOperand& workspace = saved_.weight_workspace;
    if (workspace.mark != nullptr) operands.push_back({workspace.mark, workspace.Parts(), false});
    return recorder_.Use(operands);
  });
}

absl::StatusOr<Tensor> BackwardPass::Dgrad() {
  GemmDesc desc;
  desc.out_dtype = flow_.activation_dtype;
  desc.layout = GemmLayout::kNN;
  NamedOperand a{PlainOperand(grad_output_.original), {names_.grad_output}};
  NamedOperand b;
  if (flow_.backward_override == BackwardOverride::kNone) {
    if (flow_.quantizes_dgrad) {
      desc.layout = DgradLayout(unit_.recipe->QuantizerFor(TensorRole::kWeight));
    }
    a = DirectionOf(names_.grad_output, grad_output_, Usage::kRowwise);
    b = DirectionOf(names_.weight, saved_.weight, Usage::kColumnwise);
  } else {
    QG_ASSIGN_OR_RETURN(b,
                        OverrideOperand(recorder_, unit_, names_.weight, "weight", saved_.weight));
  }
  GemmRecord record = LinearGemmRecord(GemmRole::kDgrad, *unit_.recipe, recorder_.arithmetic(),
                                       names_.dx, std::move(desc), a, b);
  return unit_.parallel.is_column() ? ColumnDgrad(std::move(record)) : RowDgrad(std::move(record));
}

/// The sum of dx over the ranks or, if wgrad will overlap that sum, this rank's summand.
absl::StatusOr<Tensor> BackwardPass::ColumnDgrad(GemmRecord record) {
  const OverlapMethod method = overlap().dgrad;
  if (method != OverlapMethod::kNone && method != OverlapMethod::kBulk) {
    return LinearOverlap(recorder_, unit_, options_).ReduceScatterGemm(std::move(record));
  }
  QG_ASSIGN_OR_RETURN(Tensor dx,
                      method == OverlapMethod::kBulk
                          ? DgradBesideX(std::move(record))
                          : recorder_.Gemm(names_.Stage(kStageDgrad), std::move(record)));
  const bool is_lost = recorder_.faults().Has(kFaultSumLeftToWgrad) &&
                       options_.parallel->column_overlap.wgrad != OverlapMethod::kNone;
  return reduces_dx_beside_wgrad() || is_lost ? dx : Collectives().ReduceDx(dx);
}

/// dgrad, while x is gathered for wgrad.
absl::StatusOr<Tensor> BackwardPass::DgradBesideX(GemmRecord record) {
  QG_RETURN_IF_ERROR(Collectives().CheckScaleOfX(saved_.x));
  const Usage usage = TravellingUsage(saved_.x);
  QG_ASSIGN_OR_RETURN(OverlappedGather gathered,
                      LinearOverlap(recorder_, unit_, options_)
                          .BulkAllGather(std::move(record), TravellingParts(saved_.x, usage)));
  KeptOperand whole = JoinedOperand(saved_.x, usage, gathered.parts, unit_.m);
  Collectives().Hold(whole);
  QG_ASSIGN_OR_RETURN(x_, ForWgrad(std::move(whole), false));
  return std::move(gathered.d);
}

/// dx of a row-parallel unit, or of one that is not divided.
absl::StatusOr<Tensor> BackwardPass::RowDgrad(GemmRecord record) {
  if (overlap().dgrad == OverlapMethod::kNone) {
    return recorder_.Gemm(names_.Stage(kStageDgrad), std::move(record));
  }
  const bool is_beside = overlap().wgrad != OverlapMethod::kNone;
  std::vector<Tensor> beside;
  if (is_beside) beside = TravellingParts(grad_output_, Usage::kColumnwise);
  const size_t count = beside.size();
  QG_ASSIGN_OR_RETURN(OverlappedGather gathered,
                      LinearOverlap(recorder_, unit_, options_)
                          .AllGatherGemm(std::move(record), std::move(beside)));
  const std::span<const Tensor> parts(gathered.parts);
  std::shared_ptr<const void> held = recorder_.HoldGathered(BytesOfTensors(parts));
  if (!flow_.needs_dw) return std::move(gathered.d);
  const KeptOperand shard = std::move(grad_output_);
  if (is_beside) {
    grad_output_ = JoinedOperand(shard, Usage::kColumnwise, parts.last(count), unit_.m);
    held = nullptr;
    Collectives().Hold(grad_output_);
  } else if (shard.codes.columnwise.has_value()) {
    QG_ASSIGN_OR_RETURN(grad_output_, Collectives().GatherColumnwiseGradOutput(shard));
  } else {
    held = nullptr;
    KeptOperand whole = JoinedOperand(shard, Usage::kRowwise, parts, unit_.m);
    Collectives().Hold(whole);
    QG_ASSIGN_OR_RETURN(grad_output_, ForWgrad(std::move(whole), true));
  }
  return std::move(gathered.d);
}

/// An operand of wgrad, which reads it columnwise; per-tensor codes are gathered rowwise. Where
/// dgrad has read these too, both count at a time; else those that wgrad reads count alone, as they
/// do without overlap.
absl::StatusOr<KeptOperand> BackwardPass::ForWgrad(KeptOperand gathered, bool dgrad_reads_it) {
  if (!gathered.codes.rowwise.has_value()) return gathered;
  gathered.gathered = nullptr;
  KeptOperand turned = gathered;
  QG_RETURN_IF_ERROR(
      recorder_.engine().UpdateUsages(turned.codes, {false, true}, recorder_.cancellation()));
  if (dgrad_reads_it) {
    // Both directions have the one scale of the tensor. What is held and let go counts in the peak.
    StorageCount count;
    const int64_t rowwise = count.Add(gathered.SavedTensors()).counted.bytes();
    recorder_.HoldGathered(rowwise + count.Add(turned.SavedTensors()).counted.bytes());
  }
  Collectives().Hold(turned);
  return turned;
}

/// The saved operand with the rows of all ranks.
absl::StatusOr<KeptOperand> BackwardPass::WgradX() {
  if (!unit_.parallel.gathers_x() || flow_.is_empty) return saved_.x;
  if (x_.has_value()) return *std::move(x_);
  LinearCollectives collectives = Collectives();
  if (flow_.backward_override == BackwardOverride::kNone) return collectives.RegatherX(saved_.x);
  QG_ASSIGN_OR_RETURN(const NamedOperand shard,
                      OverrideOperand(recorder_, unit_, names_.x, "x", saved_.x));
  return collectives.GatherOverriddenX(shard.operand.data);
}

absl::StatusOr<LinearWgrad> BackwardPass::Defer(LinearWgrad wgrad) {
  KeptOperand& kept = wgrad.grad_output;
  // From here on they count as saved.
  wgrad.x.gathered = kept.gathered = nullptr;
  if (kept.codes.columnwise.has_value()) {
    kept.original = Tensor();
    kept.codes.rowwise.reset();
  } else {
    kept.codes = QuantizedTensor();
  }
  QG_RETURN_IF_ERROR(
      recorder_.Timed({StageKind::kCompare, names_.Stage("fingerprint deferred operands")}, [&] {
        std::vector<OperandToKeep> operands;
        // An operand that was gathered for it has no mark yet; a saved one has.
        if (wgrad.x.mark == nullptr) {
          operands.push_back({absl::StrCat(names_.x, " gathered"),
                              ContentOf(wgrad.x, flow_.activation_dtype), &wgrad.x});
        }
        operands.push_back({names_.grad_output, ContentOf(kept, gradient_.value.dtype()), &kept});
        return Keep(recorder_, operands);
      }));
  return wgrad;
}

absl::StatusOr<LinearBackward> BackwardPass::Run() {
  LinearBackward result;
  QG_RETURN_IF_ERROR(PrepareGradOutput());
  const bool is_lost = recorder_.faults().Has(kFaultBiasGradientLeftToWgrad) &&
                       flow_.backward_override != BackwardOverride::kNone && !flow_.needs_dw;
  if (flow_.needs_db && !is_lost) {
    QG_ASSIGN_OR_RETURN(result.db, BiasGradient());
  }
  QG_RETURN_IF_ERROR(QuantizeGradOutput());
  QG_RETURN_IF_ERROR(CheckSaved());
  Tensor dx;
  if (flow_.needs_dx) {
    QG_ASSIGN_OR_RETURN(dx, Dgrad());
  }
  if (flow_.needs_dw) {
    QG_ASSIGN_OR_RETURN(KeptOperand x, WgradX());
    LinearWgrad wgrad{unit_, saved_.options, std::move(x), std::move(grad_output_)};
    if (options_.defer_wgrad) {
      QG_ASSIGN_OR_RETURN(result.deferred, Defer(std::move(wgrad)));
    } else {
      Tensor* const partial_dx = reduces_dx_beside_wgrad() ? &dx : nullptr;
      QG_ASSIGN_OR_RETURN(result.dw, Wgrad(recorder_, wgrad, state_, partial_dx));
    }
  }
  if (flow_.quantizes_grad_input) {
    QG_ASSIGN_OR_RETURN(
        dx, QuantizeResult(recorder_, unit_, TensorRole::kGradInput, names_.dx, dx, options_));
  }
  if (flow_.needs_dx) {
    QG_ASSIGN_OR_RETURN(result.dx, dx.Reinterpret(dx.dtype(), saved_.x_shape));
  }
  return result;
}

}  // namespace

absl::StatusOr<LinearBackward> BackwardLinear(StepRecorder& recorder, LinearSaved& saved,
                                              LayerState& state, const LinearGradient& gradient) {
  return BackwardPass(recorder, saved, state, gradient).Run();
}

absl::StatusOr<Tensor> RunDeferredWgrad(StepRecorder& recorder, LinearWgrad& deferred,
                                        LayerState& state) {
  const LinearUnit& unit = deferred.unit;
  QG_RETURN_IF_ERROR(
      recorder.Timed({StageKind::kCompare, unit.names.Stage("check deferred operands")}, [&] {
        const bool is_read = !unit.flow.is_empty;
        const UsedOperand operands[] = {
            {deferred.x.mark, deferred.x.Parts(), is_read},
            {deferred.grad_output.mark, deferred.grad_output.Parts(), is_read}};
        return recorder.Use(operands);
      }));
  return Wgrad(recorder, deferred, state, nullptr);
}

}  // namespace quantgate
