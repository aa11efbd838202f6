// Recipes, arithmetics and environment between wire and domain.
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"
#include "kernels/gemm/arithmetic.h"
#include "kernels/quantize/recipe/recipe.h"
#include "quantgate/v1/recipe.pb.h"
#include "quantgate/v1/report.pb.h"

namespace quantgate {

/// INVALID_ARGUMENT naming FIELD.name or FIELD.knobs["KNOB"].
absl::StatusOr<Recipe> RecipeFromProto(const v1::Recipe& proto, const std::string& field);

v1::RecipeDescription RecipeDescriptionToProto(const RecipeDescription& description);
v1::ArithmeticDescription ArithmeticDescriptionToProto(const ArithmeticDescription& description);
/// This build on these devices.
v1::Environment EnvironmentToProto(std::span<const DeviceDescription> devices);

}  // namespace quantgate
