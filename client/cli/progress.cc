#include "client/cli/progress.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace quantgate {
namespace {
constexpr int kBarColumns = 24;
constexpr int kLineColumns = 79;
}  // namespace

std::string ProgressLine(const std::string& what, int64_t done, int64_t total, int columns) {
  const double share = total > 0 ? std::clamp(static_cast<double>(done) / total, 0.0, 1.0) : 0.0;
  const int filled = static_cast<int>(share * kBarColumns);
  std::string line =
      absl::StrFormat("[%s%s] %3d %%  %s", std::string(filled, '#'),
                      std::string(kBarColumns - filled, ' '), static_cast<int>(share * 100), what);
  if (static_cast<int>(line.size()) > columns) line.resize(columns);
  return line;
}

void ProgressBar::Update(const std::string& what, int64_t done, int64_t total) {
  if (!is_shown_) return;
  if (!throttle_.Passes() && done < total) return;
  is_drawn_ = true;
  out_ << "\r\033[K" << ProgressLine(what, done, total, kLineColumns) << std::flush;
}

void ProgressBar::Clear() {
  if (!is_drawn_) return;
  is_drawn_ = false;
  out_ << "\r\033[K" << std::flush;
}

}  // namespace quantgate
