#include "kernels/comm/quantized_gather.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/engine/engine.h"

namespace quantgate {
namespace {

bool IsWhole(int64_t length, QuantizerFormat format) { return length % BlockLength(format) == 0; }

bool AreWhole(std::span<const int64_t> rows, QuantizerFormat format) {
  return std::all_of(rows.begin(), rows.end(),
                     [&](int64_t count) { return IsWhole(count, format); });
}

/// Whether the columnwise codes and scales of a copy have M as their last dim.
bool IsTurned(const QuantizedCopy& copy, Usage usage) {
  return usage == Usage::kColumnwise && TraitsOf(copy.format).turns_columnwise;
}

/// M of a copy, by its codes.
int64_t RowsOf(const QuantizedCopy& copy, Usage usage) {
  if (!IsTurned(copy, usage)) return copy.data.rows();
  return copy.data.columns() * (copy.element == DType::kF4E2M1x2 ? 2 : 1);
}

/// Joins the members' parts [K][M / N] to [K][M]. A gather along dim 0 would give [N K][M / N], in
/// which the parts of each line lie apart.
absl::StatusOr<Tensor> GatherColumns(const GatherContext& context, const Tensor& part) {
  const int64_t lines = part.shape()[0];
  const auto in_lines = [&](const Tensor& flat) {
    return flat.Reinterpret(flat.dtype(), {lines, flat.element_count() / lines});
  };
  // Sent flat, because the parts of a group may differ only in their first dim.
  QG_ASSIGN_OR_RETURN(const Tensor flat, part.Reinterpret(part.dtype(), {part.element_count()}));
  QG_ASSIGN_OR_RETURN(std::vector<Tensor> parts, context.group.AllGatherParts(flat));
  for (Tensor& one : parts) {
    QG_ASSIGN_OR_RETURN(one, in_lines(one));
  }
  return context.engine.ConcatenateColumns(parts, context.cancellation);
}

absl::StatusOr<Tensor> GatherPart(const GatherContext& context, const Tensor& part,
                                  bool is_turned) {
  return is_turned ? GatherColumns(context, part) : context.group.AllGather(part);
}

absl::Status GatherCopy(const GatherContext& context, const std::string& name, Usage usage,
                        QuantizedCopy& copy) {
  QG_RETURN_IF_ERROR(CheckCommonScale(context, name, copy, usage));
  const bool is_turned = IsTurned(copy, usage);
  QG_ASSIGN_OR_RETURN(copy.data, GatherPart(context, copy.data, is_turned));
  // A per-tensor scale holds for the whole tensor as it is, and so does that of a column, which all
  // members have a part of; identity has none.
  const ScalingTraits& traits = TraitsOf(copy.format);
  const bool has_column_scales = traits.scales == ScaleKind::kLine && usage == Usage::kColumnwise;
  if (!traits.has_many_scales() || has_column_scales) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(copy.scale_inv, GatherPart(context, copy.scale_inv, is_turned));
  return absl::OkStatus();
}

/// The amaxes, f32 [1] each, from `first` on in a tensor of `all`, with zeros around them.
absl::StatusOr<Tensor> AtPlace(const GatherContext& context, const std::vector<Tensor>& amaxes,
                               int64_t first, int64_t all) {
  if (all == 1) return amaxes[0];
  const int64_t behind = all - first - static_cast<int64_t>(amaxes.size());
  std::vector<Tensor> parts = amaxes;
  if (first > 0) {
    QG_ASSIGN_OR_RETURN(const Tensor zeros, Zeros(context.engine, {first}, context.cancellation));
    parts.insert(parts.begin(), zeros);
  }
  if (behind > 0) {
    QG_ASSIGN_OR_RETURN(parts.emplace_back(),
                        Zeros(context.engine, {behind}, context.cancellation));
  }
  return context.engine.ConcatenateRows(parts, context.cancellation);
}

}  // namespace

GatherMethod GatherMethodOf(const Recipe& recipe, TensorRole role, std::span<const int64_t> rows,
                            int64_t columns) {
  const Quantizer& quantizer = recipe.QuantizerFor(role);
  const QuantizerSpec& rowwise = quantizer.rowwise;
  const QuantizerSpec& columnwise = quantizer.columnwise;
  // Codes under a delayed scale are made once, before the scale is updated.
  if (quantizer.is_uniform() && rowwise.scaling == Scaling::kDelayed) return GatherMethod::kCodes;
  if (recipe.name() == "custom") return GatherMethod::kSource;
  if (!rowwise.is_quantized() && !columnwise.is_quantized()) return GatherMethod::kSource;
  // The values of a cast, gathered in the source's dtype, may not be the cast of the source.
  if (rowwise.casts() || columnwise.casts()) return GatherMethod::kSource;
  for (const QuantizerFormat format : {rowwise.format, columnwise.format}) {
    if (TraitsOf(format).is_micro && !AreWhole(rows, format)) return GatherMethod::kSource;
  }
  if (recipe.name() == "hybrid") return GatherMethod::kValues;
  if (rowwise.row_scaled) return GatherMethod::kSource;
  // A shard has whole rows, but only a part of each column that a columnwise scale is of.
  if (rowwise.traits().scales == ScaleKind::kLine) return GatherMethod::kSource;
  if (rowwise.traits().scales != ScaleKind::kF32) return GatherMethod::kCodes;
  const bool has_tiles = rowwise.block_dim == 2;
  const bool is_whole = AreWhole(rows, rowwise.format) && IsWhole(columns, rowwise.format);
  return has_tiles || !is_whole ? GatherMethod::kSource : GatherMethod::kCodes;
}

Usages ShardUsages(const Quantizer& quantizer, Usages wanted) {
  return quantizer.rowwise.traits().scales == ScaleKind::kTensor ? Usages{true, false} : wanted;
}

absl::Status ReduceAmaxes(const GatherContext& context, const Tensor& shard,
                          const Quantizer& quantizer, Usages usages, QuantizeArguments& arguments) {
  return ReduceAmaxesOfAll(context, {&shard, 1}, {}, quantizer, usages, {&arguments, 1});
}

absl::Status ReduceAmaxesOfAll(const GatherContext& context, std::span<const Tensor> tensors,
                               const AmaxPlaces& places, const Quantizer& quantizer, Usages usages,
                               std::span<QuantizeArguments> arguments) {
  std::vector<Tensor> own;
  std::vector<Tensor*> reduced;
  const auto add = [&](const Tensor& amax, Tensor& to) {
    if (!amax.has_value()) return;
    own.push_back(amax);
    reduced.push_back(&to);
  };
  for (size_t i = 0; i < tensors.size(); ++i) {
    QG_ASSIGN_OR_RETURN(
        const TensorAmaxes amaxes,
        context.engine.MeasureAmax(tensors[i], quantizer, usages, context.cancellation));
    add(amaxes.rowwise, arguments[i].group_amax_rowwise);
    add(amaxes.columnwise, arguments[i].group_amax_columnwise);
  }
  if (own.empty()) return absl::OkStatus();
  // All tensors have equally many amaxes, since they have one quantizer.
  const auto each = static_cast<int64_t>(own.size() / tensors.size());
  const int64_t first = places.first * each;
  QG_ASSIGN_OR_RETURN(const Tensor together, AtPlace(context, own, first, places.all * each));
  QG_ASSIGN_OR_RETURN(const Tensor all, context.group.AllReduceMax(together));
  for (size_t i = 0; i < reduced.size(); ++i) {
    QG_ASSIGN_OR_RETURN(*reduced[i], all.RowRange(first + static_cast<int64_t>(i), 1));
  }
  return absl::OkStatus();
}

absl::Status ReduceMaxima(const GatherContext& context, std::span<Tensor* const> amaxes) {
  if (amaxes.empty()) return absl::OkStatus();
  std::vector<Tensor> own;
  for (const Tensor* amax : amaxes) own.push_back(*amax);
  QG_ASSIGN_OR_RETURN(const Tensor together,
                      context.engine.ConcatenateRows(own, context.cancellation));
  QG_ASSIGN_OR_RETURN(const Tensor all, context.group.AllReduceMax(together));
  for (size_t i = 0; i < amaxes.size(); ++i) {
    QG_ASSIGN_OR_RETURN(*amaxes[i], all.RowRange(static_cast<int64_t>(i), 1));
  }
  return absl::OkStatus();
}

absl::Status CheckCommonScale(const GatherContext& context, const std::string& name,
                              const QuantizedCopy& copy, Usage usage) {
  const std::string direction = absl::StrCat(name, " ", std::string(UsageName(usage)));
  const ScaleKind scales = TraitsOf(copy.format).scales;
  const bool has_column_scales = scales == ScaleKind::kLine && usage == Usage::kColumnwise;
  if (scales == ScaleKind::kTensor || has_column_scales) {
    return context.group.CheckAgreement(direction + " scale_inv", copy.scale_inv);
  }
  // Under single_level there is no amax, only block scales.
  if (scales == ScaleKind::kTwoLevel && copy.amax.has_value()) {
    return context.group.CheckAgreement(direction + " amax", copy.amax);
  }
  return absl::OkStatus();
}

absl::StatusOr<QuantizedTensor> GatherCodes(const GatherContext& context, const std::string& name,
                                            const QuantizedTensor& shard, Usages usages) {
  QuantizedTensor whole;
  whole.source_dtype = shard.source_dtype;
  whole.is_hybrid = shard.is_hybrid;
  const bool is_per_tensor =
      shard.rowwise.has_value() && TraitsOf(shard.rowwise->format).scales == ScaleKind::kTensor;
  const Usages sent = is_per_tensor ? Usages{true, false} : usages;
  int64_t rows = 0;
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    if (!(usage == Usage::kRowwise ? sent.rowwise : sent.columnwise)) continue;
    if (!shard.copy(usage).has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat(name, ": the shard has no ", std::string(UsageName(usage)),
                       " codes; quantize it in every direction that is read before the gather"));
    }
    std::optional<QuantizedCopy>& copy = whole.copy(usage);
    copy = shard.copy(usage);
    QG_RETURN_IF_ERROR(GatherCopy(context, name, usage, *copy));
    rows = RowsOf(*copy, usage);
  }
  whole.shape = shard.shape;
  int64_t inner = 1;
  for (size_t dim = 1; dim + 1 < whole.shape.size(); ++dim) inner *= whole.shape[dim];
  whole.shape[0] = rows / inner;
  if (is_per_tensor && usages != sent) {
    QG_RETURN_IF_ERROR(context.engine.UpdateUsages(whole, usages, context.cancellation));
  }
  return whole;
}

absl::StatusOr<Tensor> GatherRows(const GatherContext& context, const std::string& name,
                                  const Tensor& shard, int64_t rows) {
  QG_ASSIGN_OR_RETURN(Tensor whole, context.group.AllGather(shard));
  if (whole.shape()[0] == rows) return whole;
  return absl::FailedPreconditionError(
      absl::StrCat(name, ": the shards of the group have ", whole.shape()[0],
                   " rows together, where the step's options say ", rows));
}

}  // namespace quantgate
