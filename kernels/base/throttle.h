// Throttle: lets at most one event through per interval, for messages to people. Not thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <utility>

namespace quantgate {

class Throttle {
 public:
  /// A clock that never goes backwards.
  using Clock = std::chrono::steady_clock;

  explicit Throttle(Clock::duration interval, std::function<Clock::time_point()> now = &Clock::now)
      : interval_(interval), now_(std::move(now)) {}

  /// Whether an event may pass now: true for the first and for each that comes at least an interval
  /// after the last that passed.
  bool Passes() {
    const Clock::time_point now = now_();
    if (last_.has_value() && now - *last_ < interval_) return false;
    last_ = now;
    return true;
  }

 private:
  const Clock::duration interval_;
  const std::function<Clock::time_point()> now_;
  std::optional<Clock::time_point> last_;
};

}  // namespace quantgate
