#include "kernels/comm/overlap/overlap_method.h"

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/parse_name.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

constexpr std::string_view kOverlapMethodNames[] = {"none", "ring_exchange", "pipeline", "bulk",
                                                    "external"};

constexpr std::array<OverlapAssignment, 6> kAssignments = {{
    {OverlapSide::kColumn, GemmRole::kFprop, "x", OverlapCollective::kAllGather,
     OverlapMethod::kRingExchange, GemmRole::kFprop, false},
    {OverlapSide::kColumn, GemmRole::kDgrad, "x", OverlapCollective::kAllGather,
     OverlapMethod::kBulk, GemmRole::kDgrad, false},
    {OverlapSide::kColumn, GemmRole::kWgrad, "dx", OverlapCollective::kReduceScatter,
     OverlapMethod::kBulk, GemmRole::kWgrad, false},
    {OverlapSide::kRow, GemmRole::kFprop, "y", OverlapCollective::kReduceScatter,
     OverlapMethod::kPipeline, GemmRole::kFprop, false},
    {OverlapSide::kRow, GemmRole::kDgrad, "grad_output", OverlapCollective::kAllGather,
     OverlapMethod::kRingExchange, GemmRole::kDgrad, false},
    {OverlapSide::kRow, GemmRole::kWgrad, "columnwise grad_output", OverlapCollective::kAllGather,
     OverlapMethod::kExternal, GemmRole::kDgrad, true},
}};

absl::Status CheckCount(std::string_view field, int count) {
  if (count >= 1 && count <= kOverlapCutsMax) return absl::OkStatus();
  return Refuse(field, absl::StrCat(count), absl::StrCat("must be in [1, ", kOverlapCutsMax, "]"));
}

bool IsOneOf(OverlapMethod method, std::initializer_list<OverlapMethod> methods) {
  return std::find(methods.begin(), methods.end(), method) != methods.end();
}

absl::Status CheckColumnMethods(const OverlapPlan& plan) {
  using enum OverlapMethod;
  if (!IsOneOf(plan.fprop, {kNone, kRingExchange})) {
    return Refuse("overlap.fprop", OverlapMethodName(plan.fprop),
                  "it gathers x for its own GEMM, which takes ring_exchange or none");
  }
  if (!IsOneOf(plan.dgrad, {kNone, kBulk, kRingExchange, kPipeline})) {
    return Refuse("overlap.dgrad", OverlapMethodName(plan.dgrad),
                  "bulk gathers x beside it, ring_exchange and pipeline scatter dx inside it");
  }
  if (!IsOneOf(plan.wgrad, {kNone, kBulk})) {
    return Refuse("overlap.wgrad", OverlapMethodName(plan.wgrad),
                  "dx is scattered beside it, which takes bulk or none");
  }
  if (plan.wgrad == kBulk && IsOneOf(plan.dgrad, {kRingExchange, kPipeline})) {
    return Refuse("overlap.wgrad", OverlapMethodName(plan.wgrad),
                  absl::StrCat("overlap.dgrad is ", std::string(OverlapMethodName(plan.dgrad)),
                               ", which scatters dx already"));
  }
  return absl::OkStatus();
}

absl::Status CheckRowMethods(const OverlapPlan& plan, bool is_mxfp8) {
  using enum OverlapMethod;
  if (!IsOneOf(plan.fprop, {kNone, kPipeline, kRingExchange})) {
    return Refuse("overlap.fprop", OverlapMethodName(plan.fprop),
                  "it scatters y inside its own GEMM, which takes pipeline, ring_exchange or none");
  }
  if (!IsOneOf(plan.dgrad, {kNone, kRingExchange})) {
    return Refuse("overlap.dgrad", OverlapMethodName(plan.dgrad),
                  "it gathers grad_output for its own GEMM, which takes ring_exchange or none");
  }
  if (!IsOneOf(plan.wgrad, {kNone, kExternal})) {
    return Refuse(
        "overlap.wgrad", OverlapMethodName(plan.wgrad),
        "columnwise grad_output is gathered beside dgrad's ring, which takes external or none");
  }
  if (plan.wgrad == kExternal && !is_mxfp8) {
    return Refuse("overlap.wgrad", OverlapMethodName(plan.wgrad),
                  "only mxfp8 gathers columnwise codes of grad_output by themselves");
  }
  if (plan.wgrad == kExternal && plan.dgrad != kRingExchange) {
    return Refuse("overlap.wgrad", OverlapMethodName(plan.wgrad),
                  "external needs the ring of dgrad: overlap.dgrad must be ring_exchange");
  }
  return absl::OkStatus();
}

/// Refuses the first method of `roles` that the plan has, because of the recipe.
absl::Status RefuseMethod(const OverlapPlan& plan, std::initializer_list<GemmRole> roles,
                          const absl::Status& why) {
  const GemmRole found = RoleToName(plan, *std::find_if(roles.begin(), roles.end(), [&](auto role) {
                                      return plan.MethodOf(role) != OverlapMethod::kNone;
                                    }));
  return Refuse(absl::StrCat("overlap.", std::string(GemmRoleName(found))),
                OverlapMethodName(plan.MethodOf(found)), std::string(why.message()));
}

absl::Status CheckRecipe(const OverlapPlan& plan, const Recipe& recipe) {
  const auto refuse = [&](std::string_view why) {
    return RefuseMethod(plan, {GemmRole::kFprop, GemmRole::kDgrad, GemmRole::kWgrad},
                        Refuse("recipe", recipe.ShortText(),
                               absl::StrCat(std::string(why),
                                            "; unquantized, per-tensor FP8 and "
                                            "mxfp8 recipes overlap")));
  };
  for (const RecipeDescription& known : AllRecipes()) {
    if (known.name == recipe.name() && known.is_composed) {
      return refuse("directions of a composed recipe are gathered in high precision");
    }
  }
  // Recipes that are not composed have one format for all roles and directions.
  const QuantizerSpec& spec = recipe.QuantizerFor(TensorRole::kInput).rowwise;
  const ScalingTraits& traits = spec.traits();
  if (spec.is_quantized() && !IsFp8(spec.element)) {
    return refuse(
        absl::StrCat(std::string(DTypeName(spec.element)), " codes have no chunked gather"));
  }
  if (traits.has_many_scales() && traits.turns_columnwise) {
    return refuse(
        absl::StrCat(std::string(traits.name), " codes and scales have no chunked gather"));
  }
  return absl::OkStatus();
}

absl::Status CheckFacts(const OverlapPlan& plan, const OverlapFacts& facts, const Recipe& recipe) {
  QG_RETURN_IF_ERROR(CheckSequenceParallel(facts));
  const bool overlaps_backward =
      plan.dgrad != OverlapMethod::kNone || plan.wgrad != OverlapMethod::kNone;
  // Without a quantized recipe an override has no effect (docs/quantizers.md section 9).
  const bool is_overridden =
      recipe.is_quantized() && recipe.backward_override() != BackwardOverride::kNone;
  if (overlaps_backward && is_overridden) {
    return RefuseMethod(
        plan, {GemmRole::kDgrad, GemmRole::kWgrad},
        Refuse("backward_override", BackwardOverrideName(recipe.backward_override()),
               "under a backward override dgrad and wgrad gather in high precision and take none"));
  }
  if (facts.is_after_norm && facts.side == OverlapSide::kColumn &&
      plan.fprop != OverlapMethod::kNone) {
    if (facts.returns_norm_output) {
      return Refuse(
          "overlap.fprop", OverlapMethodName(plan.fprop),
          "return_norm_output is true, so the norm's output is gathered in high precision");
    }
    if (!facts.is_grad_enabled) {
      return Refuse("overlap.fprop", OverlapMethodName(plan.fprop),
                    "grad is not enabled, and after a norm fprop overlaps only where it is");
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view OverlapMethodName(OverlapMethod method) {
  return kOverlapMethodNames[static_cast<size_t>(method)];
}

absl::StatusOr<OverlapMethod> ParseOverlapMethod(std::string_view name) {
  return ParseName<OverlapMethod>(kOverlapMethodNames, "method", name);
}

const OverlapAssignment& AssignmentOf(OverlapSide side, GemmRole role) {
  return *std::find_if(kAssignments.begin(), kAssignments.end(),
                       [&](const auto& each) { return each.side == side && each.role == role; });
}

bool OverlapPlan::has_any() const {
  return fprop != OverlapMethod::kNone || dgrad != OverlapMethod::kNone ||
         wgrad != OverlapMethod::kNone;
}

GemmRole RoleToName(const OverlapPlan& plan, GemmRole role) {
  const bool is_asked_for = role == GemmRole::kDgrad && plan.wgrad == OverlapMethod::kExternal;
  return is_asked_for ? GemmRole::kWgrad : role;
}

OverlapPlan DefaultOverlapPlan(OverlapSide side, bool is_mxfp8) {
  OverlapPlan plan;
  plan.fprop = AssignmentOf(side, GemmRole::kFprop).method;
  plan.dgrad = AssignmentOf(side, GemmRole::kDgrad).method;
  const OverlapAssignment& wgrad = AssignmentOf(side, GemmRole::kWgrad);
  plan.wgrad = wgrad.is_mxfp8_only && !is_mxfp8 ? OverlapMethod::kNone : wgrad.method;
  return plan;
}

absl::Status CheckOverlapPlan(const OverlapPlan& plan, const OverlapFacts& facts,
                              const Recipe& recipe) {
  QG_RETURN_IF_ERROR(CheckCount("overlap.pieces", plan.pieces));
  QG_RETURN_IF_ERROR(CheckCount("overlap.splits", plan.splits));
  if (!plan.has_any()) return absl::OkStatus();
  QG_RETURN_IF_ERROR(CheckRecipe(plan, recipe));
  const bool is_mxfp8 =
      recipe.QuantizerFor(TensorRole::kInput).rowwise.traits().scales == ScaleKind::kE8m0;
  QG_RETURN_IF_ERROR(facts.side == OverlapSide::kColumn ? CheckColumnMethods(plan)
                                                        : CheckRowMethods(plan, is_mxfp8));
  QG_RETURN_IF_ERROR(CheckFacts(plan, facts, recipe));
  return CheckAggregate(plan.aggregate, plan.pieces, facts.ranks);
}

absl::Status CheckNamedOverlap(OverlapPlan plan, const OverlapFacts& facts, const Recipe& recipe) {
  if (plan.has_any()) {
    QG_RETURN_IF_ERROR(CheckSequenceParallel(facts));
    QG_RETURN_IF_ERROR(CheckAggregate(plan.aggregate, plan.pieces, facts.ranks));
  }
  for (const GemmRole role : {GemmRole::kFprop, GemmRole::kDgrad, GemmRole::kWgrad}) {
    if (plan.GivesWay(role)) plan.SetMethod(role, OverlapMethod::kNone);
  }
  return CheckOverlapPlan(plan, facts, recipe);
}

absl::Status CheckSequenceParallel(const OverlapFacts& facts) {
  if (facts.sequence_parallel) return absl::OkStatus();
  return Refuse("sequence_parallel", "false", "overlap needs activations that are cut by rows");
}

absl::Status CheckAggregate(bool aggregate, int pieces, int ranks) {
  if (!aggregate) return absl::OkStatus();
  if (ranks % 2 != 0) {
    return Refuse("overlap.aggregate", "true",
                  absl::StrCat("pairs of shards need an even number of ranks, not ", ranks));
  }
  if (pieces != 1) {
    return Refuse("overlap.pieces", absl::StrCat(pieces),
                  "must be 1 with overlap.aggregate, which keeps shards whole");
  }
  return absl::OkStatus();
}

int64_t OverlapMultipleOf(const GemmOperand& operand) {
  return operand.scaling == ScaleMode::kMx32 ? kMxfp8OverlapMultiple : 1;
}

absl::Status CheckOverlapOperand(std::string_view field, const GemmOperand& operand) {
  const auto refuse = [&](const std::string& rule) {
    return Refuse(field,
                  absl::StrCat(TensorText(operand.data), " with ",
                               std::string(ScaleModeName(operand.scaling)), " scales"),
                  rule);
  };
  switch (operand.scaling) {
    case ScaleMode::kNone:
    case ScaleMode::kTensor:
      return absl::OkStatus();
    case ScaleMode::kMx32:
      for (const int64_t dim : operand.data.shape()) {
        if (dim % kMxfp8OverlapMultiple != 0) {
          return refuse(
              absl::StrCat("an mxfp8 operand that is cut among ranks has dims that are "
                           "multiples of ",
                           kMxfp8OverlapMultiple));
        }
      }
      return absl::OkStatus();
    default:
      return refuse("unquantized, per-tensor FP8 and mxfp8 operands overlap");
  }
}

absl::Status CheckOverlapShards(std::string_view field, const GemmOperand& operand,
                                std::span<const int64_t> rows) {
  QG_RETURN_IF_ERROR(CheckOverlapOperand(field, operand));
  const int64_t multiple = OverlapMultipleOf(operand);
  if (std::all_of(rows.begin(), rows.end(), [&](int64_t count) { return count % multiple == 0; })) {
    return absl::OkStatus();
  }
  return Refuse("rows", absl::StrJoin(rows, ", "),
                absl::StrCat("shards of the mxfp8 operand ", std::string(field),
                             " are multiples of ", multiple));
}

}  // namespace quantgate
