#include "kernels/validate/scenarios/oracles/network_by_hand.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/numerics/optimizer.h"
#include "kernels/numerics/scale_rule.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"

namespace quantgate {
namespace {

constexpr uint32_t kCallIdsOfLinear = 3;  // input, weight, grad_output.

bool IsLinear(const SessionLayer& layer) { return layer.spec.kind == LayerKind::kLinear; }

const ActivationOptions& ActivationOf(const SessionLayer& layer) {
  return layer.spec.operations.front().activation;
}

float MaxFiniteOfFp8(DType element) {
  return element == DType::kF8E4M3 ? MaxFinite<E4M3>() : MaxFinite<E5M2>();
}

/// The upper 16 bits of a finite master, rounded to nearest, ties away (docs/numerics.md section
/// 6.1).
uint16_t UpperHalf(float master) {
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(master) + 0x8000u) >> 16);
}

}  // namespace

NetworkByHand::NetworkByHand(Engine& reference, const SessionSpec& spec,
                             const std::map<std::string, Tensor>& parameters)
    : reference_(reference), spec_(spec), recipe_(spec.recipe) {
  for (const auto& [name, tensor] : parameters) {
    Trained& trained = trained_[name];
    trained.dtype = tensor.dtype();
    trained.shape = tensor.shape();
    for (int64_t i = 0; i < tensor.element_count(); ++i) {
      trained.master.push_back(ValueAt(tensor, i));
    }
    trained.m.resize(trained.master.size());
    trained.v.resize(trained.master.size());
  }
}

absl::StatusOr<Tensor> NetworkByHand::ParameterOf(const std::string& name) const {
  const Trained& trained = trained_.at(name);
  QG_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(trained.dtype, trained.shape));
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    const float master = trained.master[static_cast<size_t>(i)];
    if (spec_.masters == Masters::kBf16Remainder) {
      tensor.as<uint16_t>()[i] = UpperHalf(master);
    } else {
      SetValue(tensor, i, master);
    }
  }
  return tensor;
}

absl::StatusOr<NamedOutputs> NetworkByHand::OptimizerStateOf(const std::string& name) const {
  const Trained& trained = trained_.at(name);
  const std::pair<const char*, const std::vector<float>*> kept[] = {
      {"master", &trained.master}, {"exp_avg", &trained.m}, {"exp_avg_sq", &trained.v}};
  NamedOutputs state;
  for (const auto& [part, values] : kept) {
    QG_ASSIGN_OR_RETURN(state[part], Tensor::FromBytes(DType::kF32, trained.shape,
                                                       std::as_bytes(std::span(*values))));
  }
  return state;
}

// Quantized weights follow their masters, others the rounded parameter.
absl::StatusOr<Tensor> NetworkByHand::WeightSource(const std::string& name) const {
  if (spec_.weights != WeightStorage::kQuantized ||
      spec_.requantization == Requantization::kThroughBf16) {
    return ParameterOf(name);
  }
  const Trained& trained = trained_.at(name);
  return Tensor::FromBytes(DType::kF32, trained.shape, std::as_bytes(std::span(trained.master)));
}

uint32_t NetworkByHand::CallIds() const {
  const auto linears = std::count_if(spec_.layers.begin(), spec_.layers.end(), IsLinear);
  return static_cast<uint32_t>(linears) * kCallIdsOfLinear;
}

HistoryModel& NetworkByHand::HistoryOf(const Recipe& recipe, const SessionLayer& layer,
                                       TensorRole role) {
  const std::string name = absl::StrCat(layer.name, ".", std::string(TensorRoleName(role)));
  const DType element = recipe.QuantizerFor(role).rowwise.element;
  return histories_.try_emplace(name, recipe.delayed_scaling(), MaxFiniteOfFp8(element))
      .first->second;
}

void NetworkByHand::ChangeRecipe(const Recipe& recipe) {
  recipe_ = recipe;
  for (auto& [name, history] : histories_) {
    history.SetAlgorithm(recipe.delayed_scaling().algorithm);
  }
}

absl::StatusOr<LinearOperands> NetworkByHand::OperandsOf(const SessionLayer& layer, const Tensor& x,
                                                         uint32_t first_call_id) const {
  LinearOperands operands;
  operands.x = x;
  operands.seed = spec_.seed;
  operands.first_call_id = first_call_id;
  operands.wholes = wholes_;
  QG_ASSIGN_OR_RETURN(operands.weight, WeightSource(layer.name + ".weight"));
  if (trained_.count(layer.name + ".bias") != 0) {
    QG_ASSIGN_OR_RETURN(operands.bias, ParameterOf(layer.name + ".bias"));
  }
  return operands;
}

absl::StatusOr<Tensor> NetworkByHand::Forward(const std::string& microbatch, const Tensor& x,
                                              bool train) {
  Flight flight{recipe_, next_call_id_, {}};
  Tensor value = x;
  std::vector<HistoryModel*> noted;
  for (const SessionLayer& layer : spec_.layers) {
    if (!IsLinear(layer)) {
      flight.linears.emplace_back().x = value;
      QG_ASSIGN_OR_RETURN(
          value, reference_.ActivationForward(value, ActivationOf(layer), value.dtype(), nullptr));
      continue;
    }
    QG_ASSIGN_OR_RETURN(LinearOperands operands, OperandsOf(layer, value, next_call_id_));
    next_call_id_ += kCallIdsOfLinear;
    if (recipe_.is_delayed()) {
      for (const TensorRole role : {TensorRole::kInput, TensorRole::kWeight}) {
        HistoryModel& history = HistoryOf(recipe_, layer, role);
        QG_ASSIGN_OR_RETURN(operands.scales[role], Tensor::FromScalar(history.scale()));
        if (!train) continue;
        history.NoteCast(ExpectedAmax(role == TensorRole::kInput ? operands.x : operands.weight));
        noted.push_back(&history);
      }
    }
    QG_ASSIGN_OR_RETURN(const NamedOutputs outputs, ExpectedLinear(reference_, operands, recipe_));
    value = outputs.at("y");
    flight.linears.push_back(std::move(operands));
  }
  next_call_id_ += call_ids_between_;
  if (!skips_history_updates_) {
    for (HistoryModel* history : noted) history->Update();
  }
  if (train) flights_.insert_or_assign(microbatch, std::move(flight));
  return value;
}

absl::StatusOr<NamedOutputs> NetworkByHand::Backward(const std::string& microbatch,
                                                     const Tensor& grad_output,
                                                     Microbatch is_first) {
  const Flight flight = std::move(flights_.at(microbatch));
  flights_.erase(microbatch);
  NamedOutputs all;
  Tensor gradient = grad_output;
  std::vector<HistoryModel*> noted;
  for (size_t i = spec_.layers.size(); i-- > 0;) {
    const SessionLayer& layer = spec_.layers[i];
    LinearOperands operands = flight.linears[i];
    if (!IsLinear(layer)) {
      QG_ASSIGN_OR_RETURN(gradient,
                          reference_.ActivationBackward(gradient, operands.x, ActivationOf(layer),
                                                        gradient.dtype(), nullptr));
      continue;
    }
    operands.grad_output = gradient;
    if (const auto whole = wholes_.find(TensorRole::kGradOutput); whole != wholes_.end()) {
      operands.wholes[TensorRole::kGradOutput] = whole->second;
    }
    if (flight.recipe.is_delayed()) {
      HistoryModel& history = HistoryOf(flight.recipe, layer, TensorRole::kGradOutput);
      QG_ASSIGN_OR_RETURN(operands.scales[TensorRole::kGradOutput],
                          Tensor::FromScalar(history.scale()));
      history.NoteCast(ExpectedAmax(gradient));
      noted.push_back(&history);
    }
    const std::string weight = layer.name + ".weight";
    if (spec_.main_grads) {
      const bool overwrites = is_first == Microbatch::kFirst || main_grads_.count(weight) == 0;
      const std::vector<float> zeros(trained_.at(weight).master.size());
      QG_ASSIGN_OR_RETURN(operands.main_grad,
                          overwrites ? Tensor::FromBytes(DType::kF32, trained_.at(weight).shape,
                                                         std::as_bytes(std::span(zeros)))
                                     : absl::StatusOr<Tensor>(main_grads_.at(weight)));
    }
    QG_ASSIGN_OR_RETURN(const NamedOutputs outputs,
                        ExpectedLinear(reference_, operands, flight.recipe));
    gradient = outputs.at("dx");
    if (spec_.main_grads) {
      main_grads_[weight] = trained_.at(weight).gradient = outputs.at("main_grad");
    } else {
      all[layer.name + ".dw"] = outputs.at("dw");
      QG_RETURN_IF_ERROR(AddGradient(weight, outputs.at("dw")));
    }
    if (outputs.count("db") == 0) continue;
    all[layer.name + ".db"] = outputs.at("db");
    QG_RETURN_IF_ERROR(AddGradient(layer.name + ".bias", outputs.at("db")));
  }
  if (!skips_history_updates_) {
    for (HistoryModel* history : noted) history->Update();
  }
  all["dx"] = gradient;
  return all;
}

absl::Status NetworkByHand::AddGradient(const std::string& parameter, const Tensor& gradient) {
  Tensor& sum = trained_.at(parameter).gradient;
  if (!sum.has_value()) {
    sum = gradient;
    return absl::OkStatus();
  }
  QG_ASSIGN_OR_RETURN(Tensor added, Tensor::Allocate(sum.dtype(), sum.shape()));
  for (int64_t i = 0; i < added.element_count(); ++i) {
    SetValue(added, i, ValueAt(sum, i) + ValueAt(gradient, i));
  }
  sum = added;
  return absl::OkStatus();
}

NamedOutputs NetworkByHand::gradients() const {
  NamedOutputs gradients;
  for (const auto& [name, trained] : trained_) {
    if (trained.gradient.has_value()) gradients[name] = trained.gradient;
  }
  return gradients;
}

void NetworkByHand::ReplaceGradients(const NamedOutputs& gradients) {
  for (const auto& [name, gradient] : gradients) trained_.at(name).gradient = gradient;
}

void NetworkByHand::Update(Trained& trained) {
  const OptimizerSpec& optimizer = spec_.optimizer;
  const AdamFactors adam = AdamFactorsOf(optimizer.adam, optimizer_steps_);
  // Without masters the parameter itself is updated.
  const bool has_master = spec_.masters != Masters::kNone;
  for (size_t i = 0; i < trained.master.size(); ++i) {
    const float gradient = ValueAt(trained.gradient, static_cast<int64_t>(i));
    if (optimizer.kind == OptimizerSpec::Kind::kAdam) {
      const AdamElement updated =
          AdamUpdate({trained.master[i], trained.m[i], trained.v[i]}, gradient, adam);
      trained.master[i] = updated.master;
      trained.m[i] = updated.m;
      trained.v[i] = updated.v;
    } else {
      trained.master[i] -= optimizer.sgd.learning_rate * gradient;
    }
    if (!has_master && trained.dtype == DType::kBF16) {
      trained.master[i] = DecodeFloat<BFloat16>(EncodeFloat<BFloat16>(trained.master[i]));
    }
  }
}

absl::Status NetworkByHand::Optimize() {
  ++optimizer_steps_;
  for (auto& [name, trained] : trained_) {
    if (!trained.gradient.has_value()) continue;
    Update(trained);
    trained.gradient = Tensor();
  }
  main_grads_.clear();
  return absl::OkStatus();
}

}  // namespace quantgate
