// Why do a layer's outputs differ from the expected ones? Each hypothesis is a change of the layer:
// other operands, another activation, another recipe. The layer is computed under the change, and
// where that gives every output that was found, the change is the answer (docs/reports.md section
// 10.2).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor/files/tensor_file.h"
#include "kernels/validate/diagnosis/diagnosis.h"

namespace quantgate {

using TensorsByName = std::map<std::string, Tensor>;

/// Which part of the layer a change is made in; the rest is as it should be.
enum class ChangeScope {
  kAll,
  kDgrad,  ///< The GEMM of dx.
  kWgrad,  ///< The gradients of parameters: dw, db, main_grad.
  kSlope,  ///< The activation's slope in backward.
};

struct LayerChange {
  ChangeScope scope = ChangeScope::kAll;
  TensorsByName operands;  ///< In place of the given ones.
  std::string activation;  ///< In place of the given one; empty: as it is.
  std::string recipe;      ///< In place of the given one; empty: as it is.
  /// The states of delayed scaling that have the scale of an earlier step.
  std::vector<std::string> earlier_scales = {};
};

/// Computes the layer.
class LayerModel {
 public:
  virtual ~LayerModel() = default;
  /// The outputs under a change, in host memory. UNIMPLEMENTED for a change that the layer cannot
  /// have; INVALID_ARGUMENT for operands that it does not take; DEADLINE_EXCEEDED where the time of
  /// the diagnosis ended meanwhile.
  virtual absl::StatusOr<TensorsByName> Compute(const LayerChange& change) = 0;
  /// Other activations and recipes that it can have, the likeliest first.
  virtual std::vector<std::string> Activations() const { return {}; }
  virtual std::vector<std::string> Recipes() const { return {}; }
  /// The states of delayed scaling whose scale was another one in the step before: "fc1.input".
  virtual std::vector<std::string> EarlierScales() { return {}; }
};

/// A layer that is not known has no changes.
class UnknownLayer : public LayerModel {
 public:
  absl::StatusOr<TensorsByName> Compute(const LayerChange&) override {
    return absl::UnimplementedError("how the tensors were computed is not known");
  }
};

/// Tensors in host memory.
struct LayerCase {
  /// "x", "grad_output" and parameters by the names of layer.h: "weight", "fc1.bias".
  TensorsByName operands;
  TensorsByName main_grads;  ///< What gradients are accumulated into, by weight.
  TensorsByName expected,
      subject;  ///< Outputs; those of `subject` that `expected` lacks are left out.
  /// Tensors that may have been taken in place of an operand: those of another step.
  std::vector<NamedTensor> related;
};

/// Errors: those of the model but UNIMPLEMENTED and INVALID_ARGUMENT, whose changes are not tried.
absl::StatusOr<Diagnosis> DiagnoseLayer(const LayerCase& of, LayerModel& model,
                                        const DiagnosisBudget& budget);

}  // namespace quantgate
