// What one step of a layer does, decided from the outlines of its tensors and the step's options
// before anything is computed: shapes, which gradients flow where, the dataflow of every linear
// unit, and what is handed on without being rounded (docs/quantizers.md sections 10.5, 10.8,
// 10.10). Checks, forward and backward read it and decide nothing themselves.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kernels/layer/layer_program.h"

namespace quantgate {

struct ParameterOutline {
  DType dtype = DType::kBF16;
  Shape shape;
  bool is_quantized = false;
};

/// What of a layer's tensors a plan follows from.
struct LayerOutline {
  DType x_dtype = DType::kBF16;
  Shape x_shape;
  std::map<std::string, ParameterOutline> parameters;
  std::set<std::string> main_grads;  ///< By weight.
  std::shared_ptr<const ParallelStep> parallel;
};

struct PlannedValue : ProgramValue {
  Shape shape;
  DType dtype = DType::kBF16;
  bool is_unrounded = false;  ///< f32, for the quantizer that follows.
  bool needs_gradient = false;
};

/// What an activation's backward hands to the linear unit whose output it takes.
enum class ActivationGradient {
  kRounded,      ///< To the activation dtype.
  kUnrounded,    ///< f32: quantized, and summed into the bias gradient, as it is.
  kForBiasOnly,  ///< Rounded, but for the bias gradient.
};

struct PlannedOperation : ProgramOperation {
  LinearUnit linear;              ///< kBasicLinear; of a kQuantize only what quantizing takes.
  bool needs_backward = false;    ///< Of anything that it gives a gradient to.
  bool needs_parameters = false;  ///< Gradients of its own parameters.
  ActivationGradient gradient = ActivationGradient::kRounded;
  // kQuantize: in which usages, and whether anything reads what the codes stand for.
  Usages forward_usages{false, false}, backward_usages{false, false};
  bool dequantizes_forward = false, dequantizes_backward = false;
};

struct ProgramPlan {
  std::vector<PlannedOperation> operations;
  std::vector<PlannedValue> values;
  int norm_out = -1;
  int64_t first_row = 0, rows = 0;  ///< Of x: an expert's, or all.
};

struct LayerPlan {
  bool has_experts = false;  ///< A program is an expert's, on rows of x of its own.
  std::vector<ProgramPlan> programs;
  DType activation_dtype = DType::kBF16;
  bool fused = true;
  bool returns_norm_output = false;
  bool has_backward = false;
  bool is_delayed = false, is_calibration = false;

  /// Of x's shape with another last dim.
  Shape ShapeOfRows(int64_t columns) const;
  Shape x_shape;
};

/// Dim 0 on each rank of what lies between the parallel regions of a program that takes `x`; empty
/// where it is not divided.
std::vector<int64_t> SequenceRows(const LayerProgram& program, const Shape& x,
                                  const ParallelStep* parallel);
/// Dim 0 of the output of a linear operation whose x has `first_dim`.
int64_t OutputFirstDim(ParallelMode mode, int64_t first_dim, std::span<const int64_t> rows,
                       const ParallelStep* parallel);

/// For a spec and outlines that CheckLayerTensors accepts.
LayerPlan PlanLayer(const LayerSpec& spec, const LayerOutline& outline, const StepOptions& options);

}  // namespace quantgate
