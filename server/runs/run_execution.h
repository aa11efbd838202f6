// RunExecution: one run on a device, from its plan to its report. Every step becomes an event; who
// is told of them, and whether they are kept, is the caller's. Used by one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/throttle.h"
#include "kernels/validate/run/run.h"
#include "quantgate/v1/engine_service.pb.h"
#include "server/runs/call_context.h"
#include "server/runs/output_writer.h"
#include "server/wire/layer_run.h"

namespace quantgate {

class RunExecution {
 public:
  /// Gives the event the run's id and its next number. A failure ends the run.
  using TellEvent = std::function<absl::Status(v1::RunEvent& event)>;

  /// `outline`: of OutlineLayerRun.
  RunExecution(CallContext& context, Device& device, std::string run_id, LayerRun run, Plan outline,
               std::shared_ptr<Cancellation> cancellation, TellEvent tell);

  const LayerRun& run() const { return run_; }
  /// Runs to its end, whatever that is; once. The report is without its variants, which events tell
  /// of, `reproduce` and time.
  absl::StatusOr<v1::RunReport> Execute(const RankSetting& ranks);
  /// Why `tell` ended the run: that is its outcome then, and not what Execute returns.
  const absl::Status& stop_status() const { return stopped_; }
  /// The last variant, where the event of the run's end has it with it.
  std::optional<v1::VariantFinished> TakeLastVariant() {
    return std::exchange(last_variant_, std::nullopt);
  }
  /// What making and telling of the events took.
  absl::Duration store_time() const { return store_time_; }

 private:
  absl::StatusOr<v1::RunReport> ExecutePlan(const Plan& plan, const RankSetting& ranks);
  absl::Status DescribeInputs(v1::RunReport& report);
  /// Where the input came from, and its digest.
  absl::Status DescribeSource(const TensorReference& reference, v1::InputTensor& proto);
  /// Those that came with the request, so that the run can be repeated.
  absl::Status KeepBytes(const TensorReference& reference);
  void OnProgress(const RunProgress& progress);
  /// `body()` (absl::Status) unless the run stops; with its time among what is stored.
  template <typename Body>
  void Store(Body body);
  absl::Status PublishOutput(int index, const OutputReport& report);
  /// Makes begun_.
  absl::Status BeginVariant(const VariantReport& report);
  absl::Status PublishVariant(int index, const VariantReport& report);
  /// Stops the run: there is no use in going on when its events cannot be kept.
  void Stop(const absl::Status& status);

  CallContext& context_;
  Device& device_;
  const std::string run_id_;
  const LayerRun run_;
  const Plan outline_;
  const std::shared_ptr<Cancellation> cancellation_;
  const TellEvent tell_;
  absl::Status stopped_;  // Why Stop was called.
  std::optional<OutputWriter> writer_;               // Of the variant that is coming.
  std::vector<v1::OutputReport> outputs_;            // Those of its report, or their names.
  std::optional<v1::VariantFinished> last_variant_;  // That the end has with it.
  std::optional<v1::VariantReport> begun_;           // Its report, as far as it is known.
  size_t stages_counted_ = 0;                        // Of its stages, in statistics.
  v1::Environment environment_;                      // As read last.
  size_t variants_published_ = 0;
  /// Each event is sent and stored; nobody's eye can follow more.
  Throttle progress_throttle_{std::chrono::milliseconds(20)};
  absl::Duration store_time_;
  RunReport result_;  // Its tensors are dropped with this object, when the end has been told.
};

/// The least loaded device that has every arithmetic of the run.
absl::StatusOr<Device*> DeviceForRun(const LayerRun& run, const Devices& devices);

/// That plan with its tensors.
absl::StatusOr<Plan> LoadLayerRun(const LayerRun& run, const Plan& outline, TensorLoader& loader,
                                  Device& device, const Cancellation* cancellation);

v1::RunEvent AcceptedEvent(const std::string& run_id, int queue_position);
/// `report` and `last_variant` are told of where `state` is success.
v1::RunEvent FinishedEvent(const std::string& run_id, int64_t sequence, v1::RunState state,
                           const absl::Status& status, v1::RunReport report,
                           std::optional<v1::VariantFinished> last_variant = {});

/// A deadline may also be that of ranks which wait for one another: such a run has failed.
v1::RunState StateOf(const absl::Status& status, const Cancellation& cancellation);

}  // namespace quantgate
