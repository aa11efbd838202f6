#include "kernels/training/parallel/parallel_session.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/refusal.h"
#include "kernels/training/checkpoint/checkpoint_format.h"
#include "kernels/training/parallel/parallel_checks.h"
#include "kernels/training/parallel/parallel_member.h"
#include "kernels/training/session_checks.h"
#include "kernels/training/session_experts.h"

namespace quantgate {
namespace {

/// The parameter of which a tensor of a layer's state is a moment or the main gradient, and like
/// which it is divided.
std::string ParameterOf(const std::string& name) {
  for (const char* last : {".exp_avg_sq", ".exp_avg"}) {
    if (absl::EndsWith(name, last)) return std::string(absl::StripSuffix(name, last));
  }
  return WithLastWord(name, "main_grad") == name ? WithLastWord(name, "weight") : name;
}

}  // namespace

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
  NameLayers(spec);
  QG_RETURN_IF_ERROR(CheckSessionSpec(spec));
  QG_RETURN_IF_ERROR(engine.CheckArithmetic(spec.arithmetic));
  std::unique_ptr<ParallelSession> session(new ParallelSession(engine, std::move(spec), setting));
  QG_ASSIGN_OR_RETURN(const std::vector<Engine*> engines,
                      session->engines_.EnginesFor(*session->spec_.parallel));
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
    QG_ASSIGN_OR_RETURN(mine.session,
                        OneRankSession::Restore(*mine.engine, session->spec_, checkpoint,
                                                rank.cancellation(), rank.faults(), mine.rank));
    return absl::OkStatus();
  };
  QG_RETURN_IF_ERROR(session->world_->Run(restore, cancellation));
  return session;
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
      QG_ASSIGN_OR_RETURN(parts[name], ShardOf(*mine.engine, absl::StrCat("parameters[", name, "]"),
                                               imported, rule, rank.index() % tp(), tp()));
    }
    QG_ASSIGN_OR_RETURN(mine.session,
                        OneRankSession::Open(*mine.engine, spec_, parts, rank.cancellation(),
                                             rank.faults(), mine.rank));
    return absl::OkStatus();
  };
  return world_->Run(open, cancellation);
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
  const std::function<void()> restore = RestorePoint();
  std::vector<SessionStepResult> results(members_.size());
  const auto run_and_join = [&]() -> absl::StatusOr<SessionStepResult> {
    QG_RETURN_IF_ERROR(RunMembers(step, cancellation, results));
    return Joined(std::move(results), cancellation);
  };
  absl::StatusOr<SessionStepResult> joined = run_and_join();
  if (joined.ok()) return joined;
  restore();
  // A group that met an error makes no more calls.
  for (const auto& member : members_) member->overlap = nullptr;
  world_ = nullptr;
  return joined;
}

absl::StatusOr<SessionStepResult> ParallelSession::Forward(const ForwardStep& step,
                                                           const Cancellation* cancellation) {
  const Layout layout = InputLayout();
  QG_RETURN_IF_ERROR(CheckNoCodes("x", step.x_codes));
  QG_RETURN_IF_ERROR(CheckBatch("x", step.x, layout));
  QG_RETURN_IF_ERROR(CheckForwardAmaxGroups(step.amax_groups, spec_, recipe()));
  QG_RETURN_IF_ERROR(CheckForwardOverlap(step.overlap, spec_, recipe()));
  QG_RETURN_IF_ERROR(MakeRanks());
  const std::set<std::string> lists_before = rank_lists_;
  QG_RETURN_IF_ERROR(UseStepFor(step));
  const auto forward = [&](Rank& rank, Member& mine) -> absl::StatusOr<SessionStepResult> {
    // Only this call's step is attached; earlier ones belong to forwards in flight.
    if (!mine.steps.empty()) QG_RETURN_IF_ERROR(AttachStep(rank, mine, *mine.steps.front()));
    ForwardStep part = step;
    QG_ASSIGN_OR_RETURN(part.x, PartOf(*mine.engine, "x", step.x, layout, rank.index()));
    return mine.session->Forward(part, rank.cancellation());
  };
  absl::StatusOr<SessionStepResult> result = Run(forward, cancellation);
  // After a failure the world is made anew, without the groups that only this call named.
  if (!result.ok()) rank_lists_ = lists_before;
  return result;
}

absl::StatusOr<SessionStepResult> ParallelSession::Backward(const BackwardStep& step,
                                                            const Cancellation* cancellation) {
  const Layout layout = OutputLayout();
  QG_RETURN_IF_ERROR(CheckNoCodes("grad_output", step.codes));
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
  QG_RETURN_IF_ERROR(CheckRecipeOnRanks(spec_, recipe));
  const auto change = [&](Rank& rank, Member& mine) {
    return NothingOf(mine.session->ChangeRecipe(recipe, rank.cancellation()));
  };
  const std::function<void()> restore = RestorePoint();
  // The overlap plans of later forwards follow the new recipe; forwards in flight keep theirs.
  for (const auto& member : members_) {
    if (tp() > 1) {
      member->UseStep(std::make_shared<ParallelStep>(StepOf(*spec_.parallel, recipe)));
    }
  }
  const absl::Status status = Run(change, cancellation).status();
  if (!status.ok()) restore();
  DropSteps();
  return status;
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

std::function<void()> ParallelSession::RestorePoint() {
  std::vector<std::function<void()>> ways;
  for (const auto& member : members_) {
    ways.push_back(
        [&member = *member, step = member->rank->step, restore = member->session->RestorePoint()] {
          member.rank->step = step;
          // Later steps belong to forwards that are undone.
          const auto last = std::find(member.steps.begin(), member.steps.end(), step);
          if (last != member.steps.end()) member.steps.erase(member.steps.begin(), last);
          restore();
        });
  }
  return [ways = std::move(ways)] {
    for (const std::function<void()>& restore : ways) restore();
  };
}

// What several ranks saved refers to groups, which a restore point may make anew.
absl::StatusOr<KeptForward> ParallelSession::KeepForward(const std::string& microbatch) {
  return StatusOf({.code = absl::StatusCode::kUnimplemented,
                   .field = "microbatch",
                   .value = microbatch,
                   .rule = "only a session on one rank keeps what an undone forward saved"});
}

SavedMemory ParallelSession::saved_memory() const {
  SavedMemory memory;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    memory.AddRank(static_cast<int>(rank), members_[rank]->session->saved_memory());
  }
  return memory;
}

int64_t ParallelSession::bytes() const {
  int64_t bytes = 0;
  for (const auto& member : members_) bytes += member->session->bytes();
  return bytes;
}

}  // namespace quantgate
