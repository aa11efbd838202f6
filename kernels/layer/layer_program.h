// A layer as a program of basic operations: which operations there are, what each reads, and the
// names of all values. The kinds of layers differ in nothing else. A program follows from the spec
// and from which parameters exist; a LayerPlan (kernels/layer/layer_plan.h) adds what one step
// does.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "kernels/layer/layer.h"
#include "kernels/layer/linear/linear_unit.h"

namespace quantgate {

enum class ParameterKind { kWeight, kBias, kGamma, kBeta };

struct LayerParameter {
  std::string name;  ///< "fc1.weight", "weight.0", "OPERATION.gamma".
  ParameterKind kind = ParameterKind::kWeight;
  bool is_optional = false;
  std::string gradient;   ///< "fc1.dw".
  std::string main_grad;  ///< "fc1.main_grad"; weights only.
};

/// Every parameter that a layer of this spec can have, in the order of gradients in results.
std::vector<LayerParameter> ParametersOf(const LayerSpec& spec);

/// One operation. Values are numbered: 0 is the program's input, i + 1 the output of operation i.
struct ProgramOperation {
  OperationKind kind = OperationKind::kBasicLinear;
  std::string name;   ///< Prefix of its stages: "norm", "core"; in a chain OperationSpec::name.
  std::string field;  ///< Its name in errors: "layer.operations[2]".
  int input = 0;      ///< The value that it reads.
  int addend = -1;    ///< kAdd: the other value that it reads.
  int unit = -1;      ///< kBasicLinear, kQuantize: its index among the units that have call ids.
  LinearNames names;  ///< kBasicLinear, kQuantize.
  std::string weight, bias, gamma, beta;  ///< Its parameters; empty: none. A bias of a kBasicLinear
                                          ///< is added in the GEMM's epilogue.
  NormOptions norm;
  ActivationOptions activation;
  AttentionOptions attention;  ///< kAttention.
  bool divides_heads = false;  ///< kAttention: the ranks of the group have whole groups each.
  float factor = 1;
  bool quantizes_forward = false, quantizes_backward = false;  ///< kQuantize.
  ParallelMode parallel_mode = ParallelMode::kNone;            ///< kBasicLinear.
};

struct ProgramValue {
  std::string name;      ///< "x", "norm_out", "fc1.y", "fc2.x", "y"; of a chain "OPERATION.y".
  std::string gradient;  ///< "dx", "dnorm_out", "fc1.grad_output", "fc2.dx", "grad_output"; of a
                         ///< chain "OPERATION.grad_output".
  int consumers = 0;     ///< How many times operations read it.
};

struct LayerProgram {
  std::vector<ProgramOperation> operations;
  std::vector<ProgramValue> values;
  int norm_out = -1;  ///< The value that LayerSpec::return_norm_output returns.

  int output_of(int operation) const { return operation + 1; }
};

/// The programs of a spec that CheckLayerSpec accepts: one, or one for each expert. `has` says
/// whether an optional parameter exists.
std::vector<LayerProgram> ProgramsOf(const LayerSpec& spec,
                                     const std::function<bool(const std::string&)>& has);

/// The basic_linear that reads a value next, and the one that a value's gradient goes to, perhaps
/// through biases, which pass it on: their indices in `operations`; -1 if the operation after the
/// value is another one, or if another operation contributes to the gradient.
template <typename Operation>
int LinearAfter(const std::vector<Operation>& operations, int value) {
  const auto next = static_cast<size_t>(value);
  const bool is_linear =
      next < operations.size() && operations[next].kind == OperationKind::kBasicLinear;
  return is_linear ? value : -1;
}
template <typename Operation, typename Value>
int LinearBehind(const std::vector<Operation>& operations, const std::vector<Value>& values,
                 int value) {
  while (value > 0 && values[static_cast<size_t>(value)].consumers == 1) {
    const Operation& producer = operations[static_cast<size_t>(value) - 1];
    if (producer.kind == OperationKind::kBasicLinear) return value - 1;
    if (producer.kind != OperationKind::kBias) return -1;
    value = producer.input;
  }
  return -1;
}

/// One of a layer's delayed scales: the name of its state, and the tensors that it scales.
struct LayerDelayedState {
  std::string name;
  TensorRole role = TensorRole::kInput;
  DType element = DType::kF8E4M3;  ///< What they are cast to.
};
/// All of them under the recipe, in order.
std::vector<LayerDelayedState> DelayedStatesOf(const LayerSpec& spec, const Recipe& recipe);

/// Refuses a spec that no tensors can fit: INVALID_ARGUMENT naming field, value, rule.
absl::Status CheckLayerSpec(const LayerSpec& spec);

}  // namespace quantgate
