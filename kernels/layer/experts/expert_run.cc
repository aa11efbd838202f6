#include "kernels/layer/experts/expert_run.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/comm/row_blocks.h"
#include "kernels/layer/delayed_reduction.h"
#include "kernels/layer/layer_request.h"

namespace quantgate {
namespace {

/// The entries of experts [begin, end) in a map by parameter or state, under names that number
/// these experts from 0.
template <typename Value>
std::map<std::string, Value> OfExperts(const std::map<std::string, Value>& all, int64_t begin,
                                       int64_t end) {
  std::map<std::string, Value> some;
  for (const auto& [name, value] : all) {
    ParameterName of_rank = ParameterName::Parse(name);
    if (of_rank.expert < begin || of_rank.expert >= end) continue;
    of_rank.expert -= begin;
    some[of_rank.Text()] = value;
  }
  return some;
}

/// Divides the rows [0, m_splits[0]), ... into `parts`, each with an even part of each expert's
/// rows.
std::vector<std::vector<int64_t>> EvenRowsOfEach(const std::vector<int64_t>& m_splits, int parts) {
  std::vector<std::vector<int64_t>> rows(static_cast<size_t>(parts));
  int64_t row = 0;
  for (const int64_t split : m_splits) {
    const std::vector<int64_t> counts = EvenRows(split, parts);
    for (size_t part = 0; part < counts.size(); ++part) {
      for (int64_t i = 0; i < counts[part]; ++i) rows[part].push_back(row++);
    }
  }
  return rows;
}

/// The numbers in the whole x of rows of a copy; `rows` are the numbers of all rows of the copy.
std::vector<int64_t> RowsOfWhole(const std::vector<int64_t>& rows,
                                 std::span<const int64_t> of_copy) {
  std::vector<int64_t> of_whole;
  for (const int64_t row : of_copy) of_whole.push_back(rows[static_cast<size_t>(row)]);
  return of_whole;
}

/// One rank's step.
class ExpertRun {
 public:
  ExpertRun(Engine& engine, const ExpertGroups& groups, const LayerRequest& whole,
            const Recipe& recipe, const Arithmetic& arithmetic, const Cancellation* cancellation)
      : engine_(engine),
        groups_(groups),
        whole_(whole),
        recipe_(recipe),
        cancellation_(cancellation),
        copies_(groups.copies == nullptr ? 1 : groups.copies->size()),
        copy_(groups.copies == nullptr ? 0 : groups.copies->rank()),
        layer_(LayerOfCopy(whole.layer, copies_, copy_)),
        division_(DivideExperts(layer_, groups.experts->size())),
        recorder_(engine, arithmetic, cancellation) {}

  absl::StatusOr<ExpertStep> Run();

 private:
  int place() const { return groups_.experts->rank(); }
  const std::vector<int64_t>& own_tokens() const {
    return division_.tokens[static_cast<size_t>(place())];
  }
  void TakeRows(ExpertStep& step) const;
  absl::StatusOr<LayerRequest> OwnRequest(const std::vector<int64_t>& rows) const;
  absl::StatusOr<Tensor> RowsOf(const Tensor& whole, const std::vector<int64_t>& rows) const;
  absl::Status Update(const LayerSpec& spec, const LayerPlan& plan, LayerState& state,
                      UpdatePoint point);
  absl::Status SumGradients(ExpertStep& step, std::vector<NamedTensor>& gradients);

  Engine& engine_;
  const ExpertGroups groups_;
  const LayerRequest& whole_;
  const Recipe& recipe_;
  const Cancellation* const cancellation_;
  const int copies_, copy_;
  const LayerSpec layer_;  ///< This copy's.
  const ExpertDivision division_;
  StepRecorder recorder_;
};

void ExpertRun::TakeRows(ExpertStep& step) const {
  const std::vector<int64_t> of_copy = RowsOfCopy(whole_.layer, copies_, copy_);
  step.tokens = RowsOfWhole(of_copy, own_tokens());
  const auto first = division_.first_expert.begin() + place();
  const int64_t begin = division_.first_row[static_cast<size_t>(*first)];
  const int64_t end = division_.first_row[static_cast<size_t>(*(first + 1))];
  step.rows = {of_copy.begin() + begin, of_copy.begin() + end};
}

absl::StatusOr<LayerRequest> ExpertRun::OwnRequest(const std::vector<int64_t>& rows) const {
  LayerRequest of_copy = whole_;
  of_copy.layer = layer_;
  QG_ASSIGN_OR_RETURN(Tensor x, RowsOf(whole_.x, rows));
  QG_ASSIGN_OR_RETURN(Tensor grad_output, RowsOf(whole_.grad_output, rows));
  return ExpertsOfRank(of_copy, division_, place(), std::move(x), std::move(grad_output));
}

absl::StatusOr<Tensor> ExpertRun::RowsOf(const Tensor& whole,
                                         const std::vector<int64_t>& rows) const {
  if (!whole.has_value()) return whole;
  QG_ASSIGN_OR_RETURN(const Tensor flat,
                      whole.Reinterpret(whole.dtype(), {whole.rows(), whole.columns()}));
  return engine_.GatherRows(flat, rows, cancellation_);
}

/// Only one rank of a copy has an expert's states, so its amaxes are those of all rows of the copy.
absl::Status ExpertRun::Update(const LayerSpec& spec, const LayerPlan& plan, LayerState& state,
                               UpdatePoint point) {
  if (!plan.is_delayed) return absl::OkStatus();
  if (point == UpdatePoint::kBackward && !QuantizesGradients(plan)) return absl::OkStatus();
  const ReducedLayer reduced{&whole_.layer, &state,
                             division_.first_expert[static_cast<size_t>(place())]};
  QG_RETURN_IF_ERROR(ReduceDelayedAmaxes(recorder_, groups_.copies, {&reduced, 1}, recipe_, point,
                                         groups_.step.get()));
  return UpdateScales(recorder_, spec, state, recipe_, point);
}

absl::Status ExpertRun::SumGradients(ExpertStep& step, std::vector<NamedTensor>& gradients) {
  if (groups_.copies == nullptr) return absl::OkStatus();
  for (NamedTensor& gradient : gradients) {
    step.own_gradients.push_back(gradient);
    QG_ASSIGN_OR_RETURN(
        gradient.tensor,
        recorder_.Timed({StageKind::kCommunicate, absl::StrCat("sum ", gradient.name)}, [&] {
          return groups_.copies->AllReduce(gradient.tensor, groups_.profile);
        }));
  }
  return absl::OkStatus();
}

absl::StatusOr<ExpertStep> ExpertRun::Run() {
  ExpertStep step;
  TakeRows(step);
  QG_ASSIGN_OR_RETURN(step.request, OwnRequest(step.rows));
  QG_ASSIGN_OR_RETURN(const ExpertRouting routing, RoutingOf(division_, own_tokens()));
  QG_ASSIGN_OR_RETURN(const Tensor x, RowsOf(whole_.x, step.tokens));
  const LayerSpec& spec = step.request.layer;
  const auto plan = std::make_shared<const LayerPlan>(PlanOf(step.request, recipe_));
  LayerState state = StateOf(step.request, RecipeOfLayer(step.request.layer, recipe_));
  ExpertOptions options;
  options.first_expert = division_.first_expert;
  StepOptions of_step = OptionsOf(step.request, recipe_);
  of_step.parallel = groups_.step;
  QG_ASSIGN_OR_RETURN(ExpertForward experts,
                      ForwardExperts(recorder_, *groups_.experts, options, spec, state, x, routing,
                                     std::move(of_step)));
  ForwardResult forward;
  forward.y = std::move(experts.y);
  BackwardResult backward;
  if (plan->has_backward) {
    QG_RETURN_IF_ERROR(Update(spec, *plan, state, UpdatePoint::kForward));
    QG_ASSIGN_OR_RETURN(const Tensor grad_output, RowsOf(whole_.grad_output, step.tokens));
    QG_ASSIGN_OR_RETURN(backward, BackwardExperts(recorder_, *groups_.experts,
                                                  std::move(experts.saved), state, grad_output));
    QG_RETURN_IF_ERROR(SumGradients(step, backward.gradients));
    QG_RETURN_IF_ERROR(Update(spec, *plan, state, UpdatePoint::kBackward));
  }
  QG_ASSIGN_OR_RETURN(step.result, FinishStep(recorder_, step.request, plan, state,
                                              std::move(forward), std::move(backward)));
  return step;
}

}  // namespace

ExpertDivision DivideExperts(const LayerSpec& layer, int ranks) {
  ExpertDivision division;
  division.first_expert = {0};
  for (const int64_t count : EvenRows(static_cast<int64_t>(layer.m_splits.size()), ranks)) {
    division.first_expert.push_back(division.first_expert.back() + count);
  }
  division.first_row = {0};
  for (const int64_t split : layer.m_splits) {
    division.first_row.push_back(division.first_row.back() + split);
  }
  division.tokens = EvenRowsOfEach(layer.m_splits, ranks);
  return division;
}

LayerSpec LayerOfCopy(LayerSpec layer, int copies, int copy) {
  for (int64_t& split : layer.m_splits) split = EvenRows(split, copies)[static_cast<size_t>(copy)];
  return layer;
}

std::vector<int64_t> RowsOfCopy(const LayerSpec& layer, int copies, int copy) {
  return EvenRowsOfEach(layer.m_splits, copies)[static_cast<size_t>(copy)];
}

std::vector<std::vector<int64_t>> TokensOfCopies(const LayerSpec& layer, int ranks, int copies) {
  std::vector<std::vector<int64_t>> tokens;
  for (int copy = 0; copy < copies; ++copy) {
    const std::vector<int64_t> rows = RowsOfCopy(layer, copies, copy);
    const std::vector<int64_t> splits = LayerOfCopy(layer, copies, copy).m_splits;
    for (const std::vector<int64_t>& of_rank : EvenRowsOfEach(splits, ranks)) {
      tokens.push_back(RowsOfWhole(rows, of_rank));
    }
  }
  return tokens;
}

std::vector<int64_t> PlacesOf(const std::vector<std::vector<int64_t>>& parts) {
  size_t rows = 0;
  for (const std::vector<int64_t>& part : parts) rows += part.size();
  std::vector<int64_t> places(rows);
  int64_t place = 0;
  for (const std::vector<int64_t>& part : parts) {
    for (const int64_t row : part) places[static_cast<size_t>(row)] = place++;
  }
  return places;
}

absl::StatusOr<ExpertRouting> RoutingOf(const ExpertDivision& division,
                                        const std::vector<int64_t>& tokens) {
  ExpertRouting routing;
  for (const int64_t token : tokens) {
    const auto next = std::upper_bound(division.first_row.begin(), division.first_row.end(), token);
    routing.experts.push_back(next - division.first_row.begin() - 1);
  }
  QG_ASSIGN_OR_RETURN(routing.weights,
                      Tensor::Allocate(DType::kF32, {static_cast<int64_t>(tokens.size()), 1}));
  std::fill_n(routing.weights.as<float>(), tokens.size(), 1.0f);
  return routing;
}

std::string WithExpertOfWhole(const std::string& name, int64_t first) {
  const size_t dot = name.rfind('.');
  const size_t end = std::min(name.find(' ', dot == std::string::npos ? 0 : dot), name.size());
  ParameterName whole = ParameterName::Parse(name.substr(0, end));
  if (whole.expert < 0) return name;
  whole.expert += first;
  return whole.Text() + name.substr(end);
}

LayerRequest ExpertsOfRank(const LayerRequest& whole, const ExpertDivision& division, int rank,
                           Tensor x, Tensor grad_output) {
  const int64_t begin = division.first_expert[static_cast<size_t>(rank)];
  const int64_t end = division.first_expert[static_cast<size_t>(rank) + 1];
  LayerRequest request = whole;
  request.layer.m_splits = {whole.layer.m_splits.begin() + begin,
                            whole.layer.m_splits.begin() + end};
  request.x = std::move(x);
  request.grad_output = std::move(grad_output);
  request.parameters = OfExperts(whole.parameters, begin, end);
  request.main_grads = OfExperts(whole.main_grads, begin, end);
  request.delayed = OfExperts(whole.delayed, begin, end);
  return request;
}

absl::StatusOr<ExpertStep> RunExperts(Engine& engine, const ExpertGroups& groups,
                                      const LayerRequest& whole, const Recipe& recipe,
                                      const Arithmetic& arithmetic,
                                      const Cancellation* cancellation) {
  return ExpertRun(engine, groups, whole, recipe, arithmetic, cancellation).Run();
}

}  // namespace quantgate
