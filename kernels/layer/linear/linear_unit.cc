// What a linear unit's forward, backward and checks share, for linear_unit.h and linear_operands.h.
#include "kernels/layer/linear/linear_unit.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/comm/quantized_gather.h"
#include "kernels/layer/amax_reduction.h"
#include "kernels/layer/experts/expert_amaxes.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/layer/linear/linear_operands.h"

namespace quantgate {

LinearNames::LinearNames(const std::string& prefix_of_all, const std::string& suffix_of_all)
    : prefix(prefix_of_all), suffix(suffix_of_all) {
  for (std::string* name : {&x, &weight, &bias, &y, &grad_output, &dx, &dw, &db, &main_grad}) {
    *name = absl::StrCat(prefix, *name, suffix);
  }
}

std::string LinearNames::StateOf(TensorRole role, Usage usage) const {
  const char* const direction = usage == Usage::kColumnwise ? "_columnwise" : "";
  return Stage(absl::StrCat(std::string(TensorRoleName(role)), direction));
}

uint32_t CallIdOf(TensorRole role) { return static_cast<uint32_t>(role); }

std::vector<SavedTensor> KeptOperand::SavedTensors() const {
  std::vector<SavedTensor> tensors = {{original}};
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    const std::optional<QuantizedCopy>& copy = codes.copy(usage);
    if (!copy.has_value()) continue;
    tensors.insert(tensors.end(), {{copy->data}, {copy->scale_inv, true}});
    // In other formats the amax only records the quantization; here it is a factor of every value.
    if (TraitsOf(copy->format).scales == ScaleKind::kTwoLevel) {
      tensors.push_back({copy->amax, true});
    }
  }
  return tensors;
}

std::vector<Tensor> KeptOperand::Parts() const {
  std::vector<Tensor> parts;
  for (SavedTensor& part : SavedTensors()) parts.push_back(std::move(part.tensor));
  return parts;
}

std::string KeptOperand::Format() const {
  std::vector<std::string> formats;
  const auto add = [&](std::string_view format) {
    if (std::find(formats.begin(), formats.end(), format) == formats.end()) {
      formats.emplace_back(format);
    }
  };
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    const std::optional<QuantizedCopy>& copy = codes.copy(usage);
    if (!copy.has_value()) continue;
    const bool is_plain = TraitsOf(copy->format).scales == ScaleKind::kNone;
    add(is_plain ? DTypeName(copy->element) : QuantizerFormatName(copy->format));
  }
  if (original.has_value()) add(DTypeName(original.dtype()));
  return absl::StrJoin(formats, " and ");
}

GemmOperand PlainOperand(const Tensor& tensor) {
  GemmOperand operand;
  operand.data = tensor;
  return operand;
}

bool UsesSplit(const Recipe& recipe, GemmRole role, const GemmOperand& a) {
  return IsFp8(a.data.dtype()) && recipe.UsesSplitAccumulator(role);
}

GemmLayout DgradLayout(const Quantizer& weight) {
  return weight.columnwise.traits().turns_columnwise ? GemmLayout::kTN : GemmLayout::kNN;
}

GemmLayout WgradLayout(const Quantizer& x) {
  return x.columnwise.traits().turns_columnwise ? GemmLayout::kTN : GemmLayout::kNT;
}

NamedOperand DirectionOf(const std::string& name, const KeptOperand& operand, Usage usage) {
  const std::optional<QuantizedCopy>& copy = operand.codes.copy(usage);
  using Content = OperandOrigin::Content;
  if (!copy.has_value()) return {PlainOperand(operand.original), {name}};
  if (TraitsOf(copy->format).scales == ScaleKind::kNone) {
    return {PlainOperand(copy->data),
            {name, copy->is_cast ? Content::kCast : Content::kDequantized}};
  }
  const bool is_rowwise = usage == Usage::kRowwise;
  return {OperandOf(*copy),
          {name, is_rowwise ? Content::kRowwiseCodes : Content::kColumnwiseCodes,
           operand.quantized_before}};
}

GemmRecord LinearGemmRecord(GemmRole role, const Recipe& recipe, const Arithmetic& arithmetic,
                            const std::string& output, GemmDesc desc, const NamedOperand& a,
                            const NamedOperand& b) {
  GemmRecord record;
  record.role = role;
  record.output = output;
  record.desc = std::move(desc);
  record.desc.a = a.operand;
  record.desc.b = b.operand;
  record.desc.arithmetic = arithmetic;
  record.desc.use_split_accumulator = UsesSplit(recipe, role, a.operand);
  record.a = a.origin;
  record.b = b.origin;
  return record;
}

QuantizedTensor OnlyUsages(QuantizedTensor codes, Usages usages) {
  if (!usages.rowwise) codes.rowwise.reset();
  if (!usages.columnwise) codes.columnwise.reset();
  return codes;
}

absl::StatusOr<Tensor> DequantizeAny(StepRecorder& recorder, const std::string& stage,
                                     const QuantizedTensor& codes, DType dtype) {
  const Usage usage = codes.rowwise.has_value() ? Usage::kRowwise : Usage::kColumnwise;
  return recorder.Timed({StageKind::kQuantize, stage}, [&] {
    return recorder.engine().Dequantize(codes, usage, dtype, recorder.cancellation());
  });
}

Shape LinearUnit::OutputShape(Shape x) const {
  x.back() = n;
  if (!parallel.rows.empty()) x.front() = parallel.first_dim;
  return x;
}

namespace {

/// The number of columns on earlier ranks, since a divided tensor has the random numbers of the
/// whole.
int64_t ColumnOffset(const LinearUnit& unit, TensorRole role) {
  const LinearParallel& parallel = unit.parallel;
  const bool is_grad_output = role == TensorRole::kGradOutput;
  const ParallelMode divides = is_grad_output ? ParallelMode::kColumn : ParallelMode::kRow;
  if (parallel.weight_mode != divides) return 0;
  return parallel.rank * (is_grad_output ? unit.n : unit.k);
}

int64_t RowOffset(const LinearUnit& unit, TensorRole role) {
  const bool is_divided =
      role == TensorRole::kWeight && unit.parallel.weight_mode == ParallelMode::kColumn;
  return is_divided ? unit.parallel.rank * unit.n : 0;
}

/// Whether columnwise codes are made from a rowwise cast under a delayed scale, whose amax counts
/// also where nothing else needs that cast.
bool NotesRowwiseSource(const Quantizer& quantizer) {
  return quantizer.columnwise_source == ColumnwiseSource::kRowwiseDequantized &&
         quantizer.rowwise.scaling == Scaling::kDelayed;
}

/// Whether offsets matter: only formats with two-level scales use random numbers. Their shards
/// begin at multiples of 16.
bool TakesOffsets(const Quantizer& quantizer) {
  return quantizer.rowwise.traits().scales == ScaleKind::kTwoLevel ||
         quantizer.columnwise.traits().scales == ScaleKind::kTwoLevel;
}

}  // namespace

absl::StatusOr<QuantizedTensor> QuantizeOperand(StepRecorder& recorder, const LinearUnit& unit,
                                                TensorRole role, const char* stage,
                                                const std::string& tensor, const Tensor& source,
                                                Usages usages, const StepOptions& options,
                                                DelayedStates& states,
                                                QuantizeArguments arguments) {
  const Quantizer& quantizer = unit.recipe->QuantizerFor(role);
  const RoleAmaxGroup amax(options, role);
  QG_RETURN_IF_ERROR(amax.Reduce(recorder, unit.names, source, quantizer, usages, arguments));
  const bool is_divided = unit.parallel.weight_mode != ParallelMode::kNone;
  if (is_divided && TakesOffsets(quantizer)) {
    arguments.row_offset += RowOffset(unit, role);
    arguments.column_offset += ColumnOffset(unit, role);
  } else {
    arguments.row_offset = 0;
  }
  if (recorder.faults().Has(kFaultExpertAmaxOverRanks) && is_divided &&
      !unit.parallel.is_parallel() && role != TensorRole::kWeight) {
    QG_RETURN_IF_ERROR(ReduceAmaxes({recorder.engine(), *options.parallel->tp, recorder.faults()},
                                    source, quantizer, usages, arguments));
  }
  arguments.seed = options.seed;
  arguments.call_id = unit.first_call_id + CallIdOf(role);
  std::vector<Usage> delayed;
  if (unit.flow.is_delayed) delayed = quantizer.delayed_directions();
  for (const Usage usage : delayed) {
    (usage == Usage::kRowwise ? arguments.scale : arguments.columnwise_scale) =
        states[unit.names.StateOf(role, usage)].scale;
  }
  // Columnwise codes may be made from the values of rowwise ones, which are then cast as well.
  const Usages cast = {usages.rowwise || (usages.columnwise && NotesRowwiseSource(quantizer)),
                       usages.columnwise};
  QG_ASSIGN_OR_RETURN(QuantizedTensor quantized,
                      recorder.Quantize(unit.names.Stage(stage), tensor, role, source, quantizer,
                                        cast, arguments, amax.Text(quantizer, cast, arguments)));
  for (const Usage usage : delayed) {
    // One scale, and one amax, for both copies of a uniform quantizer.
    const bool is_other = quantizer.is_uniform() && !quantized.copy(usage).has_value();
    const std::optional<QuantizedCopy>& copy =
        is_other ? quantized.columnwise : quantized.copy(usage);
    if (!copy.has_value()) continue;
    Usage noted = usage;
    if (recorder.faults().Has(kFaultAmaxOfOtherDirection)) {
      noted = usage == Usage::kRowwise ? Usage::kColumnwise : Usage::kRowwise;
    }
    const auto state = states.find(unit.names.StateOf(role, noted));
    if (state == states.end()) continue;  // Only the bug looks for a state that there is not.
    QG_RETURN_IF_ERROR(NoteCast(recorder, *copy, state->second));
  }
  if (!usages.rowwise) quantized.rowwise.reset();
  return quantized;
}

absl::StatusOr<Tensor> QuantizeResult(StepRecorder& recorder, const LinearUnit& unit,
                                      TensorRole role, const std::string& name,
                                      const Tensor& result, const StepOptions& options) {
  if (recorder.faults().Has(kFaultResultLeft)) return result;
  const bool is_output = role == TensorRole::kOutput;
  const char* const word = is_output ? "y" : "dx";
  const bool is_swapped = recorder.faults().Has(kFaultResultRulesSwapped);
  const TensorRole other = is_output ? TensorRole::kGradInput : TensorRole::kOutput;
  const Quantizer& quantizer = unit.recipe->QuantizerFor(is_swapped ? other : role);
  QuantizeArguments arguments;
  arguments.seed = options.seed;
  // Operands have the numbers below, so that a rule for a result changes no operand's draws.
  arguments.call_id = kResultCallIds + unit.first_call_id + (is_output ? 0 : 1);
  QG_ASSIGN_OR_RETURN(QuantizedTensor codes,
                      recorder.Quantize(unit.names.Stage(absl::StrCat("quantize ", word)), name,
                                        role, result, quantizer, {true, false}, arguments));
  QG_ASSIGN_OR_RETURN(Tensor values,
                      DequantizeAny(recorder, unit.names.Stage(absl::StrCat("dequantize ", word)),
                                    codes, result.dtype()));
  recorder.SetResultCodes(name, {quantizer.rowwise, std::move(codes), values});
  return values;
}

absl::Status PrepareDelayedStates(StepRecorder& recorder, const LinearNames& names, TensorRole role,
                                  const Recipe& recipe, DelayedStates& states) {
  for (const Usage usage : recipe.QuantizerFor(role).delayed_directions()) {
    QG_RETURN_IF_ERROR(PrepareDelayedState(recorder, names.StateOf(role, usage),
                                           recipe.delayed_scaling(), states));
  }
  return absl::OkStatus();
}

absl::Status CalibrateOperand(StepRecorder& recorder, const LinearNames& names,
                              const std::string& stage, TensorRole role, const Tensor& source,
                              const Recipe& recipe, DelayedStates& states) {
  const Quantizer& quantizer = recipe.QuantizerFor(role);
  for (const Usage usage : quantizer.delayed_directions()) {
    QG_RETURN_IF_ERROR(Calibrate(recorder, stage, source, quantizer.spec(usage),
                                 states[names.StateOf(role, usage)]));
  }
  return absl::OkStatus();
}

absl::StatusOr<QuantizeArguments> GroupAmaxesOf(StepRecorder& recorder, const LinearUnit& unit,
                                                TensorRole role, Usages usages,
                                                ExpertAmaxes* expert_amaxes) {
  if (expert_amaxes == nullptr) return QuantizeArguments();
  return expert_amaxes->ArgumentsFor(recorder, role, unit.index, usages);
}

std::string PlainContent(DType given, DType kept) {
  const std::string kept_name(DTypeName(kept));
  if (given == kept) return absl::StrCat(kept_name, " as given");
  return absl::StrCat(kept_name, " cast from ", std::string(DTypeName(given)));
}

std::string CodesContent(const QuantizedTensor& codes) {
  const auto text = [](const QuantizedCopy& copy, const char* direction) {
    const std::string element(DTypeName(copy.element));
    if (copy.is_cast) return absl::StrCat(element, " cast");
    if (TraitsOf(copy.format).scales == ScaleKind::kNone) {
      return absl::StrCat(element, " dequantized from rowwise codes");
    }
    return absl::StrCat(element, " ", direction, " codes");
  };
  const std::string rowwise = codes.rowwise.has_value() ? text(*codes.rowwise, "rowwise") : "";
  if (!codes.columnwise.has_value()) return rowwise;
  const std::string columnwise = text(*codes.columnwise, "columnwise");
  if (rowwise.empty() || rowwise == columnwise) return columnwise;
  const auto has_codes = [](const QuantizedCopy& copy) {
    return TraitsOf(copy.format).scales != ScaleKind::kNone;
  };
  if (!has_codes(*codes.rowwise) || !has_codes(*codes.columnwise)) {
    return absl::StrCat(rowwise, " and ", columnwise);
  }
  const std::string element(DTypeName(codes.columnwise->element));
  const bool same = codes.rowwise->element == codes.columnwise->element;
  return absl::StrCat(std::string(DTypeName(codes.rowwise->element)), " rowwise and ",
                      same ? "" : element + " ", "columnwise codes");
}

std::string ContentOf(const KeptOperand& kept, DType given) {
  std::vector<std::string> parts;
  if (kept.has_codes()) parts.push_back(CodesContent(kept.codes));
  if (kept.original.has_value()) parts.push_back(PlainContent(given, kept.original.dtype()));
  return absl::StrJoin(parts, " and ");
}

std::vector<Tensor> TensorsOfParameter(const LayerState& state, const std::string& name) {
  std::vector<Tensor> tensors;
  const auto add = [&](const Tensor& value, QuantizedTensor quantized) {
    tensors.push_back(value);
    for (const Tensor* const tensor : TensorsOf(quantized)) tensors.push_back(*tensor);
  };
  const auto parameter = state.parameters.find(name);
  if (parameter != state.parameters.end()) {
    add(parameter->second.value, parameter->second.quantized);
  }
  const auto workspace = state.workspaces.find(name);
  if (workspace != state.workspaces.end()) add({}, workspace->second.quantized);
  return tensors;
}

absl::Status Keep(StepRecorder& recorder, std::span<const OperandToKeep> operands) {
  std::vector<OperandToSave> to_save;
  for (const OperandToKeep& kept : operands) {
    to_save.push_back(
        {kept.name, kept.content, kept.operand->Format(), kept.operand->SavedTensors(), kept.held});
  }
  QG_ASSIGN_OR_RETURN(const std::vector<SavedMarkPointer> marks, recorder.Save(to_save));
  for (size_t i = 0; i < operands.size(); ++i) operands[i].operand->mark = marks[i];
  return absl::OkStatus();
}

}  // namespace quantgate
