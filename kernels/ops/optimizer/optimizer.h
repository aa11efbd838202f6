// Optimizer steps over fp32 masters, and the split of masters into a bf16 parameter and a remainder
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
  float beta1 = 0.9f;  ///< In [0, 1), like beta2.
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0;
  bool decoupled_decay = true;  ///< True for AdamW; else the decay is added to the gradient.
  friend bool operator==(const AdamOptions&, const AdamOptions&) = default;
};

/// What AdamStep reads. All four tensors have one shape.
struct AdamDesc {
  Tensor master;    ///< f32.
  Tensor gradient;  ///< f32, bf16 or f16.
  Tensor m, v;      ///< f32; zero before the first step.
  AdamOptions options;
  int64_t step = 1;  ///< The number of this update, from 1.
};
inline std::vector<Tensor*> TensorsOf(AdamDesc& desc) {
  return {&desc.master, &desc.gradient, &desc.m, &desc.v};
}

/// The state after the step, in new tensors.
struct AdamResult {
  Tensor master, m, v;
};

struct SgdOptions {
  float learning_rate = 1e-3f;
  float momentum = 0;  ///< 0 for none.
  float weight_decay = 0;
  bool nesterov = false;  ///< Needs momentum.
  friend bool operator==(const SgdOptions&, const SgdOptions&) = default;
};

/// What SgdStep reads. All tensors have one shape.
struct SgdDesc {
  Tensor master;    ///< f32.
  Tensor gradient;  ///< f32, bf16 or f16.
  Tensor momentum;  ///< f32; absent on the first step and without momentum.
  SgdOptions options;
};
inline std::vector<Tensor*> TensorsOf(SgdDesc& desc) {
  return {&desc.master, &desc.gradient, &desc.momentum};
}

/// The state after the step, in new tensors.
struct SgdResult {
  Tensor master;
  Tensor momentum;  ///< Absent without momentum.
};

/// The bits of an f32 master in two tensors of the same shape.
struct SplitTensor {
  Tensor parameter;  ///< bf16: the master rounded to nearest, ties away from zero.
  Tensor remainder;  ///< i16: the lower half of the bits of the master.
};
inline std::vector<Tensor*> TensorsOf(SplitTensor& split) {
  return {&split.parameter, &split.remainder};
}

/// What the functions below and those of ops_cuda.h refuse: INVALID_ARGUMENT naming field, value
/// and rule.
absl::Status CheckAdam(const AdamDesc& desc);
absl::Status CheckSgd(const SgdDesc& desc);
absl::Status CheckSplitMaster(const Tensor& master);
absl::Status CheckJoinMaster(const SplitTensor& split);

/// The factors of a step, the same for all elements.
AdamFactors AdamFactorsOf(const AdamOptions& options, int64_t step);
SgdFactors SgdFactorsOf(const SgdDesc& desc);

absl::StatusOr<AdamResult> AdamStepCpu(const AdamDesc& desc, const ExecutionContext& context);
absl::StatusOr<SgdResult> SgdStepCpu(const SgdDesc& desc, const ExecutionContext& context);

/// JoinMaster restores every bit that SplitMaster took, NaN included. A NaN whose upper 15
/// magnitude bits and bit 15 are all ones, such as the canonical one, gets the parameter -0 or +0,
/// so that it shows only in the master.
absl::StatusOr<SplitTensor> SplitMasterCpu(const Tensor& master, const ExecutionContext& context);
absl::StatusOr<Tensor> JoinMasterCpu(const SplitTensor& split, const ExecutionContext& context);

}  // namespace quantgate
