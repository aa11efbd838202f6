#include "kernels/layer/linear/linear_parallel.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/layer/amax_reduction.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/layer/layer_values.h"

namespace quantgate {
namespace {

constexpr Usages kRowwiseOnly{true, false};
constexpr Usages kColumnwiseOnly{false, true};

/// Whether, under a hybrid rule, backward gathers from the shard's rowwise copy: if that copy is
/// per tensor, if the columnwise one cannot be dequantized, or if the columnwise one is made from
/// it.
bool StartsFromRowwise(const Quantizer& quantizer) {
  return quantizer.rowwise.traits().scales == ScaleKind::kTensor ||
         quantizer.columnwise.traits().scales == ScaleKind::kTwoLevel ||
         quantizer.columnwise_source == ColumnwiseSource::kRowwiseDequantized;
}

/// The directions of x's shard that are kept for backward; none: the source is kept.
Usages KeptShardUsages(const LinearUnit& unit) {
  const LinearDataflow& flow = unit.flow;
  const GatherMethod method = unit.parallel.x_gather;
  if (!flow.needs_dw || method == GatherMethod::kSource) return {false, false};
  if (flow.reads_dequantized()) return kRowwiseOnly;
  if (!flow.x_usages.columnwise) return {false, false};
  const Quantizer& quantizer = unit.recipe->QuantizerFor(TensorRole::kInput);
  if (method == GatherMethod::kCodes) return ShardUsages(quantizer, kColumnwiseOnly);
  if (!StartsFromRowwise(quantizer)) return kColumnwiseOnly;
  return {quantizer.rowwise.is_quantized(), false};
}

/// Whether x is gathered for fprop in high precision, as it is.
bool GathersXSource(const LinearUnit& unit) {
  return !unit.flow.quantizes_fprop || unit.parallel.returns_x ||
         unit.parallel.x_gather == GatherMethod::kSource;
}

/// The directions in which forward quantizes x's shard, and backward grad_output's.
Usages XShardUsages(const LinearUnit& unit) {
  const Usages kept = KeptShardUsages(unit);
  return {kept.rowwise || !GathersXSource(unit), kept.columnwise};
}

Usages GradOutputShardUsages(const LinearUnit& unit) {
  const LinearDataflow& flow = unit.flow;
  const Quantizer& quantizer = unit.recipe->QuantizerFor(TensorRole::kGradOutput);
  switch (unit.parallel.grad_output_gather) {
    case GatherMethod::kSource:
      break;
    case GatherMethod::kCodes:
      return ShardUsages(quantizer, flow.grad_output_usages);
    case GatherMethod::kValues:
      return {quantizer.rowwise.is_quantized(), false};
  }
  return {false, false};
}

/// The codes that were dequantized to gather a shard's values; empty if it has none.
std::string CodesOf(const KeptOperand& shard) {
  if (!shard.has_codes()) return "";
  const Usage usage = shard.codes.rowwise.has_value() ? Usage::kRowwise : Usage::kColumnwise;
  const QuantizedTensor read =
      OnlyUsages(shard.codes, {usage == Usage::kRowwise, usage == Usage::kColumnwise});
  return absl::StrCat(std::string(QuantizerFormatName(read.copy(usage)->format)), " (",
                      CodesContent(read), ")");
}

/// Whether a GEMM of backward reads the unquantized grad_output.
bool ReadsGradOutputSource(const LinearDataflow& flow) {
  return (flow.needs_dx && !flow.grad_output_usages.rowwise) ||
         (flow.needs_dw && !flow.grad_output_usages.columnwise);
}

}  // namespace

bool ReducesAmax(const Quantizer& quantizer, Usages usages) {
  const auto has = [](const QuantizerSpec& spec) {
    const ScaleKind scales = spec.traits().scales;
    if (scales == ScaleKind::kTwoLevel) return !spec.row_scaled;
    return scales == ScaleKind::kTensor && spec.scaling == Scaling::kCurrent;
  };
  return (usages.rowwise && has(quantizer.rowwise)) ||
         (usages.columnwise && has(quantizer.columnwise));
}

LinearCollectives::Role LinearCollectives::X() const {
  return {TensorRole::kInput, "x", kStageQuantizeX, unit_.names.x, parallel().x_gather};
}

LinearCollectives::Role LinearCollectives::GradOutput() const {
  return {TensorRole::kGradOutput, "grad_output", kStageQuantizeGradOutput, unit_.names.grad_output,
          parallel().grad_output_gather};
}

ProcessGroup& LinearCollectives::group() const {
  const bool is_last =
      recorder_.faults().Has(kFaultBackwardUsesLastGroup) && state_.seeded_memory != nullptr;
  return is_last ? *state_.seeded_memory->parallel->tp : *options_.parallel->tp;
}

GatherContext LinearCollectives::context() const {
  return {recorder_.engine(), group(), recorder_.faults(), recorder_.cancellation()};
}

absl::StatusOr<Tensor> LinearCollectives::Gather(const char* what, const Tensor& shard) {
  const std::string stage = unit_.names.Stage(absl::StrCat("all-gather ", what));
  return recorder_.Timed({StageKind::kCommunicate, stage},
                         [&] { return GatherRows(context(), stage, shard, unit_.m); });
}

absl::StatusOr<QuantizedTensor> LinearCollectives::QuantizeShard(const Role& role,
                                                                 const Tensor& shard,
                                                                 Usages usages) {
  const Quantizer& quantizer = unit_.recipe->QuantizerFor(role.role);
  QuantizeArguments arguments;
  const bool is_unset =
      recorder_.faults().Has(kFaultGroupOfWrapper) && role.method == GatherMethod::kValues;
  const RoleAmaxGroup amax(options_, role.role);
  if (!amax.is_named() && ReducesAmax(quantizer, usages) && !is_unset) {
    const std::string stage = unit_.names.Stage(absl::StrCat("reduce amax of ", role.what));
    QG_RETURN_IF_ERROR(recorder_.Timed({StageKind::kCommunicate, stage}, [&] {
      return ReduceAmaxes(context(), shard, quantizer, usages, arguments);
    }));
  }
  arguments.row_offset = parallel().first_row();
  QG_ASSIGN_OR_RETURN(QuantizedTensor codes,
                      QuantizeOperand(recorder_, unit_, role.role, role.quantize_stage, role.name,
                                      shard, usages, options_, state_.delayed, arguments));
  if (!amax.is_named() || role.method != GatherMethod::kCodes) return codes;
  // The named group may not be the one that joins the codes; differing scales are found here,
  // before any codes are sent.
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    if (!codes.copy(usage).has_value()) continue;
    QG_RETURN_IF_ERROR(
        CheckCommonScale(context(), amax.NameInError(role.name), *codes.copy(usage), usage));
  }
  return codes;
}

absl::StatusOr<QuantizedTensor> LinearCollectives::QuantizeWhole(const Role& role,
                                                                 const Tensor& whole,
                                                                 Usages usages) {
  const std::string stage = absl::StrCat("quantize gathered ", role.what);
  return QuantizeOperand(recorder_, unit_, role.role, stage.c_str(), role.name, whole, usages,
                         options_, state_.delayed);
}

absl::StatusOr<QuantizedTensor> LinearCollectives::GatherShardCodes(const Role& role,
                                                                    const QuantizedTensor& shard,
                                                                    Usages usages) {
  const std::string stage = unit_.names.Stage(absl::StrCat("all-gather ", role.what));
  return recorder_.Timed({StageKind::kCommunicate, stage},
                         [&] { return GatherCodes(context(), role.name, shard, usages); });
}

absl::StatusOr<Tensor> LinearCollectives::GatherValues(const Role& role, const KeptOperand& shard) {
  if (!shard.has_codes()) return Gather(role.what, shard.original);
  QG_ASSIGN_OR_RETURN(
      const Tensor values,
      DequantizeAny(recorder_, unit_.names.Stage(absl::StrCat("dequantize shard of ", role.what)),
                    shard.codes, unit_.flow.activation_dtype));
  return Gather(role.what, values);
}

/// x as fprop reads it: that of all ranks, unless the GEMM gathers it.
absl::StatusOr<KeptOperand> LinearCollectives::FpropX(const KeptOperand& shard) {
  if (parallel().overlap.fprop != OverlapMethod::kNone) {
    return KeptOperand{shard.original, OnlyUsages(shard.codes, kRowwiseOnly), {}};
  }
  const Role role = X();
  KeptOperand whole;
  if (GathersXSource(unit_)) {
    QG_ASSIGN_OR_RETURN(whole.original, Gather(role.what, shard.original));
  } else if (role.method == GatherMethod::kCodes) {
    QG_ASSIGN_OR_RETURN(whole.codes, GatherShardCodes(role, shard.codes, kRowwiseOnly));
  } else {
    QG_ASSIGN_OR_RETURN(whole.original, GatherValues(role, shard));
    whole.quantized_before = CodesOf(shard);
  }
  if (unit_.flow.x_usages.rowwise && !whole.has_codes()) {
    QG_ASSIGN_OR_RETURN(whole.codes, QuantizeWhole(role, whole.original, kRowwiseOnly));
  }
  return whole;
}

absl::StatusOr<GatheredOperand> LinearCollectives::GatherX(const Tensor& shard) {
  const Usages kept = KeptShardUsages(unit_);
  const Usages made = XShardUsages(unit_);
  GatheredOperand x;
  x.shard.original = shard;
  if (IsAny(made)) {
    QG_ASSIGN_OR_RETURN(x.shard.codes, QuantizeShard(X(), shard, made));
  }
  QG_ASSIGN_OR_RETURN(x.whole, FpropX(x.shard));
  x.shard.codes = OnlyUsages(std::move(x.shard.codes), kept);
  if (unit_.flow.reads_dequantized() && recorder_.faults().Has(kFaultOverrideGathersOriginal)) {
    x.shard.codes = QuantizedTensor();
  } else if (IsAny(kept)) {
    x.shard.original = Tensor();
  }
  SeedSavedFaults(x.shard);
  return x;
}

/// Replaces what is kept by what a module with a seeded bug keeps.
void LinearCollectives::SeedSavedFaults(KeptOperand& shard) {
  const SeededFaults& faults = recorder_.faults();
  if (!faults.Has(kFaultColumnBytesStale) && !faults.Has(kFaultScaleOfQuantizer)) return;
  std::map<std::string, QuantizedTensor>& codes = state_.seeded_memory->codes;
  if (faults.Has(kFaultScaleOfQuantizer)) codes[unit_.names.x] = shard.codes;
  if (!faults.Has(kFaultColumnBytesStale) || !shard.codes.columnwise.has_value()) return;
  shard.codes = codes.try_emplace(unit_.names.x, shard.codes).first->second;
}

void LinearCollectives::Hold(KeptOperand& gathered) {
  const SavedSize size = StorageCount().Add(gathered.SavedTensors()).all;
  gathered.gathered = recorder_.HoldGathered(size.bytes());
}

absl::StatusOr<KeptOperand> LinearCollectives::RegatherX(const KeptOperand& shard) {
  const Role role = X();
  KeptOperand whole;
  if (!unit_.flow.x_usages.columnwise) {
    QG_ASSIGN_OR_RETURN(whole.original, Gather(role.what, shard.original));
    Hold(whole);
    return whole;
  }
  if (role.method == GatherMethod::kCodes) {
    QuantizedTensor codes = shard.codes;
    if (recorder_.faults().Has(kFaultScaleOfQuantizer) && codes.rowwise.has_value()) {
      codes.rowwise->scale_inv = state_.seeded_memory->codes.at(unit_.names.x).rowwise->scale_inv;
    }
    QG_ASSIGN_OR_RETURN(whole.codes, GatherShardCodes(role, codes, kColumnwiseOnly));
    Hold(whole);
    return whole;
  }
  KeptOperand values;
  return GatherAndQuantize(role, shard, kColumnwiseOnly, values);
}

absl::StatusOr<KeptOperand> LinearCollectives::GatherAndQuantize(const Role& role,
                                                                 const KeptOperand& shard,
                                                                 Usages usages,
                                                                 KeptOperand& values) {
  QG_ASSIGN_OR_RETURN(values.original, GatherValues(role, shard));
  Hold(values);
  KeptOperand whole;
  QG_ASSIGN_OR_RETURN(whole.codes, QuantizeWhole(role, values.original, usages));
  whole.quantized_before = CodesOf(shard);
  Hold(whole);
  return whole;
}

absl::StatusOr<KeptOperand> LinearCollectives::GatherOverriddenX(const Tensor& shard) {
  const Role role = X();
  KeptOperand whole;
  QG_ASSIGN_OR_RETURN(whole.original, Gather(role.what, shard));
  Hold(whole);
  const bool stands_for_codes =
      unit_.flow.reads_dequantized() && role.method == GatherMethod::kSource;
  if (!stands_for_codes && !recorder_.faults().Has(kFaultOverrideQuantizes)) return whole;
  // The rowwise codes are those of the whole x: they are made again, with the same bytes, not kept.
  KeptOperand made, values;
  QG_ASSIGN_OR_RETURN(made.codes, QuantizeWhole(role, whole.original, kRowwiseOnly));
  Hold(made);
  QG_ASSIGN_OR_RETURN(values.original,
                      DequantizeAny(recorder_, unit_.names.Stage("dequantize gathered x"),
                                    made.codes, unit_.flow.activation_dtype));
  Hold(values);
  return values;
}

absl::StatusOr<KeptOperand> LinearCollectives::GradOutputShard(const Tensor& shard) {
  KeptOperand part;
  part.original = shard;
  const Usages made = GradOutputShardUsages(unit_);
  if (unit_.flow.reads_grad_output_codes() && IsAny(made)) {
    QG_ASSIGN_OR_RETURN(part.codes, QuantizeShard(GradOutput(), shard, made));
  }
  return part;
}

absl::StatusOr<KeptOperand> LinearCollectives::GatherColumnwiseGradOutput(
    const KeptOperand& shard) {
  KeptOperand whole;
  QG_ASSIGN_OR_RETURN(whole.codes, GatherShardCodes(GradOutput(), shard.codes, kColumnwiseOnly));
  Hold(whole);
  return whole;
}

absl::Status LinearCollectives::CheckScaleOfX(const KeptOperand& shard) {
  if (!shard.codes.rowwise.has_value()) return absl::OkStatus();
  return CheckCommonScale(context(), unit_.names.x, *shard.codes.rowwise, Usage::kRowwise);
}

absl::StatusOr<KeptOperand> LinearCollectives::GatherGradOutput(const Tensor& shard) {
  QG_ASSIGN_OR_RETURN(KeptOperand whole, WholeGradOutput(shard));
  if (recorder_.faults().Has(kFaultGatheredGradientKept)) {
    state_.seeded_memory->kept.push_back(std::make_shared<const KeptOperand>(whole));
  }
  return whole;
}

absl::StatusOr<KeptOperand> LinearCollectives::WholeGradOutput(const Tensor& shard) {
  const Role role = GradOutput();
  const LinearDataflow& flow = unit_.flow;
  const Usages wanted = flow.grad_output_usages;
  KeptOperand whole;
  if (!IsAny(wanted)) {
    QG_ASSIGN_OR_RETURN(whole.original, Gather(role.what, shard));
    Hold(whole);
    return whole;
  }
  QG_ASSIGN_OR_RETURN(const KeptOperand part, GradOutputShard(shard));
  if (role.method == GatherMethod::kCodes) {
    QG_ASSIGN_OR_RETURN(whole.codes, GatherShardCodes(role, part.codes, wanted));
    Hold(whole);
    return whole;
  }
  KeptOperand values;
  QG_ASSIGN_OR_RETURN(whole, GatherAndQuantize(role, part, wanted, values));
  if (!ReadsGradOutputSource(flow)) return whole;
  // A direction without a rule reads the source itself, not the values of the other direction's
  // codes.
  whole.original = values.original;
  if (part.has_codes()) {
    QG_ASSIGN_OR_RETURN(whole.original, Gather(role.what, shard));
  } else {
    values.gathered = nullptr;  // Counted with `whole` from here on.
  }
  whole.gathered = nullptr;
  Hold(whole);
  return whole;
}

absl::StatusOr<Tensor> LinearCollectives::Reduce(const char* what, const Tensor& partial) {
  const ReductionProfile& profile = options_.parallel->profile;
  const std::vector<int64_t>& rows = parallel().rows;
  const char* const call = rows.empty() ? "all-reduce " : "reduce-scatter ";
  return recorder_.Timed({StageKind::kCommunicate, unit_.names.Stage(absl::StrCat(call, what))},
                         [&] {
                           return rows.empty() ? group().AllReduce(partial, profile)
                                               : group().ReduceScatter(partial, rows, profile);
                         });
}

absl::StatusOr<Tensor> LinearCollectives::AddBias(const Tensor& y, const Tensor& bias) {
  if (!bias.has_value() || recorder_.faults().Has(kFaultBiasOnAllRanks)) return y;
  QG_ASSIGN_OR_RETURN(const Tensor row, recorder_.Cast(unit_.names.Stage("cast bias"), bias,
                                                       unit_.flow.activation_dtype));
  return recorder_.Timed({StageKind::kOperation, unit_.names.Stage("add bias")}, [&] {
    return AddToEveryRow(recorder_, y, row, unit_.flow.activation_dtype);
  });
}

}  // namespace quantgate
