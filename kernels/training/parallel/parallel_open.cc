// A session on several ranks as it begins, from parameters or from a checkpoint.
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/training/parallel/parallel_member.h"
#include "kernels/training/session_checks.h"
#include "kernels/training/session_experts.h"

namespace quantgate {
namespace {

/// The parameter that a tensor of a layer's state is divided like: its moments' and main
/// gradient's.
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
                        TrainingSession::Restore(*mine.engine, session->spec_, checkpoint,
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
                        TrainingSession::Open(*mine.engine, spec_, parts, rank.cancellation(),
                                              rank.faults(), mine.rank));
    return absl::OkStatus();
  };
  return world_->Run(open, cancellation);
}

}  // namespace quantgate
