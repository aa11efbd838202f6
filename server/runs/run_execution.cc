#include "server/runs/run_execution.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "server/limits.h"
#include "server/wire/convert_recipe.h"
#include "server/wire/convert_report.h"
#include "server/wire/convert_tensor.h"

namespace quantgate {
namespace {

std::string SourceText(const TensorReference& reference) {
  switch (reference.kind) {
    case TensorReference::Kind::kInline:
      return "inline";
    case TensorReference::Kind::kGenerated:
      return GeneratorText(reference.generator);
    default:
      return "stored";
  }
}

/// The largest report of a variant, in bytes, that keeps all its heat maps: what a message may
/// hold, less the bytes of inline outputs and a margin.
constexpr size_t kReportBytesMax = kMessageBytesMax - kInlineBytesMax - (256 << 10);

/// The largest last variant, in bytes, that the event of the run's end carries: two messages take
/// longer to travel than one.
constexpr size_t kLastVariantBytesMax = 64 << 10;

/// Leaves out the heat maps of the last outputs where the report would exceed a message, as for a
/// layer of many experts, and adds a note that says so.
void LeaveOutHeatMaps(v1::VariantReport& report) {
  size_t bytes = report.ByteSizeLong();
  const auto clear = [&](v1::ErrorReport& error) {
    bytes -= error.heat_map().ByteSizeLong();
    error.clear_heat_map();
  };
  const int count = report.outputs_size();
  int left_out = 0;
  for (; left_out < count && bytes > kReportBytesMax; ++left_out) {
    v1::OutputReport& output = *report.mutable_outputs(count - 1 - left_out);
    // An output that was streamed has its error reports in an event of its own.
    if (output.has_against_exact()) {
      clear(*output.mutable_against_unquantized());
      clear(*output.mutable_against_exact()->mutable_error());
    }
    for (v1::TensorComparison& comparison : *report.mutable_against_reference()) {
      if (comparison.tensor() == output.tensor().name()) clear(*comparison.mutable_error());
    }
  }
  if (left_out == 0) return;
  report.add_notes(absl::StrCat("the heat maps of the last ", left_out, " of ", count,
                                " outputs are left out: with them the report exceeds a message"));
}

}  // namespace

absl::StatusOr<Device*> DeviceForRun(const LayerRun& run, const Devices& devices) {
  std::vector<Arithmetic> arithmetics;
  for (const Variant& variant : run.request.variants) arithmetics.push_back(variant.arithmetic);
  absl::StatusOr<Device*> device = LeastLoadedWith(devices, arithmetics);
  if (device.ok()) return device;
  return WithinField("spec.variants", device.status());
}

absl::StatusOr<CheckedRun> CheckLayerRun(CallContext& context, const v1::RunSpec& spec,
                                         LayerRun run) {
  QG_RETURN_IF_ERROR(context.loader.Resolve(run.references()));
  run.kept_request = KeptRequest(spec, run);
  QG_ASSIGN_OR_RETURN(Plan outline, OutlineLayerRun(run));
  QG_ASSIGN_OR_RETURN(Device * device, DeviceForRun(run, context.devices));
  std::string summary = run.Summary();
  return CheckedRun{std::move(summary), device,
                    [&context, run = std::move(run), outline = std::move(outline)](
                        RunPlace place) mutable -> std::unique_ptr<RunWork> {
                      return std::make_unique<RunExecution>(
                          context, place.device, std::move(place.run_id), std::move(run),
                          std::move(outline), std::move(place.cancellation), std::move(place.tell));
                    }};
}

absl::StatusOr<Plan> LoadLayerRun(const LayerRun& run, const Plan& outline, TensorLoader& loader,
                                  Device& device, const Cancellation* cancellation) {
  const auto load = [&](const std::string& name, const Tensor&) -> absl::StatusOr<Tensor> {
    if (cancellation != nullptr) QG_RETURN_IF_ERROR(cancellation->Check());
    const TensorReference& reference = run.tensors.at(name);
    // The values of delayed scaling's states are checked in host memory.
    return absl::StartsWith(name, "delayed_state[")
               ? loader.LoadToHost(reference, device, cancellation)
               : loader.Load(reference, device, cancellation);
  };
  const auto load_codes = [&](const std::string& name) {
    return LoadQuantized(run.quantized.at(name), loader, device, cancellation);
  };
  return outline.WithTensors(load, load_codes);
}

absl::StatusOr<LoadedCodes> LoadQuantized(const QuantizedReference& reference, TensorLoader& loader,
                                          Device& device, const Cancellation* cancellation) {
  QG_ASSIGN_OR_RETURN(const QuantizedPlan outline, OutlineOf(reference));
  LoadedCodes loaded;
  const auto load = [&](const std::string& slot) -> absl::StatusOr<Tensor> {
    QG_ASSIGN_OR_RETURN(const Tensor part,
                        loader.Load(reference.parts.at(slot), device, cancellation));
    loaded.parts.push_back({PartOfSlot(slot), part});
    return part;
  };
  QG_ASSIGN_OR_RETURN(const QuantizedPlan plan, outline.WithTensors(load));
  QG_ASSIGN_OR_RETURN(loaded.codes, plan.Codes(*device.engine));
  QG_ASSIGN_OR_RETURN(loaded.values, ValuesOf(*device.engine, loaded.codes, cancellation));
  return loaded;
}

v1::RunState StateOf(const absl::Status& status, const Cancellation& cancellation) {
  if (status.ok()) return v1::RUN_STATE_SUCCEEDED;
  // UNAVAILABLE where the server ended it.
  const bool may_be = absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status);
  const bool was_cancelled = absl::IsCancelled(status) || (may_be && !cancellation.Check().ok());
  return was_cancelled ? v1::RUN_STATE_CANCELLED : v1::RUN_STATE_FAILED;
}

v1::RunEvent AcceptedEvent(const std::string& run_id, int queue_position) {
  v1::RunEvent event;
  event.set_run_id(run_id);
  event.set_sequence(1);
  event.mutable_accepted()->set_queue_position(queue_position);
  return event;
}

v1::RunEvent FinishedEvent(const std::string& run_id, int64_t sequence, v1::RunState state,
                           const absl::Status& status, v1::RunReport report,
                           std::optional<v1::VariantFinished> last_variant) {
  v1::RunEvent event;
  event.set_run_id(run_id);
  event.set_sequence(sequence);
  v1::RunFinished& finished = *event.mutable_finished();
  finished.set_state(state);
  finished.set_status_code(static_cast<int>(status.code()));
  finished.set_status_message(std::string(status.message()).substr(0, kStatusMessageBytesMax));
  if (state == v1::RUN_STATE_SUCCEEDED) {
    *finished.mutable_report() = std::move(report);
    if (last_variant.has_value()) *finished.mutable_variant() = *std::move(last_variant);
  }
  return event;
}

RunExecution::RunExecution(CallContext& context, Device& device, std::string run_id, LayerRun run,
                           Plan outline, std::shared_ptr<Cancellation> cancellation, TellEvent tell)
    : context_(context),
      device_(device),
      run_id_(std::move(run_id)),
      run_(std::move(run)),
      outline_(std::move(outline)),
      cancellation_(std::move(cancellation)),
      tell_(std::move(tell)) {}

RunWork::Labels RunExecution::labels() const {
  Labels labels{std::string(LayerKindName(run_.request.step.layer.kind)), {}};
  for (const Variant& variant : run_.request.variants) {
    labels.variants.push_back({variant.recipe.name(), std::string(BackwardOverrideName(
                                                          variant.recipe.backward_override()))});
  }
  return labels;
}

absl::StatusOr<v1::RunReport> RunExecution::Execute(const RankSetting& ranks) {
  const absl::Time start = SteadyNow();
  QG_ASSIGN_OR_RETURN(const Plan plan,
                      LoadLayerRun(run_, outline_, context_.loader, device_, cancellation_.get()));
  context_.statistics.StageTook(Stage::kFetch, SteadyNow() - start);
  return ExecutePlan(plan, ranks);
}

absl::StatusOr<v1::RunReport> RunExecution::ExecutePlan(const Plan& plan,
                                                        const RankSetting& ranks) {
  v1::RunReport report;
  report.set_schema_version(1);
  report.set_run_id(run_id_);
  device_.description.Refresh();  // Reads in the background while the run goes on.
  const auto on_progress = [this](const RunProgress& progress) { OnProgress(progress); };
  const auto on_output = [this](int index, const OutputReport& output) {
    Store([&] { return PublishOutput(index, output); });
  };
  const auto on_measured = [this](int, const VariantReport& variant) {
    Store([&] { return BeginVariant(variant); });
  };
  const auto on_variant = [this](int index, const VariantReport& variant) {
    Store([&] { return PublishVariant(index, variant); });
  };
  QG_ASSIGN_OR_RETURN(
      result_, RunPlan(plan, *device_.engine, cancellation_.get(),
                       RunObserver{on_progress, on_variant, on_output, on_measured}, &ranks));
  *report.mutable_request() = run_.kept_request;
  const std::optional<int>& reference = run_.request.reference;
  if (reference.has_value()) report.set_reference(*reference);
  QG_RETURN_IF_ERROR(DescribeInputs(report));
  *report.mutable_environment() = std::move(environment_);
  for (const PairSummary& pair : result_.pairs) *report.add_pairs() = PairSummaryToProto(pair);
  *report.mutable_verdict() = VerdictToProto(result_.verdict);
  if (result_.diagnosis.has_value()) {
    *report.mutable_diagnosis() = DiagnosisToProto(*result_.diagnosis);
  }
  return report;
}

absl::Status RunExecution::DescribeInputs(v1::RunReport& report) {
  for (const auto& [name, fingerprint] : result_.inputs) {
    v1::InputTensor& proto = *report.add_inputs();
    proto.set_name(name);
    *proto.mutable_fingerprint() = FingerprintToProto(fingerprint);
    QG_RETURN_IF_ERROR(DescribeSource(ReferenceOf(name), proto));
  }
  for (const auto& [name, subject] : run_.request.subjects) {
    QG_RETURN_IF_ERROR(KeepBytes(run_.tensors.at(absl::StrCat("subjects[", name, "]"))));
  }
  return absl::OkStatus();
}

const TensorReference& RunExecution::ReferenceOf(const std::string& input) const {
  const auto found = run_.tensors.find(input);
  if (found != run_.tensors.end()) return found->second;
  // A part of an operand that was given as codes: "parameters[weight].rowwise_data".
  const size_t point = input.rfind('.');
  return run_.quantized.at(input.substr(0, point)).parts.at(SlotOfPart(input.substr(point + 1)));
}

absl::Status RunExecution::DescribeSource(const TensorReference& reference,
                                          v1::InputTensor& proto) {
  *proto.mutable_type() = TensorTypeToProto(*reference.type);
  proto.set_source(SourceText(reference));
  if (reference.kind == TensorReference::Kind::kGenerated) return absl::OkStatus();
  *proto.mutable_digest() = DigestToProto(reference.digest);
  return KeepBytes(reference);
}

absl::Status RunExecution::KeepBytes(const TensorReference& reference) {
  if (reference.kind != TensorReference::Kind::kInline) return absl::OkStatus();
  return context_.blobs.Put(std::as_bytes(std::span(reference.bytes))).status();
}

void RunExecution::OnProgress(const RunProgress& progress) {
  if (!stopped_.ok()) return;
  // The run's end is reported by an event of its own.
  if (progress.step == progress.step_count) return;
  if (!progress_throttle_.Passes()) return;
  v1::RunEvent event;
  event.mutable_progress()->set_step(progress.step);
  event.mutable_progress()->set_step_count(progress.step_count);
  event.mutable_progress()->set_what(progress.what);
  Stop(tell_(event));
}

template <typename Body>
void RunExecution::Store(Body body) {
  if (!stopped_.ok()) return;
  const absl::Time start = SteadyNow();
  Stop(body());
  store_time_ += SteadyNow() - start;
}

absl::Status RunExecution::PublishOutput(int index, const OutputReport& report) {
  if (!writer_.has_value()) {
    writer_.emplace(context_.blobs, *device_.engine,
                    run_.keep_outputs ? KeepOutputs::kAll : KeepOutputs::kNone);
  }
  v1::OutputReport proto = OutputReportToProto(report);
  v1::NamedTensor* const tensor = proto.mutable_tensor();
  if (report.is_intermediate) {
    writer_->Describe(report.tensor, report.value, report.fingerprint, tensor);
  } else {
    QG_RETURN_IF_ERROR(
        writer_->Write(report.tensor, report.value, report.fingerprint, tensor, report.read_value));
  }
  if (!run_.stream_outputs) {
    outputs_.push_back(std::move(proto));
    return absl::OkStatus();
  }
  outputs_.emplace_back().mutable_tensor()->set_name(report.tensor);
  v1::RunEvent event;
  event.mutable_output()->set_index(index);
  *event.mutable_output()->mutable_report() = std::move(proto);
  return tell_(event);
}

absl::Status RunExecution::BeginVariant(const VariantReport& report) {
  const std::string reference = run_.request.reference.has_value()
                                    ? run_.request.variants[*run_.request.reference].recipe.name()
                                    : "";
  context_.statistics.VariantMeasured(report, reference);
  context_.statistics.StagesTook(report.stages);
  const DeviceDescription device = device_.description.Get();
  environment_ = EnvironmentToProto(std::span(&device, 1));
  stages_counted_ = report.stages.size();
  v1::VariantReport& proto = begun_.emplace(VariantReportToProto(report));
  if (run_.keep_outputs) QG_RETURN_IF_ERROR(KeepParts(report, proto));
  QG_RETURN_IF_ERROR(writer_->WriteAll(report.state, cancellation_.get(), *proto.mutable_state()));
  QG_RETURN_IF_ERROR(
      writer_->WriteAll(report.stacks, cancellation_.get(), *proto.mutable_stacks()));
  writer_.reset();
  return absl::OkStatus();
}

absl::Status RunExecution::KeepParts(const VariantReport& report, v1::VariantReport& proto) {
  for (size_t i = 0; i < report.ranks.size(); ++i) {
    const auto& parts = report.ranks[i].outputs;
    v1::RankReport& rank = *proto.mutable_ranks(static_cast<int>(i));
    for (size_t j = 0; j < parts.size(); ++j) {
      const auto& part = parts[j];
      const bool is_whole =
          std::any_of(report.outputs.begin(), report.outputs.end(), [&](const OutputReport& whole) {
            return whole.tensor == part.tensor && whole.fingerprint == part.fingerprint &&
                   whole.value.shape() == part.shape;
          });
      if (is_whole) continue;
      QG_ASSIGN_OR_RETURN(const Tensor host, part.to_host());
      QG_RETURN_IF_ERROR(writer_->Write(part.tensor, host, part.fingerprint,
                                        rank.mutable_outputs(static_cast<int>(j))));
    }
  }
  return absl::OkStatus();
}

absl::Status RunExecution::PublishVariant(int index, const VariantReport& report) {
  if (!begun_.has_value()) QG_RETURN_IF_ERROR(BeginVariant(report));
  v1::RunEvent event;
  event.mutable_variant()->set_index(index);
  v1::VariantReport& proto = *event.mutable_variant()->mutable_report();
  proto = *std::exchange(begun_, std::nullopt);
  AddEnd(report, proto);
  for (size_t i = 0; i < outputs_.size(); ++i) {
    AddBounds(report.outputs[i], outputs_[i]);
    *proto.add_outputs() = std::move(outputs_[i]);
  }
  outputs_.clear();
  LeaveOutHeatMaps(proto);
  const bool is_last = ++variants_published_ == run_.request.variants.size();
  if (is_last && run_.stream_outputs && proto.ByteSizeLong() <= kLastVariantBytesMax) {
    last_variant_ = std::move(*event.mutable_variant());
  } else {
    QG_RETURN_IF_ERROR(tell_(event));
  }
  context_.statistics.StagesTook(std::span(report.stages).subspan(stages_counted_));
  return absl::OkStatus();
}

void RunExecution::Stop(const absl::Status& status) {
  if (status.ok()) return;
  stopped_ = status;
  cancellation_->Cancel();
}

}  // namespace quantgate
