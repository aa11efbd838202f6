#include "kernels/validate/scenarios/parallel_subject.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/convert.h"

namespace quantgate {
namespace {

const Tensor& OutputOf(const LayerResult& result, const std::string& name) {
  static const Tensor& absent = *new Tensor;
  for (const NamedTensor& output : result.outputs) {
    if (output.name == name) return output.tensor;
  }
  return absent;
}

}  // namespace

RankLayer::RankLayer(ScenarioContext& context, const LayerRequest& shard)
    : context_(context), spec_(shard.layer) {
  for (const auto& [name, tensor] : shard.parameters) state_.parameters[name].value = tensor;
}

absl::StatusOr<ForwardResult> RankLayer::Forward(const Tensor& x, const StepOptions& options) {
  StepRecorder recorder(context_.engine(), Arithmetic(), context_.cancellation());
  recorder.SeedFaults(context_.faults());
  return ForwardLayer(recorder, spec_, state_, x, options);
}

absl::StatusOr<BackwardResult> RankLayer::Backward(std::unique_ptr<LayerSaved> saved,
                                                   const Tensor& dy) {
  StepRecorder recorder(context_.engine(), Arithmetic(), context_.cancellation());
  recorder.SeedFaults(context_.faults());
  return BackwardLayer(recorder, spec_, state_, std::move(saved), dy);
}

StepTensors TensorsOf(const Tensor& y, const BackwardResult& backward) {
  StepTensors tensors{y, backward.dx, {}};
  for (const NamedTensor& gradient : backward.gradients) {
    if (gradient.name == "dw") tensors.dw = gradient.tensor;
  }
  return tensors;
}

void RunBodies(ScenarioContext& context, std::string_view what, World& world,
               const std::function<absl::Status(Rank& rank)>& body) {
  context.ExpectCode(what, world.Run(body, context.cancellation()), absl::StatusCode::kOk);
}

absl::StatusOr<LayerRequest> ShardOn(ScenarioContext& context, const LayerRequest& whole,
                                     ProcessGroup& group, bool sequence_parallel) {
  return ShardOn(context, whole, {.tp = &group, .sequence_parallel = sequence_parallel});
}

absl::StatusOr<LayerRequest> ShardOn(ScenarioContext& context, const LayerRequest& whole,
                                     ParallelStep step) {
  QG_ASSIGN_OR_RETURN(LayerRequest shard, ShardLayer(context.engine(), whole, std::move(step)));
  QG_ASSIGN_OR_RETURN(shard.x, context.ToEngine(shard.x));
  QG_ASSIGN_OR_RETURN(shard.grad_output, context.ToEngine(shard.grad_output));
  for (auto& [name, tensor] : shard.parameters) {
    QG_ASSIGN_OR_RETURN(tensor, context.ToEngine(tensor));
  }
  return shard;
}

StepOptions StepOptionsOf(ScenarioContext& context, const LayerRequest& shard) {
  return {.recipe = context.recipe(), .seed = shard.seed, .parallel = shard.parallel};
}

absl::StatusOr<std::vector<StepTensors>> ShardsAlone(ScenarioContext& context,
                                                     const LayerRequest& whole, int size,
                                                     const Tensor& weight) {
  std::vector<StepTensors> shards;
  for (int rank = 0; rank < size; ++rank) {
    ParallelStep step;
    step.size_without_group = size;
    step.rank_without_group = rank;
    QG_ASSIGN_OR_RETURN(LayerRequest shard,
                        ShardLayer(context.reference(), whole, std::move(step)));
    shard.parallel = nullptr;
    if (weight.has_value()) shard.parameters["weight"] = weight;
    if (shard.layer.parallel_mode == ParallelMode::kRow) shard.parameters.erase("bias");
    QG_ASSIGN_OR_RETURN(const LayerResult result,
                        RunLayer(context.reference(), shard, context.recipe(), Arithmetic(),
                                 context.cancellation()));
    shards.push_back({OutputOf(result, "y"), OutputOf(result, "dx"), OutputOf(result, "dw")});
  }
  return shards;
}

absl::StatusOr<Tensor> SumInOrder(const std::vector<Tensor>& parts) {
  const ExecutionContext context;
  QG_ASSIGN_OR_RETURN(Tensor sum, CastTensor(parts[0], DType::kF32, context));
  // The cast of an f32 tensor is itself.
  QG_ASSIGN_OR_RETURN(sum, Tensor::FromBytes(DType::kF32, sum.shape(), sum.bytes()));
  for (size_t i = 1; i < parts.size(); ++i) {
    QG_ASSIGN_OR_RETURN(const Tensor part, CastTensor(parts[i], DType::kF32, context));
    for (int64_t at = 0; at < sum.element_count(); ++at) {
      sum.as<float>()[at] += part.as<float>()[at];
    }
  }
  return CastTensor(sum, parts[0].dtype(), context);
}

absl::StatusOr<Tensor> RowPart(const Tensor& tensor, int rank, int size) {
  const int64_t count = tensor.shape()[0] / size;
  return tensor.RowRange(rank * count, count);
}

absl::StatusOr<LayerRequest> MakeParallelLinear(ScenarioContext& context, ParallelMode mode,
                                                int64_t rows, uint64_t seed, int64_t columns) {
  LayerRequest request;
  request.layer.parallel_mode = mode;
  request.seed = 5;
  QG_ASSIGN_OR_RETURN(request.x, context.Generate(Distribution::kLogNormalOutliers, seed,
                                                  DType::kBF16, {rows, columns}));
  QG_ASSIGN_OR_RETURN(request.grad_output, context.Generate(Distribution::kNormal, seed + 1,
                                                            DType::kBF16, {rows, columns}));
  QG_ASSIGN_OR_RETURN(request.parameters["weight"],
                      context.Generate(Distribution::kNormal, 3, DType::kBF16, {columns, columns}));
  return request;
}

/// A training step of one rank.
absl::StatusOr<StepTensors> OneStep(ScenarioContext& context, const LayerRequest& shard) {
  RankLayer layer(context, shard);
  QG_ASSIGN_OR_RETURN(ForwardResult forward, layer.Forward(shard.x, StepOptionsOf(context, shard)));
  QG_ASSIGN_OR_RETURN(const BackwardResult backward,
                      layer.Backward(std::move(forward.saved), shard.grad_output));
  return TensorsOf(forward.y, backward);
}

/// What every rank of a group gives, from its shards alone.
absl::StatusOr<std::vector<StepTensors>> ExpectedRanks(ScenarioContext& context,
                                                       const LayerRequest& whole, int size,
                                                       bool sequence_parallel,
                                                       const Tensor& weight) {
  QG_ASSIGN_OR_RETURN(std::vector<StepTensors> shards, ShardsAlone(context, whole, size, weight));
  const bool is_row = whole.layer.parallel_mode == ParallelMode::kRow;
  std::vector<Tensor> partials;
  for (const StepTensors& shard : shards) partials.push_back(is_row ? shard.y : shard.dx);
  QG_ASSIGN_OR_RETURN(const Tensor sum, SumInOrder(partials));
  for (int rank = 0; rank < size; ++rank) {
    StepTensors& shard = shards[static_cast<size_t>(rank)];
    Tensor& reduced = is_row ? shard.y : shard.dx;
    reduced = sum;
    if (!sequence_parallel) continue;
    QG_ASSIGN_OR_RETURN(reduced, RowPart(sum, rank, size));
  }
  return shards;
}

absl::Status ExpectStep(ScenarioContext& context, const std::string& name,
                        const StepTensors& subject, const StepTensors& expected) {
  QG_RETURN_IF_ERROR(context.ExpectSameBits(name + " y", subject.y, expected.y));
  QG_RETURN_IF_ERROR(context.ExpectSameBits(name + " dx", subject.dx, expected.dx));
  return context.ExpectSameBits(name + " dw", subject.dw, expected.dw);
}

std::string ModeText(ParallelMode mode, bool sequence_parallel, int rank) {
  return absl::StrCat(std::string(ParallelModeName(mode)), sequence_parallel ? " SP" : "",
                      ", rank ", rank, ":");
}

}  // namespace quantgate
