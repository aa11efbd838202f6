// What run, compare and verify do alike: resolve the tensors, run the layer, name the result.
#pragma once

#include <map>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/options/invocation.h"
#include "client/cli/options/layer_options.h"
#include "client/cli/output.h"
#include "client/tensor_source.h"
#include "kernels/tensor/tensor.h"
#include "server/report/report_document.h"

namespace quantgate {

struct LayerCommand {
  LayerOptions layer;
  ReportOptions report;
  std::string output;         ///< -o FILE; empty: none. Of a run of one variant.
  bool keep_outputs = false;  ///< To compare with a subject's.
  int variants = 0;  ///< How many there must be, a twin on several ranks among them; 0: any.
  std::map<std::string, Tensor> subjects;  ///< RunSpec.subjects.
  std::set<std::string>
      more_inputs;  ///< Files that must not be overwritten besides the layer's own.
};

/// The finished run as a document whose verdict is the run's; `output` has been written.
absl::StatusOr<ReportDocument> ExecuteLayer(Invocation& invocation, const LayerCommand& run,
                                            const std::string& kind);

/// What `run -o` writes: the layer's outputs, then what delayed scaling's next step needs.
std::vector<v1::NamedTensor> OutputTensors(const v1::VariantReport& variant);

/// Draws uploads, and what is generated, on the progress bar.
TensorSources::Progress UploadProgressOf(Invocation& invocation);

}  // namespace quantgate
