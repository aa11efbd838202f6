#include "kernels/training/sharded_parameters.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/training/flat_shards.h"
#include "kernels/training/session_checks.h"
#include "kernels/training/shard_faults.h"

namespace quantgate {
namespace {

/// What training keeps of a weight beside it, element by element.
std::vector<Tensor*> TrainedTensors(TrainedParameter& trained) {
  return {&trained.master,  &trained.split.parameter, &trained.split.remainder,
          &trained.exp_avg, &trained.exp_avg_sq,      &trained.momentum};
}

int64_t BlockRows(const Quantizer& quantizer) {
  return std::max(BlockLength(quantizer.rowwise.format), BlockLength(quantizer.columnwise.format));
}

/// The tensors of a parameter by where they are, null where a direction is absent.
std::vector<Tensor*> TensorsByPlace(Parameter& parameter) {
  std::vector<Tensor*> tensors = {&parameter.value};
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    std::optional<QuantizedCopy>& copy = parameter.quantized.copy(usage);
    if (copy.has_value()) {
      tensors.insert(tensors.end(), {&copy->data, &copy->scale_inv, &copy->amax});
    } else {
      tensors.insert(tensors.end(), {nullptr, nullptr, nullptr});
    }
  }
  return tensors;
}
/// How the saved parts that can be one of them end, likewise.
constexpr const char* kPartNames[] = {
    ".original",        ".rowwise_data",         ".rowwise_scale_inv", ".amax_rowwise",
    ".columnwise_data", ".columnwise_scale_inv", ".amax_columnwise"};
constexpr size_t kRowwisePlace = 1, kColumnwisePlace = 4;

bool SharesBuffer(const Tensor& a, const Tensor* b) {
  return b != nullptr && b->has_value() && a.byte_size() > 0 && a.data() == b->data() &&
         a.byte_size() == b->byte_size();
}

/// Puts rows in place of what a part shares with the gathered weight; absent where it shares
/// nothing.
std::optional<ReshardedWeight::Part> ReshardPart(const SavedPart& part,
                                                 const std::vector<Tensor*>& whole,
                                                 const std::vector<Tensor*>& rows) {
  for (size_t place = 0; place < whole.size(); ++place) {
    if (!absl::EndsWith(part.name, kPartNames[place])) continue;
    if (!SharesBuffer(*part.tensor, whole[place])) return std::nullopt;
    // What is turned after a gather has rowwise rows alone.
    const bool is_turned = rows[place] == nullptr;
    const size_t from = is_turned ? place - kColumnwisePlace + kRowwisePlace : place;
    *part.tensor = *rows[from];
    return ReshardedWeight::Part{part.name, place, from};
  }
  return std::nullopt;
}

/// `rows` without tensors, in the directions that the parts are from.
Parameter OutlineOfParts(Parameter rows, const std::vector<ReshardedWeight::Part>& parts) {
  for (Tensor* const tensor : TensorsByPlace(rows)) {
    if (tensor != nullptr) *tensor = Tensor();
  }
  const auto is_from = [&](size_t first) {
    return std::any_of(parts.begin(), parts.end(), [&](const ReshardedWeight::Part& part) {
      return part.from >= first && part.from < first + kColumnwisePlace - kRowwisePlace;
    });
  };
  if (!is_from(kRowwisePlace)) rows.quantized.rowwise.reset();
  if (!is_from(kColumnwisePlace)) rows.quantized.columnwise.reset();
  return rows;
}

Tensor* FindPart(const std::vector<SavedPart>& parts, const std::string& name) {
  const auto found = std::find_if(parts.begin(), parts.end(),
                                  [&](const SavedPart& part) { return part.name == name; });
  return found == parts.end() ? nullptr : found->tensor;
}

}  // namespace

absl::StatusOr<Tensor> ShardedParameters::Rows(size_t layer, const Tensor& whole,
                                               const ShardBounds& bounds, int64_t earlier) const {
  if (!whole.has_value()) return whole;
  const auto rank = static_cast<size_t>(CopiesOf(layer).rank());
  const int64_t begin = std::max<int64_t>(bounds[rank] - earlier, 0);
  return engine_.Slice(whole, 0, begin, bounds[rank + 1] - bounds[rank], cancellation_);
}

absl::StatusOr<QuantizedTensor> ShardedParameters::Rows(size_t layer, const QuantizedTensor& whole,
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
    if (!copy->scale_inv.has_value() || copy->format == QuantizerFormat::kFp8Tensor) continue;
    // Scales of square tiles may be written out for every row.
    const bool has_one_a_row = copy->scale_inv.shape()[static_cast<size_t>(dim)] == whole.shape[0];
    const int64_t block = has_one_a_row ? 1 : BlockLength(copy->format);
    QG_ASSIGN_OR_RETURN(copy->scale_inv, engine_.Slice(copy->scale_inv, dim, begin / block,
                                                       (count + block - 1) / block, cancellation_));
  }
  return rows;
}

absl::Status ShardedParameters::ShardOne(size_t layer, const std::string& name,
                                         const Recipe& recipe, SessionLayerState& state) const {
  const SessionLayer& spec = spec_.layers[layer];
  Parameter& parameter = state.state.parameters.at(name);
  const bool is_quantized = parameter.is_quantized();
  const int ranks = CopiesOf(layer).size();
  ShardedParameter& sharded = state.sharded[name];
  sharded.dtype = is_quantized ? parameter.quantized.source_dtype : parameter.value.dtype();
  ShardedWeightSpec& weight = sharded.weight;
  weight.name = absl::StrCat(spec.name, ".", name);
  weight.shape = is_quantized ? parameter.quantized.shape : parameter.value.shape();
  weight.storage = is_quantized ? WeightStorage::kQuantized : WeightStorage::kHighPrecision;
  weight.quantizer = RecipeOfLayer(spec.spec, recipe).QuantizerFor(TensorRole::kWeight);
  weight.bounds =
      EvenBounds(weight.shape[0], ranks, is_quantized ? BlockRows(weight.quantizer) : 1);
  if (is_quantized) {
    weight.usages = parameter.quantized.usages();
    QG_RETURN_IF_ERROR(ShardedWeight::Create(weight, ranks).status());
    QG_ASSIGN_OR_RETURN(parameter.quantized, Rows(layer, parameter.quantized, weight));
  }
  QG_ASSIGN_OR_RETURN(parameter.value, Rows(layer, parameter.value, weight.bounds));
  TrainedParameter& trained = state.trained[name];
  const int64_t earlier = faults_.Has(kFaultMastersOneRowOff) ? 1 : 0;
  for (Tensor* tensor : TrainedTensors(trained)) {
    QG_ASSIGN_OR_RETURN(*tensor, Rows(layer, *tensor, weight.bounds, earlier));
  }
  const bool is_upper_half = spec_.masters == Masters::kBf16Remainder && !is_quantized;
  if (is_upper_half) trained.split.parameter = parameter.value;
  return absl::OkStatus();
}

absl::Status ShardedParameters::Shard(const Recipe& recipe,
                                      std::vector<SessionLayerState>& layers) const {
  if (!is_sharded()) return absl::OkStatus();
  for (size_t i = 0; i < layers.size(); ++i) {
    for (auto& [name, parameter] : layers[i].state.parameters) {
      if (!IsWeight(name)) continue;
      QG_RETURN_IF_ERROR(InLayer(spec_.layers[i], ShardOne(i, name, recipe, layers[i])));
    }
  }
  return absl::OkStatus();
}

GatherContext ShardedParameters::gathers(size_t layer) const {
  const bool is_of_copy = DividesExperts(spec_, layer) && faults_.Has(kFaultExpertRowsOfCopy);
  return {engine_, is_of_copy ? *rank_->experts : CopiesOf(layer), faults_, cancellation_};
}

absl::StatusOr<Parameter> ShardedParameters::GatherParameter(size_t layer,
                                                             const ShardedParameter& sharded,
                                                             const Parameter& rows,
                                                             Usages usages) const {
  Parameter whole = rows;
  const ShardedWeightSpec& spec = sharded.weight;
  if (!sharded.is_quantized()) {
    QG_ASSIGN_OR_RETURN(whole.value,
                        GatherRows(gathers(layer), spec.name, rows.value, spec.shape[0]));
    return whole;
  }
  ShardedWeightSpec of_pass = spec;
  of_pass.reshard_after_forward = !(usages.rowwise && usages.columnwise);
  const WeightPass pass = usages.rowwise ? WeightPass::kForward : WeightPass::kBackward;
  QG_ASSIGN_OR_RETURN(ShardedWeight weight,
                      ShardedWeight::Create(std::move(of_pass), CopiesOf(layer).size()));
  QG_RETURN_IF_ERROR(weight.Replace(rows.quantized));
  QG_ASSIGN_OR_RETURN(whole.quantized, weight.Gather(gathers(layer), pass));
  return whole;
}

absl::Status ShardedParameters::UnshardOne(size_t layer, const std::string& name,
                                           SessionLayerState& state) const {
  const ShardedParameter& sharded = state.sharded.at(name);
  Parameter& parameter = state.state.parameters.at(name);
  QG_ASSIGN_OR_RETURN(parameter, GatherParameter(layer, sharded, parameter, sharded.weight.usages));
  TrainedParameter& trained = state.trained[name];
  for (Tensor* tensor : TrainedTensors(trained)) {
    if (!tensor->has_value()) continue;
    QG_ASSIGN_OR_RETURN(
        *tensor, GatherRows(context(layer), sharded.weight.name, *tensor, sharded.weight.shape[0]));
  }
  return absl::OkStatus();
}

absl::Status ShardedParameters::Unshard(std::vector<SessionLayerState>& layers) const {
  if (!is_sharded()) return absl::OkStatus();
  for (size_t i = 0; i < layers.size(); ++i) {
    for (const auto& [name, sharded] : layers[i].sharded) {
      QG_RETURN_IF_ERROR(InLayer(spec_.layers[i], UnshardOne(i, name, layers[i])));
    }
    layers[i].sharded.clear();
  }
  return absl::OkStatus();
}

absl::Status ShardedParameters::Gather(SessionRun& run, const std::vector<SessionLayerState>& kept,
                                       bool trains, std::vector<LayerState>& layers) const {
  if (!is_sharded()) return absl::OkStatus();
  for (size_t i = 0; i < layers.size(); ++i) {
    for (const auto& [name, sharded] : kept[i].sharded) {
      Parameter& parameter = layers[i].parameters.at(name);
      if (faults_.Has(kFaultGatheredOnce) && layers[i].seeded_memory != nullptr) {
        parameter = layers[i].seeded_memory->gathered.at(name);
        continue;
      }
      // Columnwise codes that are rowwise ones turned are made where they are read.
      const bool reads_both = trains && sharded.is_quantized() &&
                              sharded.weight.usages.columnwise &&
                              !IsTurnedAfter(sharded.weight.quantizer);
      const std::string stage = run.layer(i).NameInRecords(absl::StrCat("all-gather ", name));
      QG_ASSIGN_OR_RETURN(parameter, run.recorder(i).Timed({StageKind::kCommunicate, stage}, [&] {
        return GatherParameter(i, sharded, parameter, {true, reads_both});
      }));
    }
  }
  return absl::OkStatus();
}

void ShardedParameters::Reshard(const std::vector<SessionLayerState>& kept,
                                std::vector<LayerState>& layers) const {
  if (!is_sharded()) return;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (faults_.Has(kFaultGatheredOnce) && layers[i].seeded_memory == nullptr) {
      layers[i].seeded_memory = std::make_shared<SeededMemory>();
      layers[i].seeded_memory->gathered = layers[i].parameters;
    }
    for (const auto& [name, sharded] : kept[i].sharded) {
      layers[i].parameters[name] = kept[i].state.parameters.at(name);
    }
  }
}

void ShardedParameters::ReshardSaved(const std::vector<SessionLayerState>& kept,
                                     const std::vector<LayerState>& gathered,
                                     InFlight& flight) const {
  if (!is_sharded() || !spec_.parallel->reshard_after_forward) return;
  for (size_t i = 0; i < flight.saved.size(); ++i) {
    if (flight.saved[i] == nullptr) continue;
    for (const auto& [name, sharded] : kept[i].sharded) {
      Parameter whole = gathered[i].parameters.at(name);
      Parameter rows = kept[i].state.parameters.at(name);
      const std::vector<Tensor*> wholes = TensorsByPlace(whole), own = TensorsByPlace(rows);
      ReshardedWeight resharded{.layer = i, .parameter = name, .sharded = sharded};
      for (const SavedPart& saved : flight.saved[i]->parts()) {
        const std::optional<ReshardedWeight::Part> part = ReshardPart(saved, wholes, own);
        if (part.has_value()) resharded.parts.push_back(*part);
      }
      if (resharded.parts.empty()) continue;
      resharded.rows = OutlineOfParts(std::move(rows), resharded.parts);
      flight.resharded.push_back(std::move(resharded));
    }
  }
}

absl::Status ShardedParameters::RestoreSaved(SessionRun& run, const InFlight& flight, size_t layer,
                                             const SessionLayerState& now,
                                             LayerSaved& saved) const {
  const std::vector<SavedPart> parts = saved.parts();
  for (const ReshardedWeight& resharded : flight.resharded) {
    if (resharded.layer != layer) continue;
    Parameter rows = resharded.rows;
    Usages usages{false, false};
    const std::vector<Tensor*> own = TensorsByPlace(rows);
    for (const ReshardedWeight::Part& part : resharded.parts) {
      const Tensor* const kept = FindPart(parts, part.name);
      if (kept == nullptr) {
        return absl::InternalError(absl::StrCat("saved: ", part.name, " is not there any more"));
      }
      *own[part.from] = *kept;
      (part.place >= kColumnwisePlace ? usages.columnwise : usages.rowwise) = true;
    }
    if (faults_.Has(kFaultBackwardGathersLive)) rows = now.state.parameters.at(resharded.parameter);
    const std::string stage =
        run.layer(layer).NameInRecords(absl::StrCat("all-gather ", resharded.parameter));
    QG_ASSIGN_OR_RETURN(Parameter whole,
                        run.recorder(layer).Timed({StageKind::kCommunicate, stage}, [&] {
                          return GatherParameter(layer, resharded.sharded, rows, usages);
                        }));
    const std::vector<Tensor*> wholes = TensorsByPlace(whole);
    for (const ReshardedWeight::Part& part : resharded.parts) {
      *FindPart(parts, part.name) = *wholes[part.place];
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> ShardedParameters::ReduceGradient(size_t layer,
                                                         const ShardedParameter& sharded,
                                                         const Tensor& gradient) const {
  return GradientGroup(spec_, layer, *rank_, faults_)
      ->ReduceScatter(gradient, LengthsOf(sharded.weight.bounds), spec_.parallel->profile);
}

absl::Status ShardedParameters::Quantize(size_t layer, const Tensor& source,
                                         const Quantizer& quantizer,
                                         const QuantizeArguments& arguments,
                                         ProcessGroup* amax_group, ShardedParameter& sharded,
                                         Parameter& parameter) const {
  ShardedWeightSpec spec = sharded.weight;
  spec.quantizer = quantizer;
  QG_ASSIGN_OR_RETURN(ShardedWeight weight, ShardedWeight::Create(spec, CopiesOf(layer).size()));
  // The weight's dtype stays what it was, whatever an update comes through.
  QG_RETURN_IF_ERROR(weight.Replace(parameter.quantized));
  QG_RETURN_IF_ERROR(weight.Update(context(layer), source, arguments, amax_group));
  const QuantizedTensor before = std::exchange(parameter.quantized, weight.shard());
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    std::optional<QuantizedCopy>& copy = parameter.quantized.copy(usage);
    if (copy.has_value() && weight.delayed_amax().has_value()) copy->amax = weight.delayed_amax();
    const bool keeps_scale = faults_.Has(kFaultShardScaleKept) && before.copy(usage).has_value();
    if (copy.has_value() && keeps_scale) copy->scale_inv = before.copy(usage)->scale_inv;
  }
  sharded.weight = std::move(spec);
  return absl::OkStatus();
}

}  // namespace quantgate
