// A layer in training, for tests of its steps.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/layer/layer_step.h"
#include "tests/engine/tensor_values.h"
#include "tests/layer/layer_cases.h"

namespace quantgate {

inline const char* const kClasses[] = {"bf16",
                                       "fp8_current",
                                       "fp8_delayed",
                                       "fp8_block",
                                       "mxfp8",
                                       "nvfp4",
                                       "fp8_current:backward_override=high_precision",
                                       "mxfp8:backward_override=dequantized",
                                       "nvfp4:backward_override=high_precision",
                                       "hybrid:fprop=mxfp8",
                                       "hybrid:fprop=mxfp8,columnwise_source=rowwise_dequantized"};

/// A layer in training: its state, and steps whose records are kept.
class Trainee {
 public:
  explicit Trainee(const LayerRequest& request) : spec_(request.layer) {
    for (const auto& [name, tensor] : request.parameters) state.parameters[name].value = tensor;
    state.main_grads = request.main_grads;
    state.delayed = request.delayed;
  }

  absl::StatusOr<ForwardResult> Forward(const Tensor& x, const StepOptions& options) {
    StepRecorder recorder(*engine_, Arithmetic{}, nullptr);
    auto result = ForwardLayer(recorder, spec_, state, x, options);
    records = *recorder.Finish();
    return result;
  }
  absl::StatusOr<BackwardResult> Backward(std::unique_ptr<LayerSaved> saved, const Tensor& dy) {
    StepRecorder recorder(*engine_, Arithmetic{}, nullptr);
    auto result = BackwardLayer(recorder, spec_, state, std::move(saved), dy);
    records = *recorder.Finish();
    return result;
  }
  absl::StatusOr<std::vector<NamedTensor>> Wgrad(std::unique_ptr<LayerSaved> deferred) {
    StepRecorder recorder(*engine_, Arithmetic{}, nullptr);
    auto result = BackwardWgrad(recorder, spec_, state, std::move(deferred));
    records = *recorder.Finish();
    return result;
  }
  void Update(const Recipe& recipe, UpdatePoint point) {
    StepRecorder recorder(*engine_, Arithmetic{}, nullptr);
    EXPECT_TRUE(UpdateScales(recorder, spec_, state, recipe, point).ok());
  }
  /// Holds a weight quantized by the recipe's quantizer.
  void Quantize(const std::string& weight, const Recipe& recipe, Usages usages) {
    Parameter& parameter = state.parameters.at(weight);
    parameter.quantizer = recipe.QuantizerFor(TensorRole::kWeight);
    parameter.quantized =
        *engine_->Quantize(parameter.value, parameter.quantizer, usages, {}, nullptr);
    parameter.value = Tensor();
  }

  LayerState state;
  StepRecords records;  ///< The last step's.

 private:
  const std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
  const LayerSpec spec_;
};

inline StepOptions OptionsOf(const std::string& recipe) {
  return {.recipe = *Recipe::Parse(recipe), .seed = 7};
}

inline const Tensor& Named(const std::vector<NamedTensor>& tensors, const std::string& name) {
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name == name) return tensor.tensor;
  }
  static const Tensor kAbsent;
  ADD_FAILURE() << "no " << name;
  return kAbsent;
}

inline void ExpectSameGradients(const BackwardResult& subject, const LayerResult& reference) {
  EXPECT_TRUE(SameBits(subject.dx, OutputOf(reference, "dx")));
  for (const NamedTensor& gradient : subject.gradients) {
    EXPECT_TRUE(SameBits(gradient.tensor, OutputOf(reference, gradient.name))) << gradient.name;
  }
}

inline bool Quantizes(const StepRecords& records, const std::string& tensor) {
  return std::any_of(records.quantizations.begin(), records.quantizations.end(),
                     [&](const QuantizationRecord& record) { return record.tensor == tensor; });
}

/// A copy with its own bytes.
inline Tensor Copy(const Tensor& tensor) {
  return *Tensor::FromBytes(tensor.dtype(), tensor.shape(), tensor.bytes());
}

}  // namespace quantgate
