// A linear layer asked for by its own request: the layer of kind linear.
#include "kernels/layer/linear.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace quantgate {
namespace {

LayerRequest LayerOf(const LinearRequest& request) {
  LayerRequest layer;
  layer.x = request.x;
  layer.grad_output = request.grad_output;
  layer.parameters = {{"weight", request.weight}, {"bias", request.bias}};
  layer.main_grads = {{"weight", request.main_grad}};
  layer.requires_grad = request.requires_grad;
  layer.seed = request.seed;
  for (const auto& [role, state] : request.delayed) {
    layer.delayed[std::string(TensorRoleName(role))] = state;
  }
  layer.calibrate = request.calibrate;
  return layer;
}

/// The field as a LinearRequest names it.
absl::Status Renamed(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrReplaceAll(status.message(),
                                                         {{"parameters[weight]:", "weight:"},
                                                          {"parameters[bias]:", "bias:"},
                                                          {"main_grads[weight]:", "main_grad:"}}));
}

}  // namespace

absl::Status CheckLinearTensors(const LinearRequest& request) {
  return Renamed(CheckLayerTensors(LayerOf(request)));
}

absl::Status CheckLinear(const LinearRequest& request, const Recipe& recipe) {
  return Renamed(CheckLayer(LayerOf(request), recipe));
}

absl::Status CheckLinearGemms(const LinearRequest& request, const Recipe& recipe,
                              const Arithmetic& arithmetic) {
  return CheckLayerGemms(LayerOf(request), recipe, arithmetic);
}

std::vector<std::string> LinearOutputs(const LinearRequest& request) {
  return LayerOutputs(LayerOf(request));
}

std::vector<std::string> LinearStages(const LinearRequest& request, const Recipe& recipe) {
  return LayerStages(LayerOf(request), recipe);
}

absl::StatusOr<LinearResult> RunLinear(Engine& engine, const LinearRequest& request,
                                       const Recipe& recipe, const Arithmetic& arithmetic,
                                       const Cancellation* cancellation, StageObserver on_stage) {
  absl::StatusOr<LayerResult> result =
      RunLayer(engine, LayerOf(request), recipe, arithmetic, cancellation, on_stage);
  if (!result.ok()) return Renamed(result.status());
  return *std::move(result);
}

}  // namespace quantgate
