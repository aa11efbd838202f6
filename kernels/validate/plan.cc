#include "kernels/validate/plan.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/experts/stacked_experts.h"
#include "kernels/layer/layer_plan.h"
#include "kernels/layer/layer_program.h"
#include "kernels/layer/layer_sharding.h"
#include "kernels/layer/linear/given_codes.h"
#include "kernels/layer/linear/linear_check.h"
#include "kernels/quantize/recipe/recipe_quantizers.h"

namespace quantgate {
namespace {

// An Arithmetic is plain data, but only values that its text form can express are valid.
absl::Status CheckArithmetic(const std::string& field, const Arithmetic& arithmetic) {
  const std::string text = arithmetic.ToString();
  const absl::StatusOr<Arithmetic> parsed = Arithmetic::Parse(text);
  if (!parsed.ok()) return AsField(field + ".arithmetic", parsed.status());
  if (*parsed == arithmetic) return absl::OkStatus();
  return Refuse(
      absl::StrCat(field, ".arithmetic"),
      absl::StrCat(
          text, " with split_k = ", arithmetic.split_k,
          arithmetic.accumulation == Accumulation::kRecipe ? "" : " and a named accumulation"),
      "only sm90 takes parameters, and split_k must be at least 1");
}

bool CastsToF32(const Recipe& recipe) {
  for (const TensorRole role : {TensorRole::kInput, TensorRole::kWeight, TensorRole::kGradOutput}) {
    for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
      const QuantizerSpec& spec = recipe.QuantizerFor(role).spec(usage);
      if (spec.casts() && spec.element == DType::kF32) return true;
    }
  }
  return false;
}

// Split-K of tf32 GEMMs has not been measured (docs/tensor-cores.md section 3.2).
absl::Status CheckSplitK(const std::string& field, const LayerRequest& step,
                         const Variant& variant) {
  if (variant.arithmetic.split_k <= 1) return absl::OkStatus();
  const Recipe& recipe = variant.recipe;
  const std::vector<Recipe> modules = RecipesOfModules(step.layer, recipe);
  const bool is_cast = std::any_of(modules.begin(), modules.end(), &CastsToF32);
  const bool is_f32 = recipe.activation_dtype().value_or(step.x.dtype()) == DType::kF32;
  if (!is_f32 && !is_cast) return absl::OkStatus();
  const RequiresGrad& wanted = step.requires_grad;
  // In layers of several operations a bias's or norm's gradient may need a dgrad.
  const bool needs_gemm = wanted.x || wanted.weight ||
                          (!step.layer.traits().is_one_linear() && (wanted.bias || wanted.norm));
  const bool has_backward_gemm = step.grad_output.has_value() && needs_gemm;
  const bool all_quantized = std::all_of(modules.begin(), modules.end(),
                                         [](const Recipe& of) { return of.is_quantized(); });
  const bool runs_tf32 =
      is_cast || !all_quantized || step.layer.traits().has(OperationKind::kAttention) ||
      (recipe.backward_override() != BackwardOverride::kNone && has_backward_gemm);
  if (!runs_tf32) return absl::OkStatus();
  return StatusOf(
      {.code = absl::StatusCode::kUnimplemented,
       .field = field + ".arithmetic",
       .value = variant.arithmetic.ToString(),
       .rule = absl::StrCat("split-K of f32 (tf32) GEMMs has not been measured on Hopper, and ",
                            variant.Label(), " runs them in f32")});
}

// Every GEMM of the layer, outlined: what an arithmetic does not take is refused before it runs.
absl::Status CheckGemms(const std::string& field, const LayerPlan& plan, const Variant& variant) {
  const absl::Status status = CheckLayerGemms(plan, variant.arithmetic);
  if (status.ok()) return status;
  // What exact does not take either are operands that do not go together, which the recipe decides.
  QG_ASSIGN_OR_RETURN(const Arithmetic exact, Arithmetic::Parse("exact"));
  if (const absl::Status of_recipe = CheckLayerGemms(plan, exact); !of_recipe.ok()) {
    return StatusOf({.code = of_recipe.code(),
                     .field = field + ".recipe",
                     .value = variant.recipe.ShortText(),
                     .rule = absl::StrCat("no arithmetic takes its GEMMs: ", of_recipe.message())});
  }
  return StatusOf({.code = status.code(),
                   .field = field + ".arithmetic",
                   .value = variant.arithmetic.ToString(),
                   .rule = absl::StrCat("it does not take ", variant.recipe.ShortText(), ": ",
                                        status.message())});
}

/// Refuses fields that only variants on several ranks read, if there is no such variant.
absl::Status CheckParallelModeUsed(const LayerRunRequest& request) {
  const bool any_parallel =
      std::any_of(request.variants.begin(), request.variants.end(),
                  [](const Variant& variant) { return variant.parallel.has_value(); });
  if (any_parallel || !HasParallelMode(request.step.layer)) return absl::OkStatus();
  const ParallelMode mode = request.step.layer.parallel_mode;
  return Refuse(
      mode == ParallelMode::kNone ? "layer.operations" : "layer.parallel_mode",
      mode == ParallelMode::kNone ? "a parallel_mode" : std::string(ParallelModeName(mode)),
      "no variant is parallel, and only a parallel one divides weights over ranks");
}

/// Refuses a gradient that is asked for by itself of parameters that are not there. All four
/// together are what a request that names none has: every gradient that has an operand.
absl::Status CheckWantedGradients(const LayerRequest& step) {
  const RequiresGrad& wanted = step.requires_grad;
  if (wanted.x && wanted.weight && wanted.bias && wanted.norm) return absl::OkStatus();
  const auto check = [&](const char* name, bool is_wanted,
                         std::initializer_list<ParameterKind> kinds) {
    if (!is_wanted) return absl::OkStatus();
    for (const LayerParameter& one : ParametersOf(step.layer)) {
      const bool is_given = step.parameters.contains(one.name) || step.codes.contains(one.name);
      if (is_given && std::find(kinds.begin(), kinds.end(), one.kind) != kinds.end()) {
        return absl::OkStatus();
      }
    }
    return Refuse("requires_grad", name, "the layer is given no such parameter");
  };
  QG_RETURN_IF_ERROR(check("weight", wanted.weight, {ParameterKind::kWeight}));
  QG_RETURN_IF_ERROR(check("bias", wanted.bias, {ParameterKind::kBias}));
  return check("norm", wanted.norm, {ParameterKind::kGamma, ParameterKind::kBeta});
}

/// Refuses fields that only some recipes read, if no variant has such a recipe.
absl::Status CheckUsed(const LayerRunRequest& request) {
  const auto any = [&](auto&& predicate) {
    return std::any_of(request.variants.begin(), request.variants.end(),
                       [&](const Variant& variant) {
                         const auto modules = RecipesOfModules(request.step.layer, variant.recipe);
                         return std::any_of(modules.begin(), modules.end(), predicate);
                       });
  };
  const LayerRequest& step = request.step;
  const bool has_random = any([](const Recipe& recipe) {
    const auto draws = [&](TensorRole role) { return recipe.RoundsStochastically(role); };
    return std::any_of(kTensorRoles.begin(), kTensorRoles.end(), draws) ||
           std::any_of(kResultRoles.begin(), kResultRoles.end(), draws);
  });
  if (step.seed != 0 && !has_random) {
    return Refuse("seed", absl::StrCat(step.seed), "no variant rounds stochastically");
  }
  if (any([](const Recipe& recipe) { return recipe.is_delayed(); })) return absl::OkStatus();
  if (step.calibrate) {
    return Refuse("calibrate", "true", "no variant is fp8_delayed: there is no scale to learn");
  }
  if (!step.delayed.empty()) {
    return Refuse("delayed_state", absl::StrCat(step.delayed.size(), " states"),
                  "no variant is fp8_delayed, and only fp8_delayed has them");
  }
  return absl::OkStatus();
}

absl::Status CheckDiffer(const std::vector<Variant>& variants) {
  if (variants.size() == 1) return absl::OkStatus();
  std::map<std::string, size_t> index_of;
  for (size_t i = 0; i < variants.size(); ++i) {
    const auto [first, is_new] = index_of.emplace(variants[i].Label(), i);
    if (is_new) continue;
    return Refuse(
        absl::StrCat("variants[", i, "]"), absl::StrCat("\"", first->first, "\""),
        absl::StrCat("variants must differ, and variants[", first->second, "] is the same"));
  }
  return absl::OkStatus();
}

/// Refuses a rule for results where what is asked for cannot have one: what several ranks make of a
/// result has parts, and an error budget is that of the GEMM alone.
absl::Status CheckResultRules(const std::string& field, const LayerPlan& plan,
                              const Variant& variant, bool error_budget) {
  for (const ProgramPlan& program : plan.programs) {
    for (const PlannedOperation& operation : program.operations) {
      if (operation.kind != OperationKind::kBasicLinear) continue;
      const LinearDataflow& flow = operation.linear.flow;
      if (!flow.quantizes_output && !flow.quantizes_grad_input) continue;
      const TensorRole role = flow.quantizes_output ? TensorRole::kOutput : TensorRole::kGradInput;
      if (variant.parallel.has_value()) {
        return RefuseResultRule(field + ".recipe", variant.recipe, role);
      }
      if (error_budget) {
        return Refuse("error_budget", "true",
                      absl::StrCat("it measures GEMMs, and ", variant.recipe.ShortText(), " of ",
                                   field, " has a rule for ", std::string(TensorRoleName(role)),
                                   ", which quantizes the result of one"));
      }
    }
  }
  return absl::OkStatus();
}

/// Decides the layer plans of all variants of a request that CheckLayerTensors accepts.
absl::StatusOr<std::vector<LayerPlanPointer>> DecideVariants(const LayerRunRequest& request) {
  if (request.variants.empty() || request.variants.size() > kVariantsMax) {
    return Refuse("variants", absl::StrCat(request.variants.size(), " given"),
                  absl::StrCat("a run takes 1 to ", kVariantsMax));
  }
  std::vector<LayerPlanPointer> layers;
  for (size_t i = 0; i < request.variants.size(); ++i) {
    const Variant& variant = request.variants[i];
    const std::string field = absl::StrCat("variants[", i, "]");
    QG_RETURN_IF_ERROR(CheckArithmetic(field, variant.arithmetic));
    // The tensors by themselves are fine, so an error here is due to this recipe.
    absl::StatusOr<LayerPlanPointer> layer = DecideLayer(request.step, variant.recipe);
    if (!layer.ok()) {
      // What the recipe itself refuses needs no name and value again.
      const std::optional<Refusal> refusal = RefusalOf(layer.status());
      if (refusal.has_value() && refusal->field == "recipe") {
        return StatusOf({.code = layer.status().code(),
                         .field = field + ".recipe",
                         .value = variant.recipe.ShortText(),
                         .rule = refusal->rule});
      }
      return StatusOf({.code = layer.status().code(),
                       .field = field + ".recipe",
                       .value = variant.recipe.ShortText(),
                       .rule = std::string(WithinField("step", layer.status()).message())});
    }
    QG_RETURN_IF_ERROR(CheckResultRules(field, **layer, variant, request.error_budget));
    QG_RETURN_IF_ERROR(CheckSplitK(field, request.step, variant));
    QG_RETURN_IF_ERROR(CheckGemms(field, **layer, variant));
    if (variant.parallel.has_value()) {
      if (!request.step.codes.empty()) {
        return Refuse(field + ".parallel", variant.parallel->Label(),
                      absl::StrCat(NameOfCodes(request.step.codes.begin()->first),
                                   " is given as codes: ", kRanksQuantize));
      }
      QG_RETURN_IF_ERROR(CheckParallel(field, request.step, *variant.parallel, variant.recipe,
                                       variant.arithmetic));
    }
    layers.push_back(*std::move(layer));
  }
  QG_RETURN_IF_ERROR(CheckDiffer(request.variants));
  return layers;
}

absl::Status CheckReference(const LayerRunRequest& request) {
  if (!request.reference.has_value()) return absl::OkStatus();
  const int count = static_cast<int>(request.variants.size());
  const std::string value = absl::StrCat(*request.reference);
  if (*request.reference < 0 || *request.reference >= count) {
    return Refuse("reference", value,
                  absl::StrCat("it must be the index of a variant, 0 to ", count - 1));
  }
  if (count == 1 && request.requirement == Requirement::kBitwise) {
    return Refuse("reference", value,
                  "requirement bitwise needs a variant beside the reference; leave the reference "
                  "out to compare with exact");
  }
  return absl::OkStatus();
}

/// Refuses a bound that nothing has: a run that judges no output would pass whatever it computes.
absl::Status CheckRequirement(const LayerRunRequest& request) {
  if (request.requirement != Requirement::kBound) return absl::OkStatus();
  const LayerSpec& layer = request.step.layer;
  const bool only_quantizes =
      layer.traits().has_operations &&
      std::all_of(layer.operations.begin(), layer.operations.end(),
                  [](const OperationSpec& one) { return one.kind == OperationKind::kQuantize; });
  if (!only_quantizes) return absl::OkStatus();
  return Refuse("requirement", std::string(RequirementName(request.requirement)),
                "no bound is derived for what quantize gives, and the layer has no other operation "
                "that a bound would hold");
}

absl::Status CheckSubjects(const LayerRunRequest& request) {
  const std::vector<std::string> outputs = LayerOutputs(request.step);
  for (const auto& [name, subject] : request.subjects) {
    const std::string field = absl::StrCat("subjects[", name, "]");
    const std::string value = absl::StrCat("\"", name, "\"");
    if (std::find(outputs.begin(), outputs.end(), name) == outputs.end()) {
      return Refuse(field, value,
                    absl::StrCat("this layer's outputs are ", absl::StrJoin(outputs, ", ")));
    }
    if (IsBiasGradient(name)) {
      return Refuse(field, value,
                    "no bound is derived for a sum of rows in an order that is not known");
    }
    if (request.variants[0].parallel.has_value()) {
      return Refuse(field, request.variants[0].Label(),
                    "a subject is held to the bound of a variant on one rank: put that first");
    }
    const Shape shape = LayerOutputShape(request.step, name);
    if (!IsHighPrecision(subject.dtype()) || subject.shape() != shape) {
      return Refuse(field, TensorText(subject),
                    absl::StrCat("it must be f32, bf16 or f16 of shape ", ShapeText(shape)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string Variant::Label() const {
  // The override has a place of its own in the label, not among the knobs.
  return absl::StrCat(recipe.WithBackwardOverride(BackwardOverride::kNone).ShortText(), " / ",
                      std::string(BackwardOverrideName(recipe.backward_override())), " / ",
                      arithmetic.ToString(),
                      parallel.has_value() ? absl::StrCat(" / ", parallel->Label()) : "");
}

std::string_view RequirementName(Requirement requirement) {
  switch (requirement) {
    case Requirement::kNone:
      return "none";
    case Requirement::kBitwise:
      return "bitwise";
    case Requirement::kBound:
      return "bound";
  }
  return "unknown";
}

namespace {

/// Takes one tensor for all experts apart.
absl::Status TakeStack(const std::string& field, std::map<std::string, Tensor>& tensors,
                       LayerRunRequest& request) {
  const auto found = tensors.find("weight");
  const bool is_stack = request.step.layer.traits().has_experts && found != tensors.end() &&
                        found->second.has_value();
  if (!is_stack) return absl::OkStatus();
  const Tensor stack = found->second;
  const std::string name = absl::StrCat(field, "[weight]");
  if (request.step.codes.contains("weight")) {
    return Refuse(name, "given as codes",
                  "one tensor for all experts is given in high precision; give the codes of each "
                  "expert as weight.0, weight.1, ...");
  }
  QG_RETURN_IF_ERROR(UnstackExperts(request.step.layer, field, tensors));
  request.stacks[name] = stack;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Plan> Plan::Create(LayerRunRequest request) {
  QG_RETURN_IF_ERROR(CheckLayerSpec(request.step.layer));
  QG_RETURN_IF_ERROR(TakeStack("parameters", request.step.parameters, request));
  QG_RETURN_IF_ERROR(TakeStack("main_grads", request.step.main_grads, request));
  QG_RETURN_IF_ERROR(CheckLayerTensors(request.step));
  if (request.error_budget && !request.step.codes.empty()) {
    return Refuse(
        "error_budget", "true",
        absl::StrCat("it measures what quantizing makes of the operands, and ",
                     NameOfCodes(request.step.codes.begin()->first), " is given as codes"));
  }
  QG_RETURN_IF_ERROR(CheckWantedGradients(request.step));
  QG_ASSIGN_OR_RETURN(std::vector<LayerPlanPointer> layers, DecideVariants(request));
  QG_RETURN_IF_ERROR(CheckUsed(request));
  QG_RETURN_IF_ERROR(CheckParallelModeUsed(request));
  QG_RETURN_IF_ERROR(CheckReference(request));
  QG_RETURN_IF_ERROR(CheckRequirement(request));
  QG_RETURN_IF_ERROR(CheckSubjects(request));
  return Plan(std::move(request), std::move(layers));
}

absl::Status VisitTensors(
    LayerRunRequest& request,
    absl::FunctionRef<absl::Status(const std::string& name, Tensor& tensor)> visit) {
  LayerRequest& step = request.step;
  QG_RETURN_IF_ERROR(visit("x", step.x));
  QG_RETURN_IF_ERROR(visit("grad_output", step.grad_output));
  const auto visit_all = [&](const char* field, std::map<std::string, Tensor>& tensors) {
    for (auto& [name, tensor] : tensors) {
      QG_RETURN_IF_ERROR(visit(absl::StrCat(field, "[", name, "]"), tensor));
    }
    return absl::OkStatus();
  };
  QG_RETURN_IF_ERROR(visit_all("parameters", step.parameters));
  QG_RETURN_IF_ERROR(visit_all("main_grads", step.main_grads));
  QG_RETURN_IF_ERROR(visit_all("subjects", request.subjects));
  for (auto& [name, state] : step.delayed) {
    QG_RETURN_IF_ERROR(visit(absl::StrCat("delayed_state[", name, ".scale]"), state.scale));
    QG_RETURN_IF_ERROR(
        visit(absl::StrCat("delayed_state[", name, ".amax_history]"), state.amax_history));
  }
  return absl::OkStatus();
}

std::string NameOfCodes(const std::string& operand) {
  const bool is_parameter = operand != "x" && operand != "grad_output";
  return is_parameter ? absl::StrCat("parameters[", operand, "]") : operand;
}

absl::StatusOr<Plan> Plan::WithTensors(TensorLoader load) const {
  return WithTensors(load, [](const std::string& name) -> absl::StatusOr<LoadedCodes> {
    return absl::InternalError(absl::StrCat(name, " is given as codes, and nothing loads them"));
  });
}

absl::StatusOr<Plan> Plan::WithTensors(TensorLoader load, CodesLoader load_codes) const {
  LayerRunRequest request = request_;
  std::map<std::string, Tensor> values;
  for (auto& [operand, codes] : request.step.codes) {
    const std::string name = NameOfCodes(operand);
    QG_ASSIGN_OR_RETURN(LoadedCodes loaded, load_codes(name));
    codes = std::move(loaded.codes);
    values[name] = std::move(loaded.values);
    request.given_parts[name] = std::move(loaded.parts);
  }
  for (auto& [name, stack] : request.stacks) {
    const Tensor outline = stack;
    QG_ASSIGN_OR_RETURN(stack, load(name, outline));
    for (int64_t expert = 0; expert < stack.shape()[0]; ++expert) {
      const std::string part = absl::StrCat(name.substr(0, name.size() - 1), ".", expert, "]");
      QG_ASSIGN_OR_RETURN(values[part], ExpertOfStack(stack, expert));
    }
  }
  QG_RETURN_IF_ERROR(
      VisitTensors(request, [&](const std::string& name, Tensor& tensor) -> absl::Status {
        if (!tensor.has_value()) return absl::OkStatus();
        const Tensor outline = tensor;
        const auto of_codes = values.find(name);
        if (of_codes != values.end()) {
          tensor = of_codes->second;
        } else {
          QG_ASSIGN_OR_RETURN(tensor, load(name, outline));
        }
        if (tensor.dtype() == outline.dtype() && tensor.shape() == outline.shape()) {
          return absl::OkStatus();
        }
        return absl::InternalError(absl::StrCat(name, " was planned as ", TensorText(outline),
                                                " and is ", TensorText(tensor)));
      }));
  if (request.step.delayed.empty()) return Plan(std::move(request), layers_);
  return Create(std::move(request));
}

std::string_view OutputWord(std::string_view output) {
  // The word is behind the last point, or before an expert's number.
  const size_t number = output.find_last_not_of("0123456789");
  if (number != std::string_view::npos && output[number] == '.') output = output.substr(0, number);
  const size_t point = output.rfind('.');
  return point == std::string_view::npos ? output : output.substr(point + 1);
}

bool ReportsIntermediates(const LayerRequest& request) {
  return request.layer.traits().has_intermediates();
}

int Plan::StepCount() const {
  const LayerRequest& step = request_.step;
  const int outputs = static_cast<int>(LayerOutputs(step).size());
  const bool is_linear = step.layer.traits().is_one_linear();
  // Unquantized references: one GEMM for each output of a linear layer, else one run.
  int steps = is_linear ? outputs : 1;
  for (const Variant& variant : request_.variants) {
    // Forward and backward, a report of each output, and one of what lies between operations.
    steps += 1 + outputs + (ReportsIntermediates(step) ? 1 : 0);
    if (!variant.parallel.has_value() && request_.error_budget) ++steps;
  }
  // The matrix of all pairs.
  return steps + (request_.variants.size() > 1 ? 1 : 0);
}

}  // namespace quantgate
