// A layer as a program of basic operations: which there are, what each reads, and what everything
// is called. The kinds of layers differ in nothing else. Known from the spec and from which
// parameters there are; what a step does beyond it is the LayerPlan's (kernels/layer/layer_plan.h).
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

/// Every parameter that a layer of this spec can have, in the order of its gradients in results.
std::vector<LayerParameter> ParametersOf(const LayerSpec& spec);

/// One operation. Values have numbers: 0 is what the program takes, i + 1 what operation i gives.
struct ProgramOperation {
  OperationKind kind = OperationKind::kBasicLinear;
  std::string name;   ///< Of its stages: "norm", "activation"; an operation's of a chain.
  std::string field;  ///< What a user calls it in errors: "layer.operations[2]".
  int input = 0;
  int addend = -1;    ///< kAdd: another value.
  int unit = -1;      ///< kBasicLinear, kQuantize: which of the layer's units of three call ids.
  LinearNames names;  ///< Likewise.
  std::string weight, bias, gamma, beta;  ///< Its parameters; empty: none. A bias of a kBasicLinear
                                          ///< is added in the GEMM's epilogue.
  NormOptions norm;
  ActivationOptions activation;
  float factor = 1;
  bool quantizes_forward = false, quantizes_backward = false;  ///< kQuantize.
  ParallelMode parallel_mode = ParallelMode::kNone;            ///< kBasicLinear.
};

struct ProgramValue {
  std::string name;      ///< "x", "norm_out", "fc1.y", "fc2.x", "y"; of a chain "OPERATION.y".
  std::string gradient;  ///< "dx", "dnorm_out", "fc1.grad_output", "fc2.dx", "grad_output"; of a
                         ///< chain "OPERATION.grad_output".
  int consumers = 0;     ///< Operations that read it, counted as often as they do.
};

struct LayerProgram {
  std::vector<ProgramOperation> operations;
  std::vector<ProgramValue> values;
  int norm_out = -1;  ///< The value that LayerSpec::return_norm_output returns.

  int output_of(int operation) const { return operation + 1; }
};

/// The programs of a spec that CheckLayerSpec accepts: one, or one for each expert. `has` says
/// which optional parameters there are.
std::vector<LayerProgram> ProgramsOf(const LayerSpec& spec,
                                     const std::function<bool(const std::string&)>& has);

/// Delayed scaling's states of a layer, in order: name, and role of what is cast.
struct LayerDelayedState {
  std::string name;
  TensorRole role = TensorRole::kInput;
};
std::vector<LayerDelayedState> DelayedStatesOf(const LayerSpec& spec);

/// What of a spec makes no sense whatever its tensors: INVALID_ARGUMENT naming field, value, rule.
absl::Status CheckLayerSpec(const LayerSpec& spec);

}  // namespace quantgate
