#include "kernels/layer/experts/expert_amaxes.h"

#include "kernels/layer/amax_reduction.h"

namespace quantgate {

absl::StatusOr<QuantizeArguments> ExpertAmaxes::Of(StepRecorder& recorder, TensorRole role,
                                                   int expert, Usages usages) {
  const AmaxOfRole amax(options_, role);
  if (!amax.IsReduced(options_.recipe.QuantizerFor(role), usages)) return QuantizeArguments();
  auto found = reduced_.find(role);
  if (found == reduced_.end()) {
    QG_ASSIGN_OR_RETURN(std::vector<QuantizeArguments> all, Reduce(recorder, role, usages));
    found = reduced_.emplace(role, std::move(all)).first;
  }
  return found->second[static_cast<size_t>(expert)];
}

absl::StatusOr<Tensor> ExpertAmaxes::SourceOf(StepRecorder& recorder, TensorRole role, int expert,
                                              Usages usages) {
  const AmaxOfRole amax(options_, role);
  if (!amax.IsReduced(options_.recipe.QuantizerFor(role), usages)) return Tensor();
  QG_ASSIGN_OR_RETURN(const std::vector<Tensor>* const sources, Made(role));
  return (*sources)[static_cast<size_t>(expert)];
}

absl::StatusOr<const std::vector<Tensor>*> ExpertAmaxes::Made(TensorRole role) {
  auto found = made_.find(role);
  if (found == made_.end()) {
    QG_ASSIGN_OR_RETURN(std::vector<Tensor> sources, sources_(role));
    found = made_.emplace(role, std::move(sources)).first;
  }
  return &found->second;
}

absl::StatusOr<std::vector<QuantizeArguments>> ExpertAmaxes::Reduce(StepRecorder& recorder,
                                                                    TensorRole role,
                                                                    Usages usages) {
  const AmaxOfRole amax(options_, role);
  QG_ASSIGN_OR_RETURN(const std::vector<Tensor>* const sources, Made(role));
  std::vector<QuantizeArguments> arguments(sources->size());
  AmaxPlaces places = options_.experts;
  if (places.all == 0) places = {0, static_cast<int64_t>(sources->size())};
  QG_RETURN_IF_ERROR(recorder.Timed({StageKind::kCommunicate, amax.Stage()}, [&] {
    const GatherContext context{recorder.engine(), amax.end(), amax.end().faults(),
                                recorder.cancellation()};
    return ReduceAmaxesOfAll(context, *sources, places, options_.recipe.QuantizerFor(role), usages,
                             arguments);
  }));
  return arguments;
}

}  // namespace quantgate
