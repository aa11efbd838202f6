#include <algorithm>

#include "kernels/base/status_macros.h"
#include "kernels/ops/optimizer/optimizer.h"
#include "kernels/ops/row_kernels.h"

namespace quantgate {
namespace {

/// Gradients that are widened at a time.
constexpr int64_t kRun = 2048;
constexpr int64_t kGrainElements = 1 << 16;

/// The arrays of a run from element `at`.
OptimizerRun RunFrom(const OptimizerRun& whole, const float* gradient, int64_t at) {
  const auto from = [at](auto* array) { return array != nullptr ? array + at : nullptr; };
  return {gradient,         from(whole.master),     from(whole.m),
          from(whole.v),    from(whole.new_master), from(whole.new_m),
          from(whole.new_v)};
}

/// Updates every element by update(run, count); `whole` has no gradient.
template <class Update>
absl::Status UpdateAll(const Tensor& gradient, const OptimizerRun& whole,
                       const ExecutionContext& context, const Update& update) {
  const RowKernels& kernels = RowKernelsOf(context.isa);
  ParallelFor(context, gradient.element_count(), kGrainElements, [&](int64_t begin, int64_t end) {
    alignas(64) float wide[kRun];
    for (int64_t at = begin; at < end; at += kRun) {
      const int64_t count = std::min(kRun, end - at);
      LoadRow(kernels, gradient, at, count, wide);
      update(RunFrom(whole, wide, at), count);
    }
  });
  return context.CheckCancelled();
}

/// Calls body(begin, end) over pieces of the elements.
template <class Body>
absl::Status ForPieces(const ExecutionContext& context, int64_t count, const Body& body) {
  ParallelFor(context, count, kGrainElements, body);
  return context.CheckCancelled();
}

}  // namespace

absl::StatusOr<AdamResult> AdamStepCpu(const AdamDesc& desc, const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckAdam(desc));
  AdamResult result;
  for (Tensor* tensor : {&result.master, &result.m, &result.v}) {
    QG_ASSIGN_OR_RETURN(*tensor, Tensor::Allocate(DType::kF32, desc.master.shape()));
  }
  const OptimizerRun whole = {.master = desc.master.as<float>(),
                              .m = desc.m.as<float>(),
                              .v = desc.v.as<float>(),
                              .new_master = result.master.as<float>(),
                              .new_m = result.m.as<float>(),
                              .new_v = result.v.as<float>()};
  const RowKernels& kernels = RowKernelsOf(context.isa);
  const AdamFactors factors = AdamFactorsOf(desc.options, desc.step);
  QG_RETURN_IF_ERROR(
      UpdateAll(desc.gradient, whole, context, [&](const OptimizerRun& run, int64_t count) {
        kernels.adam(factors, run, count);
        for (float* written : {run.new_master, run.new_m, run.new_v}) {
          kernels.store[RowType(DType::kF32)](written, count, written);
        }
      }));
  return result;
}

absl::StatusOr<SgdResult> SgdStepCpu(const SgdDesc& desc, const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckSgd(desc));
  const SgdFactors factors = SgdFactorsOf(desc);
  SgdResult result;
  QG_ASSIGN_OR_RETURN(result.master, Tensor::Allocate(DType::kF32, desc.master.shape()));
  OptimizerRun whole = {.master = desc.master.as<float>(), .new_master = result.master.as<float>()};
  if (factors.has_buffer) whole.m = desc.momentum.as<float>();
  if (factors.has_momentum) {
    QG_ASSIGN_OR_RETURN(result.momentum, Tensor::Allocate(DType::kF32, desc.master.shape()));
    whole.new_m = result.momentum.as<float>();
  }
  const RowKernels& kernels = RowKernelsOf(context.isa);
  QG_RETURN_IF_ERROR(
      UpdateAll(desc.gradient, whole, context, [&](const OptimizerRun& run, int64_t count) {
        kernels.sgd(factors, run, count);
        for (float* written : {run.new_master, run.new_m}) {
          if (written != nullptr) kernels.store[RowType(DType::kF32)](written, count, written);
        }
      }));
  return result;
}

absl::StatusOr<SplitTensor> SplitMasterCpu(const Tensor& master, const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckSplitMaster(master));
  SplitTensor split;
  QG_ASSIGN_OR_RETURN(split.parameter, Tensor::Allocate(DType::kBF16, master.shape()));
  QG_ASSIGN_OR_RETURN(split.remainder, Tensor::Allocate(DType::kI16, master.shape()));
  const auto* from = master.as<uint32_t>();
  auto* parameter = split.parameter.as<uint16_t>();
  auto* remainder = split.remainder.as<uint16_t>();
  QG_RETURN_IF_ERROR(ForPieces(context, master.element_count(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const SplitBits bits = SplitMasterBits(from[i]);
      parameter[i] = bits.parameter;
      remainder[i] = bits.remainder;
    }
  }));
  return split;
}

absl::StatusOr<Tensor> JoinMasterCpu(const SplitTensor& split, const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckJoinMaster(split));
  QG_ASSIGN_OR_RETURN(Tensor master, Tensor::Allocate(DType::kF32, split.parameter.shape()));
  const auto* parameter = split.parameter.as<uint16_t>();
  const auto* remainder = split.remainder.as<uint16_t>();
  auto* to = master.as<uint32_t>();
  QG_RETURN_IF_ERROR(ForPieces(context, master.element_count(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = JoinMasterBits({parameter[i], remainder[i]});
  }));
  return master;
}

}  // namespace quantgate
