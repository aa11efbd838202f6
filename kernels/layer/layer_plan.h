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

/// What a plan must know about a layer's tensors.
struct LayerOutline {
  DType x_dtype = DType::kBF16;
  Shape x_shape;
  std::map<std::string, ParameterOutline> parameters;
  std::set<std::string> main_grads;  ///< By weight.
  std::shared_ptr<const ParallelStep> parallel;
  bool x_is_codes = false, grad_output_is_codes = false;  ///< They are given as codes.
};

struct PlannedValue : ProgramValue {
  Shape shape;
  DType dtype = DType::kBF16;
  bool is_unrounded = false;  ///< f32, not rounded before the quantizer that follows.
  bool needs_gradient = false;
};

/// What an activation's backward hands to the linear unit before it.
enum class ActivationGradient {
  kRounded,      ///< The gradient rounded to the activation dtype.
  kUnrounded,    ///< The f32 gradient, which is quantized and summed into the bias gradient.
  kForBiasOnly,  ///< The rounded gradient, and the f32 one for the bias gradient only.
};

/// The dims of attention on one rank.
struct AttentionDims {
  int64_t sequence = 0, batch = 1;  ///< S and B.
  int64_t heads = 1, groups = 1;    ///< Query heads of this rank, and groups of them.
  int64_t columns = 0;              ///< D, of every head.

  int64_t queries() const { return heads / groups; }  ///< Query heads of a group.
  /// Heads of a group in qkv's output, in order: its query heads, the key head, the value head.
  int64_t members() const { return queries() + 2; }
  int64_t matrices() const { return batch * heads; }  ///< Matrices of scores, [S][S] each.
};

struct PlannedOperation : ProgramOperation {
  /// kBasicLinear; for kQuantize only what quantizing reads, for kAttention its products.
  LinearUnit linear;
  AttentionDims core;             ///< kAttention.
  OverlapFacts overlap_facts;     ///< Of a linear unit that is divided over ranks.
  bool needs_backward = false;    ///< Something that this operation gives a gradient to needs it.
  bool needs_parameters = false;  ///< Gradients of its own parameters are needed.
  ActivationGradient gradient = ActivationGradient::kRounded;
  // kQuantize: the usages of its codes, and whether anything reads the values of the codes.
  Usages forward_usages{false, false}, backward_usages{false, false};
  bool dequantizes_forward = false, dequantizes_backward = false;
  /// kQuantize: the recipe of the module whose grad_output it quantizes. linear.recipe is that of
  /// the module whose x it quantizes. Where it feeds no module they are those of its own place.
  std::shared_ptr<const Recipe> gradient_recipe;

  /// The recipe by which the tensor of this role is quantized here.
  const Recipe& RecipeFor(TensorRole role) const {
    const bool is_gradient = role == TensorRole::kGradOutput && gradient_recipe != nullptr;
    return is_gradient ? *gradient_recipe : *linear.recipe;
  }
  const Quantizer& QuantizerFor(TensorRole role) const {
    return RecipeFor(role).QuantizerFor(role);
  }
};

struct ProgramPlan {
  std::vector<PlannedOperation> operations;
  std::vector<PlannedValue> values;
  int norm_out = -1;
  int64_t first_row = 0, rows = 0;  ///< The rows of x that it takes: one expert's, or all.
  std::vector<std::string> notes;   ///< Which GEMMs do not overlap as the step asks, and why.
};

struct LayerPlan {
  bool has_experts = false;  ///< Each program is one expert's, on its own rows of x.
  std::vector<ProgramPlan> programs;
  DType activation_dtype = DType::kBF16;
  bool fused = true;
  bool returns_norm_output = false;
  bool has_backward = false;
  bool is_delayed = false, is_calibration = false;
  /// The results of norms and activations are cast without being rounded before: under fp8_delayed
  /// itself, since Transformer Engine has no such kernel for hybrid and custom recipes.
  bool casts_unrounded = false;
  std::vector<LayerDelayedState> delayed_states;  ///< Those that the step has; none if neither.

  /// x's shape with `columns` as the last dim.
  Shape ShapeOfRows(int64_t columns) const;
  Shape x_shape;
};

/// Dim 0, on each rank, of tensors between the parallel regions of a program whose input has shape
/// `x`. Empty if dim 0 is not divided.
std::vector<int64_t> SequenceRows(const LayerProgram& program, const Shape& x,
                                  const ParallelStep* parallel);
/// Dim 0 of the output of a linear operation whose x has `first_dim`.
int64_t OutputFirstDim(ParallelMode mode, int64_t first_dim, std::span<const int64_t> rows,
                       const ParallelStep* parallel);

/// The operation, a linear unit, that the gradient of the last value reaches first, perhaps through
/// biases, which pass it on; null if another operation reads it.
const PlannedOperation* FirstOfBackward(const ProgramPlan& program);

/// The plan of one step; spec and outline must be those of a request that CheckLayerTensors
/// accepts.
LayerPlan PlanLayer(const LayerSpec& spec, const LayerOutline& outline, const StepOptions& options);

}  // namespace quantgate
