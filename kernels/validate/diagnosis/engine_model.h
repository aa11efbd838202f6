// The model of a diagnosis that computes the layer on an engine.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "kernels/engine/engine.h"
#include "kernels/layer/layer.h"
#include "kernels/validate/diagnosis/layer_hypotheses.h"

namespace quantgate {

/// What was computed under a change, in host memory: outputs that a change of this part of backward
/// leaves alone are those expected.
absl::StatusOr<TensorsByName> OutputsWithin(ChangeScope scope,
                                            const std::vector<NamedTensor>& outputs,
                                            const TensorsByName& expected, Engine& engine,
                                            const Cancellation* cancellation);
/// Other activations of a layer that LayerSpec::activation decides about.
std::vector<std::string> OtherActivations(const LayerSpec& spec);
/// A recipe with each other value of each of its knobs, and with each backward override; then the
/// other recipes with their defaults.
std::vector<std::string> OtherRecipes(const Recipe& recipe);

/// A layer of one rank under a recipe and an arithmetic. A part of backward can be changed alone
/// only in a `linear`, whose outputs follow each from one GEMM.
class EngineLayerModel : public LayerModel {
 public:
  /// `expected`: the outputs without a change, in host memory. `caller`: whoever waits for the
  /// diagnosis, asked before each computation; a computation that has begun ends with `budget`. All
  /// must outlive the model.
  EngineLayerModel(Engine& engine, const LayerRequest& request, const Recipe& recipe,
                   const Arithmetic& arithmetic, const TensorsByName& expected,
                   const Cancellation* caller, const DiagnosisBudget& budget)
      : engine_(engine),
        request_(request),
        recipe_(recipe),
        arithmetic_(arithmetic),
        expected_(expected),
        caller_(caller),
        end_(caller == nullptr ? budget.end() : std::min(caller->deadline(), budget.end())) {}

  absl::StatusOr<TensorsByName> Compute(const LayerChange& change) override;
  std::vector<std::string> Activations() const override { return OtherActivations(request_.layer); }
  std::vector<std::string> Recipes() const override { return OtherRecipes(recipe_); }

 private:
  Engine& engine_;
  const LayerRequest& request_;
  const Recipe& recipe_;
  const Arithmetic& arithmetic_;
  const TensorsByName& expected_;
  const Cancellation* const caller_;
  const Cancellation end_;
};

/// The operands and main gradients of a request in host memory, as a LayerCase has them. Operands
/// that are given as codes have their values.
absl::Status ReadOperands(Engine& engine, const LayerRequest& request,
                          const Cancellation* cancellation, LayerCase& of);

}  // namespace quantgate
