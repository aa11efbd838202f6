#include "kernels/training/distributed_optimizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/engine/zeros.h"
#include "kernels/quantize/delayed_scaling.h"
#include "kernels/training/flat_shards.h"

namespace quantgate {
namespace {

/// This rank's elements of a whole tensor, flat.
absl::StatusOr<Tensor> OwnOf(const GatherContext& context, const DistributedParameter& parameter,
                             const Tensor& whole) {
  const int64_t begin = parameter.bounds[context.group.rank()];
  const int64_t count = parameter.bounds[context.group.rank() + 1] - begin;
  QG_ASSIGN_OR_RETURN(const Tensor flat, Flat(whole));
  return context.engine.Slice(flat, 0, begin, count, context.cancellation);
}

absl::Status CheckTensor(const std::string& what, const std::map<std::string, Tensor>& tensors,
                         const DistributedParameter& parameter) {
  const auto found = tensors.find(parameter.name);
  const bool is_there = found != tensors.end() && found->second.has_value();
  if (is_there && IsHighPrecision(found->second.dtype()) &&
      found->second.shape() == parameter.shape) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      what, " ", parameter.name, ": ", is_there ? TensorText(found->second) : std::string("absent"),
      "; must be f32, bf16 or f16 of ", ShapeText(parameter.shape)));
}

absl::Status NoteAmax(Engine& engine, const std::string& name, const Tensor& amax,
                      std::map<std::string, DelayedScalingState>& delayed) {
  if (!amax.has_value()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(delayed[name], engine.NoteCast(delayed.at(name), amax));
  return absl::OkStatus();
}

absl::StatusOr<Tensor> ScaleOf(const DistributedParameter& parameter,
                               const std::map<std::string, DelayedScalingState>& delayed) {
  if (parameter.quantizer.rowwise.scaling != Scaling::kDelayed) return Tensor();
  const auto found = delayed.find(parameter.name);
  if (found != delayed.end() && found->second.has_value()) return found->second.scale;
  return absl::InvalidArgumentError(
      absl::StrCat("delayed ", parameter.name, ": absent; delayed scaling needs its state"));
}

}  // namespace

absl::Status DistributedOptimizer::CheckParameters(const GatherContext& context) const {
  for (const DistributedParameter& parameter : parameters_) {
    QG_RETURN_IF_ERROR(CheckBounds(absl::StrCat(parameter.name, ": bounds"), parameter.bounds,
                                   context.group.size(), ElementsOf(parameter.shape)));
  }
  return absl::OkStatus();
}

absl::Status DistributedOptimizer::Begin(const GatherContext& context,
                                         const DistributedParameter& parameter, const Tensor& value,
                                         std::map<std::string, DelayedScalingState>& delayed) {
  Trained& trained = trained_[parameter.name];
  QG_ASSIGN_OR_RETURN(const Tensor own, OwnOf(context, parameter, value));
  QG_ASSIGN_OR_RETURN(trained.master, context.engine.Cast(own, DType::kF32, context.cancellation));
  if (spec_.optimizer.kind == OptimizerSpec::Kind::kAdam) {
    const auto zeros = [&] {
      return Zeros(context.engine, {own.element_count()}, context.cancellation);
    };
    QG_ASSIGN_OR_RETURN(trained.exp_avg, zeros());
    QG_ASSIGN_OR_RETURN(trained.exp_avg_sq, zeros());
  }
  Parameter& whole = whole_[parameter.name];
  if (!parameter.is_quantized) {
    QG_ASSIGN_OR_RETURN(whole.value,
                        context.engine.Cast(value, parameter.dtype, context.cancellation));
    return absl::OkStatus();
  }
  whole.quantizer = parameter.quantizer;
  QuantizeArguments arguments;
  QG_ASSIGN_OR_RETURN(arguments.scale, ScaleOf(parameter, delayed));
  QG_ASSIGN_OR_RETURN(whole.quantized,
                      context.engine.Quantize(value, parameter.quantizer, parameter.usages,
                                              arguments, context.cancellation));
  whole.quantized.source_dtype = parameter.dtype;
  if (!arguments.scale.has_value()) return absl::OkStatus();
  return NoteAmax(context.engine, parameter.name, whole.quantized.rowwise->amax, delayed);
}

absl::StatusOr<DistributedOptimizer> DistributedOptimizer::Create(
    const GatherContext& context, DistributedOptimizerSpec spec,
    std::vector<DistributedParameter> parameters, const std::map<std::string, Tensor>& values,
    std::map<std::string, DelayedScalingState>& delayed) {
  DistributedOptimizer optimizer(std::move(spec), std::move(parameters));
  QG_RETURN_IF_ERROR(optimizer.CheckParameters(context));
  for (const DistributedParameter& parameter : optimizer.parameters_) {
    QG_RETURN_IF_ERROR(CheckTensor("value", values, parameter));
  }
  for (const DistributedParameter& parameter : optimizer.parameters_) {
    QG_RETURN_IF_ERROR(optimizer.Begin(context, parameter, values.at(parameter.name), delayed));
  }
  return optimizer;
}

absl::StatusOr<DistributedOptimizer::Trained> DistributedOptimizer::Updated(
    const GatherContext& context, const DistributedParameter& parameter, const Tensor& gradient,
    int64_t step) const {
  QG_ASSIGN_OR_RETURN(const Tensor flat, Flat(gradient));
  QG_ASSIGN_OR_RETURN(const Tensor own, context.group.ReduceScatter(
                                            flat, LengthsOf(parameter.bounds), spec_.profile));
  Trained trained = trained_.at(parameter.name);
  if (spec_.optimizer.kind == OptimizerSpec::Kind::kAdam) {
    const AdamDesc desc{trained.master,       own, trained.exp_avg, trained.exp_avg_sq,
                        spec_.optimizer.adam, step};
    QG_ASSIGN_OR_RETURN(AdamResult adam, context.engine.AdamStep(desc, context.cancellation));
    trained.master = std::move(adam.master);
    trained.exp_avg = std::move(adam.m);
    trained.exp_avg_sq = std::move(adam.v);
    return trained;
  }
  const SgdDesc desc{trained.master, own, trained.momentum, spec_.optimizer.sgd};
  QG_ASSIGN_OR_RETURN(SgdResult sgd, context.engine.SgdStep(desc, context.cancellation));
  trained.master = std::move(sgd.master);
  trained.momentum = std::move(sgd.momentum);
  return trained;
}

absl::Status DistributedOptimizer::Assemble(
    const GatherContext& context, std::span<const DistributedParameter* const> changed,
    const std::map<std::string, Trained>& trained, std::map<std::string, Parameter>& whole,
    std::map<std::string, DelayedScalingState>& delayed) const {
  std::vector<MasterFragment> weights;
  for (const DistributedParameter* parameter : changed) {
    const Tensor& master = trained.at(parameter->name).master;
    if (parameter->is_quantized) {
      MasterFragment weight = {parameter->name,  master,           parameter->bounds,
                               parameter->shape, parameter->dtype, parameter->quantizer,
                               parameter->usages};
      QG_ASSIGN_OR_RETURN(weight.scale, ScaleOf(*parameter, delayed));
      weights.push_back(std::move(weight));
      continue;
    }
    QG_ASSIGN_OR_RETURN(const Tensor own,
                        context.engine.Cast(master, parameter->dtype, context.cancellation));
    QG_ASSIGN_OR_RETURN(const Tensor flat, context.group.AllGather(own));
    QG_ASSIGN_OR_RETURN(whole[parameter->name].value,
                        flat.Reinterpret(parameter->dtype, parameter->shape));
  }
  if (weights.empty()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(std::vector<QuantizedMaster> quantized,
                      QuantizeMasterWeights(context, weights, spec_.requantization));
  for (size_t i = 0; i < weights.size(); ++i) {
    whole[weights[i].name].quantized = std::move(quantized[i].weight);
    QG_RETURN_IF_ERROR(
        NoteAmax(context.engine, weights[i].name, quantized[i].delayed_amax, delayed));
  }
  return absl::OkStatus();
}

absl::Status DistributedOptimizer::Step(const GatherContext& context,
                                        const std::map<std::string, Tensor>& gradients,
                                        std::map<std::string, DelayedScalingState>& delayed) {
  if (spec_.optimizer.kind == OptimizerSpec::Kind::kNone) {
    return absl::FailedPreconditionError("optimizer: none; a step needs one");
  }
  std::vector<const DistributedParameter*> changed;
  for (const DistributedParameter& parameter : parameters_) {
    if (gradients.count(parameter.name) == 0) continue;
    QG_RETURN_IF_ERROR(CheckTensor("gradient", gradients, parameter));
    changed.push_back(&parameter);
  }
  std::map<std::string, Trained> trained = trained_;
  std::map<std::string, Parameter> whole = whole_;
  std::map<std::string, DelayedScalingState> states = delayed;
  for (const DistributedParameter* parameter : changed) {
    QG_ASSIGN_OR_RETURN(trained[parameter->name],
                        Updated(context, *parameter, gradients.at(parameter->name), steps_ + 1));
  }
  QG_RETURN_IF_ERROR(Assemble(context, changed, trained, whole, states));
  trained_ = std::move(trained);
  whole_ = std::move(whole);
  delayed = std::move(states);
  ++steps_;
  return absl::OkStatus();
}

}  // namespace quantgate
