#include "kernels/validate/scenarios/oracles/history_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace quantgate {
namespace {

bool IsFiniteScale(float value) {
  return (std::bit_cast<uint32_t>(value) & 0x7F800000) != 0x7F800000;
}

}  // namespace

HistoryModel::HistoryModel(const DelayedScalingOptions& options, float max_finite)
    : history_(options.amax_history_len, 0.0f),
      algorithm_(options.algorithm),
      update_(options.update),
      max_finite_(max_finite),
      margin_(options.margin) {}

void HistoryModel::NoteCast(float amax) { history_[0] = std::max(history_[0], amax); }

void HistoryModel::Update() {
  const float last = history_[0];
  const bool is_fused = update_ == ScaleUpdate::kFused;
  float largest = last;
  for (const float amax : history_) largest = std::max(largest, amax);
  if (is_fused && last == 0) largest = 0;
  const float amax = algorithm_ == AmaxAlgorithm::kMostRecent ? last : largest;
  if (!is_fused || last != 0) {
    // The oldest amax leaves, the newest goes to the back, and row 0 is freed for the next step.
    history_.erase(history_.begin());
    history_.push_back(last);
    history_[0] = 0;
  }
  if (!(amax > 0 && IsFiniteScale(amax))) return;
  scale_ = is_fused ? std::ldexp(max_finite_, -margin_) / amax
                    : std::ldexp(max_finite_ / amax, -margin_);
}

}  // namespace quantgate
