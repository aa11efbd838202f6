// Engine.Diagnose.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "kernels/validate/diagnosis/engine_model.h"
#include "kernels/validate/diagnosis/layer_hypotheses.h"
#include "server/runs/engine_calls.h"
#include "server/runs/run_execution.h"
#include "server/wire/convert_layer.h"
#include "server/wire/convert_report.h"

namespace quantgate {
namespace {

using References = std::map<std::string, TensorReference>;

struct DiagnoseWork {
  References expected, subjects, related;
  std::optional<LayerRun> run;
  std::optional<Plan> outline;
  double seconds = 0;
};

absl::Status CheckSpec(CallContext& context, const v1::RunSpec& spec, DiagnoseWork& work) {
  if (spec.variants_size() != 1) {
    return Refuse("spec.variants", absl::StrCat(spec.variants_size()),
                  "one variant is diagnosed, the one that computed `expected`");
  }
  QG_ASSIGN_OR_RETURN(work.run, LayerRunFromProto(spec, context.tensor_bytes_max));
  if (work.run->request.variants[0].parallel.has_value()) {
    return Refuse("spec.variants[0].parallel", work.run->request.variants[0].Label(),
                  "a variant on one rank is diagnosed");
  }
  QG_RETURN_IF_ERROR(context.loader.Resolve(work.run->references()));
  QG_ASSIGN_OR_RETURN(work.outline, OutlineLayerRun(*work.run));
  return absl::OkStatus();
}

absl::StatusOr<DiagnoseWork> CheckDiagnose(CallContext& context,
                                           const v1::DiagnoseRequest& request) {
  const int64_t bytes_max = context.tensor_bytes_max;
  DiagnoseWork work;
  QG_ASSIGN_OR_RETURN(work.expected,
                      NamedTensorsFromProto(request.expected(), "expected", bytes_max));
  QG_ASSIGN_OR_RETURN(work.subjects,
                      NamedTensorsFromProto(request.subjects(), "subjects", bytes_max));
  QG_ASSIGN_OR_RETURN(work.related, NamedTensorsFromProto(request.related(), "related", bytes_max));
  if (!(request.seconds() >= 0) || std::isinf(request.seconds())) {
    return Refuse("seconds", absl::StrCat(request.seconds()), "it must be finite and at least 0");
  }
  work.seconds = request.seconds();
  const bool has_pair =
      std::any_of(work.subjects.begin(), work.subjects.end(),
                  [&](const auto& subject) { return work.expected.contains(subject.first); });
  if (!has_pair) {
    std::vector<std::string> names;
    for (const auto& [name, reference] : work.subjects) names.push_back(name);
    return Refuse("subjects", absl::StrJoin(names, ", "),
                  "one of them at least must have the name of one in expected");
  }
  std::vector<TensorReference*> references;
  for (References* named : {&work.expected, &work.subjects, &work.related}) {
    for (auto& [name, reference] : *named) references.push_back(&reference);
  }
  QG_RETURN_IF_ERROR(context.loader.Resolve(references));
  if (request.has_spec()) QG_RETURN_IF_ERROR(CheckSpec(context, request.spec(), work));
  return work;
}

absl::Status Diagnose(CallContext& context, Device& device, const DiagnoseWork& work,
                      const Cancellation& cancellation, v1::DiagnoseResponse& response) {
  const DiagnosisBudget budget = work.seconds == 0
                                     ? DiagnosisBudget::Unlimited()
                                     : DiagnosisBudget::Of(absl::Seconds(work.seconds));
  LayerCase of;
  const auto load = [&](const References& references, TensorsByName& tensors) -> absl::Status {
    for (const auto& [name, reference] : references) {
      QG_ASSIGN_OR_RETURN(tensors[name],
                          context.loader.LoadToHost(reference, device, &cancellation));
    }
    return absl::OkStatus();
  };
  QG_RETURN_IF_ERROR(load(work.expected, of.expected));
  QG_RETURN_IF_ERROR(load(work.subjects, of.subject));
  TensorsByName related;
  QG_RETURN_IF_ERROR(load(work.related, related));
  for (const auto& [name, tensor] : related) of.related.push_back({name, tensor});
  Diagnosis diagnosis;
  if (work.run.has_value()) {
    QG_ASSIGN_OR_RETURN(const Plan plan, LoadLayerRun(*work.run, *work.outline, context.loader,
                                                      device, &cancellation));
    const LayerRequest& layer = plan.request().step;
    const Variant& variant = plan.request().variants[0];
    QG_RETURN_IF_ERROR(ReadOperands(*device.engine, layer, &cancellation, of));
    EngineLayerModel model(*device.engine, layer, variant.recipe, variant.arithmetic, of.expected,
                           &cancellation, budget);
    QG_ASSIGN_OR_RETURN(diagnosis, DiagnoseLayer(of, model, budget));
  } else {
    UnknownLayer model;
    QG_ASSIGN_OR_RETURN(diagnosis, DiagnoseLayer(of, model, budget));
  }
  *response.mutable_diagnosis() = DiagnosisToProto(diagnosis);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DeviceWork> PrepareDiagnose(CallContext& context, const v1::DiagnoseRequest& request,
                                           v1::DiagnoseResponse& response) {
  QG_ASSIGN_OR_RETURN(DiagnoseWork work, CheckDiagnose(context, request));
  DeviceWork on_device;
  if (work.run.has_value()) {
    QG_ASSIGN_OR_RETURN(on_device.device, DeviceForRun(*work.run, context.devices));
  }
  on_device.run = [&context, &response, work = std::move(work)](Device& device,
                                                                const Cancellation& cancellation) {
    return Diagnose(context, device, work, cancellation, response);
  };
  return on_device;
}

}  // namespace quantgate
