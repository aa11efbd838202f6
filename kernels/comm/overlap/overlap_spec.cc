#include "kernels/comm/overlap/overlap_spec.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace quantgate {

std::string OverlapKey(OverlapSide side, GemmRole role) {
  return absl::StrCat(side == OverlapSide::kColumn ? "column_" : "row_",
                      std::string(GemmRoleName(role)));
}

std::string OverlapSpec::Text() const {
  std::vector<std::string> parts;
  for (const auto& [key, method] : methods) {
    parts.push_back(absl::StrCat(OverlapKey(key.first, key.second), "=",
                                 std::string(OverlapMethodName(method))));
  }
  if (aggregate) parts.push_back("aggregate");
  if (pieces != OverlapSpec{}.pieces) parts.push_back(absl::StrCat("pieces=", pieces));
  if (splits != OverlapSpec{}.splits) parts.push_back(absl::StrCat("splits=", splits));
  return parts.empty() ? "default" : absl::StrJoin(parts, ",");
}

bool OverlapSpec::names_nothing() const {
  return aggregate == OverlapSpec{}.aggregate && pieces == OverlapSpec{}.pieces &&
         splits == OverlapSpec{}.splits &&
         std::all_of(methods.begin(), methods.end(),
                     [](const auto& named) { return named.second == OverlapMethod::kNone; });
}

OverlapPlan OverlapPlanOf(const OverlapSpec& spec, OverlapSide side, const Recipe& recipe) {
  const bool is_mxfp8 =
      recipe.QuantizerFor(TensorRole::kInput).rowwise.traits().scales == ScaleKind::kE8m0;
  const OverlapPlan defaults = DefaultOverlapPlan(side, is_mxfp8);
  const auto asked = [&](GemmRole role) -> std::optional<OverlapMethod> {
    const auto found = spec.methods.find({side, role});
    if (found == spec.methods.end()) return std::nullopt;
    return found->second;
  };
  OverlapPlan plan;
  for (const GemmRole role : {GemmRole::kFprop, GemmRole::kDgrad, GemmRole::kWgrad}) {
    const std::optional<OverlapMethod> named = asked(role);
    plan.SetMethod(role, named.value_or(defaults.MethodOf(role)));
    plan.gives_way[static_cast<size_t>(role)] = !named.has_value();
  }
  // Splits are asked for by their number, of the pipeline alone.
  if (side == OverlapSide::kRow && spec.splits != OverlapSpec{}.splits) {
    plan.gives_way[static_cast<size_t>(GemmRole::kFprop)] = false;
  }
  // External is asked for with the ring that it runs beside.
  if (asked(GemmRole::kWgrad) == OverlapMethod::kExternal) {
    plan.gives_way[static_cast<size_t>(GemmRole::kDgrad)] = false;
  }
  // A dgrad that scatters dx itself leaves wgrad nothing to scatter.
  const bool scatters_dx =
      side == OverlapSide::kColumn &&
      (plan.dgrad == OverlapMethod::kRingExchange || plan.dgrad == OverlapMethod::kPipeline);
  if (scatters_dx && plan.GivesWay(GemmRole::kWgrad)) plan.wgrad = OverlapMethod::kNone;
  plan.aggregate = spec.aggregate;
  plan.pieces = spec.pieces;
  plan.splits = spec.splits;
  return plan;
}

}  // namespace quantgate
