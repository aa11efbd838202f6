// Making the parameters of one layer, and updating them from their masters. Private to
// kernels/training.
#pragma once

#include <string>

#include "kernels/training/sharding/division.h"

namespace quantgate {

class ParameterUpdate {
 public:
  /// References other than `recipe` must outlive it. Weights are quantized by `recipe`'s rules for
  /// layer number `layer`. If ranks divide parameters, all ranks must make the same calls, each
  /// with the gradients of its part.
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

  /// Makes the masters of parameters as they were given, and quantizes weights.
  absl::Status Begin(SessionLayerState& layer);
  /// Does the optimizer's update number `step` for every parameter that has a gradient, and clears
  /// the gradient.
  absl::Status Optimize(SessionLayerState& layer, const OptimizerSpec& optimizer, int64_t step);
  /// Quantizes quantized weights anew from their masters, by the recipe's quantizer.
  absl::Status Requantize(SessionLayerState& layer);

 private:
  /// The tensor that a quantized weight is quantized from.
  absl::StatusOr<Tensor> SourceOf(const Tensor& master, const TrainedParameter& trained);
  /// f32: the master or, if there is none, the parameter's own values.
  absl::StatusOr<Tensor> MasterOf(const Parameter& parameter, const TrainedParameter& trained);
  absl::StatusOr<Tensor> Updated(const Tensor& master, const Tensor& gradient,
                                 const OptimizerSpec& optimizer, int64_t step,
                                 TrainedParameter& trained);
  absl::Status Store(const std::string& name, const Tensor& master, SessionLayerState& layer);
  /// The value, of this dtype, of a parameter in high precision, from its master.
  absl::StatusOr<Tensor> ValueOf(const std::string& name, const Tensor& master, DType dtype,
                                 const SessionLayerState& layer);
  /// Quantizes a weight in `usages`, every direction that it holds, so that none keeps old codes.
  absl::Status Quantize(const std::string& name, const Tensor& master, Usages usages,
                        SessionLayerState& layer);
  /// Keeps a columnwise direction that the quantizer does not quantize, in the parameter's dtype.
  absl::Status KeepUnquantized(const std::string& name, const Tensor& master,
                               const Quantizer& quantizer, SessionLayerState& layer);
  /// Quantizes `source`; under delayed scaling (`delayed` is not null) notes the amax.
  absl::Status QuantizeOf(const std::string& name, const Tensor& source, const Quantizer& quantizer,
                          Usages usages, DelayedScalingState* delayed, SessionLayerState& layer);
  /// Puts the amaxes of the session's group, if it names one, into `arguments`.
  absl::Status ReduceAmax(const Parameter& parameter, const Tensor& source,
                          const Quantizer& quantizer, Usages usages, QuantizeArguments& arguments);
  absl::StatusOr<Tensor> Cast(const Tensor& source, DType dtype);
  /// The session's amax group of quantized weights. Null: a weight's amax is its own, or that of
  /// all its parts.
  static ProcessGroup* AmaxGroupOfHeld(const SessionSpec& spec, size_t layer,
                                       const SessionRank* rank);
  /// The group over which the next forward would reduce the amax that delayed scaling notes of the
  /// weight. Null: it would not reduce it, or all ranks of the group have the same amax.
  static ProcessGroup* DelayedGroupOf(const SessionSpec& spec, size_t layer, const Recipe& recipe,
                                      const SessionRank* rank);
  /// The amax group of one parameter's quantization.
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
