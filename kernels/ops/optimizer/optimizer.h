// Optimizer steps over fp32 masters, and masters as a bf16 parameter with a remainder
// (docs/numerics.md section 6).
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/numerics/optimizer.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

struct AdamOptions {
  float learning_rate = 1e-3f;
  float beta1 = 0.9f;  ///< In [0, 1), as is beta2.
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0;
  bool decoupled_decay = true;  ///< AdamW; false: the decay is added to the gradient.
  friend bool operator==(const AdamOptions&, const AdamOptions&) = default;
};

struct AdamDesc {
  Tensor master;    ///< f32, as m and v; all four have one shape.
  Tensor gradient;  ///< f32, bf16 or f16.
  Tensor m, v;      ///< Zero before the first step.
  AdamOptions options;
  int64_t step = 1;  ///< Of this update, from 1.
};
inline std::vector<Tensor*> TensorsOf(AdamDesc& desc) {
  return {&desc.master, &desc.gradient, &desc.m, &desc.v};
}

/// New tensors.
struct AdamResult {
  Tensor master, m, v;
};

struct SgdOptions {
  float learning_rate = 1e-3f;
  float momentum = 0;  ///< 0: without.
  float weight_decay = 0;
  bool nesterov = false;  ///< Needs momentum.
  friend bool operator==(const SgdOptions&, const SgdOptions&) = default;
};

struct SgdDesc {
  Tensor master;    ///< f32.
  Tensor gradient;  ///< f32, bf16 or f16, of master's shape.
  Tensor momentum;  ///< f32 of master's shape; absent on the first step, and without momentum.
  SgdOptions options;
};
inline std::vector<Tensor*> TensorsOf(SgdDesc& desc) {
  return {&desc.master, &desc.gradient, &desc.momentum};
}

struct SgdResult {
  Tensor master;
  Tensor momentum;  ///< Absent without momentum.
};

/// parameter + remainder: the bits of an f32 tensor.
struct SplitTensor {
  Tensor parameter;  ///< bf16: the master rounded to nearest, ties away from zero.
  Tensor remainder;  ///< i16: the master's lower half.
};
inline std::vector<Tensor*> TensorsOf(SplitTensor& split) {
  return {&split.parameter, &split.remainder};
}

/// What the functions below and their device versions refuse: INVALID_ARGUMENT naming field, value
/// and rule.
absl::Status CheckAdam(const AdamDesc& desc);
absl::Status CheckSgd(const SgdDesc& desc);
absl::Status CheckSplitMaster(const Tensor& master);
absl::Status CheckJoinMaster(const SplitTensor& split);

AdamFactors AdamFactorsOf(const AdamOptions& options, int64_t step);
SgdFactors SgdFactorsOf(const SgdDesc& desc);

absl::StatusOr<AdamResult> AdamStepCpu(const AdamDesc& desc, const ExecutionContext& context);
absl::StatusOr<SgdResult> SgdStepCpu(const SgdDesc& desc, const ExecutionContext& context);

/// JoinMaster gives back every bit of what SplitMaster took, NaN included. A NaN whose upper 15
/// bits of magnitude and bit 15 are ones, the canonical one too, has the parameter -0 or +0: it
/// shows in the master.
absl::StatusOr<SplitTensor> SplitMasterCpu(const Tensor& master, const ExecutionContext& context);
absl::StatusOr<Tensor> JoinMasterCpu(const SplitTensor& split, const ExecutionContext& context);

}  // namespace quantgate
