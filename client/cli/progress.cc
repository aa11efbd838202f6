#include "client/cli/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_format.h"

namespace quantgate {
namespace {
constexpr int kBarColumns = 24;
constexpr int kLineColumnsMax = 79;

/// A line that wraps is not wiped whole: one column less than the terminal has.
int LineColumns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 2) return kLineColumnsMax;
  return std::min<int>(size.ws_col - 1, kLineColumnsMax);
}
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
  out_ << "\r\033[K" << ProgressLine(what, done, total, LineColumns()) << std::flush;
}

void ProgressBar::Clear() {
  if (!is_drawn_) return;
  is_drawn_ = false;
  out_ << "\r\033[K" << std::flush;
}

}  // namespace quantgate
