// Checks of sessions and their steps before anything is computed. Private to kernels/training.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "kernels/training/session_state.h"

namespace quantgate {

/// A layer's refusal with the fields of `parallel`, which has one overlap for both sides, where a
/// step on ranks has a plan for each: "parallel.overlap.column_fprop" of
/// "parallel.column_overlap.overlap.fprop".
absl::Status WithRequestedOverlap(const absl::Status& status);

/// The status with "layer NAME: " before its message.
absl::Status InLayer(const SessionLayer& layer, const absl::Status& status);

/// Gives each layer's spec the name that the layer has in the session.
void NameLayers(SessionSpec& spec);

/// Checks names, limits, the optimizer's options, and that the options go together.
/// INVALID_ARGUMENT.
absl::Status CheckSessionSpec(const SessionSpec& spec);

/// Checks that a recipe can hold the weights of these layers quantized. INVALID_ARGUMENT.
absl::Status CheckQuantizedWeightsOf(const std::vector<SessionLayer>& layers, const Recipe& recipe);

/// Checks that the layers fit their parameters, or a rank's parts of both, and that each layer fits
/// the one before it. INVALID_ARGUMENT.
absl::Status CheckSessionShapes(const SessionSpec& spec, const SessionState& state,
                                std::shared_ptr<const ParallelStep> parallel = nullptr);

/// Checks that every layer takes a forward under `recipe` and, in training, its backward, as
/// CheckLayer and CheckLayerGemms do. Gives the shape of y. `grad_output`: the codes that the
/// backward is to be given, if it is known.
absl::StatusOr<Shape> CheckSessionForward(const SessionSpec& spec, const SessionState& state,
                                          const Recipe& recipe, const ForwardStep& step,
                                          std::shared_ptr<const ParallelStep> parallel,
                                          const QuantizedTensor* grad_output = nullptr);

/// The dtype of an x that is not known yet: any dtype that a layer takes.
inline constexpr std::optional<DType> kAnyDType = std::nullopt;

/// The check of Open, Restore and a change of recipe: that the layers can do a forward and a
/// backward with all gradients under `recipe` (an evaluation, if weights are built without
/// gradients) for an x of `x_dtype`, however many rows it has. Calls CheckSessionForward with a
/// number of rows that fits every rule.
absl::Status CheckSessionRecipe(const SessionSpec& spec, const SessionState& state,
                                const Recipe& recipe, const SessionRank* rank,
                                std::optional<DType> x_dtype);
/// The dtype of all parameters; absent if they differ or there are none.
std::optional<DType> DTypeOfParameters(const SessionState& state);

/// Takes weights and main gradients that are given as one tensor for all experts of a layer apart.
/// Gives the numbers of the layers whose weights were. INVALID_ARGUMENT.
absl::StatusOr<std::set<size_t>> UnstackParameters(const SessionSpec& spec,
                                                   std::map<std::string, Tensor>& parameters);

/// Puts parameters into their layers' states, but main gradients and moments. INVALID_ARGUMENT for
/// a name that is none.
absl::Status SortParameters(const SessionSpec& spec,
                            const std::map<std::string, Tensor>& parameters, SessionState& state);

// Whether a step may come now: whether the microbatch is in flight, or there are gradients.
// FAILED_PRECONDITION.

absl::Status CheckForwardOrder(const SessionState& state, const ForwardStep& step);
absl::Status CheckBackwardOrder(const SessionState& state, const std::string& microbatch);
absl::Status CheckWgrad(const SessionState& state);
/// Also INVALID_ARGUMENT for a learning rate that is negative or not finite.
absl::Status CheckOptimize(const SessionSpec& spec, const SessionState& state,
                           const OptimizerStep& step);
absl::Status CheckCheckpoint(const SessionState& state);
/// The microbatch, which is offloaded or not, as wanted.
absl::StatusOr<std::shared_ptr<const InFlight>> FindInFlight(const SessionState& state,
                                                             const std::string& microbatch,
                                                             bool is_offloaded);
/// Checks a backward's tensor against the shape of y. INVALID_ARGUMENT.
absl::Status CheckGradOutput(const Tensor& gradient, const Shape& y);

/// RequiresGrad of each layer in a forward whose gradients are `wanted`. A layer's x requires a
/// gradient only if something before the layer does.
std::vector<RequiresGrad> RequiresGradOfLayers(const SessionState& state,
                                               const RequiresGrad& wanted);

/// Checks that `name` has 1 to 64 letters, digits, "_" and "-". INVALID_ARGUMENT naming `field`.
absl::Status CheckSessionName(const std::string& field, const std::string& name);

}  // namespace quantgate
