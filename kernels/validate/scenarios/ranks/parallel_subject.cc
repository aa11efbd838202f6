#include "kernels/validate/scenarios/ranks/parallel_subject.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/comm/row_blocks.h"
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

RankLayer::RankLayer(Rank& rank, const LayerRequest& shard) : rank_(rank), spec_(shard.layer) {
  for (const auto& [name, tensor] : shard.parameters) state_.parameters[name].value = tensor;
}

absl::StatusOr<ForwardResult> RankLayer::Forward(const Tensor& x, const StepOptions& options) {
  StepRecorder recorder(rank_.engine(), Arithmetic(), rank_.cancellation());
  recorder.SeedFaults(rank_.faults());
  return ForwardLayer(recorder, spec_, state_, x, options);
}

absl::StatusOr<BackwardResult> RankLayer::Backward(std::unique_ptr<LayerSaved> saved,
                                                   const Tensor& dy) {
  StepRecorder recorder(rank_.engine(), Arithmetic(), rank_.cancellation());
  recorder.SeedFaults(rank_.faults());
  QG_ASSIGN_OR_RETURN(BackwardResult backward,
                      BackwardLayer(recorder, spec_, state_, std::move(saved), dy));
  QG_ASSIGN_OR_RETURN(records_, recorder.Finish());
  return backward;
}

StepTensors TensorsOf(const RankLayer& layer, const Tensor& y, const BackwardResult& backward) {
  StepTensors tensors{.y = y, .dx = backward.dx};
  for (const NamedTensor& gradient : backward.gradients) {
    if (gradient.name == "dw") tensors.dw = gradient.tensor;
  }
  for (const GemmRecord& gemm : layer.records().gemms) {
    if (gemm.role != GemmRole::kWgrad) continue;
    tensors.wgrad_grad_output = gemm.desc.a;
    tensors.wgrad_x = gemm.desc.b;
  }
  return tensors;
}

absl::StatusOr<StepTensors> OnHost(Rank& rank, StepTensors tensors) {
  for (Tensor* tensor :
       {&tensors.y, &tensors.dx, &tensors.dw, &tensors.wgrad_grad_output.data,
        &tensors.wgrad_grad_output.scale_inv, &tensors.wgrad_x.data, &tensors.wgrad_x.scale_inv}) {
    QG_ASSIGN_OR_RETURN(*tensor, rank.engine().ToHost(*tensor, rank.cancellation()));
  }
  return tensors;
}

absl::StatusOr<LayerRequest> ShardOn(Rank& rank, const LayerRequest& whole, ParallelStep step) {
  QG_ASSIGN_OR_RETURN(LayerRequest shard, ShardLayer(rank.engine(), whole, std::move(step)));
  std::vector<Tensor*> tensors = {&shard.x, &shard.grad_output};
  for (auto& [name, tensor] : shard.parameters) tensors.push_back(&tensor);
  for (Tensor* tensor : tensors) {
    QG_ASSIGN_OR_RETURN(*tensor, rank.engine().ToDevice(*tensor, rank.cancellation()));
  }
  return shard;
}

absl::StatusOr<LayerRequest> ShardOn(Rank& rank, const LayerRequest& whole, ProcessGroup& group,
                                     bool sequence_parallel) {
  return ShardOn(rank, whole, {.tp = &group, .sequence_parallel = sequence_parallel});
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
    shards.push_back(
        {.y = OutputOf(result, "y"), .dx = OutputOf(result, "dx"), .dw = OutputOf(result, "dw")});
  }
  return shards;
}

absl::StatusOr<Tensor> SumInOrder(const std::vector<Tensor>& parts) {
  const ExecutionContext context;
  QG_ASSIGN_OR_RETURN(Tensor sum, CastTensor(parts[0], DType::kF32, context));
  // CastTensor returns an f32 tensor itself, which must not be added to: this copies it.
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
  QG_ASSIGN_OR_RETURN(const std::vector<Tensor> parts,
                      RowBlocks(tensor, EvenRows(tensor.shape()[0], size)));
  return parts[static_cast<size_t>(rank)];
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

absl::StatusOr<StepTensors> OneStep(ScenarioContext& context, Rank& rank,
                                    const LayerRequest& shard) {
  RankLayer layer(rank, shard);
  QG_ASSIGN_OR_RETURN(ForwardResult forward, layer.Forward(shard.x, StepOptionsOf(context, shard)));
  QG_ASSIGN_OR_RETURN(const BackwardResult backward,
                      layer.Backward(std::move(forward.saved), shard.grad_output));
  return TensorsOf(layer, forward.y, backward);
}

absl::StatusOr<std::vector<StepTensors>> StepOnRanks(ScenarioContext& context,
                                                     const LayerRequest& whole, int size,
                                                     bool sequence_parallel) {
  QG_ASSIGN_OR_RETURN(const auto world, MakeVirtualRanks(context, size));
  std::vector<StepTensors> steps(static_cast<size_t>(size));
  const bool is_done = RunBodies(context, "step", *world, [&](Rank& rank) -> absl::Status {
    QG_ASSIGN_OR_RETURN(const LayerRequest shard,
                        ShardOn(rank, whole, rank.group(kWorldGroup), sequence_parallel));
    QG_ASSIGN_OR_RETURN(StepTensors step, OneStep(context, rank, shard));
    QG_ASSIGN_OR_RETURN(steps[static_cast<size_t>(rank.index())], OnHost(rank, std::move(step)));
    return absl::OkStatus();
  });
  return is_done ? steps : std::vector<StepTensors>{};
}

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

absl::Status ExpectStepsOfRanks(ScenarioContext& context, const std::vector<StepTensors>& subjects,
                                const LayerRequest& whole, bool sequence_parallel) {
  if (subjects.empty()) return absl::OkStatus();
  const int size = static_cast<int>(subjects.size());
  QG_ASSIGN_OR_RETURN(const std::vector<StepTensors> expected,
                      ExpectedRanks(context, whole, size, sequence_parallel));
  for (int rank = 0; rank < size; ++rank) {
    const size_t i = static_cast<size_t>(rank);
    QG_RETURN_IF_ERROR(ExpectStep(context,
                                  ModeText(whole.layer.parallel_mode, sequence_parallel, rank),
                                  subjects[i], expected[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<StatesByName> StatesAfter(Engine& engine, const LayerResult& result) {
  StatesByName states;
  for (const NamedTensor& part : result.state) {
    const size_t dot = part.name.rfind('.');
    DelayedScalingState& state = states[part.name.substr(0, dot)];
    Tensor& kept = part.name.substr(dot) == ".scale" ? state.scale : state.amax_history;
    QG_ASSIGN_OR_RETURN(kept, engine.ToHost(part.tensor, nullptr));
  }
  return states;
}

std::string ModeText(ParallelMode mode, bool sequence_parallel, int rank) {
  return absl::StrCat(std::string(ParallelModeName(mode)), sequence_parallel ? " SP" : "",
                      ", rank ", rank, ":");
}

}  // namespace quantgate
