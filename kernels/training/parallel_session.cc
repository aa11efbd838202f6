#include "kernels/training/parallel_session.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/layer/amax_reduction.h"
#include "kernels/layer/expert_faults.h"
#include "kernels/layer/layer_program.h"
#include "kernels/training/checkpoint_format.h"
#include "kernels/training/parallel_checks.h"
#include "kernels/training/session_checks.h"
#include "kernels/training/session_experts.h"

namespace quantgate {
namespace {

/// A world keeps every group that it has made.
constexpr size_t kRankListsMax = 16;

/// The parameter that a tensor of a layer's state is divided like: its moments' and main
/// gradient's.
std::string ParameterOf(const std::string& name) {
  for (const char* last : {".exp_avg_sq", ".exp_avg"}) {
    if (absl::EndsWith(name, last)) return std::string(absl::StripSuffix(name, last));
  }
  return WithLastWord(name, "main_grad") == name ? WithLastWord(name, "weight") : name;
}

}  // namespace

struct ParallelSession::Member {
  Engine* engine = nullptr;
  std::string device;
  std::shared_ptr<SessionRank> rank = std::make_shared<SessionRank>();
  /// Of forwards from now on, then those that forwards in flight still follow.
  std::vector<std::shared_ptr<ParallelStep>> steps;
  std::unique_ptr<RankOverlap> overlap;
  std::unique_ptr<TrainingSession> session;

  void UseStep(std::shared_ptr<ParallelStep> step) {
    if (!steps.empty()) {
      step->tp = steps[0]->tp;
      step->overlap = steps[0]->overlap;
    }
    rank->step = step;
    steps.insert(steps.begin(), std::move(step));
  }
};

ParallelSession::ParallelSession(Engine& engine, SessionSpec spec, const RankSetting* setting)
    : engine_(engine),
      spec_(std::move(spec)),
      tokens_(TokensOfRanks(spec_)),
      setting_(setting),
      engines_(engine),
      bytes_max_(std::numeric_limits<int64_t>::max()) {}

ParallelSession::~ParallelSession() = default;

absl::StatusOr<std::unique_ptr<ParallelSession>> ParallelSession::Create(
    Engine& engine, SessionSpec spec, const RankSetting* setting) {
  QG_RETURN_IF_ERROR(CheckSessionSpec(spec));
  QG_RETURN_IF_ERROR(engine.CheckArithmetic(spec.arithmetic));
  std::unique_ptr<ParallelSession> session(new ParallelSession(engine, std::move(spec), setting));
  QG_ASSIGN_OR_RETURN(const std::vector<Engine*> engines,
                      session->engines_.For(*session->spec_.parallel));
  for (Engine* const of_rank : engines) {
    const auto index = static_cast<int>(session->members_.size());
    Member& member = *session->members_.emplace_back(std::make_unique<Member>());
    member.engine = of_rank;
    member.device = of_rank->Describe().id;
    member.rank->index = index;
    if (session->tp() == 1 && session->spec_.parallel->amax_groups.empty()) continue;
    member.UseStep(
        std::make_shared<ParallelStep>(StepOf(*session->spec_.parallel, session->spec_.recipe)));
  }
  QG_RETURN_IF_ERROR(session->MakeRanks());
  return session;
}

absl::StatusOr<std::unique_ptr<ParallelSession>> ParallelSession::Open(
    Engine& engine, SessionSpec spec, const std::map<std::string, Tensor>& parameters,
    const RankSetting* setting, const Cancellation* cancellation) {
  QG_ASSIGN_OR_RETURN(std::unique_ptr<ParallelSession> session,
                      Create(engine, std::move(spec), setting));
  QG_RETURN_IF_ERROR(session->OpenMembers(parameters, cancellation));
  return session;
}

absl::StatusOr<std::unique_ptr<ParallelSession>> ParallelSession::Restore(
    Engine& engine, SessionSpec spec, const TensorFile& checkpoint, const RankSetting* setting,
    const Cancellation* cancellation) {
  QG_ASSIGN_OR_RETURN(std::unique_ptr<ParallelSession> session,
                      Create(engine, std::move(spec), setting));
  const auto restore = [&](Rank& rank) -> absl::Status {
    Member& mine = *session->members_[static_cast<size_t>(rank.index())];
    QG_ASSIGN_OR_RETURN(
        mine.session, TrainingSession::RestoreRank(*mine.engine, session->spec_, checkpoint,
                                                   mine.rank, rank.cancellation(), rank.faults()));
    return absl::OkStatus();
  };
  QG_RETURN_IF_ERROR(session->world_->Run(restore, cancellation));
  return session;
}

absl::Status ParallelSession::MakeRanks() {
  if (world_ != nullptr) return absl::OkStatus();
  std::vector<Engine*> engines;
  for (const auto& member : members_) engines.push_back(member->engine);
  QG_ASSIGN_OR_RETURN(std::unique_ptr<World> world,
                      MakeWorld(*spec_.parallel, std::move(engines), setting_));
  for (const std::string& list : rank_lists_) {
    QG_ASSIGN_OR_RETURN(const AmaxGroup group, ParseAmaxGroup(list));
    QG_RETURN_IF_ERROR(AddAmaxGroups({{TensorRole::kInput, group}}, *world));
  }
  QG_RETURN_IF_ERROR(world->Run([this](Rank& rank) { return Attach(rank); }, nullptr));
  world_ = std::move(world);
  return absl::OkStatus();
}

absl::Status ParallelSession::Attach(Rank& rank) {
  Member& mine = *members_[static_cast<size_t>(rank.index())];
  mine.rank->all = &rank.group(kWorldGroup);
  ProcessGroup* const same_place = dp() > 1 ? &rank.group(kDataParallelGroup) : nullptr;
  mine.rank->copies = ep() > 1 ? mine.rank->all : same_place;
  if (tp() == 1) {
    mine.rank->experts = &rank.group(ep() > 1 ? kExpertParallelGroup : kTensorParallelGroup);
    mine.rank->expert_copies = same_place;
  }
  if (spec_.weights == WeightStorage::kQuantized) {
    QG_ASSIGN_OR_RETURN(
        mine.rank->held_weights,
        FindAmaxGroup(rank, AmaxGroupOf(spec_.parallel->amax_groups, TensorRole::kWeight)));
  }
  if (spec_.parallel->overlap.has_value()) {
    QG_ASSIGN_OR_RETURN(mine.overlap, RankOverlap::Create(rank));
  }
  for (const auto& step : mine.steps) QG_RETURN_IF_ERROR(AttachStep(rank, mine, *step));
  return absl::OkStatus();
}

absl::Status ParallelSession::AttachStep(Rank& rank, Member& mine, ParallelStep& step) {
  if (ep() == 1) step.tp = &rank.group(kTensorParallelGroup);
  step.overlap = mine.overlap == nullptr ? nullptr : &mine.overlap->overlap();
  return AttachAmaxGroups(rank, step);
}

absl::Status ParallelSession::UseAmaxGroups(const AmaxGroups& groups) {
  for (const auto& [role, group] : groups) {
    if (group.kind != AmaxGroup::Kind::kRanks || rank_lists_.contains(group.Text())) continue;
    if (rank_lists_.size() == kRankListsMax) {
      return absl::FailedPreconditionError(
          absl::StrCat("forward.", AmaxGroupField(role), ": ", group.Text(), "; this session has ",
                       kRankListsMax, " lists of ranks already, the most that it makes groups of"));
    }
    rank_lists_.insert(group.Text());
  }
  QG_RETURN_IF_ERROR(AddAmaxGroups(groups, *world_));
  for (const auto& member : members_) {
    const std::shared_ptr<const ParallelStep> now = member->rank->step;
    if (now == nullptr ? groups.empty() : now->amax_groups == groups) continue;
    if (tp() == 1 && groups.empty()) {
      member->rank->step = nullptr;
      continue;
    }
    auto step = std::make_shared<ParallelStep>(StepOf(*spec_.parallel, recipe()));
    step->amax_groups = groups;
    member->UseStep(std::move(step));
  }
  for (const auto& member : members_) {
    std::erase_if(member->steps, [](const auto& step) { return step.use_count() == 1; });
  }
  return absl::OkStatus();
}

absl::Status ParallelSession::OpenMembers(const std::map<std::string, Tensor>& parameters,
                                          const Cancellation* cancellation) {
  QG_ASSIGN_OR_RETURN(const std::shared_ptr<const Moment> given, engine_.MarkMoment());
  const auto open = [&](Rank& rank) -> absl::Status {
    Member& mine = *members_[static_cast<size_t>(rank.index())];
    QG_RETURN_IF_ERROR(mine.engine->WaitFor(*given));
    std::map<std::string, Tensor> parts;
    for (const auto& [name, whole] : parameters) {
      QG_ASSIGN_OR_RETURN(const Tensor imported, ImportedFor(*mine.engine, whole));
      ShardRule rule;
      for (const SessionLayer& layer : spec_.layers) {
        absl::string_view within = name;
        if (tp() == 1 || !absl::ConsumePrefix(&within, layer.name + ".")) continue;
        rule = ParameterShardRule(layer.spec, ParameterOf(std::string(within)));
      }
      QG_ASSIGN_OR_RETURN(parts[name], ShardOf(*mine.engine, absl::StrCat("parameters: ", name),
                                               imported, rule, rank.index() % tp(), tp()));
    }
    QG_ASSIGN_OR_RETURN(mine.session,
                        TrainingSession::OpenRank(*mine.engine, spec_, parts, mine.rank,
                                                  rank.cancellation(), rank.faults()));
    return absl::OkStatus();
  };
  return world_->Run(open, cancellation);
}

std::vector<int64_t> ParallelSession::TokensOf(int rank, const Layout& layout) const {
  static const SeededFaults& none = *new SeededFaults();
  const SeededFaults& faults = setting_ == nullptr ? none : setting_->faults;
  const int list = rank / tp();
  const int like = faults.Has(kFaultCopiesNotDivided) ? list % ep() : list;
  std::vector<int64_t> tokens = tokens_[static_cast<size_t>(like)];
  if (layout.divides_rows) {
    const size_t count = tokens.size() / static_cast<size_t>(tp());
    const auto begin = tokens.begin() + static_cast<int64_t>(count) * (rank % tp());
    tokens = {begin, begin + static_cast<int64_t>(count)};
  }
  if (!faults.Has(kFaultExpertRowsOneOff)) return tokens;
  int64_t rows = 0;
  for (const std::vector<int64_t>& of_rank : tokens_) rows += static_cast<int64_t>(of_rank.size());
  for (int64_t& token : tokens) token = (token + 1) % rows;
  return tokens;
}

absl::StatusOr<Tensor> ParallelSession::PartOf(Engine& engine, const std::string& field,
                                               const Tensor& whole, const Layout& layout,
                                               int rank) const {
  QG_ASSIGN_OR_RETURN(Tensor part, ImportedFor(engine, whole));
  const int parts = layout.divides_rows ? tp() * dp() : dp();
  if (routes_rows()) {
    QG_ASSIGN_OR_RETURN(part, engine.GatherRows(part, TokensOf(rank, layout), nullptr));
  } else if (parts > 1) {
    const int64_t rows = part.shape()[0] / parts;
    const int place = layout.divides_rows ? rank : rank / tp();
    QG_ASSIGN_OR_RETURN(part, engine.Slice(part, 0, place * rows, rows, nullptr));
  }
  return ShardOf(engine, field, part, layout.columns, rank % tp(), tp());
}

absl::Status ParallelSession::CheckBytes(int64_t before) const {
  const int64_t held = bytes();
  if (held <= bytes_max_ || held <= before) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("session: ", held, " bytes after this step; it may hold ", bytes_max_));
}

absl::Status ParallelSession::RunMembers(StepOnRank step, const Cancellation* cancellation,
                                         std::vector<SessionStepResult>& results) {
  const int64_t before = bytes();
  QG_ASSIGN_OR_RETURN(const std::shared_ptr<const Moment> given, engine_.MarkMoment());
  const auto run_rank = [&](Rank& rank) -> absl::Status {
    const auto index = static_cast<size_t>(rank.index());
    Member& mine = *members_[index];
    QG_RETURN_IF_ERROR(mine.engine->WaitFor(*given));
    QG_ASSIGN_OR_RETURN(results[index], step(rank, mine));
    return absl::OkStatus();
  };
  QG_RETURN_IF_ERROR(world_->Run(run_rank, cancellation));
  return CheckBytes(before);
}

absl::StatusOr<SessionStepResult> ParallelSession::Run(StepOnRank step,
                                                       const Cancellation* cancellation) {
  QG_RETURN_IF_ERROR(MakeRanks());
  const std::function<void()> go_back = WayBack();
  std::vector<SessionStepResult> results(members_.size());
  const auto run_and_join = [&]() -> absl::StatusOr<SessionStepResult> {
    QG_RETURN_IF_ERROR(RunMembers(step, cancellation, results));
    return Joined(std::move(results), cancellation);
  };
  absl::StatusOr<SessionStepResult> joined = run_and_join();
  if (joined.ok()) return joined;
  go_back();
  // A group that met an error makes no more calls.
  for (const auto& member : members_) member->overlap = nullptr;
  world_ = nullptr;
  return joined;
}

absl::Status ParallelSession::CheckBatch(const std::string& field, const Tensor& tensor,
                                         const Layout& layout) const {
  if (!routes_rows()) {
    return CheckDividesRows(field, tensor, *spec_.parallel, layout.divides_rows);
  }
  int64_t rows = 0;
  for (const std::vector<int64_t>& tokens : tokens_) rows += static_cast<int64_t>(tokens.size());
  return CheckIsRoutedRows(field, tensor, rows);
}

absl::StatusOr<SessionStepResult> ParallelSession::Forward(const ForwardStep& step,
                                                           const Cancellation* cancellation) {
  const Layout layout = InputLayout();
  QG_RETURN_IF_ERROR(CheckBatch("x", step.x, layout));
  QG_RETURN_IF_ERROR(CheckForwardAmaxGroups(step.amax_groups, spec_, recipe()));
  QG_RETURN_IF_ERROR(MakeRanks());
  QG_RETURN_IF_ERROR(
      UseAmaxGroups(WithGroupsOfCall(spec_.parallel->amax_groups, step.amax_groups)));
  const auto forward = [&](Rank& rank, Member& mine) -> absl::StatusOr<SessionStepResult> {
    // Of this call: those before it are others', and stay with their backwards.
    if (!mine.steps.empty()) QG_RETURN_IF_ERROR(AttachStep(rank, mine, *mine.steps.front()));
    ForwardStep part = step;
    QG_ASSIGN_OR_RETURN(part.x, PartOf(*mine.engine, "x", step.x, layout, rank.index()));
    return mine.session->Forward(part, rank.cancellation());
  };
  return Run(forward, cancellation);
}

absl::StatusOr<SessionStepResult> ParallelSession::Backward(const BackwardStep& step,
                                                            const Cancellation* cancellation) {
  const Layout layout = OutputLayout();
  QG_RETURN_IF_ERROR(CheckBatch("grad_output", step.grad_output, layout));
  const auto backward = [&](Rank& rank, Member& mine) -> absl::StatusOr<SessionStepResult> {
    BackwardStep part = step;
    QG_ASSIGN_OR_RETURN(part.grad_output, PartOf(*mine.engine, "grad_output", step.grad_output,
                                                 layout, rank.index()));
    return mine.session->Backward(part, rank.cancellation());
  };
  return Run(backward, cancellation);
}

absl::StatusOr<SessionStepResult> ParallelSession::Wgrad(const Cancellation* cancellation) {
  const auto wgrad = [](Rank& rank, Member& mine) {
    return mine.session->Wgrad(rank.cancellation());
  };
  return Run(wgrad, cancellation);
}

absl::StatusOr<SessionStepResult> ParallelSession::Optimize(const OptimizerStep& step,
                                                            const Cancellation* cancellation) {
  const auto optimize = [&](Rank& rank, Member& mine) {
    return mine.session->Optimize(step, rank.cancellation());
  };
  return Run(optimize, cancellation);
}

namespace {

absl::StatusOr<SessionStepResult> NothingOf(const absl::Status& status) {
  if (!status.ok()) return status;
  return SessionStepResult();
}

}  // namespace

absl::Status ParallelSession::ChangeRecipe(const Recipe& recipe, const Cancellation* cancellation) {
  QG_RETURN_IF_ERROR(CheckSessionAmaxGroups(spec_, recipe));
  const auto change = [&](Rank& rank, Member& mine) {
    return NothingOf(mine.session->ChangeRecipe(recipe, rank.cancellation()));
  };
  QG_RETURN_IF_ERROR(Run(change, cancellation).status());
  for (const auto& member : members_) {
    // What overlaps follows the recipe; forwards in flight go on as they began.
    std::erase_if(member->steps, [&](const auto& step) { return step.use_count() == 1; });
    if (tp() > 1) {
      member->UseStep(std::make_shared<ParallelStep>(StepOf(*spec_.parallel, recipe)));
    }
  }
  return absl::OkStatus();
}

absl::Status ParallelSession::Offload(const std::string& microbatch,
                                      const Cancellation* cancellation) {
  const auto offload = [&](Rank& rank, Member& mine) {
    return NothingOf(mine.session->Offload(microbatch, rank.cancellation()));
  };
  return Run(offload, cancellation).status();
}

absl::Status ParallelSession::Reload(const std::string& microbatch,
                                     const Cancellation* cancellation) {
  const auto reload = [&](Rank& rank, Member& mine) {
    return NothingOf(mine.session->Reload(microbatch, rank.cancellation()));
  };
  return Run(reload, cancellation).status();
}

absl::StatusOr<TensorFile> ParallelSession::Checkpoint(const Cancellation* cancellation) {
  std::vector<std::shared_ptr<const SessionState>> held(members_.size());
  const auto collect = [&](Rank& rank, Member& mine) -> absl::StatusOr<SessionStepResult> {
    QG_ASSIGN_OR_RETURN(held[static_cast<size_t>(rank.index())],
                        mine.session->StateOnHost(rank.cancellation()));
    return SessionStepResult();
  };
  QG_RETURN_IF_ERROR(Run(collect, cancellation).status());
  std::vector<SessionState> states;
  for (const auto& state : held) states.push_back(*state);
  return WriteCheckpointOfRanks(spec_, std::move(states));
}

const Recipe& ParallelSession::recipe() const { return members_[0]->session->recipe(); }
int64_t ParallelSession::step_count() const { return members_[0]->session->step_count(); }
std::vector<std::string> ParallelSession::microbatches() const {
  return members_[0]->session->microbatches();
}

std::function<void()> ParallelSession::WayBack() {
  std::vector<std::function<void()>> ways;
  for (const auto& member : members_) {
    ways.push_back(
        [rank = member->rank, step = member->rank->step, go_back = member->session->WayBack()] {
          rank->step = step;
          go_back();
        });
  }
  return [ways = std::move(ways)] {
    for (const std::function<void()>& go_back : ways) go_back();
  };
}

int64_t ParallelSession::bytes() const {
  int64_t bytes = 0;
  for (const auto& member : members_) bytes += member->session->bytes();
  return bytes;
}

absl::StatusOr<std::vector<StateTensor>> ParallelSession::Describe(
    const Cancellation* cancellation) {
  std::vector<StateTensor> all;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    QG_ASSIGN_OR_RETURN(std::vector<StateTensor> tensors,
                        members_[rank]->session->Describe(cancellation));
    for (StateTensor& tensor : tensors) {
      tensor.name = absl::StrCat("rank", rank, ".", tensor.name);
      all.push_back(std::move(tensor));
    }
  }
  return all;
}

absl::StatusOr<Tensor> ParallelSession::PartOfPlace(const std::string& name,
                                                    const std::string& parameter, int place,
                                                    const Cancellation* cancellation) {
  const bool has_rows = spec_.parallel->fully_sharded && IsWeight(parameter);
  std::vector<Tensor> rows;
  for (int copy = 0; copy < (has_rows ? dp() : 1); ++copy) {
    const Member& member = *members_[static_cast<size_t>(copy * tp() + place)];
    QG_ASSIGN_OR_RETURN(const Tensor part, member.session->Find(name, cancellation));
    QG_ASSIGN_OR_RETURN(rows.emplace_back(), member.engine->ToHost(part, cancellation));
  }
  return rows.size() == 1 ? rows[0] : JoinRows(engine_, rows, cancellation);
}

absl::StatusOr<Tensor> ParallelSession::Find(const std::string& name,
                                             const Cancellation* cancellation) {
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    absl::string_view own = name;
    if (!absl::ConsumePrefix(&own, absl::StrCat("rank", rank, "."))) continue;
    QG_ASSIGN_OR_RETURN(const Tensor tensor,
                        members_[rank]->session->Find(std::string(own), cancellation));
    QG_ASSIGN_OR_RETURN(const Tensor host, members_[rank]->engine->ToHost(tensor, cancellation));
    return engine_.ToDevice(host, cancellation);
  }
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    const SessionLayer& layer = spec_.layers[i];
    absl::string_view within = name;
    if (!absl::ConsumePrefix(&within, layer.name + ".")) continue;
    const std::string parameter(within);
    const std::vector<LayerParameter> known = ParametersOf(layer.spec);
    const bool is_parameter =
        std::any_of(known.begin(), known.end(),
                    [&](const LayerParameter& each) { return each.name == parameter; });
    if (!is_parameter) continue;
    if (const int owner = OwnerOf(i, parameter); owner >= 0) {
      return Find(absl::StrCat(RankPrefix(owner), name), cancellation);
    }
    std::vector<Tensor> parts;
    for (int place = 0; place < tp(); ++place) {
      QG_ASSIGN_OR_RETURN(parts.emplace_back(), PartOfPlace(name, parameter, place, cancellation));
    }
    return JoinParameter(ParameterShardRule(layer.spec, parameter), parts, cancellation);
  }
  return absl::NotFoundError(
      absl::StrCat("tensor: ", name,
                   "; the session has no parameter of that name, and its ranks' own tensors "
                   "begin with rank0., rank1., ..."));
}

absl::StatusOr<Tensor> ParallelSession::JoinParameter(const ShardRule& rule,
                                                      const std::vector<Tensor>& parts,
                                                      const Cancellation* cancellation) {
  if (tp() == 1 || rule.dim == -1) return engine_.ToDevice(parts[0], cancellation);
  return JoinShards(engine_, {parts.begin(), parts.begin() + tp()}, rule, cancellation);
}

absl::StatusOr<Tensor> ParallelSession::JoinBatch(const std::vector<Tensor>& parts,
                                                  const Layout& layout,
                                                  const Cancellation* cancellation) {
  std::vector<Tensor> in_rows;
  for (auto begin = parts.begin(); !layout.divides_rows && begin != parts.end(); begin += tp()) {
    QG_ASSIGN_OR_RETURN(in_rows.emplace_back(),
                        JoinParameter(layout.columns, {begin, begin + tp()}, cancellation));
  }
  if (layout.divides_rows) in_rows = parts;
  Tensor joined = in_rows[0];
  if (in_rows.size() > 1) {
    QG_ASSIGN_OR_RETURN(joined, JoinRows(engine_, in_rows, cancellation));
  }
  const bool is_left = setting_ != nullptr && setting_->faults.Has(kFaultRankOrderLeft);
  if (!routes_rows() || is_left) return joined;
  return engine_.GatherRows(joined, PlacesOf(tokens_), cancellation);
}

absl::StatusOr<ParallelSession::Division> ParallelSession::DivisionOf(
    const std::string& output) const {
  if (output == "y") return Division{true, OutputLayout()};
  if (output == "dx") return Division{true, InputLayout()};
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    const SessionLayer& layer = spec_.layers[i];
    absl::string_view within = output;
    if (!absl::ConsumePrefix(&within, layer.name + ".")) continue;
    // Every rank of a copy has gathered it.
    if (within == "norm_out") return Division{true, {}};
    for (const LayerParameter& parameter : ParametersOf(layer.spec)) {
      if (parameter.gradient != within) continue;
      return Division{false,
                      {ParameterShardRule(layer.spec, parameter.name), false},
                      OwnerOf(i, parameter.name)};
    }
  }
  return absl::InternalError(absl::StrCat("output ", output, " of no layer"));
}

int ParallelSession::OwnerOf(size_t layer, const std::string& name) const {
  if (!DividesExperts(spec_, layer)) return -1;
  const std::vector<int64_t> first = DivideExperts(spec_.layers[layer].spec, ep()).first_expert;
  const auto next = std::upper_bound(first.begin(), first.end(), ExpertOf(name));
  return static_cast<int>(next - first.begin()) - 1;
}

int ParallelSession::FirstWithSamePart(const Division& division, int rank) const {
  const Layout& layout = division.layout;
  const bool is_whole = !layout.divides_rows && layout.columns.dim == -1;
  if (division.owner >= 0) return division.owner;
  if (division.is_of_batch) return is_whole ? rank / tp() * tp() : rank;
  return is_whole ? 0 : rank % tp();
}

std::vector<std::string> ParallelSession::OutputNames(
    const std::vector<SessionStepResult>& results) const {
  std::vector<std::string> names;
  std::set<std::string> gradients;
  for (const SessionStepResult& result : results) {
    for (const NamedTensor& output : result.outputs) gradients.insert(output.name);
  }
  // Rank 0's order. Of divided experts all ranks' stand where the first one's does, or, where rank
  // 0 gives none, at the end.
  const auto add = [&](const std::string& name) {
    if (gradients.erase(name) != 0) names.push_back(name);
  };
  const auto add_layer = [&](const SessionLayer& layer) {
    for (const LayerParameter& parameter : ParametersOf(layer.spec)) {
      add(absl::StrCat(layer.name, ".", parameter.gradient));
    }
  };
  for (const NamedTensor& output : results[0].outputs) {
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      const bool is_of_layer = absl::StartsWith(output.name, spec_.layers[i].name + ".");
      if (is_of_layer && DividesExperts(spec_, i)) add_layer(spec_.layers[i]);
    }
    add(output.name);
  }
  for (const SessionLayer& layer : spec_.layers) add_layer(layer);
  return names;
}

absl::StatusOr<Tensor> ParallelSession::JoinOutput(const std::string& name,
                                                   const std::vector<SessionStepResult>& results,
                                                   const Cancellation* cancellation,
                                                   SessionStepResult& whole) {
  QG_ASSIGN_OR_RETURN(const Division division, DivisionOf(name));
  std::vector<Tensor> parts;
  std::vector<Fingerprint> fingerprints(results.size());
  for (size_t rank = 0; rank < results.size(); ++rank) {
    const std::vector<NamedTensor>& outputs = results[rank].outputs;
    const auto own = std::find_if(outputs.begin(), outputs.end(),
                                  [&](const NamedTensor& output) { return output.name == name; });
    const bool should_have = division.owner < 0 || division.owner == static_cast<int>(rank) % ep();
    if ((own != outputs.end()) != should_have) {
      return absl::InternalError(absl::StrCat("output ", name, ": rank ", rank,
                                              should_have ? " has none" : " has another's"));
    }
    if (!should_have) continue;
    QG_ASSIGN_OR_RETURN(parts.emplace_back(),
                        members_[rank]->engine->ToHost(own->tensor, cancellation));
    const auto index = static_cast<size_t>(own - outputs.begin());
    fingerprints[rank] = whole.ranks[rank].outputs[index].fingerprint;
    const int first = FirstWithSamePart(division, static_cast<int>(rank));
    if (fingerprints[rank] == fingerprints[static_cast<size_t>(first)]) continue;
    whole.rank_differences.push_back(absl::StrCat(name, ": ranks ", first, " and ", rank,
                                                  " have the same part of it, and rank ", rank,
                                                  "'s bits are others"));
  }
  if (division.is_of_batch) return JoinBatch(parts, division.layout, cancellation);
  return JoinParameter(division.layout.columns, parts, cancellation);
}

absl::StatusOr<SessionStepResult> ParallelSession::Joined(std::vector<SessionStepResult> results,
                                                          const Cancellation* cancellation) {
  SessionStepResult whole;
  whole.notes = results[0].notes;
  for (size_t rank = 0; rank < results.size(); ++rank) {
    Engine& engine = *members_[rank]->engine;
    RankStepRecords& records = whole.ranks.emplace_back();
    records.device = members_[rank]->device;
    for (const NamedTensor& output : results[rank].outputs) {
      QG_ASSIGN_OR_RETURN(const Fingerprint fingerprint,
                          engine.FingerprintOf(output.tensor, cancellation));
      records.outputs.push_back(
          {output.name, output.tensor.dtype(), output.tensor.shape(), fingerprint});
    }
    records.records = std::move(static_cast<StepRecords&>(results[rank]));
  }
  for (const std::string& name : OutputNames(results)) {
    QG_ASSIGN_OR_RETURN(Tensor joined, JoinOutput(name, results, cancellation, whole));
    whole.outputs.push_back({name, std::move(joined)});
  }
  return whole;
}

}  // namespace quantgate
