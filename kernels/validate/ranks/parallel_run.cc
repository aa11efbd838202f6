#include "kernels/validate/ranks/parallel_run.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/gemm.h"
#include "kernels/layer/amax_reduction.h"
#include "kernels/layer/experts/expert_run.h"
#include "kernels/layer/experts/grouped_run.h"
#include "kernels/layer/layer_sharding.h"
#include "kernels/validate/explain/explain_gemm.h"
#include "kernels/validate/run/run.h"

namespace quantgate {
namespace {

/// The request with its tensors imported for this engine. States of delayed scaling stay on the
/// host.
absl::StatusOr<LayerRequest> Imported(Engine& engine, const LayerRequest& whole) {
  LayerRequest request = whole;
  std::vector<Tensor*> tensors = {&request.x, &request.grad_output};
  for (auto* by_name : {&request.parameters, &request.main_grads}) {
    for (auto& [name, tensor] : *by_name) tensors.push_back(&tensor);
  }
  for (Tensor* tensor : tensors) {
    QG_ASSIGN_OR_RETURN(*tensor, ImportedFor(engine, *tensor));
  }
  return request;
}

absl::Status RunExpertsOfRank(Rank& rank, const LayerRequest& whole, const Variant& variant,
                              RankStep& mine) {
  ExpertGroups groups{&rank.group(kExpertParallelGroup)};
  if (variant.parallel->data_parallel > 1) groups.copies = &rank.group(kDataParallelGroup);
  groups.profile = variant.parallel->profile;
  if (!variant.parallel->amax_groups.empty()) {
    auto amaxes = std::make_shared<ParallelStep>(StepOf(*variant.parallel, variant.recipe));
    QG_RETURN_IF_ERROR(AttachAmaxGroups(rank, *amaxes));
    groups.step = std::move(amaxes);
  }
  QG_ASSIGN_OR_RETURN(ExpertStep step, RunExperts(rank.engine(), groups, whole, variant.recipe,
                                                  variant.arithmetic, rank.cancellation()));
  mine.request = std::move(step.request);
  mine.result = std::move(step.result);
  mine.tokens = std::move(step.tokens);
  mine.rows = std::move(step.rows);
  mine.own_gradients = std::move(step.own_gradients);
  const auto place = static_cast<size_t>(groups.experts->rank());
  mine.first_expert = DivideExperts(whole.layer, groups.experts->size()).first_expert[place];
  return absl::OkStatus();
}

absl::Status RunGroupedOfRank(Rank& rank, const LayerRequest& whole, const Variant& variant,
                              ParallelStep step, RankStep& mine) {
  QG_ASSIGN_OR_RETURN(GroupedStep done,
                      RunGrouped(rank.engine(), whole, std::move(step), variant.recipe,
                                 variant.arithmetic, rank.cancellation()));
  mine.request = std::move(done.request);
  mine.result = std::move(done.result);
  mine.partials = std::move(done.partials);
  return absl::OkStatus();
}

/// The most names in a note, since several arithmetics may give all of a result.
constexpr size_t kNamesKept = 3;

/// The arithmetics that ExplainGemm finds in a result of this GEMM.
absl::StatusOr<std::string> Explained(Engine& engine, const GemmDesc& desc, const Tensor& d,
                                      const Cancellation* cancellation) {
  const auto to_host = [&](const Tensor& tensor) { return engine.ToHost(tensor, cancellation); };
  ExplainGemmRequest request;
  QG_ASSIGN_OR_RETURN(request.desc, WithTensors(desc, to_host));
  QG_ASSIGN_OR_RETURN(request.d, to_host(d));
  QG_ASSIGN_OR_RETURN(const GemmExplanation explanation,
                      ExplainGemm(request, {.cancellation = cancellation}));
  std::vector<std::string> names;
  for (const GemmCandidate& candidate : explanation.candidates) {
    if (!candidate.is_entire() || names.size() == kNamesKept) break;
    if (candidate.arithmetic.empty() && !names.empty()) break;  // Named ones come first.
    names.push_back(candidate.arithmetic.empty() ? candidate.rule : candidate.arithmetic);
  }
  if (names.empty()) return std::string("of no arithmetic that explain tries");
  return absl::StrCat("of ", absl::StrJoin(names, " or of "));
}

/// Compares a GEMM that was cut into pieces with the same GEMM in one piece, over all ranks.
class CutGemm {
 public:
  explicit CutGemm(const GemmRecord& first) : first_(first) {}

  absl::Status Add(Engine& engine, const GemmRecord& cut, const Cancellation* cancellation) {
    QG_ASSIGN_OR_RETURN(const GemmResult whole, engine.Gemm(cut.desc, cancellation));
    QG_ASSIGN_OR_RETURN(const ParityReport parity,
                        engine.CompareBits(cut.result.d, whole.d, cancellation));
    elements_ += cut.result.d.element_count();
    differing_ += parity.mismatch_count;
    if (&cut == &first_) whole_ = TextOf(whole);
    if (parity.mismatch_count == 0 || !why_.empty()) return absl::OkStatus();
    QG_ASSIGN_OR_RETURN(const std::string in_one,
                        Explained(engine, cut.desc, whole.d, cancellation));
    QG_ASSIGN_OR_RETURN(const std::string in_pieces,
                        Explained(engine, cut.desc, cut.result.d, cancellation));
    why_ = absl::StrCat("; explain: in one the bits are ", in_one, ", cut they are ", in_pieces);
    return absl::OkStatus();
  }

  std::string Note() const {
    return absl::StrCat(first_.output, ": ", GemmText(first_.desc), " in ", first_.pieces,
                        " GEMMs has ", differing_ == 0 ? "the bits of" : "other bits than",
                        " the same in one", differing_ == 0 ? "" : CountText(),
                        "; cut: ", TextOf(first_.result), "; in one: ", whole_, why_);
  }

 private:
  static std::string TextOf(const GemmResult& result) {
    return absl::StrCat(result.arithmetic.ToString(), " (", result.note, ")");
  }
  std::string CountText() const {
    return absl::StrCat(" in ", differing_, " of ", elements_, " elements over all ranks");
  }

  const GemmRecord& first_;
  int64_t elements_ = 0, differing_ = 0;
  std::string whole_, why_;
};

}  // namespace

absl::StatusOr<ParallelStepResult> RunOnRanks(const LayerRequest& whole, Engine& owner,
                                              const Variant& variant,
                                              const std::vector<Engine*>& engines,
                                              const RankSetting* setting,
                                              const Cancellation* cancellation) {
  const ParallelSpec& parallel = *variant.parallel;
  ParallelStepResult result;
  QG_ASSIGN_OR_RETURN(result.world, MakeWorld(parallel, engines, setting));
  result.ranks.resize(engines.size());
  result.overlaps.resize(engines.size());
  QG_ASSIGN_OR_RETURN(const std::shared_ptr<const Moment> given, owner.MarkMoment());
  const auto run_rank = [&](Rank& rank) -> absl::Status {
    const auto index = static_cast<size_t>(rank.index());
    RankStep& mine = result.ranks[index];
    mine.engine = &rank.engine();
    QG_RETURN_IF_ERROR(rank.engine().WaitFor(*given));
    QG_ASSIGN_OR_RETURN(const LayerRequest imported, Imported(rank.engine(), whole));
    if (parallel.expert_parallel > 1) {
      return RunExpertsOfRank(rank, imported, variant, mine);
    }
    ParallelStep step = StepOf(parallel, variant.recipe);
    step.tp = &rank.group(kTensorParallelGroup);
    QG_RETURN_IF_ERROR(AttachAmaxGroups(rank, step));
    if (imported.layer.traits().has_experts) {
      return RunGroupedOfRank(rank, imported, variant, std::move(step), mine);
    }
    if (parallel.overlap.has_value()) {
      QG_ASSIGN_OR_RETURN(result.overlaps[index], RankOverlap::Create(rank));
      step.overlap = &result.overlaps[index]->overlap();
    }
    QG_ASSIGN_OR_RETURN(mine.request, ShardLayer(rank.engine(), imported, std::move(step)));
    QG_ASSIGN_OR_RETURN(mine.result, RunLayer(rank.engine(), mine.request, variant.recipe,
                                              variant.arithmetic, rank.cancellation()));
    return absl::OkStatus();
  };
  QG_RETURN_IF_ERROR(result.world->Run(run_rank, cancellation));
  return result;
}

absl::StatusOr<std::vector<std::string>> CutGemmNotes(std::span<const RankStep> ranks,
                                                      const Cancellation* cancellation) {
  std::vector<std::string> notes;
  const std::vector<GemmRecord>& first = ranks[0].result.gemms;
  for (size_t i = 0; i < first.size(); ++i) {
    if (first[i].pieces == 1 || !GemmLineOf(first[i]).is_hardware) continue;
    CutGemm gemm(first[i]);
    for (const RankStep& rank : ranks) {
      QG_RETURN_IF_ERROR(gemm.Add(*rank.engine, rank.result.gemms[i], cancellation));
    }
    notes.push_back(gemm.Note());
  }
  return notes;
}

}  // namespace quantgate
