// RunExecution: one run of a layer on a device, from its plan to its report. Every step becomes an
// event, which the caller passes on and may store.
#pragma once

#include <cstdint>
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
#include "server/runs/run_work.h"
#include "server/wire/layer_run.h"

namespace quantgate {

class RunExecution final : public RunWork {
 public:
  /// `outline`: the result of OutlineLayerRun for `run`.
  RunExecution(CallContext& context, Device& device, std::string run_id, LayerRun run, Plan outline,
               std::shared_ptr<Cancellation> cancellation, TellEvent tell);

  absl::StatusOr<v1::RunReport> Execute(const RankSetting& ranks) override;
  const absl::Status& stop_status() const override { return stopped_; }
  std::optional<v1::VariantFinished> TakeLastVariant() override {
    return std::exchange(last_variant_, std::nullopt);
  }
  absl::Duration store_time() const override { return store_time_; }
  std::string RepeatCommand() const override { return quantgate::RepeatCommand(run_id_); }
  Labels labels() const override;

 private:
  absl::StatusOr<v1::RunReport> ExecutePlan(const Plan& plan, const RankSetting& ranks);
  absl::Status DescribeInputs(v1::RunReport& report);
  /// The reference to an input of the report.
  const TensorReference& ReferenceOf(const std::string& input) const;
  /// Writes where the input came from, and its digest.
  absl::Status DescribeSource(const TensorReference& reference, v1::InputTensor& proto);
  /// Stores the bytes of a tensor that came with the request, so that the run can be repeated.
  absl::Status KeepBytes(const TensorReference& reference);
  void OnProgress(const RunProgress& progress);
  /// Calls `body`, which returns an absl::Status, unless the run has stopped; its time counts as
  /// store_time.
  template <typename Body>
  void Store(Body body);
  absl::Status PublishOutput(int index, const OutputReport& report);
  /// Makes begun_ of what is known of the variant so far.
  absl::Status BeginVariant(const VariantReport& report);
  /// Writes the ranks' parts that are not the whole output.
  absl::Status KeepParts(const VariantReport& report, v1::VariantReport& proto);
  absl::Status PublishVariant(int index, const VariantReport& report);
  /// Stops the run: to go on would be useless when its events cannot be stored.
  void Stop(const absl::Status& status);

  CallContext& context_;
  Device& device_;
  const std::string run_id_;
  const LayerRun run_;
  const Plan outline_;
  const std::shared_ptr<Cancellation> cancellation_;
  const TellEvent tell_;
  absl::Status stopped_;  // Why Stop was called.
  // The next four members are about the variant that is being measured.
  std::optional<OutputWriter> writer_;
  std::vector<v1::OutputReport> outputs_;   // The variant's outputs; only their names if streamed.
  std::optional<v1::VariantReport> begun_;  // Its report, as far as it is known.
  size_t stages_counted_ = 0;               // The number of its stages that statistics have.
  std::optional<v1::VariantFinished> last_variant_;  // Carried by the event of the run's end.
  // The environment with the device's latest description.
  v1::Environment environment_;
  size_t variants_published_ = 0;
  /// Bounds the rate of progress events, each of which is sent and stored, to what an eye can
  /// follow.
  Throttle progress_throttle_{std::chrono::milliseconds(20)};
  absl::Duration store_time_;
  // Keeps its tensors alive until this object goes, after the end of the run has been published: to
  // free them earlier would delay that.
  RunReport result_;
};

/// Does every check of a run that needs no tensor's bytes. `run` is of `spec`. The context outlives
/// the run.
absl::StatusOr<CheckedRun> CheckLayerRun(CallContext& context, const v1::RunSpec& spec,
                                         LayerRun run);

/// The least loaded device whose engine has every arithmetic of the run.
absl::StatusOr<Device*> DeviceForRun(const LayerRun& run, const Devices& devices);

/// `outline` with the tensors of `run` loaded.
absl::StatusOr<Plan> LoadLayerRun(const LayerRun& run, const Plan& outline, TensorLoader& loader,
                                  Device& device, const Cancellation* cancellation);

/// A quantized tensor and its values on the device. The types of its parts must be known.
absl::StatusOr<LoadedCodes> LoadQuantized(const QuantizedReference& reference, TensorLoader& loader,
                                          Device& device, const Cancellation* cancellation);

v1::RunEvent AcceptedEvent(const std::string& run_id, int queue_position);
/// The event has `report` and `last_variant` where `state` is success.
v1::RunEvent FinishedEvent(const std::string& run_id, int64_t sequence, v1::RunState state,
                           const absl::Status& status, v1::RunReport report,
                           std::optional<v1::VariantFinished> last_variant = {});

/// The state of a run that ended with `status`. A run with DEADLINE_EXCEEDED has failed where the
/// deadline was that of ranks which wait for one another, and is cancelled where it was its own.
v1::RunState StateOf(const absl::Status& status, const Cancellation& cancellation);

}  // namespace quantgate
