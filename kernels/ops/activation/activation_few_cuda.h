// One output of an activation, or eight side by side, on a device.
#pragma once

#include "kernels/ops/activation/activation_launch_cuda.h"

namespace quantgate {

#if defined(__CUDACC__)

/// InnerOf, computed.
template <ActivationFunction kFunction, ActivationVariant kVariant>
struct ComputedInner {
  __device__ InnerValues operator()(float x, const ActivationOptions& options) const {
    return InnerOf<kFunction, kVariant>(x, options);
  }
};

template <int kCount>
__device__ inline void LoadFew(const FloatsIn& from, int64_t at, float (&values)[kCount]) {
  if constexpr (kCount == 8) {
    LoadLanes(from, at, values);
  } else {
    values[0] = LoadFloat(from, at);
  }
}

template <int kCount>
__device__ inline void StoreFew(const FloatsOut& to, int64_t at, const float (&values)[kCount]) {
  if constexpr (kCount == 8) {
    StoreLanes(to, at, values);
  } else {
    StoreFloat(to, at, values[0]);
  }
}

/// kCount outputs from output `at` on, all of one row where there is a gate: what goes in is loaded
/// by Load, so that a thread can have several on their way.
template <ActivationFunction kFunction, ActivationVariant kVariant, bool kIsBackward, int kCount>
class FewOutputs {
 public:
  __device__ void Load(const ActivationParameters& parameters, const FloatsIn& h, int64_t at) {
    is_gated_ = IsGated(parameters.options.kind);
    const int64_t columns = parameters.columns, row = is_gated_ ? at / columns : 0;
    output_ = at;
    activated_ = at + row * columns;
    LoadFew(h, activated_, x_);
    if (is_gated_) LoadFew(h, activated_ + columns, gate_);
    if constexpr (kIsBackward) LoadFew(parameters.dy, output_, dy_);
  }

  template <class Inner>
  __device__ void Finish(const ActivationParameters& parameters, const Inner& inner) {
    const ActivationOptions& options = parameters.options;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const ValueAndSlope activated =
          ActivateAround<kFunction, kVariant>(x_[i], inner(x_[i], options), options);
      if constexpr (!kIsBackward) {
        x_[i] = activated.value;
        if (is_gated_) x_[i] = x_[i] * GateFactor<kFunction>(gate_[i], options);
      } else if (is_gated_) {
        const GatedGradients gradients =
            GatedGradient<kFunction>(dy_[i], activated, gate_[i], options);
        x_[i] = gradients.x;
        gate_[i] = gradients.gate;
      } else {
        x_[i] = activated.slope * dy_[i];
      }
    }
    StoreFew(parameters.out, kIsBackward ? activated_ : output_, x_);
    if (kIsBackward && is_gated_) {
      StoreFew(parameters.out, activated_ + parameters.columns, gate_);
    }
  }

 private:
  bool is_gated_;
  int64_t activated_, output_;
  float x_[kCount], gate_[kCount], dy_[kCount];
};

#endif

}  // namespace quantgate
