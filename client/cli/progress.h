// A progress bar on stderr, drawn only where stderr is a terminal and no faster than an eye can
// follow. Without updates it counts the seconds, so that no command is silent for long.
// Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "kernels/base/throttle.h"

namespace quantgate {

class ProgressBar {
 public:
  ProgressBar(std::ostream& out, bool is_shown);
  ~ProgressBar();

  /// `total` 0: the amount of work is not known.
  void Update(const std::string& what, int64_t done, int64_t total);
  /// Wipes the line until the next Update, so that other text can go to the terminal.
  void Clear();
  /// Draws the seconds without an Update at `now`, once there are some.
  void Tick(absl::Time now);

 private:
  void Draw(const std::string& line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void KeepTicking();

  std::ostream& out_;
  const bool is_shown_;
  std::mutex mutex_;
  bool is_drawn_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_waiting_ ABSL_GUARDED_BY(mutex_) = true;  ///< Work is under way.
  std::string what_ ABSL_GUARDED_BY(mutex_) = "computing";
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0, total_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time heard_ ABSL_GUARDED_BY(mutex_);
  Throttle throttle_ ABSL_GUARDED_BY(mutex_){std::chrono::milliseconds(50)};
  std::condition_variable stops_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread ticker_;
};

/// "[#####     ]  50 %  what", or "what" where `total` is 0; cut to `columns`.
std::string ProgressLine(const std::string& what, int64_t done, int64_t total, int columns);

}  // namespace quantgate
