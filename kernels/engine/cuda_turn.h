// CudaEngine::Turn: gives a call the CUDA engine to itself. Private to kernels/engine.
#pragma once

#include "kernels/engine/cuda_engine.h"

namespace quantgate {

/// While it lives, nobody else puts work on the engine's stream. Its status is the cancellation's,
/// or an error of the device; after an error the call must end with it.
class CudaEngine::Turn {
 public:
  /// kReads: the call puts nothing on the stream.
  enum class Kind { kWorks, kReads };
  Turn(CudaEngine& engine, const Cancellation* cancellation, Kind kind = Kind::kWorks)
      : lock_(engine.mutex_) {
    if (cancellation != nullptr) status_ = cancellation->Check();
    if (status_.ok()) status_ = engine.device_->MakeCurrent();
    // Reports that were begun before need not wait for what this call puts on the stream.
    if (status_.ok()) status_ = engine.device_->PlaceMark();
    if (kind == Kind::kWorks) ++engine.work_count_;
  }
  const absl::Status& status() const { return status_; }

 private:
  const std::lock_guard<std::mutex> lock_;
  absl::Status status_;
};

}  // namespace quantgate

/// Takes the turn of this engine for the rest of the function.
#define QG_TAKE_TURN(cancellation)         \
  const Turn qg_turn(*this, cancellation); \
  if (!qg_turn.status().ok()) return qg_turn.status()

/// The same for a function that puts nothing on the stream.
#define QG_TAKE_READING_TURN()                            \
  const Turn qg_turn(*this, nullptr, Turn::Kind::kReads); \
  if (!qg_turn.status().ok()) return qg_turn.status()
