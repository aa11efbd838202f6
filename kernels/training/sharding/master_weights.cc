#include "kernels/training/sharding/master_weights.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/training/sharding/shard_faults.h"
#include "kernels/training/sharding/sharded_weight.h"

namespace quantgate {
namespace {

absl::Status RefuseMaster(const MasterFragment& fragment, const char* part,
                          const std::string& value, const std::string& rule) {
  return Refuse(absl::StrCat(fragment.name, ".", part), value, rule);
}

/// Whether columnwise codes have amaxes of their own, and are no transposes of rowwise ones.
bool HasOwnAmaxes(const QuantizerSpec& rule) {
  return !rule.traits().turns_columnwise || rule.traits().scales == ScaleKind::kLine;
}

absl::Status CheckTwoRules(const MasterFragment& fragment) {
  const Quantizer& quantizer = fragment.quantizer;
  if (quantizer.columnwise_source != ColumnwiseSource::kOriginal) {
    return RefuseMaster(fragment, "columnwise_source", "rowwise_dequantized",
                        "no rank has the rowwise codes that columnwise ones would be made from");
  }
  if (quantizer.is_uniform()) return absl::OkStatus();
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    const ScalingTraits& traits = quantizer.spec(usage).traits();
    if (!traits.has_blocks()) continue;
    return RefuseMaster(
        fragment, usage == Usage::kRowwise ? "rowwise.format" : "columnwise.format",
        std::string(traits.name),
        "of two rules, masters are cast to per-tensor FP8, fp8_rowwise and identity");
  }
  return absl::OkStatus();
}

absl::Status CheckWeight(const MasterFragment& fragment, int rank, int ranks) {
  if (fragment.shape.size() != 2) {
    return RefuseMaster(fragment, "shape", ShapeText(fragment.shape), "must be of rank 2");
  }
  if (!fragment.usages.rowwise) {
    return RefuseMaster(fragment, "usages", "columnwise", "forward reads rowwise codes");
  }
  QG_RETURN_IF_ERROR(CheckBounds(absl::StrCat(fragment.name, ".bounds"), fragment.bounds, ranks,
                                 ElementsOf(fragment.shape)));
  const int64_t begin = fragment.bounds[rank];
  const int64_t count = fragment.bounds[rank + 1] - begin;
  const Tensor& master = fragment.master;
  if (!master.has_value() || master.dtype() != DType::kF32 || master.element_count() != count) {
    return RefuseMaster(fragment, "master", master.has_value() ? TensorText(master) : "absent",
                        absl::StrCat("rank ", rank, " has ", count, " elements of f32"));
  }
  QG_RETURN_IF_ERROR(CheckTwoRules(fragment));
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    const QuantizerSpec& rule = fragment.quantizer.spec(usage);
    if (!rule.is_quantized() || (usage == Usage::kColumnwise && !fragment.usages.columnwise)) {
      continue;
    }
    const Usage layout = HasOwnAmaxes(rule) ? usage : Usage::kRowwise;
    QG_RETURN_IF_ERROR(
        WithinField(fragment.name, CheckFragment({master, begin, fragment.shape}, rule, layout)));
  }
  return absl::OkStatus();
}

/// Two FP4 codes share a byte, and a byte belongs to one rank.
absl::Status CheckEvenBounds(const MasterFragment& fragment) {
  const auto has_fp4 = [&](const QuantizerSpec& rule) {
    return rule.is_quantized() && rule.element == DType::kF4E2M1x2;
  };
  if (!has_fp4(fragment.quantizer.rowwise) && !has_fp4(fragment.quantizer.columnwise)) {
    return absl::OkStatus();
  }
  for (const int64_t bound : fragment.bounds) {
    if (bound % 2 == 0) continue;
    return RefuseMaster(fragment, "bounds", absl::StrCat(bound),
                        "fragments of FP4 codes, two to a byte, begin at even elements");
  }
  return absl::OkStatus();
}

/// The collectives that a cast takes part in; each is one maximum.
enum Bucket { kCurrent, kBlock, kMicro, kTwoLevel, kDelayed, kBucketCount };

Bucket BucketOf(const QuantizerSpec& rule) {
  switch (rule.traits().scales) {
    case ScaleKind::kLine:
    case ScaleKind::kF32:
      return kBlock;
    case ScaleKind::kE8m0:
      return kMicro;
    case ScaleKind::kTwoLevel:
      return kTwoLevel;
    default:
      return rule.scaling == Scaling::kDelayed ? kDelayed : kCurrent;
  }
}

/// The cast of one direction of one weight.
struct Cast {
  const MasterFragment* weight = nullptr;
  size_t index = 0;  ///< The index of the weight.
  Usage usage = Usage::kRowwise;
  /// The direction whose amaxes the codes are cast under, in the order of the source; formats that
  /// store them transposed are transposed later.
  Usage layout = Usage::kRowwise;
  TensorFragment values;
  FragmentAmaxes amaxes;
  QuantizedFragment quantized;

  const QuantizerSpec& rule() const { return weight->quantizer.spec(usage); }
};

class MasterCasts {
 public:
  MasterCasts(const GatherContext& context, std::span<const MasterFragment> weights,
              Requantization requantization, ProcessGroup* amax_group)
      : context_(context),
        weights_(weights),
        requantization_(requantization),
        amax_group_(amax_group) {}

  absl::StatusOr<std::vector<QuantizedMaster>> Run();

 private:
  absl::Status Agree();
  absl::Status AddCasts(size_t index);
  absl::StatusOr<Tensor> ValuesOf(const MasterFragment& weight) const;
  absl::Status Measure(Bucket bucket);
  /// `amaxes`: by cast; the last amax of each cast is that of the whole tensor.
  absl::Status ReduceOverGroup(std::vector<Tensor>& amaxes) const;
  absl::Status Quantize(Bucket bucket);
  absl::StatusOr<QuantizedCopy> Gathered(const Cast& cast);
  absl::StatusOr<QuantizedTensor> Whole(size_t index);
  absl::StatusOr<QuantizedCopy> Turned(QuantizedCopy copy, const MasterFragment& weight);

  const GatherContext& context_;
  const std::span<const MasterFragment> weights_;
  const Requantization requantization_;
  ProcessGroup* const amax_group_;
  std::array<std::vector<Cast>, kBucketCount> buckets_;
  std::vector<Tensor> values_;  ///< By weight: this rank's elements, as they are quantized.
};

/// Compares the shapes and bounds of all weights over the ranks, so that each rank's bytes are put
/// in the right place.
absl::Status MasterCasts::Agree() {
  std::vector<int64_t> numbers;
  for (const MasterFragment& weight : weights_) {
    numbers.insert(numbers.end(), weight.shape.begin(), weight.shape.end());
    numbers.insert(numbers.end(), weight.bounds.begin(), weight.bounds.end());
  }
  QG_ASSIGN_OR_RETURN(const Tensor all,
                      Tensor::FromBytes(DType::kI64, {static_cast<int64_t>(numbers.size())},
                                        std::as_bytes(std::span(numbers))));
  return context_.group.CheckAgreement("shapes and bounds of master weights", all);
}

absl::StatusOr<Tensor> MasterCasts::ValuesOf(const MasterFragment& weight) const {
  if (requantization_ == Requantization::kFromF32 || weight.dtype == DType::kF32) {
    return weight.master;
  }
  return context_.engine.Cast(weight.master, weight.dtype, context_.cancellation);
}

absl::Status MasterCasts::AddCasts(size_t index) {
  const MasterFragment& weight = weights_[index];
  QG_ASSIGN_OR_RETURN(const Tensor values, ValuesOf(weight));
  values_.push_back(values);
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    const QuantizerSpec& rule = weight.quantizer.spec(usage);
    const bool is_columnwise = usage == Usage::kColumnwise;
    if (!rule.is_quantized() || (is_columnwise && !weight.usages.columnwise)) continue;
    const bool has_own_codes = HasOwnAmaxes(rule) || !weight.quantizer.is_uniform();
    if (is_columnwise && !has_own_codes) continue;
    Cast cast;
    cast.weight = &weight;
    cast.index = index;
    cast.usage = usage;
    if (HasOwnAmaxes(rule)) cast.layout = usage;
    cast.values = {values, weight.bounds[context_.group.rank()], weight.shape};
    buckets_[BucketOf(rule)].push_back(std::move(cast));
  }
  return absl::OkStatus();
}

/// The amaxes of all casts of a bucket, packed, and their maximum over the group.
absl::Status MasterCasts::Measure(Bucket bucket) {
  std::vector<Tensor> parts;
  int64_t count = 0;
  for (Cast& cast : buckets_[bucket]) {
    TensorFragment measured = cast.values;
    if (context_.faults.Has(kFaultAmaxBeforeRounding)) measured.values = cast.weight->master;
    QG_ASSIGN_OR_RETURN(Tensor own, context_.engine.MeasureFragment(
                                        measured, cast.rule(), cast.layout, context_.cancellation));
    if (context_.faults.Has(kFaultEmptyFragmentUnmeasured) && bucket == kMicro &&
        measured.count() == 0) {
      // Simulates memory that was never written.
      const std::vector<float> unwritten(static_cast<size_t>(own.element_count()), 0x1p40f);
      QG_RETURN_IF_ERROR(context_.engine.Write(std::as_bytes(std::span(unwritten)), own, 0));
    }
    cast.amaxes.first = count;
    count += own.element_count();
    parts.push_back(std::move(own));
  }
  if (parts.empty()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(Tensor all, context_.engine.ConcatenateRows(parts, context_.cancellation));
  QG_ASSIGN_OR_RETURN(all, context_.group.AllReduceMax(all));
  const bool has_one_amax = bucket == kCurrent || bucket == kTwoLevel;
  if (has_one_amax && amax_group_ != nullptr) {
    for (size_t i = 0; i < parts.size(); ++i) {
      QG_ASSIGN_OR_RETURN(parts[i],
                          all.RowRange(buckets_[bucket][i].amaxes.first, parts[i].element_count()));
    }
    QG_RETURN_IF_ERROR(ReduceOverGroup(parts));
    QG_ASSIGN_OR_RETURN(all, context_.engine.ConcatenateRows(parts, context_.cancellation));
  }
  for (Cast& cast : buckets_[bucket]) cast.amaxes.values = all;
  return absl::OkStatus();
}

absl::Status MasterCasts::ReduceOverGroup(std::vector<Tensor>& amaxes) const {
  std::vector<Tensor> of_tensors;
  for (const Tensor& amax : amaxes) {
    QG_ASSIGN_OR_RETURN(of_tensors.emplace_back(), amax.RowRange(amax.element_count() - 1, 1));
  }
  std::vector<Tensor*> reduced;
  for (Tensor& amax : of_tensors) reduced.push_back(&amax);
  QG_RETURN_IF_ERROR(ReduceMaxima(
      {context_.engine, *amax_group_, context_.faults, context_.cancellation}, reduced));
  for (size_t i = 0; i < amaxes.size(); ++i) {
    const int64_t tiles = amaxes[i].element_count() - 1;
    std::vector<Tensor> parts = {of_tensors[i]};
    if (tiles > 0) {
      QG_ASSIGN_OR_RETURN(const Tensor of_tiles, amaxes[i].RowRange(0, tiles));
      parts.insert(parts.begin(), of_tiles);
    }
    QG_ASSIGN_OR_RETURN(amaxes[i], context_.engine.ConcatenateRows(parts, context_.cancellation));
  }
  return absl::OkStatus();
}

absl::Status MasterCasts::Quantize(Bucket bucket) {
  for (Cast& cast : buckets_[bucket]) {
    QuantizerSpec rule = cast.rule();
    if (context_.faults.Has(kFaultFragmentSubnormalsKept)) {
      rule.flush_subnormals = FlushSubnormals::kNever;
    }
    if (context_.faults.Has(kFaultFragmentSubnormalsFlushed)) {
      rule.flush_subnormals = FlushSubnormals::kShardedUpdate;
    }
    QG_ASSIGN_OR_RETURN(cast.quantized, context_.engine.QuantizeFragment(
                                            cast.values, rule, cast.layout, cast.amaxes,
                                            cast.weight->scale, context_.cancellation));
  }
  return absl::OkStatus();
}

/// Transposes codes [O][K] to [K][O], and the scales of tiles. Those of columns are in place.
absl::StatusOr<QuantizedCopy> MasterCasts::Turned(QuantizedCopy copy,
                                                  const MasterFragment& weight) {
  QuantizedTensor alone;
  alone.source_dtype = weight.dtype;
  alone.shape = weight.shape;
  if (TraitsOf(copy.format).scales == ScaleKind::kLine) {
    QG_ASSIGN_OR_RETURN(copy.data, context_.engine.SwapDims(copy.data, context_.cancellation));
    return copy;
  }
  alone.rowwise = std::move(copy);
  QG_RETURN_IF_ERROR(context_.engine.UpdateUsages(alone, {false, true}, context_.cancellation));
  return *std::move(alone.columnwise);
}

/// Gathers the codes of all ranks, under the scales that every rank has computed.
absl::StatusOr<QuantizedCopy> MasterCasts::Gathered(const Cast& cast) {
  QuantizedCopy copy = cast.quantized.whole;
  QG_ASSIGN_OR_RETURN(const Tensor codes, context_.group.AllGather(cast.quantized.codes));
  Shape shape = cast.weight->shape;
  if (copy.element == DType::kF4E2M1x2) shape.back() /= 2;
  QG_ASSIGN_OR_RETURN(copy.data, codes.Reinterpret(copy.element, std::move(shape)));
  if (cast.usage == Usage::kRowwise || !cast.rule().traits().turns_columnwise) return copy;
  return Turned(std::move(copy), *cast.weight);
}

absl::StatusOr<QuantizedTensor> MasterCasts::Whole(size_t index) {
  const MasterFragment& weight = weights_[index];
  QuantizedTensor whole;
  whole.source_dtype = weight.dtype;
  whole.shape = weight.shape;
  whole.is_hybrid = !weight.quantizer.has_one_rule();
  for (const std::vector<Cast>& bucket : buckets_) {
    for (const Cast& cast : bucket) {
      if (cast.index != index) continue;
      QG_ASSIGN_OR_RETURN(whole.copy(cast.usage), Gathered(cast));
    }
  }
  const auto is_identity = [&](Usage usage) {
    return !weight.quantizer.spec(usage).is_quantized() &&
           (usage == Usage::kRowwise || weight.usages.columnwise);
  };
  if (is_identity(Usage::kRowwise) || is_identity(Usage::kColumnwise)) {
    QuantizedCopy copy;
    copy.element = values_[index].dtype();
    QG_ASSIGN_OR_RETURN(const Tensor flat,
                        values_[index].Reinterpret(copy.element, {values_[index].element_count()}));
    QG_ASSIGN_OR_RETURN(const Tensor values, context_.group.AllGather(flat));
    QG_ASSIGN_OR_RETURN(copy.data, values.Reinterpret(copy.element, weight.shape));
    for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
      if (is_identity(usage)) whole.copy(usage) = copy;
    }
  }
  if (weight.usages.columnwise && !whole.columnwise.has_value()) {
    QG_RETURN_IF_ERROR(context_.engine.UpdateUsages(whole, weight.usages, context_.cancellation));
  }
  return whole;
}

absl::StatusOr<std::vector<QuantizedMaster>> MasterCasts::Run() {
  const int rank = context_.group.rank(), ranks = context_.group.size();
  for (const MasterFragment& weight : weights_) {
    const bool is_odd = context_.faults.Has(kFaultOddFragments);
    QG_RETURN_IF_ERROR(is_odd ? CheckWeight(weight, rank, ranks)
                              : CheckMasterFragment(weight, rank, ranks));
  }
  QG_RETURN_IF_ERROR(Agree());
  for (size_t i = 0; i < weights_.size(); ++i) QG_RETURN_IF_ERROR(AddCasts(i));
  for (int i = 0; i < kBucketCount; ++i) {
    const auto bucket = static_cast<Bucket>(i);
    QG_RETURN_IF_ERROR(Measure(bucket));
    QG_RETURN_IF_ERROR(Quantize(bucket));
  }
  std::vector<QuantizedMaster> quantized(weights_.size());
  for (size_t i = 0; i < weights_.size(); ++i) {
    QG_ASSIGN_OR_RETURN(quantized[i].weight, Whole(i));
  }
  for (const Cast& cast : buckets_[kDelayed]) {
    quantized[cast.index].delayed_amax = cast.quantized.whole.amax;
  }
  return quantized;
}

}  // namespace

absl::Status CheckMasterFragment(const MasterFragment& fragment, int rank, int ranks) {
  QG_RETURN_IF_ERROR(CheckWeight(fragment, rank, ranks));
  return CheckEvenBounds(fragment);
}

absl::StatusOr<std::vector<QuantizedMaster>> QuantizeMasterWeights(
    const GatherContext& context, std::span<const MasterFragment> weights,
    Requantization requantization, ProcessGroup* amax_group) {
  return MasterCasts(context, weights, requantization, amax_group).Run();
}

}  // namespace quantgate
