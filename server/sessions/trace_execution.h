// TraceExecution: one trace on a device: a session for each variant, all taking the same steps, and
// every output held against the reference variant's as soon as both are there. Each step of each
// variant is an event. The sessions are in the SessionStore while the trace plays, so that they
// count against its limits; only the trace uses them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/steady_time.h"
#include "server/report/comparison_verdict.h"
#include "server/runs/run_execution.h"
#include "server/runs/run_work.h"
#include "server/sessions/trace_diagnosis.h"
#include "server/sessions/trace_plan.h"

namespace quantgate {

class TraceExecution final : public RunWork {
 public:
  /// The context outlives the execution.
  TraceExecution(CallContext& context, TracePlan plan, RunPlace place);
  ~TraceExecution() override;

  absl::StatusOr<v1::RunReport> Execute(const RankSetting& ranks) override;
  void Release() override;
  const absl::Status& stop_status() const override { return stopped_; }
  absl::Duration store_time() const override { return store_time_; }
  Labels labels() const override;

 private:
  using Tensors = std::vector<NamedTensor>;
  /// One variant's session, and what it is now.
  struct Player {
    TraceSession session;
    std::optional<v1::Parallel> parallel;     ///< The ranks that it is on.
    std::optional<SessionUse> use;            ///< Absent before it is opened.
    std::vector<std::string> notes;           ///< Of its opening, for its first step.
    std::optional<TraceDiagnoser> diagnoser;  ///< Where something is required of its subjects.
    Session& training() { return *(*use)->training; }
  };
  /// What a variant's step gave.
  struct Played {
    Tensors tensors;  ///< To be compared: outputs, or after an update or a restart parameters.
    std::vector<GemmRecord> gemms;
    v1::TraceStep report;
  };

  absl::Status Play(const RankSetting& ranks);
  absl::Status OpenSessions(const RankSetting& ranks);
  absl::Status Hold(int variant, SessionPlace place, std::unique_ptr<Session> training);
  void CloseSessions();
  void CloseSession(Player& player);
  /// A tensor of the trace: its values, and its codes where it is given as such.
  absl::StatusOr<LoadedCodes> Load(const std::string& key);

  /// Step `number` of all variants, counted from 1.
  absl::Status PlayStep(const PlannedTraceStep& step, int64_t number, const RankSetting& ranks);
  absl::StatusOr<Played> PlayVariant(const PlannedTraceStep& step, int variant,
                                     const RankSetting& ranks);
  absl::StatusOr<Played> TakeStep(const SessionStep& step, bool is_judged, Player& player);
  absl::Status Restart(const PlannedTraceStep& step, int variant, const RankSetting& ranks,
                       Played& played);
  absl::StatusOr<Tensors> Parameters(Player& player);
  absl::Status CompareSubjects(const PlannedTraceStep& step, int variant, Played& played);
  /// The check of a subject's bound; absent where none is derived for the output.
  absl::StatusOr<std::optional<v1::BoundCheck>> CheckBoundOf(const Played& played,
                                                             const NamedTensor& subject);
  /// Writes the tensors' types, fingerprints and perhaps bytes.
  absl::Status DescribeTensors(Played& played);
  void Judge(int64_t number, const PlannedTraceStep& step, int variant, v1::TraceStep& report);
  /// Says why subjects of a step fail, where any do. `tensors`: the variant's of the step.
  absl::Status Diagnose(const PlannedTraceStep& step, int variant, const Tensors& tensors,
                        v1::TraceStep& report);
  /// Passes an event on. A failure ends the trace.
  absl::Status Tell(v1::RunEvent event);
  v1::RunReport Report();

  CallContext& context_;
  TracePlan plan_;  ///< Without its places once the sessions are open.
  Device& device_;
  const std::string run_id_;
  const std::shared_ptr<Cancellation> cancellation_;
  const TellEvent tell_;
  std::vector<Player> players_;                ///< By variant.
  std::map<std::string, LoadedCodes> loaded_;  ///< By key.
  ComparisonJudge judge_;
  v1::TraceSummary summary_;
  absl::Status stopped_;
  absl::Duration store_time_;
  absl::Time start_;
  absl::Duration diagnosing_;  ///< The part of the time since then that went into diagnoses.
};

/// Checks a trace; the context outlives its run.
absl::StatusOr<CheckedRun> CheckTraceRun(CallContext& context, const v1::RunTraceRequest& request);

}  // namespace quantgate
