// Division's functions for passes, over weights that are divided by rows.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/layer/linear/linear_unit.h"
#include "kernels/training/sharding/division.h"
#include "kernels/training/sharding/shard_faults.h"

namespace quantgate {
namespace {

/// The tensors of a parameter by their places; null if a direction is absent.
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
/// By place, the ending of names of saved parts that can be that tensor.
constexpr const char* kPartNames[] = {
    ".original",        ".rowwise_data",         ".rowwise_scale_inv", ".amax_rowwise",
    ".columnwise_data", ".columnwise_scale_inv", ".amax_columnwise"};
constexpr size_t kRowwisePlace = 1, kColumnwisePlace = 4;

bool SharesBuffer(const Tensor& a, const Tensor* b) {
  return b != nullptr && b->has_value() && a.byte_size() > 0 && a.data() == b->data() &&
         a.byte_size() == b->byte_size();
}

/// If a saved part shares a tensor with the gathered weight, replaces it by this rank's rows.
/// Absent if it shares none.
std::optional<ReshardedWeight::Part> ReshardPart(const SavedPart& part,
                                                 const std::vector<Tensor*>& whole,
                                                 const std::vector<Tensor*>& rows) {
  for (size_t place = 0; place < whole.size(); ++place) {
    if (!absl::EndsWith(part.name, kPartNames[place])) continue;
    if (!SharesBuffer(*part.tensor, whole[place])) return std::nullopt;
    // A weight that is transposed after a gather has only rowwise rows.
    const bool is_turned = rows[place] == nullptr;
    const size_t from = is_turned ? place - kColumnwisePlace + kRowwisePlace : place;
    *part.tensor = *rows[from];
    return ReshardedWeight::Part{part.name, place, from};
  }
  return std::nullopt;
}

/// `rows` with only the directions that the parts come from, and without tensors.
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

/// The bytes of a whole weight, in every direction that was gathered.
int64_t WholeBytesOf(const Parameter& whole) {
  const KeptOperand operand{whole.value, whole.quantized, {}};
  return StorageCount().Add(operand.SavedTensors()).all.bytes();
}

Tensor* FindPart(const std::vector<SavedPart>& parts, const std::string& name) {
  const auto found = std::find_if(parts.begin(), parts.end(),
                                  [&](const SavedPart& part) { return part.name == name; });
  return found == parts.end() ? nullptr : found->tensor;
}

}  // namespace

absl::StatusOr<Parameter> Division::GatherParameter(size_t layer, const DividedParameter& divided,
                                                    const Parameter& rows, Usages usages) const {
  Parameter whole = rows;
  const ShardedWeightSpec& spec = divided.weight;
  if (!divided.is_quantized()) {
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

absl::StatusOr<GatheredLease> Division::Gather(SessionStepRun& run,
                                               const std::vector<SessionLayerState>& kept,
                                               bool trains, std::vector<LayerState>& layers) const {
  GatheredLease lease;
  if (!divides_rows()) return lease;
  for (size_t i = 0; i < layers.size(); ++i) {
    for (const auto& [name, divided] : kept[i].divided) {
      Parameter& parameter = layers[i].parameters.at(name);
      if (faults_.Has(kFaultGatheredOnce) && layers[i].seeded_memory != nullptr) {
        parameter = layers[i].seeded_memory->gathered.at(name);
        continue;
      }
      // Columnwise codes that are transposed rowwise ones are made where they are read.
      const bool reads_both = trains && divided.is_quantized() &&
                              divided.weight.usages.columnwise &&
                              !IsTurnedAfter(divided.weight.quantizer);
      const std::string stage = run.layer(i).NameInRecords(absl::StrCat("all-gather ", name));
      QG_ASSIGN_OR_RETURN(parameter, run.recorder(i).Timed({StageKind::kCommunicate, stage}, [&] {
        return GatherParameter(i, divided, parameter, {true, reads_both});
      }));
      lease.push_back(run.recorder().HoldGathered(WholeBytesOf(parameter)));
    }
  }
  return lease;
}

void Division::Reshard(const std::vector<SessionLayerState>& kept,
                       std::vector<LayerState>& layers) const {
  if (!divides_rows()) return;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (faults_.Has(kFaultGatheredOnce) && layers[i].seeded_memory == nullptr) {
      layers[i].seeded_memory = std::make_shared<SeededMemory>();
      layers[i].seeded_memory->gathered = layers[i].parameters;
    }
    for (const auto& [name, divided] : kept[i].divided) {
      layers[i].parameters[name] = kept[i].state.parameters.at(name);
    }
  }
}

void Division::ReshardSaved(const std::vector<SessionLayerState>& kept,
                            const std::vector<LayerState>& gathered, InFlight& flight) const {
  if (!divides_rows() || !spec_.parallel->reshard_after_forward) return;
  for (size_t i = 0; i < flight.saved.size(); ++i) {
    if (flight.saved[i] == nullptr) continue;
    for (const auto& [name, divided] : kept[i].divided) {
      Parameter whole = gathered[i].parameters.at(name);
      Parameter rows = kept[i].state.parameters.at(name);
      const std::vector<Tensor*> wholes = TensorsByPlace(whole), own = TensorsByPlace(rows);
      ReshardedWeight resharded{.layer = i, .parameter = name, .divided = divided};
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

absl::StatusOr<GatheredLease> Division::RestoreSaved(SessionStepRun& run, const InFlight& flight,
                                                     size_t layer, const SessionLayerState& now,
                                                     LayerSaved& saved) const {
  GatheredLease lease;
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
                          return GatherParameter(layer, resharded.divided, rows, usages);
                        }));
    lease.push_back(run.recorder().HoldGathered(WholeBytesOf(whole)));
    const std::vector<Tensor*> wholes = TensorsByPlace(whole);
    for (const ReshardedWeight::Part& part : resharded.parts) {
      *FindPart(parts, part.name) = *wholes[part.place];
    }
  }
  return lease;
}

}  // namespace quantgate
