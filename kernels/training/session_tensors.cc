#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/training/session_state.h"

namespace quantgate {
namespace {

/// The words of a parameter's name and which of them says what it is: the last that is no index.
std::pair<std::vector<std::string>, size_t> WordsOf(const std::string& parameter) {
  std::vector<std::string> words = absl::StrSplit(parameter, '.');
  size_t last = words.size() - 1;
  if (last > 0 && !words[last].empty() && absl::ascii_isdigit(words[last][0])) --last;
  return {std::move(words), last};
}

void VisitLayer(const std::string& prefix, SessionLayerState& layer, TensorVisitor visit) {
  for (auto& [name, parameter] : layer.state.parameters) {
    const std::string path = prefix + name;
    visit(path, parameter.value);
    VisitQuantized(path + ".quantized", parameter.quantized, visit);
    TrainedParameter& trained = layer.trained[name];
    visit(path + ".master", trained.master);
    // Elsewhere it is the parameter itself.
    if (parameter.is_quantized()) visit(path + ".master_bf16", trained.split.parameter);
    visit(path + ".master_remainder", trained.split.remainder);
    visit(path + ".exp_avg", trained.exp_avg);
    visit(path + ".exp_avg_sq", trained.exp_avg_sq);
    visit(path + ".momentum", trained.momentum);
    visit(prefix + GradientOf(name), trained.gradient);
  }
  for (auto& [name, main_grad] : layer.state.main_grads) {
    visit(prefix + WithLastWord(name, "main_grad"), main_grad);
  }
  for (auto& [name, workspace] : layer.state.workspaces) {
    VisitQuantized(absl::StrCat(prefix, name, ".workspace"), workspace.quantized, visit);
  }
  for (auto& [name, delayed] : layer.state.delayed) {
    visit(absl::StrCat(prefix, name, ".scale"), delayed.scale);
    visit(absl::StrCat(prefix, name, ".amax_history"), delayed.amax_history);
  }
}

}  // namespace

bool IsWeight(const std::string& parameter) {
  const auto [words, last] = WordsOf(parameter);
  return words[last] == "weight";
}

std::string WithLastWord(const std::string& parameter, const std::string& word) {
  auto [words, last] = WordsOf(parameter);
  words[last] = word;
  return absl::StrJoin(words, ".");
}

std::string GradientOf(const std::string& parameter) {
  const auto [words, last] = WordsOf(parameter);
  if (words[last] == "weight") return WithLastWord(parameter, "dw");
  if (words[last] == "bias") return WithLastWord(parameter, "db");
  return WithLastWord(parameter, "d" + words[last]);
}

void VisitQuantized(const std::string& name, QuantizedTensor& quantized, TensorVisitor visit) {
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    std::optional<QuantizedCopy>& copy = quantized.copy(usage);
    if (!copy.has_value()) continue;
    const std::string direction(UsageName(usage));
    visit(absl::StrCat(name, ".", direction, "_data"), copy->data);
    visit(absl::StrCat(name, ".", direction, "_scale_inv"), copy->scale_inv);
    visit(absl::StrCat(name, ".amax_", direction), copy->amax);
  }
  visit(name + ".scale", quantized.scale);
}

void VisitTensors(const SessionSpec& spec, SessionState& state, TensorVisitor visit) {
  for (size_t i = 0; i < state.layers.size(); ++i) {
    VisitLayer(spec.layers[i].name + ".", state.layers[i], visit);
  }
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
      SessionLayerState as_found{flight->recomputation->layers[i], {}};
      VisitLayer(absl::StrCat(prefix, spec.layers[i].name, "."), as_found, visit);
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

}  // namespace quantgate
