// DescriptionReader: reads an engine's description of its device in the background. A GPU's driver
// takes milliseconds to report clocks, longer than a small run takes.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "kernels/base/steady_time.h"
#include "kernels/engine/engine.h"

namespace quantgate {

/// Thread-safe. Reads only when asked to, on its own thread unless reading is quick.
class DescriptionReader {
 public:
  /// `read`: Engine::Describe of an engine that outlives this object. `is_quick`:
  /// reading takes no longer than waking a thread. `now`: for tests.
  DescriptionReader(std::function<DeviceDescription()> read, bool is_quick,
                    std::function<absl::Time()> now = &SteadyNow);
  ~DescriptionReader();
  DescriptionReader(const DescriptionReader&) = delete;
  DescriptionReader& operator=(const DescriptionReader&) = delete;

  /// Begins a reading, unless the last one is less than half as old as Get allows. Does not wait.
  void Refresh();
  /// A reading that is at most kDescriptionAgeMax old; waits for a new one where there is none.
  DeviceDescription Get();

 private:
  void Work();
  bool IsYounger(absl::Duration age) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<DeviceDescription()> read_;
  const std::function<absl::Time()> now_;
  std::mutex mutex_;
  std::condition_variable is_asked_, has_read_;
  std::optional<DeviceDescription> latest_ ABSL_GUARDED_BY(mutex_);
  absl::Time read_at_ ABSL_GUARDED_BY(mutex_);  ///< When the reading of latest_ began.
  bool asked_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  ///< Not started where reading is quick.
};

}  // namespace quantgate
