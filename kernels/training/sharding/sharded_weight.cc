#include "kernels/training/sharding/sharded_weight.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/training/sharding/shard_faults.h"

namespace quantgate {
namespace {

absl::Status RefuseWeight(const ShardedWeightSpec& spec, const char* part, const std::string& value,
                          const std::string& rule) {
  return Refuse(absl::StrCat(spec.name, ".", part), value, rule);
}

absl::Status CheckNvfp4Rule(const ShardedWeightSpec& spec, const QuantizerSpec& rule) {
  if (!spec.quantizer.is_uniform()) {
    return RefuseWeight(spec, "format", "nvfp4",
                        "is not sharded where the directions have two rules");
  }
  if (rule.row_scaled) return RefuseWeight(spec, "row_scaled", "true", "weights have one amax");
  if (!spec.usages.columnwise) return absl::OkStatus();
  if (rule.element_rounding == ElementRounding::kStochastic) {
    return RefuseWeight(spec, "element_rounding", "stochastic",
                        "columnwise codes draw their own random numbers, but backward transposes "
                        "the rowwise codes");
  }
  if (rule.four_over_six != FourOverSix::kNone) {
    return RefuseWeight(spec, "4over6", std::string(FourOverSixName(rule.four_over_six)),
                        "columnwise codes choose between 4 and 6 for themselves, but backward "
                        "transposes the rowwise codes");
  }
  return absl::OkStatus();
}

absl::Status CheckRule(const ShardedWeightSpec& spec, const QuantizerSpec& rule) {
  const ScalingTraits& traits = rule.traits();
  const std::string format(traits.name);
  if (traits.scales == ScaleKind::kTwoLevel) QG_RETURN_IF_ERROR(CheckNvfp4Rule(spec, rule));
  // Columnwise codes are transposed rowwise ones, and blocks that end early at the edge of a shard
  // are no blocks of the whole weight.
  const bool needs_tiles = traits.has_blocks() && traits.turns_columnwise &&
                           (!traits.is_micro || spec.usages.columnwise);
  if (needs_tiles && rule.block_dim != 2) {
    return RefuseWeight(spec, "block_dim", absl::StrCat(rule.block_dim),
                        absl::StrCat("sharded weights of ", format, " have tiles (block_dim 2)"));
  }
  const int64_t length = traits.block_length;
  for (size_t rank = 0; rank + 1 < spec.bounds.size(); ++rank) {
    const int64_t begin = spec.bounds[rank];
    if (begin == spec.bounds[rank + 1] || begin % length == 0) continue;
    return RefuseWeight(spec, "bounds",
                        absl::StrCat(begin, ", where the shard of rank ", rank, " begins"),
                        absl::StrCat("shards of ", format, " begin at multiples of ", length));
  }
  return absl::OkStatus();
}

/// Whether it matters where a shard begins.
bool DrawsRandomNumbers(const Quantizer& quantizer) {
  return quantizer.rowwise.element_rounding == ElementRounding::kStochastic ||
         quantizer.columnwise.element_rounding == ElementRounding::kStochastic;
}

/// A tensor with only one direction.
QuantizedTensor DirectionOf(const QuantizedTensor& quantized, Usage usage) {
  QuantizedTensor one = quantized;
  one.copy(usage == Usage::kRowwise ? Usage::kColumnwise : Usage::kRowwise).reset();
  return one;
}

/// Replaces the amaxes in `arguments` by their maxima over the group's members.
absl::Status ReduceOver(const GatherContext& context, ProcessGroup& group,
                        QuantizeArguments& arguments) {
  std::vector<Tensor*> amaxes;
  for (Tensor* amax : {&arguments.group_amax_rowwise, &arguments.group_amax_columnwise}) {
    if (amax->has_value()) amaxes.push_back(amax);
  }
  return ReduceMaxima({context.engine, group, context.faults, context.cancellation}, amaxes);
}

void KeepScales(const std::optional<QuantizedCopy>& from, std::optional<QuantizedCopy>& to) {
  if (!from.has_value() || !to.has_value()) return;
  to->scale_inv = from->scale_inv;
  to->amax = from->amax;
}

}  // namespace

bool IsTurnedAfter(const Quantizer& quantizer) {
  const ScalingTraits& traits = quantizer.rowwise.traits();
  return quantizer.is_uniform() && traits.turns_columnwise && traits.scales != ScaleKind::kLine;
}

absl::StatusOr<ShardedWeight> ShardedWeight::Create(ShardedWeightSpec spec, int ranks) {
  if (spec.shape.size() != 2) {
    return RefuseWeight(spec, "shape", ShapeText(spec.shape), "must be of rank 2");
  }
  if (!spec.usages.rowwise)
    return RefuseWeight(spec, "usages", "columnwise", "forward reads rowwise codes");
  QG_RETURN_IF_ERROR(
      CheckBounds(absl::StrCat(spec.name, ".bounds"), spec.bounds, ranks, spec.shape[0]));
  QG_RETURN_IF_ERROR(CheckQuantizer(spec.quantizer));
  if (spec.storage == WeightStorage::kQuantized) {
    for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
      if (usage == Usage::kColumnwise && !spec.usages.columnwise) continue;
      QG_RETURN_IF_ERROR(CheckRule(spec, spec.quantizer.spec(usage)));
    }
    QG_RETURN_IF_ERROR(WithinField(spec.name, CheckGroupAmaxes(spec.quantizer, spec.usages)));
  }
  return ShardedWeight(std::move(spec));
}

bool ShardedWeight::is_hybrid() const { return !spec_.quantizer.is_uniform(); }

absl::Status ShardedWeight::Update(const GatherContext& context, const Tensor& rows,
                                   QuantizeArguments arguments, ProcessGroup* amax_group) {
  const int rank = context.group.rank();
  const Shape expected = {spec_.bounds[rank + 1] - spec_.bounds[rank], spec_.shape[1]};
  if (!rows.has_value() || rows.shape() != expected) {
    return RefuseWeight(spec_, "rows", rows.has_value() ? TensorText(rows) : "absent",
                        absl::StrCat("rank ", rank, " has ", ShapeText(expected)));
  }
  arguments_ = arguments;
  if (!context.faults.Has(kFaultGatheredKeptAfterUpdate)) Reshard();
  if (!dtype_.has_value()) dtype_ = rows.dtype();
  if (spec_.storage == WeightStorage::kHighPrecision) {
    rows_ = rows;
    return absl::OkStatus();
  }
  if (DrawsRandomNumbers(spec_.quantizer) && !context.faults.Has(kFaultShardCountsAlone)) {
    arguments.row_offset = spec_.bounds[rank];
  }
  const bool has_column_scales =
      spec_.quantizer.columnwise.traits().scales == ScaleKind::kLine && spec_.usages.columnwise;
  const Usages usages = {
      true, spec_.usages.columnwise && !has_column_scales && !IsTurnedAfter(spec_.quantizer)};
  if (!context.faults.Has(kFaultShardAmaxAlone)) {
    QG_RETURN_IF_ERROR(ReduceAmaxes(context, rows, spec_.quantizer, usages, arguments));
  }
  if (amax_group != nullptr) {
    QG_RETURN_IF_ERROR(ReduceOver(context, *amax_group, arguments));
  }
  QG_ASSIGN_OR_RETURN(shard_, context.engine.Quantize(rows, spec_.quantizer, usages, arguments,
                                                      context.cancellation));
  shard_.source_dtype = *dtype_;
  if (has_column_scales) {
    QG_ASSIGN_OR_RETURN(shard_.columnwise, ColumnsOf(context, rows));
  }
  if (spec_.quantizer.rowwise.scaling != Scaling::kDelayed) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(delayed_amax_, context.group.AllReduceMax(shard_.rowwise->amax));
  return absl::OkStatus();
}

absl::StatusOr<QuantizedCopy> ShardedWeight::ColumnsOf(const GatherContext& context,
                                                       const Tensor& rows) const {
  // What a whole weight's columns have: not the fragments of a sharded update.
  QuantizerSpec rule = spec_.quantizer.columnwise;
  if (rule.flush_subnormals == FlushSubnormals::kShardedUpdate) {
    rule.flush_subnormals = FlushSubnormals::kNever;
  }
  const int64_t begin = spec_.bounds[context.group.rank()] * spec_.shape[1];
  TensorFragment fragment = {rows, begin, spec_.shape};
  if (spec_.quantizer.columnwise_source == ColumnwiseSource::kRowwiseDequantized) {
    QG_ASSIGN_OR_RETURN(
        fragment.values,
        context.engine.Dequantize(shard_, Usage::kRowwise, rows.dtype(), context.cancellation));
  }
  QG_ASSIGN_OR_RETURN(Tensor amaxes, context.engine.MeasureFragment(
                                         fragment, rule, Usage::kColumnwise, context.cancellation));
  if (!context.faults.Has(kFaultShardAmaxAlone)) {
    QG_ASSIGN_OR_RETURN(amaxes, context.group.AllReduceMax(amaxes));
  }
  QG_ASSIGN_OR_RETURN(QuantizedFragment quantized,
                      context.engine.QuantizeFragment(fragment, rule, Usage::kColumnwise,
                                                      {amaxes, 0}, {}, context.cancellation));
  QG_ASSIGN_OR_RETURN(const Tensor codes, quantized.codes.Reinterpret(rule.element, rows.shape()));
  QG_ASSIGN_OR_RETURN(quantized.whole.data, context.engine.SwapDims(codes, context.cancellation));
  return quantized.whole;
}

absl::Status ShardedWeight::Replace(QuantizedTensor shard) {
  if (spec_.storage == WeightStorage::kHighPrecision) {
    return RefuseWeight(spec_, "shard", "quantized", "the weight is held in high precision");
  }
  if (!shard.has_codes() || shard.shape.size() != 2 || shard.shape[1] != spec_.shape[1]) {
    return RefuseWeight(spec_, "shard", ShapeText(shard.shape),
                        absl::StrCat("must have codes of ", spec_.shape[1], " columns"));
  }
  Reshard();
  dtype_ = shard.source_dtype;
  shard_ = std::move(shard);
  return absl::OkStatus();
}

Usages ShardedWeight::UsagesOf(WeightPass pass) const {
  if (!spec_.reshard_after_forward || is_hybrid()) return spec_.usages;
  return pass == WeightPass::kForward ? Usages{true, false} : Usages{false, true};
}

absl::StatusOr<QuantizedTensor> ShardedWeight::GatherRule(const GatherContext& context,
                                                          Usages usages) {
  if (!IsTurnedAfter(spec_.quantizer)) {
    return GatherCodes(context, spec_.name, shard_, usages);
  }
  QG_ASSIGN_OR_RETURN(QuantizedTensor whole,
                      GatherCodes(context, spec_.name, shard_, {true, false}));
  QG_RETURN_IF_ERROR(context.engine.UpdateUsages(whole, usages, context.cancellation));
  return whole;
}

absl::StatusOr<QuantizedTensor> ShardedWeight::GatherHybrid(const GatherContext& context) {
  QuantizedTensor whole;
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    if (!shard_.copy(usage).has_value()) continue;
    const Usages one = {usage == Usage::kRowwise, usage == Usage::kColumnwise};
    QG_ASSIGN_OR_RETURN(QuantizedTensor direction,
                        GatherCodes(context, spec_.name, DirectionOf(shard_, usage), one));
    std::optional<QuantizedCopy> copy = direction.copy(usage);
    if (usage == Usage::kRowwise) whole = std::move(direction);
    whole.copy(usage) = std::move(copy);
  }
  return whole;
}

absl::StatusOr<QuantizedTensor> ShardedWeight::QuantizeGathered(const GatherContext& context,
                                                                Usages usages) {
  QG_ASSIGN_OR_RETURN(const Tensor whole, GatherRows(context, spec_.name, rows_, spec_.shape[0]));
  QG_ASSIGN_OR_RETURN(
      QuantizedTensor quantized,
      context.engine.Quantize(whole, spec_.quantizer, usages, arguments_, context.cancellation));
  quantized.source_dtype = *dtype_;
  return quantized;
}

void ShardedWeight::SeedGatherFaults(const GatherContext& context, QuantizedTensor& whole) {
  const bool keeps_scale = context.faults.Has(kFaultScaleOfFirstGather);
  const bool keeps_columns = context.faults.Has(kFaultDerivedColumnsKept);
  if (!keeps_scale && !keeps_columns) return;
  if (!first_.has_value()) first_ = whole;
  // The first gather of either pass is remembered.
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    if (!first_->copy(usage).has_value()) first_->copy(usage) = whole.copy(usage);
    if (keeps_scale) KeepScales(first_->copy(usage), whole.copy(usage));
  }
  if (keeps_columns && whole.columnwise.has_value()) {
    whole.columnwise->data = first_->columnwise->data;
  }
}

absl::StatusOr<QuantizedTensor> ShardedWeight::Gather(const GatherContext& context,
                                                      WeightPass pass) {
  if (!dtype_.has_value()) {
    return RefusePrecondition(spec_.name, "", "it has no rows yet; update it first");
  }
  const Usages usages = UsagesOf(pass);
  if (usages.columnwise && !spec_.usages.columnwise) {
    return RefusePrecondition(spec_.name, "", "it is held for forward only, and backward reads it");
  }
  if (gathered_.has_value()) return *gathered_;
  absl::StatusOr<QuantizedTensor> whole = spec_.storage == WeightStorage::kHighPrecision
                                              ? QuantizeGathered(context, usages)
                                          : is_hybrid() ? GatherHybrid(context)
                                                        : GatherRule(context, usages);
  QG_RETURN_IF_ERROR(whole.status());
  SeedGatherFaults(context, *whole);
  if (!spec_.reshard_after_forward && pass == WeightPass::kForward) gathered_ = *whole;
  return whole;
}

}  // namespace quantgate
