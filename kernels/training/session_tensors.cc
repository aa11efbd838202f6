#include <cstddef>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/training/session_state.h"

namespace quantgate {
namespace {

/// The scales of per-tensor copies: one under one name where the copies have the same.
void VisitScales(TensorPlace place, const std::string& name, QuantizedTensor& quantized,
                 PlaceVisitor visit) {
  place.kind = TensorPlace::Kind::kScale;
  const Tensor* common = nullptr;
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    std::optional<QuantizedCopy>& copy = quantized.copy(usage);
    if (!copy.has_value() || TraitsOf(copy->format).scales != ScaleKind::kTensor) continue;
    place.usage = usage;
    if (quantized.has_two_scales()) {
      visit(place, absl::StrCat(name, ".", std::string(UsageName(usage)), "_scale"), copy->scale);
    } else if (common == nullptr) {
      visit(place, name + ".scale", copy->scale);
      common = &copy->scale;
    } else {
      copy->scale = *common;
    }
  }
}

/// `place.layer` and `place.parameter` are set.
void VisitDirections(TensorPlace place, const std::string& name, QuantizedTensor& quantized,
                     PlaceVisitor visit) {
  using Kind = TensorPlace::Kind;
  place.quantized = &quantized;
  const auto visit_as = [&](Kind kind, const std::string& path, Tensor& tensor) {
    place.kind = kind;
    visit(place, path, tensor);
  };
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    std::optional<QuantizedCopy>& copy = quantized.copy(usage);
    if (!copy.has_value()) continue;
    place.usage = usage;
    const bool has_one_scale = TraitsOf(copy->format).scales == ScaleKind::kTensor;
    const std::string direction(UsageName(usage));
    visit_as(Kind::kCodes, absl::StrCat(name, ".", direction, "_data"), copy->data);
    visit_as(has_one_scale ? Kind::kScale : Kind::kCodes,
             absl::StrCat(name, ".", direction, "_scale_inv"), copy->scale_inv);
    visit_as(Kind::kAmax, absl::StrCat(name, ".amax_", direction), copy->amax);
  }
  VisitScales(place, name, quantized, visit);
}

void VisitParameter(TensorPlace place, const std::string& prefix, const std::string& name,
                    SessionLayerState& layer, PlaceVisitor visit) {
  Parameter& parameter = layer.state.parameters.at(name);
  TrainedParameter& trained = layer.trained[name];
  const std::string path = prefix + name;
  const auto visit_like_parameter = [&](const std::string& tensor_name, Tensor& tensor) {
    place.kind = TensorPlace::Kind::kParameter;
    visit(place, tensor_name, tensor);
  };
  place.parameter = name;
  visit_like_parameter(path, parameter.value);
  VisitDirections(place, path + ".quantized", parameter.quantized, visit);
  visit_like_parameter(path + ".master", trained.master);
  // If the parameter is not quantized, the bf16 part of its master is the parameter itself.
  if (parameter.is_quantized()) {
    visit_like_parameter(path + ".master_bf16", trained.split.parameter);
  }
  visit_like_parameter(path + ".master_remainder", trained.split.remainder);
  visit_like_parameter(path + ".exp_avg", trained.exp_avg);
  visit_like_parameter(path + ".exp_avg_sq", trained.exp_avg_sq);
  visit_like_parameter(path + ".momentum", trained.momentum);
  place.kind = TensorPlace::Kind::kGradient;
  visit(place, prefix + GradientOf(name), trained.gradient);
}

void VisitLayer(size_t index, const std::string& prefix, SessionLayerState& layer,
                PlaceVisitor visit) {
  using Kind = TensorPlace::Kind;
  TensorPlace place;
  place.layer = index;
  for (auto& [name, parameter] : layer.state.parameters) {
    VisitParameter(place, prefix, name, layer, visit);
  }
  for (auto& [name, main_grad] : layer.state.main_grads) {
    place.parameter = name;
    place.kind = layer.trained[name].has_main_gradient ? Kind::kGradient : Kind::kParameter;
    visit(place, prefix + WithLastWord(name, "main_grad"), main_grad);
  }
  for (auto& [name, workspace] : layer.state.workspaces) {
    place.parameter = name;
    VisitDirections(place, absl::StrCat(prefix, name, ".workspace"), workspace.quantized, visit);
  }
  const TensorPlace scale = {.kind = Kind::kDelayed, .layer = index};
  const TensorPlace history = {.kind = Kind::kHistory, .layer = index};
  for (auto& [name, delayed] : layer.state.delayed) {
    visit(scale, absl::StrCat(prefix, name, ".scale"), delayed.scale);
    visit(history, absl::StrCat(prefix, name, ".amax_history"), delayed.amax_history);
  }
}

void VisitLayer(const std::string& prefix, SessionLayerState& layer, TensorVisitor visit) {
  VisitLayer(0, prefix, layer, [&](const TensorPlace&, const std::string& name, Tensor& tensor) {
    visit(name, tensor);
  });
}

/// Counts bytes of states. Tensors share buffers: a saved operand is often the parameter itself.
class HeldBytes {
 public:
  explicit HeldBytes(const SessionSpec& spec) : spec_(spec) {}

  /// The bytes of the state that no state before it has.
  int64_t Add(SessionState& state) {
    int64_t bytes = 0;
    const auto count = [&](const Tensor& held) {
      if (!held.has_value() || !counted_.insert({held.data(), held.byte_size()}).second) return;
      bytes += static_cast<int64_t>(held.byte_size());
    };
    VisitHeldTensors(spec_, state, [&](const std::string&, const Tensor& held) { count(held); });
    // Nobody asks for these by name.
    for (const SessionLayerState& layer : state.layers) {
      count(layer.state.rotary.table.cosines);
      count(layer.state.rotary.table.sines);
    }
    return bytes;
  }

 private:
  const SessionSpec& spec_;
  std::set<std::pair<const std::byte*, size_t>> counted_;
};

}  // namespace

void VisitLayerState(const LayerState& state, TensorVisitor visit) {
  SessionLayerState layer{state, {}};
  VisitLayer("", layer, visit);
}

bool IsWeight(const std::string& parameter) {
  return ParameterName::Parse(parameter).word == "weight";
}

std::string WithLastWord(const std::string& parameter, const std::string& word) {
  ParameterName name = ParameterName::Parse(parameter);
  name.word = word;
  return name.Text();
}

std::string GradientOf(const std::string& parameter) {
  const std::string word = ParameterName::Parse(parameter).word;
  const bool is_short = word == "weight" || word == "bias";
  return WithLastWord(parameter, "d" + (is_short ? word.substr(0, 1) : word));
}

void VisitQuantized(const std::string& name, QuantizedTensor& quantized, TensorVisitor visit) {
  VisitDirections(
      {}, name, quantized,
      [&](const TensorPlace&, const std::string& part, Tensor& tensor) { visit(part, tensor); });
}

void VisitPlaces(const SessionSpec& spec, SessionState& state, PlaceVisitor visit) {
  for (size_t i = 0; i < state.layers.size(); ++i) {
    VisitLayer(i, spec.layers[i].name + ".", state.layers[i], visit);
  }
}

void VisitTensors(const SessionSpec& spec, SessionState& state, TensorVisitor visit) {
  VisitPlaces(spec, state, [&](const TensorPlace&, const std::string& name, Tensor& tensor) {
    visit(name, tensor);
  });
}

std::set<std::string> HeldNames(const SessionSpec& spec, SessionState& state) {
  std::set<std::string> names;
  VisitTensors(spec, state, [&](const std::string& name, Tensor& tensor) {
    if (tensor.has_value()) names.insert(name);
  });
  return names;
}

void VisitTensorsInFlight(const SessionSpec& spec, const SessionState& state, TensorVisitor visit) {
  for (const auto& [microbatch, flight] : state.in_flight) {
    const std::string prefix = absl::StrCat("in_flight.", microbatch, ".");
    for (size_t i = 0; i < flight->saved.size(); ++i) {
      if (flight->saved[i] == nullptr) continue;
      for (const SavedPart& part : flight->saved[i]->parts()) {
        visit(absl::StrCat(prefix, spec.layers[i].name, ".", part.name), *part.tensor);
      }
    }
    if (flight->recomputation == nullptr) continue;
    Tensor x = flight->recomputation->step.x;
    visit(prefix + "x", x);
    for (size_t i = 0; i < flight->recomputation->layers.size(); ++i) {
      const std::string path = absl::StrCat(prefix, spec.layers[i].name, ".");
      VisitLayerState(flight->recomputation->layers[i],
                      [&](const std::string& name, Tensor& found) { visit(path + name, found); });
    }
  }
  for (size_t i = 0; i < state.deferred.size(); ++i) {
    const DeferredWgrad& deferred = state.deferred[i];
    for (const SavedPart& part : deferred.saved->parts()) {
      visit(absl::StrCat("deferred.", i, ".", spec.layers[deferred.layer].name, ".", part.name),
            *part.tensor);
    }
  }
  for (const auto& [number, layers] : state.retired_delayed) {
    for (size_t i = 0; i < layers.size(); ++i) {
      SessionLayerState retired;
      retired.state.delayed = layers[i];
      VisitLayer(absl::StrCat("recipe.", number, ".", spec.layers[i].name, "."), retired, visit);
    }
  }
}

void VisitHeldTensors(const SessionSpec& spec, SessionState& state, TensorVisitor visit) {
  const auto visit_held = [&](const std::string& name, Tensor& tensor) {
    if (tensor.has_value()) visit(name, tensor);
  };
  VisitTensors(spec, state, visit_held);
  VisitTensorsInFlight(spec, state, visit_held);
}

int64_t BytesOf(const SessionSpec& spec, SessionState& state) {
  HeldBytes held(spec);
  return held.Add(state);
}

int64_t BytesBeside(const SessionSpec& spec, SessionState& state, SessionState& more) {
  HeldBytes held(spec);
  held.Add(state);
  return held.Add(more);
}

}  // namespace quantgate
