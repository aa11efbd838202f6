#include "server/runs/run_request.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "server/wire/convert_tensor.h"

namespace quantgate {
namespace {

void SetDigest(const TensorReference& reference, v1::TensorSource& source) {
  if (!reference.has_value() || source.has_generate()) return;
  v1::StoredTensor& stored = *source.mutable_stored();
  *stored.mutable_digest() = DigestToProto(reference.digest);
  *stored.mutable_type() = TensorTypeToProto(*reference.type);
}

void SetDigests(const std::map<std::string, TensorReference>& references,
                google::protobuf::Map<std::string, v1::TensorSource>& sources) {
  for (const auto& [name, reference] : references) SetDigest(reference, sources[name]);
}

}  // namespace

v1::RunSpec KeptRequest(const v1::RunSpec& spec, const LayerRun& run) {
  v1::RunSpec kept = spec;
  v1::LayerStep& step = *kept.mutable_step();
  if (step.has_x()) SetDigest(run.x, *step.mutable_x());
  if (step.has_grad_output()) SetDigest(run.grad_output, *step.mutable_grad_output());
  SetDigests(run.parameters, *step.mutable_parameters());
  SetDigests(run.main_grads, *step.mutable_main_grads());
  SetDigests(run.delayed_state, *step.mutable_delayed_state());
  SetDigests(run.subjects, *kept.mutable_subjects());
  return kept;
}

std::string RepeatCommand(const std::string& run_id) {
  return absl::StrCat("quantgate run --spec run:", run_id);
}

}  // namespace quantgate
