#include "kernels/validate/ranks/parallel_variant.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/comm/group/world.h"
#include "kernels/comm/row_blocks.h"
#include "kernels/layer/amax_reduction.h"
#include "kernels/layer/experts/expert_run.h"
#include "kernels/layer/layer_sharding.h"
#include "kernels/quantize/quantized_outline.h"

namespace quantgate {
namespace {

/// Divides outlines as ShardLayer divides tensors.
class ShardOutline {
 public:
  ShardOutline(const ParallelStep& step) : step_(step) {}

  absl::StatusOr<Tensor> Of(const std::string& field, const Tensor& whole, ShardRule rule,
                            bool divides_rows) const {
    if (!whole.has_value()) return Tensor();
    Shape shape = whole.shape();
    if (divides_rows && step_.divides_rows()) {
      if (shape.size() < 2) {
        return Refuse(field, TensorText(whole),
                      "under sequence parallelism its rank must be at least 2: dim 0 is divided");
      }
      shape[0] = step_.rows[static_cast<size_t>(step_.rank())];
    }
    if (rule.dim != -1) {
      const size_t dim = rule.dim < 0 ? shape.size() - 1 : static_cast<size_t>(rule.dim);
      const int64_t multiple = static_cast<int64_t>(rule.parts) * step_.size();
      if (dim >= shape.size() || shape[dim] % multiple != 0) {
        return Refuse(
            field, TensorText(whole),
            absl::StrCat("dim ", dim, " is divided over the ", step_.size(),
                         " ranks of the tensor-parallel group, so that it must be a multiple of ",
                         multiple));
      }
      shape[dim] /= step_.size();
    }
    return OutlineTensor(whole.dtype(), std::move(shape));
  }

 private:
  const ParallelStep& step_;
};

/// Refuses operations in a parallel chain for whose outputs a report cannot derive what they should
/// be.
absl::Status CheckChain(const LayerSpec& layer, const ParallelSpec& parallel) {
  for (size_t i = 0; i < layer.operations.size(); ++i) {
    const OperationSpec& operation = layer.operations[i];
    const std::string field = absl::StrCat("layer.operations[", i, "]");
    if (operation.kind == OperationKind::kAdd) {
      return StatusOf({.code = absl::StatusCode::kUnimplemented,
                       .field = field + ".kind",
                       .value = "add",
                       .rule = "a parallel variant takes no chain with one: the gradients of its "
                               "operands are not derived over ranks"});
    }
    if (operation.kind == OperationKind::kBasicLinear && parallel.sequence_parallel &&
        operation.parallel_mode == ParallelMode::kNone) {
      return Refuse(field + ".parallel_mode", "none",
                    "under sequence parallelism every basic_linear of a chain is column- or "
                    "row-parallel: the gradient of another weight would be one rank's part");
    }
  }
  return absl::OkStatus();
}

/// Checks a grouped_linear, for which the layers around it communicate.
absl::Status CheckGrouped(const std::string& field, const Tensor& x, const ParallelSpec& parallel) {
  if (parallel.overlap.has_value()) {
    return Refuse(field + ".parallel.overlap", "given",
                  "a grouped_linear has no communication to overlap");
  }
  if (!parallel.sequence_parallel || x.rank() >= 2) return absl::OkStatus();
  return Refuse("x", TensorText(x),
                "under sequence parallelism its rank must be at least 2: dim 0 is divided");
}

absl::Status CheckKind(const std::string& field, const LayerRequest& step,
                       const ParallelSpec& parallel) {
  const LayerSpec& layer = step.layer;
  if (!HasParallelMode(layer)) {
    const bool is_chain = layer.traits().has_operations;
    return Refuse(is_chain ? "layer.operations" : "layer.parallel_mode", "none",
                  is_chain ? "a parallel variant needs a basic_linear with a parallel_mode, column "
                             "or row"
                           : "a parallel variant needs column or row");
  }
  if (layer.traits().has_experts) return CheckGrouped(field, step.x, parallel);
  return layer.traits().has_operations ? CheckChain(layer, parallel) : absl::OkStatus();
}

/// A refusal of one side of the overlap plan, with the field of the request. `part`: the refused
/// field below the plan of that side.
absl::Status OfOverlap(const std::string& field, const ParallelSpec& parallel, const char* side,
                       const absl::Status& status, absl::string_view part) {
  const std::string overlap = field + ".parallel.overlap";
  if (!absl::ConsumePrefix(&part, ".overlap.")) {
    absl::ConsumePrefix(&part, ".");
    if (part == "profile" || absl::EndsWith(part, ".profile")) part = "reduction_profile";
    const std::string said(AsField(std::string(part), status).message());
    return StatusOf(
        {.code = status.code(), .field = overlap, .value = parallel.overlap->Text(), .rule = said});
  }
  const bool is_of_side = part == "fprop" || part == "dgrad" || part == "wgrad";
  return AsField(absl::StrCat(overlap, ".", is_of_side ? side : "", is_of_side ? "_" : "", part),
                 status);
}

/// A refusal of a rank's part, with the fields of the whole request. `first_expert`: the first
/// expert of the part.
absl::Status OfPart(const std::string& field, const ParallelSpec& parallel,
                    const absl::Status& status, int64_t first_expert = 0) {
  std::optional<Refusal> refusal = RefusalOf(status);
  if (!refusal.has_value()) return status;
  for (const char* side : {"column", "row"}) {
    absl::string_view part = refusal->field;
    if (absl::ConsumePrefix(&part, absl::StrCat("parallel.", side, "_overlap"))) {
      return OfOverlap(field, parallel, side, status, part);
    }
  }
  if (absl::string_view rest = refusal->field; absl::ConsumePrefix(&rest, "layer.m_splits[")) {
    int64_t number = 0;
    if (absl::SimpleAtoi(rest.substr(0, rest.find(']')), &number)) {
      refusal->field =
          absl::StrCat("layer.m_splits[", first_expert + number, rest.substr(rest.find(']')));
    }
  }
  absl::StrAppend(&refusal->rule, " (of a rank's part under ", field, ".parallel)");
  return StatusOf(*refusal);
}

/// Checks that a rank can do its part, and that `arithmetic` takes the part's GEMMs.
absl::Status CheckPart(const std::string& field, const ParallelSpec& parallel,
                       const LayerRequest& part, const Recipe& recipe, const Arithmetic& arithmetic,
                       int64_t first_expert = 0) {
  if (absl::Status status = CheckLayerTensors(part); !status.ok()) {
    return OfPart(field, parallel, status, first_expert);
  }
  const absl::StatusOr<LayerPlanPointer> plan = DecideLayer(part, recipe);
  if (!plan.ok()) return OfPart(field, parallel, plan.status(), first_expert);
  const absl::Status status = CheckLayerGemms(**plan, arithmetic);
  if (status.ok()) return status;
  return StatusOf({.code = status.code(),
                   .field = field + ".arithmetic",
                   .value = arithmetic.ToString(),
                   .rule = absl::StrCat("it does not take ", recipe.ShortText(),
                                        " in a rank's part: ", status.message())});
}

/// Refuses options that only sessions have.
absl::Status CheckNoDivision(const std::string& field, const ParallelSpec& parallel,
                             const char* rule) {
  struct Given {
    const char* name;
    bool is_given;
    const char* value;
  };
  const Given options[] = {{"fully_sharded", parallel.fully_sharded, "true"},
                           {"reshard_after_forward", !parallel.reshard_after_forward, "false"},
                           {"distributed_optimizer", parallel.distributed_optimizer, "true"}};
  for (const Given& option : options) {
    if (!option.is_given) continue;
    return Refuse(absl::StrCat(field, ".parallel.", option.name), option.value, rule);
  }
  return absl::OkStatus();
}

absl::Status CheckProfileOf(const std::string& field, const ParallelSpec& parallel) {
  if (parallel.profile.kind != ReductionKind::kNccl ||
      parallel.backend == CollectiveBackend::kNccl) {
    return absl::OkStatus();
  }
  return Refuse(field + ".parallel.reduction_profile", "nccl",
                "the library's own sum needs backend nccl");
}

/// The request of one rank's experts, with outlines for tensors.
absl::StatusOr<LayerRequest> OutlineExperts(const LayerRequest& step, const ParallelSpec& parallel,
                                            int rank) {
  const int ranks = parallel.expert_parallel, place = rank % ranks;
  LayerRequest of_copy = step;
  of_copy.layer = LayerOfCopy(step.layer, parallel.data_parallel, rank / ranks);
  const ExpertDivision division = DivideExperts(of_copy.layer, ranks);
  const auto first = static_cast<size_t>(division.first_expert[static_cast<size_t>(place)]);
  const auto last = static_cast<size_t>(division.first_expert[static_cast<size_t>(place) + 1]);
  const int64_t rows = division.first_row[last] - division.first_row[first];
  QG_ASSIGN_OR_RETURN(Tensor x, OutlineTensor(step.x.dtype(), {rows, step.x.columns()}));
  Tensor dy = step.grad_output;
  if (dy.has_value()) {
    QG_ASSIGN_OR_RETURN(dy, OutlineTensor(dy.dtype(), {rows, dy.columns()}));
  }
  return ExpertsOfRank(of_copy, division, place, std::move(x), std::move(dy));
}

/// Checks a variant with divided experts.
absl::Status CheckExpertParallel(const std::string& field, const LayerRequest& step,
                                 const ParallelSpec& parallel, const Recipe& recipe,
                                 const Arithmetic& arithmetic) {
  const int ranks = parallel.expert_parallel;
  const auto refuse = [&](const char* name, const std::string& value, const std::string& rule) {
    return Refuse(absl::StrCat(field, ".parallel.", name), value, rule);
  };
  if (ranks < 2 || ranks > kWorldSizeMax) {
    return refuse("expert_parallel", absl::StrCat(ranks),
                  absl::StrCat("a group has 2 to ", kWorldSizeMax, " ranks"));
  }
  const int copies = parallel.data_parallel;
  if (parallel.tensor_parallel != 1) {
    return refuse("tensor_parallel", absl::StrCat(parallel.tensor_parallel),
                  "with expert_parallel the ranks of a copy divide experts alone");
  }
  if (copies < 1 || copies > kWorldSizeMax || parallel.size() > kWorldSizeMax) {
    return refuse("data_parallel", absl::StrCat(copies),
                  absl::StrCat("copies of ", ranks, " ranks: at least 1, with at most ",
                               kWorldSizeMax, " ranks in all"));
  }
  QG_RETURN_IF_ERROR(CheckAmaxGroups(field + ".parallel.", parallel.amax_groups, parallel, recipe,
                                     QuantizedLayers::kExpertsAlone));
  QG_RETURN_IF_ERROR(CheckNoDivision(field, parallel, "experts' weights are whole on their ranks"));
  if (parallel.sequence_parallel || parallel.overlap.has_value()) {
    return refuse(parallel.sequence_parallel ? "sequence_parallel" : "overlap", "given",
                  "it needs tensor_parallel > 1");
  }
  if (parallel.profile != ReductionProfile{} && copies == 1) {
    return refuse("reduction_profile", ReductionProfileName(parallel.profile),
                  "with expert_parallel, and data_parallel 1, nothing is summed over ranks");
  }
  QG_RETURN_IF_ERROR(CheckProfileOf(field, parallel));
  if (copies > 1 && !step.main_grads.empty()) {
    return Refuse("main_grads", step.main_grads.begin()->first,
                  "what it held before would be added once for each copy (data_parallel)");
  }
  const LayerSpec& layer = step.layer;
  if (!layer.traits().has_experts) {
    return Refuse("layer.kind", std::string(LayerKindName(layer.kind)),
                  "expert_parallel divides the experts of a grouped_linear");
  }
  if (HasParallelMode(layer)) {
    return Refuse("layer.parallel_mode", std::string(ParallelModeName(layer.parallel_mode)),
                  "with expert_parallel every expert is whole on its rank");
  }
  if (layer.m_splits.size() < static_cast<size_t>(ranks)) {
    return refuse("expert_parallel", absl::StrCat(ranks),
                  absl::StrCat("each rank has an expert at least, of ", layer.m_splits.size()));
  }
  for (int rank = 0; rank < parallel.size(); ++rank) {
    QG_ASSIGN_OR_RETURN(const LayerRequest own, OutlineExperts(step, parallel, rank));
    const int64_t first =
        DivideExperts(layer, ranks).first_expert[static_cast<size_t>(rank % ranks)];
    QG_RETURN_IF_ERROR(CheckPart(field, parallel, own, recipe, arithmetic, first));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LayerRequest> OutlineShard(const LayerRequest& whole, const ParallelSpec& parallel,
                                          const Recipe& recipe, int rank) {
  const LayerSpec& layer = whole.layer;
  ParallelStep step = StepOf(parallel, recipe);
  step.size_without_group = parallel.tensor_parallel;
  step.rank_without_group = rank;
  if (step.divides_rows() && whole.x.rank() > 0) {
    step.rows = EvenRows(whole.x.shape()[0], parallel.tensor_parallel);
  }
  const ShardOutline outline(step);
  LayerRequest shard = whole;
  QG_ASSIGN_OR_RETURN(shard.x,
                      outline.Of("x", whole.x, InputColumns(layer), DividesInputRows(layer)));
  QG_ASSIGN_OR_RETURN(
      shard.grad_output,
      outline.Of("grad_output", whole.grad_output, OutputColumns(layer), DividesOutputRows(layer)));
  for (const auto& [field, tensors] :
       {std::pair("parameters", &shard.parameters), std::pair("main_grads", &shard.main_grads)}) {
    for (auto& [name, tensor] : *tensors) {
      QG_ASSIGN_OR_RETURN(tensor, outline.Of(absl::StrCat(field, "[", name, "]"), tensor,
                                             ParameterShardRule(layer, name), false));
    }
  }
  shard.parallel = std::make_shared<const ParallelStep>(std::move(step));
  return shard;
}

absl::Status CheckParallel(const std::string& field, const LayerRequest& step,
                           const ParallelSpec& parallel, const Recipe& recipe,
                           const Arithmetic& arithmetic) {
  if (parallel.expert_parallel != 1) {
    return CheckExpertParallel(field, step, parallel, recipe, arithmetic);
  }
  if (parallel.data_parallel != 1) {
    return Refuse(field + ".parallel.data_parallel", absl::StrCat(parallel.data_parallel),
                  "only sessions, whose optimizer sums gradients, and layers with expert_parallel "
                  "have copies");
  }
  if (parallel.tensor_parallel < 2 || parallel.tensor_parallel > kWorldSizeMax) {
    return Refuse(field + ".parallel.tensor_parallel", absl::StrCat(parallel.tensor_parallel),
                  absl::StrCat("a group has 2 to ", kWorldSizeMax, " ranks"));
  }
  QG_RETURN_IF_ERROR(CheckNoDivision(
      field, parallel, "weights and masters are divided in sessions, over copies of the layers"));
  QG_RETURN_IF_ERROR(CheckProfileOf(field, parallel));
  QG_RETURN_IF_ERROR(CheckAmaxGroups(field + ".parallel.", parallel.amax_groups, parallel, recipe));
  QG_RETURN_IF_ERROR(CheckKind(field, step, parallel));
  for (int rank = 0; rank < parallel.tensor_parallel; ++rank) {
    QG_ASSIGN_OR_RETURN(const LayerRequest part, OutlineShard(step, parallel, recipe, rank));
    QG_RETURN_IF_ERROR(CheckPart(field, parallel, part, recipe, arithmetic));
  }
  return absl::OkStatus();
}

}  // namespace quantgate
