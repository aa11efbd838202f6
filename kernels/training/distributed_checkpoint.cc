// What a distributed optimizer writes and how it goes on from it.
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/quantized_outline.h"
#include "kernels/training/distributed_optimizer.h"
#include "kernels/training/session_state.h"

namespace quantgate {
namespace {

constexpr char kIdentityKey[] = "quantgate.distributed_optimizer";
constexpr char kStepsKey[] = "steps";

using Delayed = std::map<std::string, DelayedScalingState>;

class PartWriter {
 public:
  PartWriter(const GatherContext& context, std::vector<ShardPart>& parts)
      : context_(context), parts_(parts) {}

  absl::Status Add(const std::string& name, const Tensor& tensor, int64_t begin, int64_t total) {
    if (!tensor.has_value()) return absl::OkStatus();
    QG_ASSIGN_OR_RETURN(Tensor host, context_.engine.ToHost(tensor, context_.cancellation));
    parts_.push_back({name, std::move(host), begin, total});
    return absl::OkStatus();
  }
  /// Of a tensor that all ranks hold: the first one writes it.
  absl::Status AddWhole(const std::string& name, const Tensor& tensor) {
    if (context_.group.rank() != 0 || !tensor.has_value()) return absl::OkStatus();
    return Add(name, tensor, 0, tensor.shape()[0]);
  }

 private:
  const GatherContext& context_;
  std::vector<ShardPart>& parts_;
};

/// What a weight of this quantizer is made of, without memory.
absl::StatusOr<QuantizedTensor> OutlineWeight(const DistributedParameter& parameter) {
  QuantizedTensor outline;
  outline.source_dtype = parameter.dtype;
  outline.shape = parameter.shape;
  outline.is_hybrid = !(parameter.quantizer.rowwise == parameter.quantizer.columnwise);
  QG_RETURN_IF_ERROR(
      CheckQuantization(parameter.dtype, parameter.shape, parameter.quantizer, parameter.usages));
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    if (usage == Usage::kColumnwise && !parameter.usages.columnwise) continue;
    QuantizerSpec rule = parameter.quantizer.spec(usage);
    rule.scale_rule = ResolveScaleRule(rule.scale_rule, rule.format);
    QG_ASSIGN_OR_RETURN(outline.copy(usage),
                        OutlineCopy(rule, usage, parameter.dtype, parameter.shape));
    if (rule.format != QuantizerFormat::kFp8Tensor) continue;
    QG_ASSIGN_OR_RETURN(outline.scale, OutlineTensor(DType::kF32, {1}));
  }
  return outline;
}

/// The checkpoint's tensor in place of an outline, which says what it must be.
absl::Status Take(const GatherContext& context, const ShardCheckpoint& checkpoint,
                  const std::string& name, Tensor& outline) {
  QG_ASSIGN_OR_RETURN(const Tensor host, checkpoint.Whole(name));
  // Identity weights have the dtype of what they were made from.
  const bool is_right = host.shape() == outline.shape() &&
                        (host.dtype() == outline.dtype() ||
                         (IsHighPrecision(host.dtype()) && IsHighPrecision(outline.dtype())));
  if (!is_right) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoint of shards: ", name, ": ",
                                                   TensorText(host), "; it must be ",
                                                   TensorText(outline)));
  }
  QG_ASSIGN_OR_RETURN(outline, context.engine.ToDevice(host, context.cancellation));
  return absl::OkStatus();
}

absl::Status TakeQuantized(const GatherContext& context, const ShardCheckpoint& checkpoint,
                           const std::string& name, QuantizedTensor& quantized) {
  absl::Status status;
  VisitQuantized(name, quantized, [&](const std::string& part, Tensor& tensor) {
    if (status.ok() && tensor.has_value()) status = Take(context, checkpoint, part, tensor);
  });
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    std::optional<QuantizedCopy>& copy = quantized.copy(usage);
    if (copy.has_value() && copy->format == QuantizerFormat::kIdentity) {
      copy->element = copy->data.dtype();
    }
  }
  return status;
}

}  // namespace

/// Equal text: the same optimizer of the same parameters, whatever the ranks.
std::string DistributedOptimizer::Identity() const {
  std::string text = absl::StrCat(spec_.optimizer.kind == OptimizerSpec::Kind::kAdam  ? "adam"
                                  : spec_.optimizer.kind == OptimizerSpec::Kind::kSgd ? "sgd"
                                                                                      : "none",
                                  ", ", std::string(RequantizationName(spec_.requantization)));
  for (const DistributedParameter& parameter : parameters_) {
    absl::StrAppend(&text, "; ", parameter.name, " ", std::string(DTypeName(parameter.dtype)), "[",
                    ShapeText(parameter.shape), "] ",
                    parameter.is_quantized ? QuantizerText(parameter.quantizer) : "");
  }
  return text;
}

absl::StatusOr<TensorFile> DistributedOptimizer::Checkpoint(const GatherContext& context,
                                                            const Delayed& delayed) const {
  std::vector<ShardPart> parts;
  PartWriter writer(context, parts);
  absl::Status status;
  for (const DistributedParameter& parameter : parameters_) {
    const std::string& name = parameter.name;
    const Trained& trained = trained_.at(name);
    const int64_t begin = parameter.bounds[context.group.rank()];
    const int64_t total = parameter.bounds.back();
    QG_RETURN_IF_ERROR(writer.Add(name + ".master", trained.master, begin, total));
    QG_RETURN_IF_ERROR(writer.Add(name + ".exp_avg", trained.exp_avg, begin, total));
    QG_RETURN_IF_ERROR(writer.Add(name + ".exp_avg_sq", trained.exp_avg_sq, begin, total));
    QG_RETURN_IF_ERROR(writer.Add(name + ".momentum", trained.momentum, begin, total));
    Parameter whole = whole_.at(name);
    QG_RETURN_IF_ERROR(writer.AddWhole(name, whole.value));
    VisitQuantized(name + ".quantized", whole.quantized,
                   [&](const std::string& part, Tensor& tensor) {
                     if (status.ok()) status = writer.AddWhole(part, tensor);
                   });
  }
  QG_RETURN_IF_ERROR(status);
  for (const auto& [name, state] : delayed) {
    QG_RETURN_IF_ERROR(writer.AddWhole(name + ".scale", state.scale));
    QG_RETURN_IF_ERROR(writer.AddWhole(name + ".amax_history", state.amax_history));
  }
  return MakeShardFile(context.group.rank(), context.group.size(), parts,
                       {{kIdentityKey, Identity()}, {kStepsKey, absl::StrCat(steps_)}});
}

absl::Status DistributedOptimizer::RestoreOne(const GatherContext& context,
                                              const DistributedParameter& parameter,
                                              const ShardCheckpoint& checkpoint, Delayed& delayed) {
  const std::string& name = parameter.name;
  const int64_t begin = parameter.bounds[context.group.rank()];
  const int64_t count = parameter.bounds[context.group.rank() + 1] - begin;
  Trained& trained = trained_[name];
  const auto fragment = [&](const char* part, Tensor& tensor) -> absl::Status {
    QG_ASSIGN_OR_RETURN(const Tensor host, checkpoint.Rows(name + part, begin, count));
    if (host.dtype() != DType::kF32 || host.rank() != 1) {
      return absl::InvalidArgumentError(absl::StrCat("checkpoint of shards: ", name, part, ": ",
                                                     TensorText(host), "; it must be flat f32"));
    }
    QG_ASSIGN_OR_RETURN(tensor, context.engine.ToDevice(host, context.cancellation));
    return absl::OkStatus();
  };
  QG_RETURN_IF_ERROR(fragment(".master", trained.master));
  if (spec_.optimizer.kind == OptimizerSpec::Kind::kAdam) {
    QG_RETURN_IF_ERROR(fragment(".exp_avg", trained.exp_avg));
    QG_RETURN_IF_ERROR(fragment(".exp_avg_sq", trained.exp_avg_sq));
  }
  // SGD has it from its first update on.
  if (checkpoint.Has(name + ".momentum")) {
    QG_RETURN_IF_ERROR(fragment(".momentum", trained.momentum));
  }
  Parameter& whole = whole_[name];
  if (!parameter.is_quantized) {
    QG_ASSIGN_OR_RETURN(whole.value, OutlineTensor(parameter.dtype, parameter.shape));
    return Take(context, checkpoint, name, whole.value);
  }
  whole.quantizer = parameter.quantizer;
  QG_ASSIGN_OR_RETURN(whole.quantized, OutlineWeight(parameter));
  QG_RETURN_IF_ERROR(TakeQuantized(context, checkpoint, name + ".quantized", whole.quantized));
  if (parameter.quantizer.rowwise.scaling != Scaling::kDelayed) return absl::OkStatus();
  DelayedScalingState& state = delayed[name];
  QG_ASSIGN_OR_RETURN(state.scale, checkpoint.Whole(name + ".scale"));
  QG_ASSIGN_OR_RETURN(state.amax_history, checkpoint.Whole(name + ".amax_history"));
  QG_RETURN_IF_ERROR(CheckDelayedScaling(state, absl::StrCat("checkpoint of shards: ", name)));
  QG_ASSIGN_OR_RETURN(state.scale, context.engine.ToDevice(state.scale, context.cancellation));
  QG_ASSIGN_OR_RETURN(state.amax_history,
                      context.engine.ToDevice(state.amax_history, context.cancellation));
  return absl::OkStatus();
}

absl::StatusOr<DistributedOptimizer> DistributedOptimizer::Restore(
    const GatherContext& context, DistributedOptimizerSpec spec,
    std::vector<DistributedParameter> parameters, const ShardCheckpoint& checkpoint,
    Delayed& delayed) {
  DistributedOptimizer optimizer(std::move(spec), std::move(parameters));
  QG_RETURN_IF_ERROR(optimizer.CheckParameters(context));
  const auto& metadata = checkpoint.metadata();
  const auto identity = metadata.find(kIdentityKey);
  if (identity == metadata.end() || identity->second != optimizer.Identity()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "checkpoint of shards: of ",
        identity == metadata.end() ? std::string("no distributed optimizer") : identity->second,
        "; this one is ", optimizer.Identity()));
  }
  const auto steps = metadata.find(kStepsKey);
  if (steps == metadata.end() || !absl::SimpleAtoi(steps->second, &optimizer.steps_) ||
      optimizer.steps_ < 0) {
    return absl::InvalidArgumentError(
        "checkpoint of shards: metadata \"steps\" must be an integer from 0 on");
  }
  Delayed states = delayed;
  for (const DistributedParameter& parameter : optimizer.parameters_) {
    QG_RETURN_IF_ERROR(optimizer.RestoreOne(context, parameter, checkpoint, states));
  }
  delayed = std::move(states);
  return optimizer;
}

}  // namespace quantgate
