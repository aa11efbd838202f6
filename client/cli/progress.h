// A progress bar on stderr, drawn only where stderr is a terminal and no faster than an eye
// follows.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

#include "kernels/base/throttle.h"

namespace quantgate {

class ProgressBar {
 public:
  ProgressBar(std::ostream& out, bool is_shown) : out_(out), is_shown_(is_shown) {}
  ~ProgressBar() { Clear(); }

  void Update(const std::string& what, int64_t done, int64_t total);
  /// Wipes the line, before other text goes to the terminal.
  void Clear();

 private:
  std::ostream& out_;
  const bool is_shown_;
  bool is_drawn_ = false;
  Throttle throttle_{std::chrono::milliseconds(50)};
};

/// "[#####     ]  50 %  what", cut to `columns`.
std::string ProgressLine(const std::string& what, int64_t done, int64_t total, int columns);

}  // namespace quantgate
