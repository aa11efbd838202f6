#include "server/rpc/convert_layer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"
#include "server/rpc/convert_recipe.h"
#include "server/rpc/convert_tensor.h"

namespace quantgate {
namespace {

absl::StatusOr<Variant> VariantFromProto(const v1::Variant& proto, const std::string& field) {
  QG_ASSIGN_OR_RETURN(Recipe recipe, RecipeFromProto(proto.recipe(), field + ".recipe"));
  if (!proto.backward_override().empty()) {
    const auto mode = ParseBackwardOverride(proto.backward_override());
    if (!mode.ok()) {
      return error::InvalidField(field + ".backward_override", Printable(proto.backward_override()),
                                 "known overrides are none, high_precision, dequantized (also "
                                 "default, unquant, dequant)");
    }
    recipe = recipe.WithBackwardOverride(*mode);
  }
  Arithmetic arithmetic;
  if (!proto.arithmetic().empty()) {
    auto parsed = Arithmetic::Parse(proto.arithmetic());
    if (absl::IsInvalidArgument(parsed.status())) {
      return error::InvalidField(field + ".arithmetic", Printable(proto.arithmetic()),
                                 std::string(parsed.status().message()));
    }
    if (!parsed.ok()) return error::AtField(parsed.status(), field + ".arithmetic");
    arithmetic = *parsed;
  }
  return Variant{std::move(recipe), arithmetic};
}

absl::Status LinearFromProto(const v1::LinearLayer& proto, int64_t tensor_bytes_max,
                             LayerRun& run) {
  run.layer = LayerKind::kLinear;
  const auto set = [&](TensorReference& reference, const v1::TensorSource& source,
                       const char* name) -> absl::Status {
    QG_ASSIGN_OR_RETURN(
        reference,
        TensorReferenceFromProto(source, absl::StrCat("spec.linear.", name), tensor_bytes_max));
    return absl::OkStatus();
  };
  QG_RETURN_IF_ERROR(set(run.x, proto.x(), "x"));
  QG_RETURN_IF_ERROR(set(run.weight, proto.weight(), "weight"));
  QG_RETURN_IF_ERROR(set(run.bias, proto.bias(), "bias"));
  QG_RETURN_IF_ERROR(set(run.grad_output, proto.grad_output(), "grad_output"));
  QG_RETURN_IF_ERROR(set(run.main_grad, proto.main_grad(), "main_grad"));
  QG_RETURN_IF_ERROR(RequireTensor(run.x));
  QG_RETURN_IF_ERROR(RequireTensor(run.weight));
  for (const auto& [name, source] : proto.delayed_state()) {
    const std::string field = absl::StrCat("spec.linear.delayed_state[", Printable(name), "]");
    if (!IsDelayedStateName(name)) {
      return error::InvalidField(field, "given",
                                 "names are input, weight or grad_output with .scale or "
                                 ".amax_history");
    }
    QG_ASSIGN_OR_RETURN(run.delayed_state[name],
                        TensorReferenceFromProto(source, field, tensor_bytes_max));
    QG_RETURN_IF_ERROR(RequireTensor(run.delayed_state[name]));
  }
  run.calibrate = proto.calibrate();
  if (proto.has_requires_grad()) {
    const v1::RequiresGrad& grad = proto.requires_grad();
    run.requires_grad = RequiresGrad{grad.x(), grad.weight(), grad.bias()};
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LayerRun> LayerRunFromProto(const v1::RunSpec& proto, int64_t tensor_bytes_max) {
  LayerRun run;
  if (proto.layer_case() != v1::RunSpec::kLinear) {
    return error::MissingField("spec.layer", "give one of: linear");
  }
  // Bounded before anything is made of them; Plan::Create has the rule for none.
  if (proto.variants_size() > kVariantsMax) {
    return error::InvalidField("spec.variants", absl::StrCat(proto.variants_size(), " variants"),
                               absl::StrCat("a run has at most ", kVariantsMax));
  }
  QG_RETURN_IF_ERROR(LinearFromProto(proto.linear(), tensor_bytes_max, run));
  for (int i = 0; i < proto.variants_size(); ++i) {
    QG_ASSIGN_OR_RETURN(Variant variant, VariantFromProto(proto.variants(i),
                                                          absl::StrCat("spec.variants[", i, "]")));
    run.variants.push_back(std::move(variant));
  }
  run.seed = proto.seed();
  if (proto.has_reference()) run.reference = proto.reference();
  switch (proto.requirement()) {
    case v1::REQUIREMENT_UNSPECIFIED:
      run.requirement = Requirement::kNone;
      break;
    case v1::REQUIREMENT_BITWISE:
      run.requirement = Requirement::kBitwise;
      break;
    case v1::REQUIREMENT_BOUND:
      run.requirement = Requirement::kBound;
      break;
    default:
      return error::InvalidField("spec.requirement", absl::StrCat(proto.requirement()),
                                 "known requirements are REQUIREMENT_UNSPECIFIED, "
                                 "REQUIREMENT_BITWISE and REQUIREMENT_BOUND");
  }
  run.keep_outputs = proto.keep_outputs();
  run.error_budget = proto.error_budget();
  // Bounded before anything is looked up; Plan::Create has the rule for the names.
  if (proto.subjects_size() > kSubjectsMax) {
    return error::InvalidField("spec.subjects", absl::StrCat(proto.subjects_size(), " tensors"),
                               absl::StrCat("a run takes at most ", kSubjectsMax));
  }
  for (const auto& [name, source] : proto.subjects()) {
    const std::string field = absl::StrCat("spec.subjects[", Printable(name), "]");
    QG_ASSIGN_OR_RETURN(TensorReference subject,
                        TensorReferenceFromProto(source, field, tensor_bytes_max));
    QG_RETURN_IF_ERROR(RequireTensor(subject));
    run.subjects.emplace(name, std::move(subject));
  }
  return run;
}

}  // namespace quantgate
