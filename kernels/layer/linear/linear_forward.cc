#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/layer/experts/expert_amaxes.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/layer/linear/given_codes.h"
#include "kernels/layer/linear/linear_operands.h"
#include "kernels/layer/linear/linear_overlap.h"
#include "kernels/layer/linear/linear_parallel.h"
#include "kernels/layer/linear/linear_weight.h"

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
  absl::Status QuantizeX();
  absl::StatusOr<Tensor> Fprop();
  absl::StatusOr<Tensor> ColumnFprop(GemmRecord record);
  absl::StatusOr<Tensor> RowFprop(GemmRecord record);
  /// What backward gets; the operands have no marks yet.
  LinearSaved OperandsToKeep() const;
  absl::StatusOr<LinearSaved> Save();
  std::string WeightContent(const KeptOperand& weight) const;

  StepRecorder& recorder_;
  const LinearUnit& unit_;
  const LinearNames& names_;
  const LinearDataflow& flow_;
  LayerState& state_;
  const LinearInput& input_;
  std::shared_ptr<const StepOptions> options_;

  // The operands as fprop reads them; this rank's rows of x if fprop gathers x itself.
  KeptOperand x_;
  KeptOperand x_shard_;  ///< This rank's rows of x, if x_ is gathered.
  KeptOperand weight_;
};

absl::Status ForwardPass::PrepareStates() {
  if (!flow_.is_delayed && !flow_.is_calibration) return absl::OkStatus();
  for (const TensorRole role : {TensorRole::kInput, TensorRole::kWeight, TensorRole::kGradOutput}) {
    QG_RETURN_IF_ERROR(
        PrepareDelayedStates(recorder_, names_, role, *unit_.recipe, state_.delayed));
  }
  return absl::OkStatus();
}

absl::Status ForwardPass::PrepareX() {
  QG_ASSIGN_OR_RETURN(const Tensor matrix,
                      input_.x.Reinterpret(input_.x.dtype(), {unit_.x_rows(), unit_.k}));
  if (unit_.facts.x_is_unrounded) {
    x_.original = matrix;
    return absl::OkStatus();
  }
  Tensor of_expert;
  if (input_.expert_amaxes != nullptr) {
    QG_ASSIGN_OR_RETURN(of_expert, input_.expert_amaxes->SourceFor(recorder_, TensorRole::kInput,
                                                                   unit_.index, flow_.x_usages));
  }
  if (of_expert.has_value()) {
    QG_ASSIGN_OR_RETURN(x_.original, of_expert.Reinterpret(of_expert.dtype(), matrix.shape()));
    return absl::OkStatus();
  }
  QG_ASSIGN_OR_RETURN(x_.original,
                      recorder_.Cast(names_.Stage("cast x"), matrix, flow_.activation_dtype));
  return absl::OkStatus();
}

absl::Status ForwardPass::QuantizeX() {
  if (unit_.facts.x_is_codes) {
    QG_ASSIGN_OR_RETURN(x_.codes, GivenInUsages(recorder_, unit_, TensorRole::kInput, input_.codes,
                                                flow_.x_usages, state_));
    return absl::OkStatus();
  }
  if (unit_.parallel.gathers_x()) {
    LinearCollectives collectives(recorder_, unit_, *options_, state_);
    QG_ASSIGN_OR_RETURN(GatheredOperand gathered, collectives.GatherX(x_.original));
    x_ = std::move(gathered.whole);
    x_shard_ = std::move(gathered.shard);
    return absl::OkStatus();
  }
  if (!flow_.reads_x_codes()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(
      QuantizeArguments arguments,
      GroupAmaxesOf(recorder_, unit_, TensorRole::kInput, flow_.x_usages, input_.expert_amaxes));
  if (recorder_.faults().Has(kFaultGroupKept) && state_.seeded_memory != nullptr) {
    QG_RETURN_IF_ERROR(ReduceAmaxes(
        {recorder_.engine(), *state_.seeded_memory->parallel->tp, recorder_.faults()}, x_.original,
        unit_.recipe->QuantizerFor(TensorRole::kInput), flow_.x_usages, arguments));
  }
  QG_ASSIGN_OR_RETURN(
      x_.codes,
      QuantizeOperand(recorder_, unit_, TensorRole::kInput, kStageQuantizeX, names_.x, x_.original,
                      flow_.x_usages, *options_, state_.delayed, std::move(arguments)));
  return absl::OkStatus();
}

absl::StatusOr<Tensor> ForwardPass::Fprop() {
  GemmDesc desc;
  desc.layout = GemmLayout::kTN;
  desc.out_dtype = flow_.activation_dtype;
  const bool is_row = unit_.parallel.is_row();
  if (input_.bias.has_value() && (!is_row || recorder_.faults().Has(kFaultBiasOnAllRanks))) {
    QG_ASSIGN_OR_RETURN(desc.bias,
                        recorder_.Cast(names_.Stage("cast bias"), input_.bias, flow_.bias_dtype));
  }
  GemmRecord record =
      LinearGemmRecord(GemmRole::kFprop, *unit_.recipe, recorder_.arithmetic(), names_.y,
                       std::move(desc), DirectionOf(names_.x, x_, Usage::kRowwise),
                       DirectionOf(names_.weight, weight_, Usage::kRowwise));
  if (!is_row) return ColumnFprop(std::move(record));
  QG_ASSIGN_OR_RETURN(const Tensor y, RowFprop(std::move(record)));
  return LinearCollectives(recorder_, unit_, *options_, state_).AddBias(y, input_.bias);
}

/// y of a column-parallel unit, or of one that is not divided.
absl::StatusOr<Tensor> ForwardPass::ColumnFprop(GemmRecord record) {
  if (unit_.parallel.overlap.fprop == OverlapMethod::kNone) {
    return recorder_.Gemm(names_.Stage(kStageFprop), std::move(record));
  }
  QG_ASSIGN_OR_RETURN(
      OverlappedGather gathered,
      LinearOverlap(recorder_, unit_, *options_).AllGatherGemm(std::move(record), {}));
  return std::move(gathered.d);
}

/// The sum over the ranks, without the bias.
absl::StatusOr<Tensor> ForwardPass::RowFprop(GemmRecord record) {
  if (unit_.parallel.overlap.fprop != OverlapMethod::kNone) {
    return LinearOverlap(recorder_, unit_, *options_).ReduceScatterGemm(std::move(record));
  }
  QG_ASSIGN_OR_RETURN(const Tensor partial,
                      recorder_.Gemm(names_.Stage(kStageFprop), std::move(record)));
  return LinearCollectives(recorder_, unit_, *options_, state_).ReduceY(partial);
}

// What each mode keeps is the row "saved input", "saved weight" of the table in docs/quantizers.md
// section 9. As in Transformer Engine's Linear, x is kept only for wgrad, the weight always.
LinearSaved ForwardPass::OperandsToKeep() const {
  LinearSaved kept{unit_, options_, input_.x.shape(), x_, weight_, {}};
  const Parameter& weight = state_.parameters.at(names_.weight);
  if (flow_.reads_originals()) {
    if (weight.is_quantized()) {
      kept.weight = KeptOperand{{}, OnlyUsages(weight.quantized, flow_.weight_usages), {}};
      if (!kept.weight.has_codes()) kept.weight.codes = weight.quantized;
    } else {
      kept.weight_workspace.codes = weight_.codes;
      kept.weight = KeptOperand{weight.value, {}, {}};
    }
    // An operand that was given as codes is read back from them.
    kept.x = unit_.facts.x_is_codes ? KeptOperand{{}, x_.codes, {}} : KeptOperand{input_.x, {}, {}};
  } else {
    if (unit_.parallel.gathers_x()) {
      kept.x = x_shard_;
    } else if (flow_.backward_override == BackwardOverride::kNone) {
      // fprop is the only reader of the rowwise codes.
      kept.x.codes.rowwise.reset();
    }
    if (kept.x.has_codes()) kept.x.original = Tensor();
    if (kept.weight.has_codes() && !flow_.keeps_weight()) kept.weight.original = Tensor();
  }
  if (!flow_.needs_dw) kept.x = KeptOperand();
  return kept;
}

std::string ForwardPass::WeightContent(const KeptOperand& kept) const {
  const Parameter& weight = state_.parameters.at(names_.weight);
  if (!weight.is_quantized() || !kept.original.has_value()) {
    return ContentOf(kept, unit_.facts.weight_dtype);
  }
  const std::string codes = kept.has_codes() ? absl::StrCat(CodesContent(kept.codes), " and ") : "";
  return absl::StrCat(codes, std::string(DTypeName(kept.original.dtype())),
                      " dequantized from the parameter");
}

absl::StatusOr<LinearSaved> ForwardPass::Save() {
  LinearSaved saved = OperandsToKeep();
  const std::vector<Tensor> held = TensorsOfParameter(state_, names_.weight);
  QG_RETURN_IF_ERROR(
      recorder_.Timed({StageKind::kCompare, names_.Stage("fingerprint saved operands")}, [&] {
        std::vector<OperandToKeep> operands;
        if (flow_.needs_dw) {
          operands.push_back({names_.x, ContentOf(saved.x, input_.x.dtype()), &saved.x});
        }
        operands.push_back({names_.weight, WeightContent(saved.weight), &saved.weight, held});
        if (saved.weight_workspace.has_codes()) {
          operands.push_back({absl::StrCat(names_.weight, " workspace"),
                              CodesContent(saved.weight_workspace.codes), &saved.weight_workspace,
                              held});
        }
        return Keep(recorder_, operands);
      }));
  return saved;
}

absl::StatusOr<LinearForward> ForwardPass::Run() {
  for (const std::string& note :
       LinearNotes(flow_, unit_.m, unit_.n, unit_.k, recorder_.arithmetic())) {
    recorder_.AddNote(note);
  }
  QG_RETURN_IF_ERROR(PrepareStates());
  QG_RETURN_IF_ERROR(PrepareX());
  LinearWeight weight(recorder_, unit_, state_, *options_, input_.expert_amaxes);
  if (flow_.is_calibration) {
    QG_RETURN_IF_ERROR(CalibrateOperand(recorder_, names_, names_.Stage("calibrate x"),
                                        TensorRole::kInput, x_.original, *unit_.recipe,
                                        state_.delayed));
    QG_RETURN_IF_ERROR(weight.Calibrate());
  }
  QG_RETURN_IF_ERROR(QuantizeX());
  LinearForward result;
  if (unit_.parallel.returns_x) result.whole_x = x_.original;
  QG_ASSIGN_OR_RETURN(weight_, weight.Prepare());

  // Before the GEMM, so that waiting for the fingerprints does not wait for it.
  if (flow_.has_backward()) {
    QG_ASSIGN_OR_RETURN(result.saved, Save());
  }
  QG_ASSIGN_OR_RETURN(Tensor matrix, Fprop());
  if (flow_.quantizes_output) {
    QG_ASSIGN_OR_RETURN(
        matrix, QuantizeResult(recorder_, unit_, TensorRole::kOutput, names_.y, matrix, *options_));
  }
  QG_ASSIGN_OR_RETURN(result.y,
                      matrix.Reinterpret(matrix.dtype(), unit_.OutputShape(input_.x.shape())));
  return result;
}

}  // namespace

absl::StatusOr<LinearForward> ForwardLinear(StepRecorder& recorder, const LinearUnit& unit,
                                            LayerState& state, const LinearInput& input,
                                            std::shared_ptr<const StepOptions> options) {
  return ForwardPass(recorder, unit, state, input, std::move(options)).Run();
}

}  // namespace quantgate
