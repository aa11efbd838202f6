#include "kernels/training/sharding/division.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/training/session_checks.h"
#include "kernels/training/sharding/shard_faults.h"

namespace quantgate {
namespace {

/// The tensors that training keeps beside a parameter, with the parameter's elements.
std::vector<Tensor*> TrainedTensors(TrainedParameter& trained) {
  return {&trained.master,  &trained.split.parameter, &trained.split.remainder,
          &trained.exp_avg, &trained.exp_avg_sq,      &trained.momentum};
}

int64_t BlockRows(const Quantizer& quantizer) {
  return std::max(BlockLength(quantizer.rowwise.format), BlockLength(quantizer.columnwise.format));
}

/// The row-major elements in one dim.
absl::StatusOr<Tensor> Flat(const Tensor& tensor) {
  return tensor.Reinterpret(tensor.dtype(), {tensor.element_count()});
}

/// A parameter that is not divided yet: its dtype, shape and name.
DividedParameter UndividedOutline(const SessionLayer& layer, const std::string& name,
                                  const Parameter& parameter, DividedParameter::By by) {
  const bool is_quantized = parameter.is_quantized();
  DividedParameter divided{.by = by};
  divided.dtype = is_quantized ? parameter.quantized.source_dtype : parameter.value.dtype();
  divided.weight.name = absl::StrCat(layer.name, ".", name);
  divided.weight.shape = is_quantized ? parameter.quantized.shape : parameter.value.shape();
  divided.weight.storage = is_quantized ? WeightStorage::kQuantized : WeightStorage::kHighPrecision;
  if (is_quantized) divided.weight.usages = parameter.quantized.usages();
  return divided;
}

struct Place {
  size_t layer;
  std::string parameter;
};

/// The order of the layers' parameters in a flat buffer. Weights come first, because others may
/// have odd lengths, after which two FP4 codes of one byte could belong to two ranks.
std::vector<Place> PlacesIn(const std::vector<size_t>& indices,
                            const std::vector<SessionLayerState>& layers) {
  std::vector<Place> places;
  for (const bool is_weight : {true, false}) {
    for (const size_t i : indices) {
      for (const auto& [name, parameter] : layers[i].state.parameters) {
        if (IsWeight(name) == is_weight) places.push_back({i, name});
      }
    }
  }
  return places;
}

}  // namespace

GatherContext Division::gathers(size_t layer) const {
  const bool is_of_copy = DividesExperts(spec_, layer) && faults_.Has(kFaultExpertRowsOfCopy);
  return {engine_, is_of_copy ? *rank_->experts : CopiesOf(layer), faults_, cancellation_};
}

absl::StatusOr<Tensor> Division::PartOf(size_t layer, const DividedParameter& divided,
                                        const Tensor& whole, int64_t earlier) const {
  if (!whole.has_value()) return whole;
  const ShardBounds& bounds = divided.weight.bounds;
  const auto rank = static_cast<size_t>(CopiesOf(layer).rank());
  const int64_t begin = std::max<int64_t>(bounds[rank] - earlier, 0);
  QG_ASSIGN_OR_RETURN(const Tensor places,
                      divided.by_rows() ? absl::StatusOr<Tensor>(whole) : Flat(whole));
  return engine_.Slice(places, 0, begin, bounds[rank + 1] - bounds[rank], cancellation_);
}

absl::StatusOr<QuantizedTensor> Division::RowsOf(size_t layer, const QuantizedTensor& whole,
                                                 const ShardedWeightSpec& of) const {
  const auto rank = static_cast<size_t>(CopiesOf(layer).rank());
  const int64_t begin = of.bounds[rank], count = of.bounds[rank + 1] - begin;
  QuantizedTensor rows = whole;
  rows.shape[0] = count;
  if (IsTurnedAfter(of.quantizer)) rows.columnwise.reset();
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    std::optional<QuantizedCopy>& copy = rows.copy(usage);
    if (!copy.has_value()) continue;
    const int dim = IsStoredTransposed(*copy, usage) ? 1 : 0;
    QG_ASSIGN_OR_RETURN(copy->data, engine_.Slice(copy->data, dim, begin, count, cancellation_));
    const ScalingTraits& traits = TraitsOf(copy->format);
    // The scale of a column is that of every part of it.
    const bool has_column_scales = traits.scales == ScaleKind::kLine && usage == Usage::kColumnwise;
    if (!copy->scale_inv.has_value() || !traits.has_many_scales() || has_column_scales) continue;
    // Scales of square tiles may be written out for every row.
    const bool has_one_a_row = copy->scale_inv.shape()[static_cast<size_t>(dim)] == whole.shape[0];
    const int64_t block = has_one_a_row ? 1 : BlockLength(copy->format);
    QG_ASSIGN_OR_RETURN(copy->scale_inv, engine_.Slice(copy->scale_inv, dim, begin / block,
                                                       (count + block - 1) / block, cancellation_));
  }
  return rows;
}

absl::Status Division::DivideTrained(size_t layer, const DividedParameter& divided,
                                     TrainedParameter& trained) const {
  const bool is_off =
      divided.by_rows() ? faults_.Has(kFaultMastersOneRowOff) : faults_.Has(kFaultFragmentsOneOff);
  for (Tensor* tensor : TrainedTensors(trained)) {
    QG_ASSIGN_OR_RETURN(*tensor, PartOf(layer, divided, *tensor, is_off ? 1 : 0));
  }
  return absl::OkStatus();
}

absl::Status Division::DivideRows(size_t layer, const std::string& name, const Recipe& recipe,
                                  SessionLayerState& state) const {
  const SessionLayer& spec = spec_.layers[layer];
  Parameter& parameter = state.state.parameters.at(name);
  const bool is_quantized = parameter.is_quantized();
  const int ranks = CopiesOf(layer).size();
  DividedParameter& divided = state.divided[name];
  divided = UndividedOutline(spec, name, parameter, DividedParameter::By::kRows);
  ShardedWeightSpec& weight = divided.weight;
  weight.quantizer = RecipeOfParameter(spec.spec, recipe, name).QuantizerFor(TensorRole::kWeight);
  weight.bounds =
      EvenBounds(weight.shape[0], ranks, is_quantized ? BlockRows(weight.quantizer) : 1);
  if (is_quantized) {
    QG_RETURN_IF_ERROR(ShardedWeight::Create(weight, ranks).status());
    QG_ASSIGN_OR_RETURN(parameter.quantized, RowsOf(layer, parameter.quantized, weight));
  }
  QG_ASSIGN_OR_RETURN(parameter.value, PartOf(layer, divided, parameter.value));
  TrainedParameter& trained = state.trained[name];
  QG_RETURN_IF_ERROR(DivideTrained(layer, divided, trained));
  const bool is_upper_half = spec_.masters == Masters::kBf16Remainder && !is_quantized;
  if (is_upper_half) trained.split.parameter = parameter.value;
  return absl::OkStatus();
}

absl::Status Division::DivideBuffer(const ProcessGroup& copies, const Recipe& recipe,
                                    std::vector<SessionLayerState>& layers) const {
  std::vector<size_t> indices;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (&CopiesOf(i) == &copies) indices.push_back(i);
  }
  const std::vector<Place> places = PlacesIn(indices, layers);
  std::vector<Shape> shapes;
  for (const auto& [layer, name] : places) {
    DividedParameter& divided = layers[layer].divided[name];
    divided = UndividedOutline(spec_.layers[layer], name, layers[layer].state.parameters.at(name),
                               DividedParameter::By::kElements);
    shapes.push_back(divided.weight.shape);
  }
  // Two FP4 codes share a byte.
  const bool has_fp4 = recipe.name() == "nvfp4" && spec_.weights == WeightStorage::kQuantized;
  const std::vector<ShardBounds> bounds = FlatBounds(shapes, copies.size(), has_fp4 ? 2 : 1);
  for (size_t i = 0; i < places.size(); ++i) {
    const auto& [index, name] = places[i];
    SessionLayerState& layer = layers[index];
    const SessionLayer& spec = spec_.layers[index];
    DividedParameter& divided = layer.divided.at(name);
    divided.weight.bounds = bounds[i];
    TrainedParameter& trained = layer.trained[name];
    QG_RETURN_IF_ERROR(InLayer(spec, DivideTrained(index, divided, trained)));
    const Parameter& parameter = layer.state.parameters.at(name);
    if (!parameter.is_quantized()) continue;
    const Quantizer quantizer =
        RecipeOfParameter(spec.spec, recipe, name).QuantizerFor(TensorRole::kWeight);
    QG_ASSIGN_OR_RETURN(
        const MasterFragment fragment,
        FragmentOf(divided.weight.name, divided, trained.master, parameter.quantized, quantizer));
    QG_RETURN_IF_ERROR(CheckMasterFragment(fragment, copies.rank(), copies.size()));
  }
  return absl::OkStatus();
}

absl::Status Division::Divide(const Recipe& recipe, std::vector<SessionLayerState>& layers) const {
  for (size_t i = 0; divides_rows() && i < layers.size(); ++i) {
    for (auto& [name, parameter] : layers[i].state.parameters) {
      if (!IsWeight(name)) continue;
      QG_RETURN_IF_ERROR(InLayer(spec_.layers[i], DivideRows(i, name, recipe, layers[i])));
    }
  }
  if (!divides_elements()) return absl::OkStatus();
  if (rank_->expert_copies != nullptr && rank_->expert_copies != rank_->copies) {
    QG_RETURN_IF_ERROR(DivideBuffer(*rank_->expert_copies, recipe, layers));
  }
  return DivideBuffer(*rank_->copies, recipe, layers);
}

absl::StatusOr<Tensor> Division::Whole(size_t layer, const DividedParameter& divided,
                                       const Tensor& own) const {
  const ShardedWeightSpec& weight = divided.weight;
  if (divided.by_rows()) return GatherRows(context(layer), weight.name, own, weight.shape[0]);
  QG_ASSIGN_OR_RETURN(const Tensor flat, CopiesOf(layer).AllGather(own));
  return flat.Reinterpret(flat.dtype(), weight.shape);
}

absl::StatusOr<Tensor> Division::FromLastToFirst(const Tensor& whole,
                                                 const ShardBounds& bounds) const {
  QG_ASSIGN_OR_RETURN(const Tensor flat, Flat(whole));
  std::vector<Tensor> parts;
  for (size_t rank = bounds.size() - 1; rank-- > 0;) {
    QG_ASSIGN_OR_RETURN(parts.emplace_back(),
                        flat.RowRange(bounds[rank], bounds[rank + 1] - bounds[rank]));
  }
  QG_ASSIGN_OR_RETURN(const Tensor joined, engine_.ConcatenateRows(parts, cancellation_));
  return joined.Reinterpret(joined.dtype(), whole.shape());
}

absl::Status Division::JoinOne(size_t layer, const std::string& name,
                               SessionLayerState& state) const {
  const DividedParameter& divided = state.divided.at(name);
  const bool ignores_places = !divided.by_rows() && faults_.Has(kFaultFragmentPlaceIgnored);
  if (divided.by_rows()) {
    Parameter& parameter = state.state.parameters.at(name);
    QG_ASSIGN_OR_RETURN(parameter,
                        GatherParameter(layer, divided, parameter, divided.weight.usages));
  }
  for (Tensor* tensor : TrainedTensors(state.trained[name])) {
    if (!tensor->has_value()) continue;
    QG_ASSIGN_OR_RETURN(*tensor, Whole(layer, divided, *tensor));
    if (!ignores_places) continue;
    QG_ASSIGN_OR_RETURN(*tensor, FromLastToFirst(*tensor, divided.weight.bounds));
  }
  return absl::OkStatus();
}

absl::Status Division::Join(std::vector<SessionLayerState>& layers) const {
  for (size_t i = 0; i < layers.size(); ++i) {
    for (const auto& [name, divided] : layers[i].divided) {
      const absl::Status status = JoinOne(i, name, layers[i]);
      QG_RETURN_IF_ERROR(divided.by_rows() ? InLayer(spec_.layers[i], status) : status);
    }
    layers[i].divided.clear();
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> Division::ReduceGradient(size_t layer, const std::string& name,
                                                const DividedParameter& divided,
                                                const Tensor& gradient) const {
  const ReductionProfile& profile = spec_.parallel->profile;
  Tensor sum = gradient;
  if (!divided.by_rows()) {
    if (IsOfOwnRows(spec_, layer, name)) {
      QG_ASSIGN_OR_RETURN(sum, rank_->step->tp->AllReduce(sum, profile));
    }
    QG_ASSIGN_OR_RETURN(sum, Flat(sum));
  }
  return GradientGroup(spec_, layer, *rank_, faults_)
      ->ReduceScatter(sum, LengthsOf(divided.weight.bounds), profile);
}

absl::StatusOr<MasterFragment> Division::FragmentOf(const std::string& name,
                                                    const DividedParameter& divided,
                                                    const Tensor& own,
                                                    const QuantizedTensor& weight,
                                                    const Quantizer& quantizer) const {
  MasterFragment fragment;
  fragment.name = name;
  // The cast is exact: a tensor that came through bf16 has been rounded already.
  QG_ASSIGN_OR_RETURN(fragment.master, own.dtype() == DType::kF32
                                           ? absl::StatusOr<Tensor>(own)
                                           : engine_.Cast(own, DType::kF32, cancellation_));
  fragment.bounds = divided.weight.bounds;
  fragment.shape = weight.shape;
  fragment.quantizer = quantizer;
  fragment.usages = weight.usages();
  // A direction that is not quantized has the parameter's values, in its dtype.
  const bool is_from_codes = quantizer.columnwise_source == ColumnwiseSource::kRowwiseDequantized;
  if (!quantizer.columnwise.is_quantized() && !is_from_codes) fragment.usages.columnwise = false;
  return fragment;
}

absl::StatusOr<Tensor> Division::QuantizeElements(size_t layer, const std::string& name,
                                                  const Tensor& source, const Quantizer& quantizer,
                                                  const Tensor& scale, ProcessGroup* amax_group,
                                                  const DividedParameter& divided,
                                                  Parameter& parameter) const {
  QG_ASSIGN_OR_RETURN(MasterFragment fragment,
                      FragmentOf(name, divided, source, parameter.quantized, quantizer));
  fragment.scale = scale;
  QG_ASSIGN_OR_RETURN(
      std::vector<QuantizedMaster> quantized,
      QuantizeMasterWeights(context(layer), {&fragment, 1}, Requantization::kFromF32, amax_group));
  parameter.quantized = std::move(quantized[0].weight);
  return quantized[0].delayed_amax;
}

absl::Status Division::QuantizeRows(size_t layer, const Tensor& source, const Quantizer& quantizer,
                                    const QuantizeArguments& arguments, ProcessGroup* amax_group,
                                    DividedParameter& divided, Parameter& parameter) const {
  ShardedWeightSpec spec = divided.weight;
  spec.quantizer = quantizer;
  QG_ASSIGN_OR_RETURN(ShardedWeight weight, ShardedWeight::Create(spec, CopiesOf(layer).size()));
  // The weight's dtype stays the same, whatever dtype the update came through.
  QG_RETURN_IF_ERROR(weight.Replace(parameter.quantized));
  QG_RETURN_IF_ERROR(weight.Update(context(layer), source, arguments, amax_group));
  const QuantizedTensor before = std::exchange(parameter.quantized, weight.shard());
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    std::optional<QuantizedCopy>& copy = parameter.quantized.copy(usage);
    if (copy.has_value() && weight.delayed_amax().has_value()) copy->amax = weight.delayed_amax();
    const bool keeps_scale = faults_.Has(kFaultShardScaleKept) && before.copy(usage).has_value();
    if (copy.has_value() && keeps_scale) copy->scale_inv = before.copy(usage)->scale_inv;
  }
  divided.weight = std::move(spec);
  return absl::OkStatus();
}

absl::StatusOr<Tensor> Division::Quantize(size_t layer, const std::string& name,
                                          const Tensor& source, const Quantizer& quantizer,
                                          const QuantizeArguments& arguments,
                                          ProcessGroup* amax_group, DividedParameter& divided,
                                          Parameter& parameter) const {
  if (!divided.by_rows()) {
    return QuantizeElements(layer, name, source, quantizer, arguments.scale, amax_group, divided,
                            parameter);
  }
  QG_RETURN_IF_ERROR(
      QuantizeRows(layer, source, quantizer, arguments, amax_group, divided, parameter));
  return Tensor();
}

}  // namespace quantgate
