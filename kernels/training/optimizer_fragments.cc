#include "kernels/training/optimizer_fragments.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/training/flat_shards.h"
#include "kernels/training/session_checks.h"
#include "kernels/training/session_run.h"
#include "kernels/training/shard_faults.h"

namespace quantgate {
namespace {

std::vector<Tensor*> DividedTensors(TrainedParameter& trained) {
  return {&trained.master, &trained.exp_avg, &trained.exp_avg_sq, &trained.momentum};
}

const Shape& ShapeOf(const Parameter& parameter) {
  return parameter.is_quantized() ? parameter.quantized.shape : parameter.value.shape();
}

struct Place {
  size_t layer;
  std::string parameter;
};

/// The order of a flat buffer of the parameters of these layers. Weights come first: the others, of
/// odd lengths too, would leave two FP4 codes of a byte to two ranks.
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

absl::Status OptimizerFragments::DivideOne(size_t layer, const std::string& name,
                                           SessionLayerState& state) const {
  const ShardBounds& bounds = state.fragments.at(name);
  const auto rank = static_cast<size_t>(CopiesOf(layer).rank());
  const int64_t earlier = faults_.Has(kFaultFragmentsOneOff) ? 1 : 0;
  const int64_t begin = std::max<int64_t>(bounds[rank] - earlier, 0);
  for (Tensor* tensor : DividedTensors(state.trained[name])) {
    if (!tensor->has_value()) continue;
    QG_ASSIGN_OR_RETURN(const Tensor flat, Flat(*tensor));
    QG_ASSIGN_OR_RETURN(
        *tensor, engine_.Slice(flat, 0, begin, bounds[rank + 1] - bounds[rank], cancellation_));
  }
  return absl::OkStatus();
}

absl::Status OptimizerFragments::DivideBuffer(const ProcessGroup& copies, const Recipe& recipe,
                                              std::vector<SessionLayerState>& layers) const {
  std::vector<size_t> indices;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (&CopiesOf(i) == &copies) indices.push_back(i);
  }
  const std::vector<Place> places = PlacesIn(indices, layers);
  std::vector<Shape> shapes;
  for (const Place& place : places) {
    shapes.push_back(ShapeOf(layers[place.layer].state.parameters.at(place.parameter)));
  }
  // Two FP4 codes share a byte.
  const bool has_fp4 = recipe.name() == "nvfp4" && spec_.weights == WeightStorage::kQuantized;
  const std::vector<ShardBounds> bounds = FlatBounds(shapes, copies.size(), has_fp4 ? 2 : 1);
  for (size_t i = 0; i < places.size(); ++i) {
    const auto& [index, name] = places[i];
    SessionLayerState& layer = layers[index];
    const SessionLayer& spec = spec_.layers[index];
    layer.fragments[name] = bounds[i];
    QG_RETURN_IF_ERROR(InLayer(spec, DivideOne(index, name, layer)));
    const Parameter& parameter = layer.state.parameters.at(name);
    if (!parameter.is_quantized()) continue;
    const Quantizer quantizer = RecipeOfLayer(spec.spec, recipe).QuantizerFor(TensorRole::kWeight);
    QG_ASSIGN_OR_RETURN(const MasterFragment fragment,
                        FragmentOf(absl::StrCat(spec.name, ".", name), layer.trained[name].master,
                                   bounds[i], parameter.quantized, quantizer));
    QG_RETURN_IF_ERROR(CheckMasterFragment(fragment, copies.rank(), copies.size()));
  }
  return absl::OkStatus();
}

absl::Status OptimizerFragments::Divide(const Recipe& recipe,
                                        std::vector<SessionLayerState>& layers) const {
  if (!is_divided()) return absl::OkStatus();
  if (rank_->expert_copies != nullptr && rank_->expert_copies != rank_->copies) {
    QG_RETURN_IF_ERROR(DivideBuffer(*rank_->expert_copies, recipe, layers));
  }
  return DivideBuffer(*rank_->copies, recipe, layers);
}

absl::StatusOr<Tensor> OptimizerFragments::Whole(size_t layer, const Tensor& own,
                                                 const Shape& shape) const {
  QG_ASSIGN_OR_RETURN(const Tensor flat, CopiesOf(layer).AllGather(own));
  return flat.Reinterpret(flat.dtype(), shape);
}

absl::StatusOr<Tensor> OptimizerFragments::FromLastToFirst(const Tensor& whole,
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

absl::Status OptimizerFragments::Join(std::vector<SessionLayerState>& layers) const {
  if (!is_divided()) return absl::OkStatus();
  for (size_t i = 0; i < layers.size(); ++i) {
    SessionLayerState& layer = layers[i];
    for (const auto& [name, bounds] : layer.fragments) {
      const Shape shape = ShapeOf(layer.state.parameters.at(name));
      for (Tensor* tensor : DividedTensors(layer.trained[name])) {
        if (!tensor->has_value()) continue;
        QG_ASSIGN_OR_RETURN(*tensor, Whole(i, *tensor, shape));
        if (!faults_.Has(kFaultFragmentPlaceIgnored)) continue;
        QG_ASSIGN_OR_RETURN(*tensor, FromLastToFirst(*tensor, bounds));
      }
    }
    layer.fragments.clear();
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> OptimizerFragments::ReduceGradient(size_t layer,
                                                          const std::string& parameter,
                                                          const ShardBounds& bounds,
                                                          const Tensor& gradient) const {
  const ReductionProfile& profile = spec_.parallel->profile;
  Tensor sum = gradient;
  if (IsOfOwnRows(spec_, layer, parameter)) {
    QG_ASSIGN_OR_RETURN(sum, rank_->step->tp->AllReduce(sum, profile));
  }
  QG_ASSIGN_OR_RETURN(const Tensor flat, Flat(sum));
  return GradientGroup(spec_, layer, *rank_, faults_)
      ->ReduceScatter(flat, LengthsOf(bounds), profile);
}

absl::StatusOr<MasterFragment> OptimizerFragments::FragmentOf(const std::string& name,
                                                              const Tensor& own,
                                                              const ShardBounds& bounds,
                                                              const QuantizedTensor& weight,
                                                              const Quantizer& quantizer) const {
  MasterFragment fragment;
  fragment.name = name;
  // Exact: what came through bf16 has been rounded.
  QG_ASSIGN_OR_RETURN(fragment.master, own.dtype() == DType::kF32
                                           ? absl::StatusOr<Tensor>(own)
                                           : engine_.Cast(own, DType::kF32, cancellation_));
  fragment.bounds = bounds;
  fragment.shape = weight.shape;
  fragment.quantizer = quantizer;
  fragment.usages = weight.usages();
  // A direction that is not quantized is the parameter's, in its dtype.
  const bool is_from_codes = quantizer.columnwise_source == ColumnwiseSource::kRowwiseDequantized;
  if (!quantizer.columnwise.is_quantized() && !is_from_codes) fragment.usages.columnwise = false;
  return fragment;
}

absl::StatusOr<QuantizedMaster> OptimizerFragments::Quantize(
    size_t layer, const std::string& name, const Tensor& own, const ShardBounds& bounds,
    const QuantizedTensor& weight, const Quantizer& quantizer, const Tensor& scale,
    ProcessGroup* amax_group) const {
  QG_ASSIGN_OR_RETURN(MasterFragment fragment, FragmentOf(name, own, bounds, weight, quantizer));
  fragment.scale = scale;
  const GatherContext context{engine_, CopiesOf(layer), faults_, cancellation_};
  QG_ASSIGN_OR_RETURN(
      std::vector<QuantizedMaster> quantized,
      QuantizeMasterWeights(context, {&fragment, 1}, Requantization::kFromF32, amax_group));
  return std::move(quantized[0]);
}

}  // namespace quantgate
