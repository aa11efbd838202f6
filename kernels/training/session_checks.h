// What a session refuses before it computes. Private to kernels/training.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "kernels/training/session_state.h"

namespace quantgate {

/// The status with "layer NAME: " before its message.
absl::Status InLayer(const SessionLayer& layer, const absl::Status& status);

/// Names, limits, the optimizer's options, and what goes together: INVALID_ARGUMENT.
absl::Status CheckSessionSpec(const SessionSpec& spec);

/// That a recipe can hold the weights of these layers quantized: INVALID_ARGUMENT.
absl::Status CheckQuantizedWeightsOf(const std::vector<SessionLayer>& layers, const Recipe& recipe);

/// That the layers fit their parameters, or a rank's parts of both, and each layer the one before
/// it: INVALID_ARGUMENT.
absl::Status CheckSessionShapes(const SessionSpec& spec, const SessionState& state,
                                std::shared_ptr<const ParallelStep> parallel = nullptr);

/// That every layer takes a forward of x under `recipe` and, in training, its backward: what
/// CheckLayer and CheckLayerGemms say. Gives the shape of y.
absl::StatusOr<Shape> CheckSessionForward(const SessionSpec& spec, const SessionState& state,
                                          const Recipe& recipe, const ForwardStep& step,
                                          std::shared_ptr<const ParallelStep> parallel);

/// Of x that nothing is known of yet: any dtype that a layer takes.
inline constexpr std::optional<DType> kAnyDType = std::nullopt;

/// What Open, Restore and a change of recipe refuse: layers under a recipe of which no forward and
/// backward with all gradients is possible, or with weights built without them no evaluation,
/// whatever x of `x_dtype` has for rows: what CheckSessionForward says of one whose rows fit every
/// rule.
absl::Status CheckSessionRecipe(const SessionSpec& spec, const SessionState& state,
                                const Recipe& recipe, const SessionRank* rank,
                                std::optional<DType> x_dtype);
/// The one of all parameters; absent where they differ or there are none.
std::optional<DType> DTypeOfParameters(const SessionState& state);

/// What each layer's tensors require in a forward whose gradients are `wanted`: an x only where
/// something before it does.
std::vector<RequiresGrad> RequiresGradOfLayers(const SessionState& state,
                                               const RequiresGrad& wanted);

/// Letters, digits, "_" and "-", 1 to 64 of them. INVALID_ARGUMENT naming `field`.
absl::Status CheckSessionName(const std::string& field, const std::string& name);

}  // namespace quantgate
