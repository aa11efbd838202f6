#include "kernels/layer/layer_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/comm/row_blocks.h"
#include "kernels/layer/attention_core.h"
#include "kernels/layer/linear/linear_overlap.h"

namespace quantgate {
namespace {

class Planner {
 public:
  Planner(const LayerSpec& spec, const LayerOutline& outline, const StepOptions& options,
          LayerPlan& layer, const LayerProgram& program)
      : spec_(spec), outline_(outline), options_(options), recipe_(options.recipe), layer_(layer) {
    for (const ProgramOperation& operation : program.operations) {
      plan_.operations.emplace_back();
      static_cast<ProgramOperation&>(plan_.operations.back()) = operation;
    }
    for (const ProgramValue& value : program.values) {
      plan_.values.emplace_back();
      static_cast<ProgramValue&>(plan_.values.back()) = value;
    }
    plan_.norm_out = program.norm_out;
    if (!layer.has_experts) {
      rows_ = SequenceRows(program, outline.x_shape, outline.parallel.get());
    }
  }

  ProgramPlan Plan(int64_t first_row, int64_t rows) {
    plan_.first_row = first_row;
    plan_.rows = rows;
    PlanShapes();
    PlanGradients();
    for (size_t i = 0; i < plan_.operations.size(); ++i) PlanUnrounded(i);
    for (size_t i = 0; i < plan_.operations.size(); ++i) {
      if (plan_.operations[i].kind == OperationKind::kBasicLinear) PlanLinear(i);
    }
    const PlannedOperation* const last = FirstOfBackward(plan_);
    if (last != nullptr && outline_.grad_output_is_codes) {
      plan_.operations[static_cast<size_t>(last - plan_.operations.data())]
          .linear.facts.grad_output_is_codes = true;
    }
    for (size_t i = 0; i < plan_.operations.size(); ++i) {
      if (plan_.operations[i].kind == OperationKind::kQuantize) PlanQuantize(i);
      if (plan_.operations[i].kind == OperationKind::kActivation) PlanActivationGradient(i);
      if (plan_.operations[i].kind == OperationKind::kAttention) {
        PlannedOperation& attention = plan_.operations[i];
        attention.linear = AttentionUnit(attention.name, attention.core, layer_.activation_dtype,
                                         attention.needs_backward);
      }
    }
    for (size_t i = 0; i < plan_.operations.size(); ++i) {
      if (plan_.operations[i].kind == OperationKind::kBasicLinear) PlanOverlap(i);
    }
    return std::move(plan_);
  }

 private:
  PlannedValue& input_of(size_t i) { return plan_.values[plan_.operations[i].input]; }
  PlannedValue& output_of(size_t i) { return plan_.values[i + 1]; }
  int producer_of(int value) const { return value - 1; }
  const ParameterOutline& parameter(const std::string& name) const {
    return outline_.parameters.at(name);
  }
  /// The operation whose input is this value; null for the last value.
  PlannedOperation* Next(int value);
  /// The linear unit that a value's gradient goes to, perhaps through biases, which pass it on.
  /// Null if another operation contributes to the gradient.
  PlannedOperation* LinearBehind(int value);

  void PlanShapes();
  void PlanGradients();
  void PlanUnrounded(size_t i);
  void PlanLinear(size_t i);
  void PlanParallel(size_t i);
  void PlanOverlap(size_t i);
  void PlanQuantize(size_t i);
  void PlanActivationGradient(size_t i);
  void SetFirstCallId(PlannedOperation& operation);
  /// The recipe of the module that an operation is.
  std::shared_ptr<const Recipe> RecipeOf(const PlannedOperation& operation) const {
    return std::make_shared<const Recipe>(RecipeOfModule(spec_, recipe_, operation.names.prefix));
  }

  const LayerSpec& spec_;
  const LayerOutline& outline_;
  const StepOptions& options_;
  const Recipe& recipe_;
  const LayerPlan& layer_;
  std::vector<int64_t> rows_;  ///< SequenceRows.
  ProgramPlan plan_;
};

PlannedOperation* Planner::Next(int value) {
  const size_t operation = static_cast<size_t>(value);
  return operation < plan_.operations.size() ? &plan_.operations[operation] : nullptr;
}

PlannedOperation* Planner::LinearBehind(int value) {
  const int index = quantgate::LinearBehind(plan_.operations, plan_.values, value);
  return index < 0 ? nullptr : &plan_.operations[static_cast<size_t>(index)];
}

void Planner::PlanShapes() {
  PlannedValue& x = plan_.values[0];
  x.dtype = outline_.x_dtype;
  x.shape = outline_.x_shape;
  if (layer_.has_experts) x.shape = {plan_.rows, outline_.x_shape.back()};
  for (size_t i = 0; i < plan_.operations.size(); ++i) {
    const PlannedOperation& operation = plan_.operations[i];
    PlannedValue& output = output_of(i);
    output.dtype = layer_.activation_dtype;
    output.shape = input_of(i).shape;
    if (operation.kind == OperationKind::kBasicLinear) {
      output.shape.back() = parameter(operation.weight).shape[0];
      output.shape.front() = OutputFirstDim(operation.parallel_mode, output.shape.front(), rows_,
                                            outline_.parallel.get());
    } else if (operation.kind == OperationKind::kActivation) {
      output.shape = ActivationOutputShape(output.shape, operation.activation.kind);
    } else if (operation.kind == OperationKind::kAttention) {
      PlannedOperation& attention = plan_.operations[i];
      const int ranks = outline_.parallel == nullptr ? 1 : outline_.parallel->size();
      attention.core = AttentionDimsOf(attention, output.shape, ranks);
      output.shape = AttentionOutputShape(attention.core, output.shape);
    }
  }
}

void Planner::PlanGradients() {
  const RequiresGrad& wanted = options_.requires_grad;
  plan_.values[0].needs_gradient = options_.grad_enabled && wanted.x;
  for (size_t i = 0; i < plan_.operations.size(); ++i) {
    PlannedOperation& operation = plan_.operations[i];
    operation.needs_parameters =
        options_.grad_enabled &&
        ((!operation.weight.empty() && wanted.weight) || (!operation.bias.empty() && wanted.bias) ||
         (!operation.gamma.empty() && wanted.norm));
    operation.needs_backward =
        operation.needs_parameters || input_of(i).needs_gradient ||
        (operation.addend >= 0 && plan_.values[operation.addend].needs_gradient);
    output_of(i).needs_gradient = operation.needs_backward;
  }
}

// A norm or an activation before a delayed-scaling cast: one kernel, which casts the fp32 result,
// unless something else reads it too (docs/quantizers.md sections 10.5, 10.8).
void Planner::PlanUnrounded(size_t i) {
  const OperationKind kind = plan_.operations[i].kind;
  if (kind != OperationKind::kNorm && kind != OperationKind::kActivation) return;
  if (!layer_.fused || !layer_.casts_unrounded) return;
  const int output = static_cast<int>(i) + 1;
  if (output == plan_.norm_out && layer_.returns_norm_output) return;
  const PlannedOperation* const next = Next(output);
  if (next == nullptr || next->kind != OperationKind::kBasicLinear) return;
  if (output_of(i).consumers != 1) return;
  output_of(i).is_unrounded = true;
  output_of(i).dtype = DType::kF32;
}

void Planner::SetFirstCallId(PlannedOperation& operation) {
  operation.linear.names = operation.names;
  operation.linear.index = operation.unit;
  operation.linear.first_call_id =
      options_.first_call_id + kCallIdsPerUnit * static_cast<uint32_t>(operation.unit);
}

void Planner::PlanLinear(size_t i) {
  PlannedOperation& operation = plan_.operations[i];
  SetFirstCallId(operation);
  const PlannedValue& x = input_of(i);
  const ParameterOutline& weight = parameter(operation.weight);
  LinearUnit& unit = operation.linear;
  unit.recipe = RecipeOf(operation);
  unit.k = x.shape.back();
  unit.n = weight.shape[0];
  unit.m = 1;
  for (size_t dim = 0; dim + 1 < x.shape.size(); ++dim) unit.m *= x.shape[dim];
  PlanParallel(i);

  LinearFacts& facts = unit.facts;
  facts.x_dtype = x.dtype;
  facts.x_is_unrounded = x.is_unrounded;
  facts.x_is_codes = operation.input == 0 && outline_.x_is_codes;
  facts.weight_dtype = weight.dtype;
  facts.weight_is_codes = weight.is_quantized;
  facts.activation_dtype = layer_.activation_dtype;
  facts.has_bias = !operation.bias.empty();
  facts.needs_dx = x.needs_gradient;
  facts.needs_dw = options_.grad_enabled && options_.requires_grad.weight;
  facts.needs_db = options_.grad_enabled && options_.requires_grad.bias;
  facts.has_main_grad = outline_.main_grads.count(operation.weight) != 0;
  facts.is_empty = unit.m == 0;
  facts.calibrate = options_.calibrate;
  unit.flow = DataflowOf(facts, *unit.recipe);
  // The bias is added to the sum over the ranks, not in a GEMM.
  if (unit.parallel.is_row()) unit.flow.bias_dtype = layer_.activation_dtype;
}

void Planner::PlanOverlap(size_t i) {
  PlannedOperation& operation = plan_.operations[i];
  LinearUnit& unit = operation.linear;
  if (!unit.parallel.is_parallel()) return;
  operation.overlap_facts = {
      .side = unit.parallel.is_column() ? OverlapSide::kColumn : OverlapSide::kRow,
      .ranks = outline_.parallel->size(),
      .sequence_parallel = outline_.parallel->sequence_parallel,
      .is_grad_enabled = options_.grad_enabled,
      .is_after_norm = operation.input > 0 &&
                       plan_.operations[producer_of(operation.input)].kind == OperationKind::kNorm,
      .returns_norm_output = unit.parallel.returns_x};
  const std::vector<std::string> notes =
      ResolveOverlap(*outline_.parallel, operation.overlap_facts, options_.defer_wgrad, unit);
  plan_.notes.insert(plan_.notes.end(), notes.begin(), notes.end());
}

void Planner::PlanParallel(size_t i) {
  PlannedOperation& operation = plan_.operations[i];
  if (outline_.parallel == nullptr || operation.parallel_mode == ParallelMode::kNone) return;
  LinearUnit& unit = operation.linear;
  LinearParallel& parallel = unit.parallel;
  parallel.weight_mode = operation.parallel_mode;
  parallel.size = outline_.parallel->size();
  parallel.rank = outline_.parallel->rank();
  if (layer_.has_experts) return;
  parallel.mode = operation.parallel_mode;
  parallel.first_dim = output_of(i).shape.front();
  if (rows_.empty()) return;
  // M counts all rows: those of x or of y, whichever has them.
  const Shape& whole = parallel.is_column() ? output_of(i).shape : input_of(i).shape;
  int64_t inner = 1;
  for (size_t dim = 1; dim + 1 < whole.size(); ++dim) inner *= whole[dim];
  for (const int64_t rows : rows_) parallel.rows.push_back(rows * inner);
  unit.m = whole.front() * inner;
  parallel.x_gather = GatherMethodOf(*unit.recipe, TensorRole::kInput, parallel.rows, unit.k);
  parallel.grad_output_gather =
      GatherMethodOf(*unit.recipe, TensorRole::kGradOutput, parallel.rows, unit.n);
  parallel.returns_x =
      parallel.is_column() && layer_.returns_norm_output && operation.input == plan_.norm_out;
}

void Planner::PlanQuantize(size_t i) {
  PlannedOperation& operation = plan_.operations[i];
  SetFirstCallId(operation);
  operation.linear.flow.is_delayed = layer_.is_delayed;
  operation.linear.flow.is_calibration = layer_.is_calibration;
  const int output = static_cast<int>(i) + 1;
  PlannedOperation* const next = Next(output);
  const bool feeds_linear = LinearAfter(plan_.operations, output) >= 0;
  PlannedOperation* const linear = LinearBehind(operation.input);
  operation.linear.recipe = feeds_linear ? next->linear.recipe : RecipeOf(operation);
  operation.gradient_recipe = linear != nullptr ? linear->linear.recipe : RecipeOf(operation);
  if (layer_.is_calibration) return;
  if (operation.quantizes_forward) {
    // The usages that the linear unit behind it would quantize itself. Other operations read the
    // values of the rowwise codes.
    Usages& usages = operation.forward_usages;
    usages.rowwise = operation.QuantizerFor(TensorRole::kInput).rowwise.makes_copy();
    if (feeds_linear) {
      usages.columnwise = next->linear.flow.x_usages.columnwise;
      next->linear.facts.x_is_codes = usages.rowwise || usages.columnwise;
    }
    const int others = output_of(i).consumers - (feeds_linear ? 1 : 0);
    operation.dequantizes_forward = usages.rowwise && (others > 0 || next == nullptr);
  }
  if (!operation.quantizes_backward || !operation.needs_backward ||
      recipe_.backward_override() != BackwardOverride::kNone) {
    return;
  }
  Usages& usages = operation.backward_usages;
  usages.rowwise = operation.QuantizerFor(TensorRole::kGradOutput).rowwise.makes_copy();
  if (linear != nullptr) {
    usages.columnwise = linear->linear.flow.grad_output_usages.columnwise;
    linear->linear.facts.grad_output_is_codes = usages.rowwise || usages.columnwise;
  }
  const bool is_before_linear =
      linear != nullptr &&
      plan_.operations[producer_of(operation.input)].kind == OperationKind::kBasicLinear;
  operation.dequantizes_backward = usages.rowwise && !is_before_linear;
}

// One kernel for derivative, bias gradient and quantization under delayed scaling and mxfp8
// (docs/quantizers.md section 10.8).
void Planner::PlanActivationGradient(size_t i) {
  PlannedOperation& operation = plan_.operations[i];
  const bool is_mxfp8 =
      recipe_.name() == "mxfp8" && recipe_.backward_override() == BackwardOverride::kNone;
  if (!layer_.fused || !(layer_.casts_unrounded || is_mxfp8)) return;
  // Transformer Engine has one kernel for derivative, bias gradient and quantization of the others.
  if (IsGated(operation.activation.kind)) return;
  const int input = operation.input;
  if (input == 0 || plan_.values[input].consumers != 1) return;
  if (plan_.operations[producer_of(input)].kind != OperationKind::kBasicLinear) return;
  operation.gradient = is_mxfp8 ? ActivationGradient::kForBiasOnly : ActivationGradient::kUnrounded;
}

}  // namespace

const PlannedOperation* FirstOfBackward(const ProgramPlan& program) {
  size_t value = program.values.size() - 1;
  while (value > 0) {
    const PlannedOperation& producer = program.operations[value - 1];
    if (producer.kind == OperationKind::kBasicLinear) return &producer;
    if (producer.kind != OperationKind::kBias) return nullptr;
    value = static_cast<size_t>(producer.input);
    if (program.values[value].consumers != 1) return nullptr;
  }
  return nullptr;
}

std::vector<int64_t> SequenceRows(const LayerProgram& program, const Shape& x,
                                  const ParallelStep* parallel) {
  if (parallel == nullptr || !parallel->divides_rows()) return {};
  for (const ProgramOperation& operation : program.operations) {
    if (operation.parallel_mode == ParallelMode::kNone) continue;
    if (!parallel->rows.empty()) return parallel->rows;
    if (operation.parallel_mode == ParallelMode::kRow) {
      return EvenRows(x.front(), parallel->size());
    }
    return std::vector<int64_t>(static_cast<size_t>(parallel->size()), x.front());
  }
  return {};
}

int64_t OutputFirstDim(ParallelMode mode, int64_t first_dim, std::span<const int64_t> rows,
                       const ParallelStep* parallel) {
  if (rows.empty() || mode == ParallelMode::kNone) return first_dim;
  if (mode == ParallelMode::kRow) return rows[static_cast<size_t>(parallel->rank())];
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

Shape LayerPlan::ShapeOfRows(int64_t columns) const {
  Shape shape = x_shape;
  shape.back() = columns;
  return shape;
}

LayerPlan PlanLayer(const LayerSpec& spec, const LayerOutline& outline,
                    const StepOptions& options) {
  LayerPlan layer;
  layer.has_experts = spec.traits().has_experts;
  layer.fused = spec.fused;
  layer.returns_norm_output = spec.return_norm_output;
  layer.x_shape = outline.x_shape;
  layer.activation_dtype = options.recipe.activation_dtype().value_or(outline.x_dtype);
  layer.is_calibration = options.calibrate && options.recipe.is_delayed();
  layer.is_delayed = options.recipe.is_delayed() && !layer.is_calibration;
  layer.casts_unrounded = layer.is_delayed && options.recipe.name() == "fp8_delayed";
  layer.delayed_states = DelayedStatesOf(spec, options.recipe);
  const std::vector<LayerProgram> programs = ProgramsOf(
      spec, [&](const std::string& name) { return outline.parameters.count(name) != 0; });
  int64_t rows = 1;
  for (size_t dim = 0; dim + 1 < outline.x_shape.size(); ++dim) rows *= outline.x_shape[dim];
  int64_t first_row = 0;
  for (size_t i = 0; i < programs.size(); ++i) {
    const int64_t count = layer.has_experts ? spec.m_splits[i] : rows;
    layer.programs.push_back(
        Planner(spec, outline, options, layer, programs[i]).Plan(first_row, count));
    layer.has_backward |= layer.programs.back().values.back().needs_gradient;
    first_row += count;
  }
  return layer;
}

}  // namespace quantgate
