#include "server/runs/run_request.h"

#include <string>

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

}  // namespace

v1::RunSpec KeptRequest(const v1::RunSpec& spec, const LayerRun& run) {
  v1::RunSpec kept = spec;
  v1::LayerStep& step = *kept.mutable_step();
  const auto set = [&](const std::string& name, v1::TensorSource& source) {
    const auto found = run.tensors.find(name);
    if (found != run.tensors.end()) SetDigest(found->second, source);
  };
  const auto set_all = [&](const char* field,
                           google::protobuf::Map<std::string, v1::TensorSource>& sources) {
    for (auto& [name, source] : sources) set(absl::StrCat(field, "[", name, "]"), source);
  };
  if (step.has_x()) set("x", *step.mutable_x());
  if (step.has_grad_output()) set("grad_output", *step.mutable_grad_output());
  set_all("parameters", *step.mutable_parameters());
  set_all("main_grads", *step.mutable_main_grads());
  set_all("delayed_state", *step.mutable_delayed_state());
  set_all("subjects", *kept.mutable_subjects());
  return kept;
}

std::string RepeatCommand(const std::string& run_id) {
  return absl::StrCat("quantgate run --spec run:", run_id);
}

}  // namespace quantgate
