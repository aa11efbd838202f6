#include "client/cli/commands/session_trace.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/cli/options/quantized_metadata.h"
#include "client/tensor_name.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

/// The tensors of a trace, by their names in it.
class TraceTensors {
 public:
  TraceTensors(TensorSources& sources, v1::RunTraceRequest& request)
      : sources_(sources), request_(request) {}

  /// `field`: within the trace. Every round takes the same tensors: each is read and sent once.
  absl::Status Add(const std::string& field, const std::string& name) {
    if (name.empty() || request_.tensors().contains(name)) return absl::OkStatus();
    QG_ASSIGN_OR_RETURN((*request_.mutable_tensors())[name],
                        ResolveOperand(absl::StrCat("SPEC: ", field), name, sources_));
    return absl::OkStatus();
  }

 private:
  TensorSources& sources_;
  v1::RunTraceRequest& request_;
};

}  // namespace

absl::Status AddSubjects(const std::string& path, v1::SessionTrace& trace) {
  QG_ASSIGN_OR_RETURN(const TensorFile file, ReadTensorFile("--subject", path));
  if (file.tensors.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--subject: ", path, " has no tensors"));
  }
  for (const NamedTensor& tensor : file.tensors) {
    std::string_view rest = tensor.name;
    const size_t dot = rest.find('.');
    int step = 0;
    const bool is_subject = rest.starts_with("step") && dot != std::string_view::npos &&
                            absl::SimpleAtoi(std::string(rest.substr(4, dot - 4)), &step);
    if (!is_subject || step < 1 || step > trace.steps_size()) {
      return absl::InvalidArgumentError(absl::StrCat("--subject: ", path, ": ", tensor.name,
                                                     " is of no step; name tensors step1.y"
                                                     ", step2.fc1.dw, ..., of steps 1 to ",
                                                     trace.steps_size()));
    }
    const std::string output(rest.substr(dot + 1));
    auto& subjects = *trace.mutable_steps(step - 1)->mutable_subjects();
    if (subjects.contains(output)) {
      return absl::InvalidArgumentError(absl::StrCat("--subject: ", path, ": ", tensor.name,
                                                     ": SPEC names a subject of that step too"));
    }
    subjects[output] = absl::StrCat(path, ":", tensor.name);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::RunTraceRequest> TraceRequestOf(const v1::SessionTrace& trace,
                                                   TensorSources& sources) {
  v1::RunTraceRequest request;
  *request.mutable_trace() = trace;
  TraceTensors tensors(sources, request);
  for (const auto& [parameter, name] : trace.parameters()) {
    QG_RETURN_IF_ERROR(tensors.Add(absl::StrCat("parameters[", parameter, "]"), name));
  }
  for (int i = 0; i < trace.steps_size(); ++i) {
    const v1::SessionTrace::Step& step = trace.steps(i);
    const std::string at = absl::StrCat("steps[", i, "].");
    QG_RETURN_IF_ERROR(tensors.Add(at + "x", step.x()));
    QG_RETURN_IF_ERROR(tensors.Add(at + "grad_output", step.grad_output()));
    for (const auto& [output, name] : step.subjects()) {
      QG_RETURN_IF_ERROR(tensors.Add(absl::StrCat(at, "subjects[", output, "]"), name));
    }
  }
  return request;
}

}  // namespace quantgate
