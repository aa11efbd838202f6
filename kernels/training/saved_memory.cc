#include "kernels/training/saved_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/training/session_step_run.h"

namespace quantgate {
namespace {

using Place = SessionOperand::Place;

/// Counts what a state holds for backwards.
class SavedCount {
 public:
  SavedCount(const SessionSpec& spec, SessionState& state) : spec_(spec) {
    VisitTensors(spec, state,
                 [&](const std::string&, const Tensor& held) { storage_.HoldAnyway(held); });
  }

  void AddLayers(const std::string& microbatch, Place place,
                 const std::vector<std::shared_ptr<LayerSaved>>& saved) {
    for (size_t i = 0; i < saved.size(); ++i) {
      if (saved[i] != nullptr) AddLayer(microbatch, place, i, *saved[i]);
    }
  }

  void AddLayer(const std::string& microbatch, Place place, size_t layer, const LayerSaved& saved) {
    for (const HeldOperand& held : saved.operands()) {
      Add({.microbatch = microbatch,
           .layer = spec_.layers[layer].name,
           .operand = held.name,
           .format = held.format,
           .place = place},
          held.tensors);
    }
  }

  /// What a recomputed forward saves, and what it does not.
  void AddRecomputation(const std::string& microbatch, Place place,
                        const Recomputation& recomputation) {
    Add({.microbatch = microbatch,
         .operand = recomputation.x_mark->name,
         .format = recomputation.x_mark->format,
         .place = place},
        {{recomputation.step.x}});
    for (const SavedOperand& saved : recomputation.saved) {
      const std::string layer = LayerOf(saved.name);
      memory_.Add({microbatch, layer, saved.name.substr(layer.size() + 1), saved.format, saved.size,
                   saved.counted, Place::kNotSaved});
    }
  }

  /// What a recomputed forward found in a layer and something has replaced since. Comes after
  /// everything that may share it.
  void AddFound(const std::string& microbatch, size_t layer, const LayerState& found) {
    std::vector<SavedTensor> tensors;
    VisitLayerState(found,
                    [&](const std::string&, const Tensor& tensor) { tensors.push_back({tensor}); });
    const SavedSize counted = storage_.Add(tensors).counted;
    const SavedSize replaced = {counted.bytes() - counted.held};
    if (replaced.data == 0) return;
    memory_.Add({.microbatch = microbatch,
                 .layer = spec_.layers[layer].name,
                 .operand = "state as found",
                 .size = replaced,
                 .counted = replaced});
  }

  SavedMemory Take() { return std::move(memory_); }

 private:
  void Add(SessionOperand operand, const std::vector<SavedTensor>& tensors) {
    const StorageCount::Sizes sizes = storage_.Add(tensors);
    operand.size = sizes.all;
    operand.counted = sizes.counted;
    memory_.Add(std::move(operand));
  }

  /// The layer of a record's operand, "fc1" of "fc1.x".
  std::string LayerOf(const std::string& operand) const {
    std::string found;
    for (const SessionLayer& layer : spec_.layers) {
      const bool is_of = absl::StartsWith(operand, layer.name + ".");
      if (is_of && layer.name.size() > found.size()) found = layer.name;
    }
    return found;
  }

  const SessionSpec& spec_;
  StorageCount storage_;
  SavedMemory memory_;
};

}  // namespace

std::string_view PlaceName(Place place) {
  if (place == Place::kDevice) return "device";
  return place == Place::kHost ? "host" : "not saved";
}

void SavedMemory::Add(SessionOperand operand) {
  if (operand.place == Place::kDevice) on_device.Add(operand.counted);
  if (operand.place == Place::kHost) on_host += operand.counted.bytes();
  if (operand.place == Place::kNotSaved) {
    not_saved += operand.counted.bytes() - operand.counted.held;
  }
  operands.push_back(std::move(operand));
}

void SavedMemory::AddRank(int rank, const SavedMemory& memory) {
  for (SessionOperand operand : memory.operands) {
    operand.rank = rank;
    Add(std::move(operand));
  }
  peak += memory.peak;
  peak_step = std::max(peak_step, memory.peak_step);
}

SavedMemory SavedMemoryOf(const SessionSpec& spec, SessionState& state,
                          const std::vector<std::shared_ptr<LayerSaved>>& recomputed) {
  SavedCount count(spec, state);
  for (const auto& [microbatch, flight] : state.in_flight) {
    const Place place = flight->is_offloaded ? Place::kHost : Place::kDevice;
    count.AddLayers(microbatch, place, flight->saved);
    if (flight->recomputation != nullptr) {
      count.AddRecomputation(microbatch, place, *flight->recomputation);
    }
  }
  count.AddLayers("", Place::kDevice, recomputed);
  for (const DeferredWgrad& deferred : state.deferred) {
    count.AddLayer("", Place::kDevice, deferred.layer, *deferred.saved);
  }
  for (const auto& [microbatch, flight] : state.in_flight) {
    if (flight->recomputation == nullptr) continue;
    const std::vector<LayerState>& found = flight->recomputation->layers;
    for (size_t i = 0; i < found.size(); ++i) count.AddFound(microbatch, i, found[i]);
  }
  SavedMemory memory = count.Take();
  memory.peak = state.saved_peak;
  memory.peak_step = state.saved_peak_step;
  return memory;
}

}  // namespace quantgate
