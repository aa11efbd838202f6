// RunWork: what a run computes on its device: a layer under several variants (run_execution.h), or
// a trace of training steps (server/sessions/trace_execution.h). Everything around it, such as its
// events' order and storing, its cancellation and its end, is the same for both.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/execution.h"
#include "kernels/comm/group/world.h"
#include "quantgate/v1/engine_service.pb.h"
#include "server/device/device.h"

namespace quantgate {

/// Used by one thread at a time.
class RunWork {
 public:
  /// Gives the event the run's id and next number, and passes it on. A failure ends the run.
  using TellEvent = std::function<absl::Status(v1::RunEvent& event)>;

  virtual ~RunWork() = default;

  /// Does the work; called once. The report lacks what events have, and `reproduce` and `seconds`,
  /// which the caller sets.
  virtual absl::StatusOr<v1::RunReport> Execute(const RankSetting& ranks) = 0;
  /// Gives back what others wait for: places, memory. Comes before the run's end is told, whether
  /// the work was done, failed, or left its queue early and was not begun.
  virtual void Release() {}
  /// The failure to make, store or pass on an event that ended the run; OK where there was none.
  /// Otherwise it is the run's outcome, whatever Execute returns.
  virtual const absl::Status& stop_status() const = 0;
  /// The last variant, where the event of the run's end carries it.
  virtual std::optional<v1::VariantFinished> TakeLastVariant() { return std::nullopt; }
  /// The time that making the events and passing them on took.
  virtual absl::Duration store_time() const = 0;
  /// The command that repeats the run; empty where there is none.
  virtual std::string RepeatCommand() const { return ""; }

  /// How metrics count it.
  struct Labels {
    std::string operation;  ///< The kind of layer, or "trace".
    struct Variant {
      std::string recipe;  ///< Base name.
      std::string mode;    ///< The backward override.
    };
    std::vector<Variant> variants;
  };
  virtual Labels labels() const = 0;
};

/// Where a run's work is done, and for whom.
struct RunPlace {
  Device& device;
  std::string run_id;
  std::shared_ptr<Cancellation> cancellation;
  RunWork::TellEvent tell;
};

/// A run that was checked, before anything of it is computed.
struct CheckedRun {
  std::string summary;  ///< v1.Run.summary.
  Device* device;
  absl::AnyInvocable<std::unique_ptr<RunWork>(RunPlace place) &&> make;
};

}  // namespace quantgate
