#include "kernels/training/session_checks.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "kernels/base/refusal.h"
#include "kernels/layer/experts/expert_run.h"
#include "kernels/layer/layer_program.h"
#include "kernels/quantize/quantized_outline.h"
#include "kernels/training/parallel/parallel_checks.h"
#include "kernels/training/session_experts.h"
#include "kernels/training/sharding/state_sharding.h"

namespace quantgate {
namespace {

constexpr size_t kNameLengthMax = 64;

/// A parameter for the checks of layers: an outline if it is quantized or divided.
absl::StatusOr<Tensor> OutlineOf(const SessionLayerState& layer, const std::string& name,
                                 const Parameter& parameter) {
  const auto divided = layer.divided.find(name);
  if (divided != layer.divided.end()) {
    return OutlineTensor(divided->second.dtype, divided->second.weight.shape);
  }
  if (!parameter.is_quantized()) return parameter.value;
  return OutlineTensor(parameter.quantized.source_dtype, parameter.quantized.shape);
}

absl::StatusOr<LayerRequest> RequestOf(const SessionLayer& layer, const SessionLayerState& state,
                                       std::shared_ptr<const ParallelStep> parallel) {
  LayerRequest request;
  request.layer = layer.spec;
  request.parallel = std::move(parallel);
  for (const auto& [name, parameter] : state.state.parameters) {
    QG_ASSIGN_OR_RETURN(request.parameters[name], OutlineOf(state, name, parameter));
  }
  return request;
}

/// More gated activations than this before the first parameter leave no columns of any x.
constexpr int64_t kGatesMax = int64_t{1} << 16;

/// The last dim of the layer's input, found from its first parameter; absent if no parameter tells
/// it. `gates` is multiplied by the factor by which gated activations before that divide the dim.
std::optional<int64_t> ColumnsOf(const LayerSpec& spec,
                                 const std::map<std::string, Tensor>& parameters, int64_t& gates) {
  // No program yet: the spec has not been checked.
  std::vector<std::string> names;
  for (const LayerPart& part : spec.traits().parts) {
    if (part.operation == OperationKind::kNorm) {
      names.push_back(absl::StrCat(std::string(part.prefix), "gamma"));
    }
    if (part.operation != OperationKind::kBasicLinear) continue;
    names.push_back(
        absl::StrCat(std::string(part.prefix), "weight", spec.traits().has_experts ? ".0" : ""));
    break;
  }
  for (const OperationSpec& operation : spec.operations) {
    if (operation.kind == OperationKind::kNorm) names = {operation.name + ".gamma"};
    if (operation.kind == OperationKind::kBasicLinear) names = {operation.name + ".weight"};
    if (operation.kind == OperationKind::kBias) names = {operation.name + ".bias"};
    if (!names.empty()) break;
    if (operation.kind == OperationKind::kActivation && IsGated(operation.activation.kind)) {
      gates *= 2;
    }
  }
  for (const std::string& name : names) {
    const auto found = parameters.find(name);
    if (found == parameters.end() || found->second.rank() < 1 || gates > kGatesMax) continue;
    return found->second.columns() * gates;
  }
  return std::nullopt;
}

/// The last dim of the first layer's input, found from the first parameter of any layer.
absl::StatusOr<std::optional<int64_t>> ColumnsOfSession(const SessionSpec& spec,
                                                        const SessionState& state) {
  int64_t gates = 1;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    QG_ASSIGN_OR_RETURN(const LayerRequest request,
                        RequestOf(spec.layers[i], state.layers[i], nullptr));
    const std::optional<int64_t> columns =
        ColumnsOf(spec.layers[i].spec, request.parameters, gates);
    if (columns.has_value()) return columns;
  }
  return std::optional<int64_t>();
}

bool HasExperts(const SessionSpec& spec) {
  return std::any_of(spec.layers.begin(), spec.layers.end(),
                     [](const SessionLayer& layer) { return layer.spec.traits().has_experts; });
}

int64_t RowsOf(const SessionSpec& spec) {
  for (const SessionLayer& layer : spec.layers) {
    if (!layer.spec.traits().has_experts) continue;
    int64_t rows = 0;
    for (const int64_t split : layer.spec.m_splits) {
      if (split > 0 && rows <= INT32_MAX) rows += split;
    }
    return rows;
  }
  return 0;
}

absl::Status CheckOptimizer(const OptimizerSpec& optimizer) {
  // Only the options are checked, so tensors of one element do.
  QG_ASSIGN_OR_RETURN(const Tensor one, Tensor::FromScalar(0));
  if (optimizer.kind == OptimizerSpec::Kind::kAdam) {
    return CheckAdam({one, one, one, one, optimizer.adam, 1});
  }
  if (optimizer.kind == OptimizerSpec::Kind::kSgd) {
    return CheckSgd({one, one, {}, optimizer.sgd});
  }
  return absl::OkStatus();
}

bool RoundsStochastically(const Quantizer& quantizer) {
  return quantizer.rowwise.element_rounding == ElementRounding::kStochastic ||
         quantizer.columnwise.element_rounding == ElementRounding::kStochastic;
}

absl::Status CheckLayerForward(const SessionLayer& layer, const SessionLayerState& state,
                               const Recipe& recipe, const Arithmetic& arithmetic, bool train,
                               LayerRequest& request) {
  // Those of a recipe before a change are not the new one's.
  for (const LayerDelayedState& delayed : DelayedStatesOf(request.layer, recipe)) {
    const auto found = state.state.delayed.find(delayed.name);
    if (found != state.state.delayed.end()) request.delayed[found->first] = found->second;
  }
  // These may have another copy's number of rows.
  request.grad_output = Tensor();
  request.main_grads.clear();
  QG_RETURN_IF_ERROR(CheckLayerTensors(request));
  if (train) {
    const DType dtype = recipe.activation_dtype().value_or(request.x.dtype());
    QG_ASSIGN_OR_RETURN(request.grad_output, OutlineTensor(dtype, LayerOutputShape(request, "y")));
    if (request.requires_grad.weight) request.main_grads = state.state.main_grads;
  }
  QG_RETURN_IF_ERROR(CheckLayerTensors(request));
  QG_ASSIGN_OR_RETURN(const LayerPlanPointer plan, DecideLayer(request, recipe));
  return CheckLayerGemms(*plan, arithmetic);
}

}  // namespace

absl::Status WithRequestedOverlap(const absl::Status& status) {
  const std::optional<Refusal> refusal = RefusalOf(status);
  if (!refusal.has_value()) return status;
  for (const char* side : {"column", "row"}) {
    absl::string_view part = refusal->field;
    if (!absl::ConsumePrefix(&part, absl::StrCat("parallel.", side, "_overlap."))) continue;
    if (part == "profile" || absl::EndsWith(part, ".profile")) {
      return AsField("parallel.reduction_profile", status);
    }
    if (part == "sequence_parallel") return AsField("parallel.sequence_parallel", status);
    if (absl::ConsumePrefix(&part, "overlap.")) {
      const bool is_of_side = part == "fprop" || part == "dgrad" || part == "wgrad";
      return AsField(
          absl::StrCat("parallel.overlap.", is_of_side ? side : "", is_of_side ? "_" : "", part),
          status);
    }
    for (const char* count : {"splits", "pieces"}) {
      if (absl::EndsWith(part, absl::StrCat(".", count))) {
        return AsField(absl::StrCat("parallel.overlap.", count), status);
      }
    }
    return AsField(std::string(part), status);
  }
  return status;
}

absl::Status InLayer(const SessionLayer& layer, const absl::Status& status) {
  if (status.ok()) return status;
  return WithinField(absl::StrCat("layers[", layer.name, "]"), WithRequestedOverlap(status));
}

absl::Status CheckSessionName(const std::string& field, const std::string& name) {
  const bool is_name =
      !name.empty() && name.size() <= kNameLengthMax &&
      std::all_of(name.begin(), name.end(), [](char c) {
        return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
      });
  if (is_name) return absl::OkStatus();
  return Refuse(field, absl::StrCat("\"", name.substr(0, kNameLengthMax), "\""),
                absl::StrCat("1 to ", kNameLengthMax, " letters, digits, _ and -"));
}

namespace {

absl::Status CheckWeightQuantizer(const Recipe& recipe) {
  const Quantizer& quantizer = recipe.QuantizerFor(TensorRole::kWeight);
  if (!quantizer.rowwise.is_quantized()) {
    return Refuse(
        "weights", "quantized",
        absl::StrCat("recipe ", recipe.ShortText(), " does not quantize weights rowwise"));
  }
  if (!quantizer.delayed_directions().empty() && !quantizer.is_uniform()) {
    return Refuse("weights", "quantized",
                  absl::StrCat("recipe ", recipe.ShortText(),
                               " scales weights by delayed scaling in one direction, or by two "
                               "rules, and an update makes both directions under one scale"));
  }
  if (quantizer.columnwise.casts()) {
    return Refuse("weights", "quantized",
                  absl::StrCat("recipe ", recipe.ShortText(), " casts weights columnwise, and a ",
                               "direction that is not quantized is held as the parameter is"));
  }
  if (RoundsStochastically(quantizer)) {
    return Refuse("weights", "quantized",
                  absl::StrCat("recipe ", recipe.ShortText(),
                               " rounds weights stochastically, which would draw anew at every "
                               "update: weights are rounded to nearest"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckQuantizedWeightsOf(const std::vector<SessionLayer>& layers,
                                     const Recipe& recipe) {
  for (const SessionLayer& layer : layers) {
    for (const Recipe& of_module : RecipesOfModules(layer.spec, recipe)) {
      QG_RETURN_IF_ERROR(InLayer(layer, of_module.CheckRole(TensorRole::kWeight)));
      QG_RETURN_IF_ERROR(InLayer(layer, CheckWeightQuantizer(of_module)));
    }
  }
  return absl::OkStatus();
}

void NameLayers(SessionSpec& spec) {
  for (SessionLayer& layer : spec.layers) layer.spec.name = layer.name;
}

absl::Status CheckSessionSpec(const SessionSpec& spec) {
  if (spec.layers.empty() || spec.layers.size() > kSessionLayersMax) {
    return Refuse("layers", absl::StrCat(spec.layers.size(), " given"),
                  absl::StrCat("from 1 to ", kSessionLayersMax));
  }
  std::set<std::string> names;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const std::string& name = spec.layers[i].name;
    const std::string field = absl::StrCat("layers[", i, "].name");
    QG_RETURN_IF_ERROR(CheckSessionName(field, name));
    if (name == "in_flight" || name == "deferred" || name == "recipe") {
      return Refuse(field, name, "the session's own tensors begin with that name");
    }
    if (!names.insert(name).second) {
      return Refuse(field, name, "it is given twice; names are unique");
    }
  }
  QG_RETURN_IF_ERROR(spec.recipe.CheckForLayers());
  if (spec.weights == WeightStorage::kQuantized) {
    QG_RETURN_IF_ERROR(CheckQuantizedWeightsOf(spec.layers, spec.recipe));
  } else if (spec.built_without_grad) {
    return Refuse("built_without_grad", "true", "it needs quantized weights");
  }
  QG_RETURN_IF_ERROR(CheckSessionRanks(spec));
  for (const SessionLayer& layer : spec.layers) {
    QG_RETURN_IF_ERROR(InLayer(layer, CheckLayerSpec(layer.spec)));
  }
  return CheckOptimizer(spec.optimizer);
}

namespace {

absl::Status CheckNothingAbsent(const SessionLayer& layer, const SessionLayerState& state) {
  for (const LayerParameter& parameter : ParametersOf(layer.spec)) {
    if (parameter.is_optional || state.state.parameters.count(parameter.name) != 0) continue;
    return InLayer(layer,
                   RefuseAbsent(absl::StrCat("parameters[", parameter.name, "]"),
                                absl::StrCat(WithArticle(layer.spec.traits()), " layer needs it")));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSessionShapes(const SessionSpec& spec, const SessionState& state,
                                std::shared_ptr<const ParallelStep> parallel) {
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    QG_RETURN_IF_ERROR(CheckNothingAbsent(spec.layers[i], state.layers[i]));
  }
  // If no parameter tells the layers' input, the first forward checks it.
  QG_ASSIGN_OR_RETURN(std::optional<int64_t> columns, ColumnsOfSession(spec, state));
  for (size_t i = 0; columns.has_value() && i < spec.layers.size(); ++i) {
    QG_ASSIGN_OR_RETURN(LayerRequest request, RequestOf(spec.layers[i], state.layers[i], parallel));
    QG_ASSIGN_OR_RETURN(request.x, OutlineTensor(DType::kBF16, {RowsOf(spec), *columns}));
    QG_RETURN_IF_ERROR(InLayer(spec.layers[i], CheckLayerTensors(request)));
    columns = LayerOutputShape(request, "y").back();
  }
  return absl::OkStatus();
}

namespace {

/// Adds outlines for experts that other ranks have, which were checked when the session was opened.
void OutlineOtherExperts(const LayerSpec& layer, LayerRequest& request) {
  const auto own = std::find_if(request.parameters.begin(), request.parameters.end(),
                                [](const auto& parameter) { return IsWeight(parameter.first); });
  if (own == request.parameters.end()) return;
  const Tensor weight = own->second;
  for (const LayerParameter& parameter : ParametersOf(layer)) {
    if (parameter.kind == ParameterKind::kWeight) {
      request.parameters.try_emplace(parameter.name, weight);
    }
  }
}

/// Checks a grouped_linear whose experts or rows are divided, for every copy: the tensors that all
/// ranks of the copy have together replace this rank's.
absl::Status CheckExpertsForward(const SessionSpec& spec, const SessionLayer& layer,
                                 const SessionLayerState& state, const Recipe& recipe, bool train,
                                 LayerRequest& request) {
  OutlineOtherExperts(layer.spec, request);
  const int copies = spec.parallel->data_parallel;
  for (int copy = 0; copy < copies; ++copy) {
    request.layer = LayerOfCopy(layer.spec, copies, copy);
    const std::vector<int64_t>& splits = request.layer.m_splits;
    const int64_t rows = std::accumulate(splits.begin(), splits.end(), int64_t{0});
    QG_ASSIGN_OR_RETURN(request.x, OutlineTensor(request.x.dtype(), {rows, request.x.columns()}));
    const absl::Status status =
        CheckLayerForward(layer, state, recipe, spec.arithmetic, train, request);
    if (status.ok()) continue;
    if (copies == 1) return status;
    std::optional<Refusal> refusal = RefusalOf(status);
    if (!refusal.has_value()) return status;
    absl::StrAppend(&refusal->rule, " (of copy ", copy, " of ", copies, ", data_parallel)");
    return StatusOf(*refusal);
  }
  return absl::OkStatus();
}

/// An outline of a grouped_linear's x with all rows that its ranks gather.
Shape ShapeOfAllRows(const SessionSpec& spec, size_t layer, Shape x) {
  if (InputLayout(spec, layer).divides_rows) x.front() *= spec.parallel->tensor_parallel;
  return x;
}

/// An outline of y with dim 0 as on one rank.
int64_t RowsOfOutput(const SessionSpec& spec, size_t layer, const Shape& x) {
  const bool divides_rows = OutputLayout(spec, layer).divides_rows;
  return divides_rows ? x.front() / spec.parallel->tensor_parallel : x.front();
}

}  // namespace

absl::StatusOr<Shape> CheckSessionForward(const SessionSpec& spec, const SessionState& state,
                                          const Recipe& recipe, const ForwardStep& step,
                                          std::shared_ptr<const ParallelStep> parallel,
                                          const QuantizedTensor* grad_output) {
  if (!step.x.has_value()) return RefuseAbsent("x", "a forward needs it");
  const std::vector<RequiresGrad> requires_grad = RequiresGradOfLayers(state, step.requires_grad);
  Tensor x = step.x;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const SessionLayer& layer = spec.layers[i];
    QG_ASSIGN_OR_RETURN(LayerRequest request, RequestOf(layer, state.layers[i], parallel));
    request.x = x;
    if (i == 0 && step.x_codes.has_codes()) request.codes["x"] = step.x_codes;
    const bool is_last = i + 1 == spec.layers.size();
    if (is_last && grad_output != nullptr) request.codes["grad_output"] = *grad_output;
    request.value_bytes_max = step.value_bytes_max;
    request.calibrate = step.calibrate;
    request.requires_grad = requires_grad[i];
    const bool is_grouped = layer.spec.traits().has_experts;
    const Shape all_rows = ShapeOfAllRows(spec, i, x.shape());
    if (is_grouped) {
      QG_ASSIGN_OR_RETURN(request.x, OutlineTensor(x.dtype(), all_rows));
    }
    QG_RETURN_IF_ERROR(InLayer(
        layer, is_grouped && RoutesRows(spec)
                   ? CheckExpertsForward(spec, layer, state.layers[i], recipe, step.train, request)
                   : CheckLayerForward(layer, state.layers[i], recipe, spec.arithmetic, step.train,
                                       request)));
    const DType dtype = recipe.activation_dtype().value_or(x.dtype());
    Shape y = LayerOutputShape(request, "y");
    if (is_grouped && y.size() > 1) y.front() = RowsOfOutput(spec, i, all_rows);
    QG_ASSIGN_OR_RETURN(x, OutlineTensor(dtype, y));
  }
  return x.shape();
}

namespace {

/// A number of rows on a rank that fits every rule: blocks of 128, in as many pieces as an overlap
/// cuts.
constexpr int64_t kFittingRows = 128 * kOverlapCutsMax;

/// The shape of x on this rank: dims that the layers tell, else dims that fit every rule.
int64_t RowsOfRank(const SessionSpec& spec, const SessionRank* rank) {
  const int64_t rows = HasExperts(spec) ? RowsOf(spec) : kFittingRows;
  if (rank == nullptr) return rows;
  const auto tp = static_cast<size_t>(spec.parallel->tensor_parallel);
  const bool divides_rows = InputLayout(spec, 0).divides_rows;
  if (!HasExperts(spec)) return divides_rows ? rows : rows * static_cast<int64_t>(tp);
  int64_t of_copy = rows;
  if (RoutesRows(spec)) {
    of_copy =
        static_cast<int64_t>(TokensOfRanks(spec)[static_cast<size_t>(rank->index) / tp].size());
  }
  return divides_rows ? of_copy / static_cast<int64_t>(tp) : of_copy;
}

}  // namespace

std::optional<DType> DTypeOfParameters(const SessionState& state) {
  std::optional<DType> common;
  for (const SessionLayerState& layer : state.layers) {
    for (const auto& [name, parameter] : layer.state.parameters) {
      const auto divided = layer.divided.find(name);
      const DType dtype = divided != layer.divided.end() ? divided->second.dtype
                          : parameter.is_quantized()     ? parameter.quantized.source_dtype
                                                         : parameter.value.dtype();
      if (common.value_or(dtype) != dtype) return std::nullopt;
      common = dtype;
    }
  }
  return common;
}

absl::Status CheckSessionRecipe(const SessionSpec& spec, const SessionState& state,
                                const Recipe& recipe, const SessionRank* rank,
                                std::optional<DType> x_dtype) {
  QG_ASSIGN_OR_RETURN(const std::optional<int64_t> columns, ColumnsOfSession(spec, state));
  // No parameter tells the layers' input, so it all depends on x.
  if (!columns.has_value()) return absl::OkStatus();
  std::vector<DType> dtypes = {DType::kBF16, DType::kF16, DType::kF32};
  if (x_dtype.has_value()) dtypes = {*x_dtype};
  ForwardStep step;
  // Weights built without gradients are only evaluated.
  step.train = !spec.built_without_grad;
  absl::Status refusal;
  for (const DType dtype : dtypes) {
    QG_ASSIGN_OR_RETURN(step.x, OutlineTensor(dtype, {RowsOfRank(spec, rank), *columns}));
    const absl::Status status =
        CheckSessionForward(spec, state, recipe, step, rank == nullptr ? nullptr : rank->step)
            .status();
    if (status.ok()) return status;
    if (!refusal.ok()) continue;
    refusal = StatusOf(
        {.code = status.code(),
         .field = "recipe",
         .value = recipe.ShortText(),
         .rule = absl::StrCat(step.train ? "no forward and backward could follow, that of x "
                                         : "no forward could follow, that of x ",
                              TensorText(step.x), " would be: ", status.message())});
  }
  return refusal;
}

std::vector<RequiresGrad> RequiresGradOfLayers(const SessionState& state,
                                               const RequiresGrad& wanted) {
  std::vector<RequiresGrad> layers;
  bool needs_dx = wanted.x;
  for (const SessionLayerState& layer : state.layers) {
    layers.push_back(wanted);
    layers.back().x = needs_dx;
    for (const auto& [name, parameter] : layer.state.parameters) {
      const bool is_of_bias = WithLastWord(name, "bias") == name;
      needs_dx |= IsWeight(name) ? wanted.weight : is_of_bias ? wanted.bias : wanted.norm;
    }
  }
  return layers;
}

}  // namespace quantgate
