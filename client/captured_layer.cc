#include "client/captured_layer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/execution.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/convert.h"

namespace quantgate {
namespace {

/// Recipes under which a row of y or dx depends on no other row of x or dy.
bool IsByRow(const std::string& recipe) {
  static constexpr std::string_view kByRow[] = {"bf16", "mxfp8", "fp8_block", "fp8_rowwise"};
  return std::find(std::begin(kByRow), std::end(kByRow), recipe) != std::end(kByRow);
}

/// "fc1.dw" and "main_grad" of the weight "fc1.weight" and "weight"; empty where it is no weight.
std::string GradientName(const std::string& parameter, const std::string& gradient) {
  const size_t at = parameter.rfind("weight");
  if (at == std::string::npos || (at > 0 && parameter[at - 1] != '.')) return "";
  return absl::StrCat(parameter.substr(0, at), gradient, parameter.substr(at + 6));
}

/// The value of a knob that is text, a truth or a number, or `absent`.
template <typename T>
T Knob(const CapturedCall& call, const char* name, T absent) {
  const auto found = call.knobs.find(name);
  if (found == call.knobs.end()) return absent;
  if constexpr (std::is_same_v<T, std::string>) {
    return found->is_string() ? found->template get<T>() : absent;
  } else if constexpr (std::is_same_v<T, bool>) {
    return found->is_boolean() ? found->template get<T>() : absent;
  } else {
    return found->is_number() ? found->template get<T>() : absent;
  }
}

void SetLayer(const CapturedCall& call, v1::Layer& layer) {
  layer.set_kind(call.kind);
  if (absl::StartsWith(call.kind, "layernorm_")) {
    v1::Norm& norm = *layer.mutable_norm();
    norm.set_kind(Knob<std::string>(call, "norm", "layernorm"));
    norm.set_epsilon(static_cast<float>(Knob<double>(call, "epsilon", 1e-5)));
    norm.set_zero_centered_gamma(Knob(call, "zero_centered_gamma", false));
  }
  if (call.kind == "layernorm_mlp") {
    layer.mutable_activation()->set_kind(Knob<std::string>(call, "activation", "gelu"));
  }
  const auto splits = call.knobs.find("m_splits");
  if (splits == call.knobs.end() || !splits->is_array()) return;
  for (const nlohmann::json& rows : *splits) {
    if (rows.is_number_integer()) layer.add_m_splits(rows.get<int64_t>());
  }
}

/// before + dw in f32, rounded to nearest even to the sum's dtype.
absl::StatusOr<Tensor> SumOf(const Tensor* before, const Tensor& dw, DType out) {
  const ExecutionContext context;
  QG_ASSIGN_OR_RETURN(const Tensor gradient, CastTensor(dw, DType::kF32, context));
  if (before == nullptr) return CastTensor(gradient, out, context);
  QG_ASSIGN_OR_RETURN(const Tensor accumulated, CastTensor(*before, DType::kF32, context));
  QG_ASSIGN_OR_RETURN(Tensor sum, Tensor::Allocate(DType::kF32, dw.shape()));
  // What autograd accumulates was cast to the dtype of the sum first.
  QG_ASSIGN_OR_RETURN(Tensor added, CastTensor(gradient, out, context));
  QG_ASSIGN_OR_RETURN(added, CastTensor(added, DType::kF32, context));
  for (int64_t i = 0; i < sum.element_count(); ++i) {
    sum.as<float>()[i] = accumulated.as<float>()[i] + added.as<float>()[i];
  }
  return CastTensor(sum, out, context);
}

class Judgement {
 public:
  Judgement(const CapturedCall& call, const TensorFile& file, const v1::Variant& variant)
      : call_(call), file_(file) {
    *result_.spec.add_variants() = variant;
    recipe_ = variant.recipe().name();
    for (const auto& [name, tensor] : call.tensors) {
      is_sampled_ |= !tensor.sampled_rows.empty();
    }
  }

  LayerJudgement Take() {
    for (const auto& [name, why] : call_.left_out) Remark(absl::StrCat(name, ": ", why));
    if (!IsComputable()) return std::move(result_);
    SetLayer(call_, *result_.spec.mutable_step()->mutable_layer());
    result_.operands["x"] = *x_;
    Judge("y");
    AddBackward();
    AddSums();
    if (result_.outputs.empty()) return std::move(result_);
    SetVariant();
    return std::move(result_);
  }

 private:
  void Remark(std::string text) { result_.remarks.push_back(std::move(text)); }

  std::optional<Tensor> Find(const std::string& name) const {
    absl::StatusOr<Tensor> found = file_.Find(name);
    if (!found.ok()) return std::nullopt;
    return *std::move(found);
  }

  /// Whether there is all that a forward needs.
  bool IsComputable() {
    if (call_.kind.empty()) {
      Remark("no layer kind known: diff only");
      return false;
    }
    if (Knob<int64_t>(call_, "tp_size", 1) > 1) {
      Remark("its weight is divided over ranks: diff only");
      return false;
    }
    if (recipe_.empty()) recipe_ = Knob<std::string>(call_, "recipe", "bf16");
    if (recipe_ == "fp8_delayed" && !result_.spec.variants(0).has_recipe()) {
      Remark("delayed scaling's state is not captured: diff only, unless a recipe is given");
      return false;
    }
    if (recipe_ == "nvfp4" && !result_.spec.variants(0).has_recipe()) {
      Remark("nvfp4 rounds by chance: diff only, unless a recipe is given");
      return false;
    }
    if (is_sampled_ && (!IsByRow(recipe_) || call_.kind == "grouped_linear")) {
      Remark(absl::StrCat("rows were sampled, and under ", recipe_, " a ", call_.kind,
                          " needs all of them: diff only"));
      return false;
    }
    x_ = Find("x");
    std::vector<std::string> missing;
    if (!x_) missing.push_back("x");
    for (const std::string& name : call_.parameters) {
      std::optional<Tensor> parameter = Find(name);
      if (!parameter) {
        missing.push_back(name);
      } else {
        result_.operands[name] = *parameter;
      }
    }
    if (missing.empty()) return true;
    Remark(absl::StrCat("without ", absl::StrJoin(missing, ", "), ": diff only"));
    return false;
  }

  /// Has the output judged where the step gave it. Returns whether it did.
  bool Judge(const std::string& name) {
    const std::optional<Tensor> tensor = Find(name);
    if (!tensor) return false;
    result_.outputs.push_back(name);
    result_.tensors[name] = *tensor;
    return true;
  }

  void AddBackward() {
    const std::optional<Tensor> dy = Find("dy");
    const bool has_gradients =
        std::any_of(call_.tensors.begin(), call_.tensors.end(), [](const auto& one) {
          const int place = ExecutionPlace(one.first);
          return place > ExecutionPlace("dy");
        });
    if (!dy) {
      if (has_gradients) Remark("dx and dw: dy was not captured");
      return;
    }
    v1::RequiresGrad wanted;
    wanted.set_x(Judge("dx"));
    if (is_sampled_) {
      if (HasWeightGradient()) Remark("dw: rows were sampled");
    } else {
      for (const std::string& parameter : call_.parameters) {
        wanted.set_weight(AddWeight(parameter) || wanted.weight());
      }
    }
    // Without gradients only y is computed.
    if (!wanted.x() && !wanted.weight()) return;
    result_.operands["dy"] = *dy;
    *result_.spec.mutable_step()->mutable_requires_grad() = wanted;
  }

  bool HasWeightGradient() const {
    return std::any_of(call_.tensors.begin(), call_.tensors.end(), [](const auto& one) {
      return ExecutionPlace(one.first) >= ExecutionPlace("dw");
    });
  }

  /// dw of one weight, or main_grad where the GEMM itself adds to it.
  bool AddWeight(const std::string& parameter) {
    const std::string dw = GradientName(parameter, "dw");
    if (dw.empty()) return false;
    if (!Knob(call_, "fuses_wgrad_accumulation", false)) return Judge(dw);
    const std::optional<Tensor> before = Find(GradientName(parameter, "main_grad_before"));
    if (!before) return false;
    if (!Judge(GradientName(parameter, "main_grad"))) return false;
    result_.main_grads[parameter] = *before;
    return true;
  }

  /// main_grad of a module whose dw is added by autograd.
  void AddSums() {
    if (Knob(call_, "fuses_wgrad_accumulation", false)) return;
    for (const std::string& parameter : call_.parameters) {
      const std::string name = GradientName(parameter, "main_grad");
      if (name.empty()) continue;
      const std::optional<Tensor> found = Find(name);
      if (!found) continue;
      const std::optional<Tensor> dw = Find(GradientName(parameter, "dw"));
      const std::string before_name = GradientName(parameter, "main_grad_before");
      const std::optional<Tensor> before = Find(before_name);
      if (Knob<int64_t>(call_, "main_grad_calls", 1) != 1) {
        Remark(absl::StrCat(name, ": several calls were added at once"));
      } else if (!dw) {
        Remark(absl::StrCat(name, ": dw was not captured"));
      } else if (dw->shape() != found->shape() || (before && before->shape() != found->shape())) {
        Remark(absl::StrCat(name, ": has another shape than dw"));
      } else if (absl::StatusOr<Tensor> sum =
                     SumOf(before ? &*before : nullptr, *dw, found->dtype());
                 sum.ok()) {
        const std::string terms =
            absl::StrCat(before ? absl::StrCat(before_name, " and ") : "", "dw");
        result_.sums.push_back({name, terms, *found, *std::move(sum)});
      } else {
        Remark(absl::StrCat(name, ": ", std::string(sum.status().message())));
      }
    }
  }

  void SetVariant() {
    v1::Variant& variant = *result_.spec.mutable_variants(0);
    if (!variant.has_recipe()) variant.mutable_recipe()->set_name(recipe_);
    // Under autocast x and the parameters have the dtype they had before the cast.
    const std::optional<Tensor> y = Find("y"), dy = Find("dy");
    const DType out = y ? y->dtype() : dy ? dy->dtype() : x_->dtype();
    auto& knobs = *variant.mutable_recipe()->mutable_knobs();
    if (out != x_->dtype() && !knobs.contains("activation_dtype")) {
      knobs["activation_dtype"] = std::string(DTypeName(out));
    }
    if (variant.arithmetic().empty() && recipe_ == "bf16" && out == DType::kF32 &&
        !Knob(call_, "tf32", true)) {
      variant.set_arithmetic("fp32");
    }
  }

  const CapturedCall& call_;
  const TensorFile& file_;
  LayerJudgement result_;
  std::string recipe_;
  std::optional<Tensor> x_;
  bool is_sampled_ = false;
};

}  // namespace

LayerJudgement JudgementOf(const CapturedCall& call, const TensorFile& file,
                           const v1::Variant& variant) {
  return Judgement(call, file, variant).Take();
}

}  // namespace quantgate
