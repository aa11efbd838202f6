// What a session holds for the backwards that are still to come, in bytes (docs/sessions.md section
// 5).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/layer/saved_size.h"

namespace quantgate {

/// One operand that some forward saved, or would have.
struct SessionOperand {
  enum class Place {
    kDevice,
    kHost,      ///< Offloaded.
    kNotSaved,  ///< The forward is recomputed and saves it then.
  };
  std::string microbatch = {};  ///< Empty: kept for weight gradients that wait for the wgrad step.
  std::string layer = {};       ///< Empty: the x of a recomputed forward.
  std::string operand = {};     ///< SavedOperand::name within the layer: "x", "weight workspace".
  std::string format = {};      ///< SavedOperand::format.
  SavedSize size = {};          ///< Of all its tensors.
  SavedSize counted = {};       ///< What no operand before it has.
  Place place = Place::kDevice;
  int rank = -1;  ///< -1 in a session on one rank.
};
std::string_view PlaceName(SessionOperand::Place place);  ///< "device", "host", "not saved".

struct SavedMemory {
  /// By rank, microbatch, layer.
  std::vector<SessionOperand> operands;
  // Sums of what operands add, by place; kNotSaved without what is held anyway.
  SavedSize on_device;
  int64_t on_host = 0;
  int64_t not_saved = 0;
  /// The most that added() has been since the session began, within steps and after them, and the
  /// number of the step that had it. Of several ranks the sum of theirs, and the latest step.
  int64_t peak = 0;
  int64_t peak_step = 0;

  /// What saving takes of the device's memory beyond what the session holds anyway.
  int64_t added() const { return on_device.bytes() - on_device.held; }
  void Add(SessionOperand operand);
  /// Adds another rank's.
  void AddRank(int rank, const SavedMemory& memory);
};

}  // namespace quantgate
