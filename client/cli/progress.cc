#include "client/cli/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace quantgate {
namespace {
constexpr int kBarColumns = 24;
constexpr int kLineColumnsMax = 79;
constexpr absl::Duration kSilenceMax = absl::Seconds(2);
constexpr std::chrono::milliseconds kTickPeriod{500};

/// A line that wraps is not wiped whole: one column less than the terminal has.
int LineColumns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 2) return kLineColumnsMax;
  return std::min<int>(size.ws_col - 1, kLineColumnsMax);
}
}  // namespace

std::string ProgressLine(const std::string& what, int64_t done, int64_t total, int columns) {
  std::string line = what;
  if (total > 0) {
    const double share = std::clamp(static_cast<double>(done) / total, 0.0, 1.0);
    const int filled = static_cast<int>(share * kBarColumns);
    line = absl::StrFormat("[%s%s] %3d %%  %s", std::string(filled, '#'),
                           std::string(kBarColumns - filled, ' '), static_cast<int>(share * 100),
                           what);
  }
  if (static_cast<int>(line.size()) > columns) line.resize(columns);
  return line;
}

ProgressBar::ProgressBar(std::ostream& out, bool is_shown)
    : out_(out), is_shown_(is_shown), heard_(absl::Now()) {
  if (is_shown_) ticker_ = std::thread([this] { KeepTicking(); });
}

ProgressBar::~ProgressBar() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    stops_.notify_one();
  }
  if (ticker_.joinable()) ticker_.join();
  Clear();
}

void ProgressBar::Update(const std::string& what, int64_t done, int64_t total) {
  if (!is_shown_) return;
  const std::lock_guard lock(mutex_);
  is_waiting_ = true;
  what_ = what;
  done_ = done;
  total_ = total;
  heard_ = absl::Now();
  if (!throttle_.Passes() && done < total) return;
  Draw(ProgressLine(what, done, total, LineColumns()));
}

void ProgressBar::Clear() {
  const std::lock_guard lock(mutex_);
  is_waiting_ = false;
  if (!is_drawn_) return;
  is_drawn_ = false;
  out_ << "\r\033[K" << std::flush;
}

void ProgressBar::Tick(absl::Time now) {
  const std::lock_guard lock(mutex_);
  const absl::Duration silence = now - heard_;
  if (!is_waiting_ || silence < kSilenceMax) return;
  // Work that is done is not what the command waits for.
  const bool is_done = total_ > 0 && done_ >= total_;
  const std::string line =
      absl::StrCat(is_done ? "computing" : what_, ", ", absl::ToInt64Seconds(silence), " s");
  Draw(ProgressLine(line, is_done ? 0 : done_, is_done ? 0 : total_, LineColumns()));
}

void ProgressBar::Draw(const std::string& line) {
  is_drawn_ = true;
  out_ << "\r\033[K" << line << std::flush;
}

void ProgressBar::KeepTicking() {
  std::unique_lock lock(mutex_);
  while (!stops_.wait_for(lock, kTickPeriod, [this] { return is_stopping_; })) {
    lock.unlock();
    Tick(absl::Now());
    lock.lock();
  }
}

}  // namespace quantgate
