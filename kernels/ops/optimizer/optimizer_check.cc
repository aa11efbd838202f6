#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/operand_checks.h"
#include "kernels/ops/optimizer/optimizer.h"

namespace quantgate {
namespace {

absl::Status CheckFinite(float value, std::string_view field) {
  if (std::isfinite(value)) return absl::OkStatus();
  return Refuse(field, absl::StrCat(value), "must be finite");
}

absl::Status CheckLearningRate(float value) {
  QG_RETURN_IF_ERROR(CheckFinite(value, "learning_rate"));
  if (value >= 0) return absl::OkStatus();
  return Refuse("learning_rate", absl::StrCat(value), "must be at least 0");
}

absl::Status CheckBelowOne(float value, std::string_view field) {
  if (value >= 0 && value < 1) return absl::OkStatus();
  return Refuse(field, absl::StrCat(value), "must be at least 0 and below 1");
}

absl::Status CheckState(const Tensor& state, const Tensor& master, std::string_view field) {
  QG_RETURN_IF_ERROR(CheckDType(state, DType::kF32, field));
  return CheckShape(state, master.shape(), field, "that of master");
}

absl::Status CheckMasterAndGradient(const Tensor& master, const Tensor& gradient) {
  QG_RETURN_IF_ERROR(CheckDType(master, DType::kF32, "master"));
  QG_RETURN_IF_ERROR(CheckHighPrecision(gradient, "gradient"));
  return CheckShape(gradient, master.shape(), "gradient", "that of master");
}

}  // namespace

absl::Status CheckAdam(const AdamDesc& desc) {
  const AdamOptions& options = desc.options;
  QG_RETURN_IF_ERROR(CheckLearningRate(options.learning_rate));
  QG_RETURN_IF_ERROR(CheckBelowOne(options.beta1, "beta1"));
  QG_RETURN_IF_ERROR(CheckBelowOne(options.beta2, "beta2"));
  QG_RETURN_IF_ERROR(CheckFinite(options.epsilon, "epsilon"));
  if (options.epsilon < 0) {
    return Refuse("epsilon", absl::StrCat(options.epsilon), "must be at least 0");
  }
  QG_RETURN_IF_ERROR(CheckFinite(options.weight_decay, "weight_decay"));
  if (desc.step < 1) {
    return Refuse("step", absl::StrCat(desc.step), "must be at least 1");
  }
  QG_RETURN_IF_ERROR(CheckMasterAndGradient(desc.master, desc.gradient));
  QG_RETURN_IF_ERROR(CheckState(desc.m, desc.master, "m"));
  return CheckState(desc.v, desc.master, "v");
}

absl::Status CheckSgd(const SgdDesc& desc) {
  const SgdOptions& options = desc.options;
  QG_RETURN_IF_ERROR(CheckLearningRate(options.learning_rate));
  QG_RETURN_IF_ERROR(CheckFinite(options.momentum, "momentum"));
  QG_RETURN_IF_ERROR(CheckFinite(options.weight_decay, "weight_decay"));
  if (options.nesterov && options.momentum == 0) {
    return Refuse("nesterov", "true", "needs a momentum above 0");
  }
  QG_RETURN_IF_ERROR(CheckMasterAndGradient(desc.master, desc.gradient));
  if (!desc.momentum.has_value()) return absl::OkStatus();
  if (options.momentum == 0) {
    return Refuse("momentum", "given", "with a momentum of 0 there is no buffer");
  }
  return CheckState(desc.momentum, desc.master, "momentum");
}

absl::Status CheckSplitMaster(const Tensor& master) {
  return CheckDType(master, DType::kF32, "master");
}

absl::Status CheckJoinMaster(const SplitTensor& split) {
  QG_RETURN_IF_ERROR(CheckDType(split.parameter, DType::kBF16, "parameter"));
  QG_RETURN_IF_ERROR(CheckDType(split.remainder, DType::kI16, "remainder"));
  return CheckShape(split.remainder, split.parameter.shape(), "remainder", "that of parameter");
}

AdamFactors AdamFactorsOf(const AdamOptions& options, int64_t step) {
  return {.learning_rate = options.learning_rate,
          .beta1 = options.beta1,
          .one_minus_beta1 = 1.0f - options.beta1,
          .beta2 = options.beta2,
          .one_minus_beta2 = 1.0f - options.beta2,
          .correction1 = static_cast<float>(1.0 - AdamBetaPower(options.beta1, step)),
          .correction2 = static_cast<float>(1.0 - AdamBetaPower(options.beta2, step)),
          .epsilon = options.epsilon,
          .weight_decay = options.weight_decay,
          .decoupled_decay = options.decoupled_decay};
}

SgdFactors SgdFactorsOf(const SgdDesc& desc) {
  return {.learning_rate = desc.options.learning_rate,
          .momentum = desc.options.momentum,
          .weight_decay = desc.options.weight_decay,
          .nesterov = desc.options.nesterov,
          .has_momentum = desc.options.momentum != 0,
          .has_buffer = desc.momentum.has_value()};
}

}  // namespace quantgate
