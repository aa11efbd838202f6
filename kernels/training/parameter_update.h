// How parameters of one layer come to be and how they follow their masters. Private to
// kernels/training.
#pragma once

#include <string>

#include "kernels/training/sharding/division.h"

namespace quantgate {

class ParameterUpdate {
 public:
  /// References must outlive it, but for the recipe's. Weights are quantized as `recipe` says to
  /// layer number `layer`. Of parameters that ranks divide, gradients are of this rank's part too,
  /// and all ranks call alike.
  ParameterUpdate(Engine& engine, const SessionSpec& spec, size_t layer, const Recipe& recipe,
                  const SeededFaults& faults, const Cancellation* cancellation,
                  const SessionRank* rank = nullptr)
      : engine_(engine),
        spec_(spec),
        layer_(layer),
        recipe_(RecipeOfLayer(spec.layers[layer].spec, recipe)),
        faults_(faults),
        cancellation_(cancellation),
        amax_group_(AmaxGroupOfHeld(spec, layer, rank)),
        delayed_group_(DelayedGroupOf(spec, layer, recipe_, rank)),
        division_(engine, spec, rank, faults, cancellation) {}

  /// Of parameters as they were given: makes masters and quantizes weights.
  absl::Status Begin(SessionLayerState& layer);
  /// The optimizer's update number `step` of every parameter that has a gradient, which it clears.
  absl::Status Optimize(SessionLayerState& layer, const OptimizerSpec& optimizer, int64_t step);
  /// Quantized weights from their masters once more, by the recipe's quantizer.
  absl::Status Requantize(SessionLayerState& layer);

 private:
  /// What the codes of a held weight are made from.
  absl::StatusOr<Tensor> SourceOf(const Tensor& master, const TrainedParameter& trained);
  /// f32: the master, or the parameter's own values where there is none.
  absl::StatusOr<Tensor> MasterOf(const Parameter& parameter, const TrainedParameter& trained);
  absl::StatusOr<Tensor> Updated(const Tensor& master, const Tensor& gradient,
                                 const OptimizerSpec& optimizer, int64_t step,
                                 TrainedParameter& trained);
  absl::Status Store(const std::string& name, const Tensor& master, SessionLayerState& layer);
  /// The parameter itself, of this dtype, as one in high precision follows its master.
  absl::StatusOr<Tensor> ValueOf(const std::string& name, const Tensor& master, DType dtype,
                                 const SessionLayerState& layer);
  /// In every direction that the weight holds: none is lost, none stays behind.
  absl::Status Quantize(const std::string& name, const Tensor& master, Usages usages,
                        SessionLayerState& layer);
  /// A columnwise direction that the quantizer leaves as it is, in the parameter's dtype.
  absl::Status KeepUnquantized(const std::string& name, const Tensor& master,
                               const Quantizer& quantizer, SessionLayerState& layer);
  /// The codes, and under delayed scaling (`delayed` is not null) their amax noted.
  absl::Status QuantizeOf(const std::string& name, const Tensor& source, const Quantizer& quantizer,
                          Usages usages, DelayedScalingState* delayed, SessionLayerState& layer);
  /// Puts the amaxes of the session's group into `arguments`, where it names one.
  absl::Status ReduceAmax(const Parameter& parameter, const Tensor& source,
                          const Quantizer& quantizer, Usages usages, QuantizeArguments& arguments);
  absl::StatusOr<Tensor> Cast(const Tensor& source, DType dtype);
  /// Null: a weight's amax is its own, or that of all its parts.
  static ProcessGroup* AmaxGroupOfHeld(const SessionSpec& spec, size_t layer,
                                       const SessionRank* rank);
  /// Over which the next forward would reduce what delayed scaling notes of the weight; null: it
  /// would not, or all that it would ask have the same.
  static ProcessGroup* DelayedGroupOf(const SessionSpec& spec, size_t layer, const Recipe& recipe,
                                      const SessionRank* rank);
  /// Of this quantization.
  ProcessGroup* AmaxGroupFor(const Parameter& parameter) const;

  Engine& engine_;
  const SessionSpec& spec_;
  const size_t layer_;
  const Recipe recipe_;
  const SeededFaults& faults_;
  const Cancellation* const cancellation_;
  ProcessGroup* const amax_group_;
  ProcessGroup* const delayed_group_;
  const Division division_;
};

}  // namespace quantgate
