// What of a captured call can be judged, and from what: the request that computes it, and the
// tensors that it is held against.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "client/capture.h"
#include "quantgate/v1/layer.pb.h"

namespace quantgate {

/// A gradient that was added to what was accumulated before, each value rounded once to the dtype
/// of the sum.
struct GradientSum {
  std::string name;   ///< "main_grad", "fc1.main_grad".
  std::string terms;  ///< "main_grad_before and dw".
  Tensor found, expected;
};

struct LayerJudgement {
  v1::RunSpec spec;                          ///< Without its tensors.
  std::map<std::string, Tensor> operands;    ///< x, dy, and parameters by their names.
  std::map<std::string, Tensor> main_grads;  ///< By weight, where the GEMM adds to them.
  std::vector<std::string> outputs;          ///< Outputs of the run to judge; empty: none.
  std::map<std::string, Tensor> tensors;     ///< What the step gave, by the names in `outputs`.
  std::vector<GradientSum> sums;             ///< What needs no run.
  std::vector<std::string> remarks;          ///< What is not judged, and why.
};

/// `variant`: what it is computed under; without a recipe or an arithmetic those of
/// CaptureCriterion (client/capture_report.h).
LayerJudgement JudgementOf(const CapturedCall& call, const TensorFile& file,
                           const v1::Variant& variant);

}  // namespace quantgate
