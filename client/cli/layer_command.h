// What run, compare and verify have in common: to resolve the tensors, run the layer and make the
// report.
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
  /// -o FILE, for a run of one variant, perhaps with its twin on several ranks, of which it gets
  /// the outputs and the ranks' parts; empty: none.
  std::string output;
  bool keep_outputs = false;  ///< RunSpec.keep_outputs, to compare outputs with a subject's.
  bool lists_tried = false;   ///< ReportDocument::lists_tried.
  int variants = 0;  ///< The number there must be, twins on several ranks included; 0: any.
  std::map<std::string, Tensor> subjects;  ///< RunSpec.subjects.
  std::set<std::string>
      more_inputs;  ///< Files that must not be overwritten besides the layer's own.
};

/// Runs the layer and writes `output`. Returns the run as a document whose verdict is the run's.
absl::StatusOr<ReportDocument> ExecuteLayer(Invocation& invocation, const LayerCommand& run,
                                            const std::string& kind);

/// Draws uploads and generated tensors on the progress bar.
TensorSources::Progress UploadProgressOf(Invocation& invocation);

}  // namespace quantgate
