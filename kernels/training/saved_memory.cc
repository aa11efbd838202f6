#include "kernels/training/saved_memory.h"

#include <algorithm>
#include <utility>

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

  /// What forwards in flight saved and, of recomputed ones, what they did not.
  void AddFlights(const SessionState& state) {
    for (const auto& [microbatch, flight] : state.in_flight) {
      const Place place = flight->is_offloaded ? Place::kHost : Place::kDevice;
      AddLayers(microbatch, place, flight->saved);
      if (flight->recomputation == nullptr) continue;
      AddInput(microbatch, place, *flight->recomputation);
      for (const SessionOperand& operand : flight->recomputation->left_out) memory_.Add(operand);
    }
  }

  /// The x of a recomputed forward.
  void AddInput(const std::string& microbatch, Place place, const Recomputation& recomputation) {
    const SavedMark& mark = *recomputation.x_mark;
    Add({.microbatch = microbatch, .operand = mark.name, .format = mark.format, .place = place},
        {{recomputation.step.x}});
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

  size_t operand_count() const { return memory_.operands.size(); }
  SavedMemory Take() { return std::move(memory_); }

 private:
  void Add(SessionOperand operand, const std::vector<SavedTensor>& tensors) {
    const StorageCount::Sizes sizes = storage_.Add(tensors);
    operand.size = sizes.all;
    operand.counted = sizes.counted;
    memory_.Add(std::move(operand));
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
  count.AddFlights(state);
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

std::vector<SessionOperand> LeftOutOf(const SessionSpec& spec, SessionState& state,
                                      const Recomputation& recomputation,
                                      const std::vector<std::shared_ptr<LayerSaved>>& saved) {
  SavedCount count(spec, state);
  count.AddFlights(state);
  count.AddInput(recomputation.step.microbatch, Place::kDevice, recomputation);
  const size_t before = count.operand_count();
  count.AddLayers(recomputation.step.microbatch, Place::kNotSaved, saved);
  std::vector<SessionOperand> operands = count.Take().operands;
  return {operands.begin() + static_cast<int64_t>(before), operands.end()};
}

}  // namespace quantgate
