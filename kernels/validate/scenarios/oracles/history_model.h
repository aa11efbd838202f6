// A delayed-scaling history in the words of docs/quantizers.md section 2, without NaN: what
// scenarios compare the engine's states with.
#pragma once

#include <vector>

#include "kernels/quantize/recipe/delayed_scaling.h"

namespace quantgate {

class HistoryModel {
 public:
  HistoryModel(const DelayedScalingOptions& options, float max_finite);

  void NoteCast(float amax);
  void Update();
  /// From the next update on.
  void SetAlgorithm(AmaxAlgorithm algorithm) { algorithm_ = algorithm; }

  float scale() const { return scale_; }
  const std::vector<float>& history() const { return history_; }

 private:
  std::vector<float> history_;
  AmaxAlgorithm algorithm_;
  ScaleUpdate update_;
  float max_finite_;
  int margin_;
  float scale_ = 1.0f;
};

}  // namespace quantgate
