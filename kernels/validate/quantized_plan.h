// QuantizedPlan: a quantized tensor that a request gives by its parts, checked by outlines before
// they are loaded.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"
#include "kernels/validate/run/described_copy.h"
#include "kernels/validate/tensor_slot.h"

namespace quantgate {

/// The parts of a quantized tensor as a request has them, each absent if not given, and what the
/// request says of each direction.
struct QuantizedParts {
  QuantizedCopy rowwise, columnwise;  ///< Their data, scale_inv, zero_point, amax and scale.
  /// f32 [1], per-tensor FP8, where neither copy has a scale of its own: what multiplied the
  /// elements. It is of both copies if they are of one format and have the same scale_inv, else of
  /// the rowwise one, or of the only one that is per-tensor FP8.
  Tensor scale;
  QuantizedDescription of_rowwise, of_columnwise;
  DType source_dtype = DType::kF32;
};

class QuantizedPlan {
 public:
  /// Slots are named as PartField, and `tensors["scale"]`. INVALID_ARGUMENT naming the part or
  /// description: no direction, what DescribeCopy refuses, directions of different shapes or scale
  /// layouts, a common scale beside that of a copy, the scale of a copy that has none, and identity
  /// in every direction, which has no codes.
  static absl::StatusOr<QuantizedPlan> Create(QuantizedParts parts);

  /// The tensor, by outlines until it is loaded, with its scales in the logical layout.
  const QuantizedTensor& outline() const { return outline_; }
  ScaleLayout scale_layout() const { return layout_; }  ///< The layout of the scales as given.
  /// INVALID_ARGUMENT naming the direction if the values of the tensor cannot be had from its codes
  /// (docs/quantizers.md section 8).
  absl::Status CheckValues() const;

  /// This plan with its parts loaded.
  absl::StatusOr<QuantizedPlan> WithTensors(SlotLoader load) const;
  /// The loaded tensor with its scales in the logical layout.
  absl::StatusOr<QuantizedTensor> Codes(Engine& engine) const;

 private:
  QuantizedTensor given_;  ///< Scales in the layout given.
  QuantizedTensor outline_;
  ScaleLayout layout_ = ScaleLayout::kLogical;
  bool has_common_scale_ = false;  ///< QuantizedParts::scale was given.
};

/// The scales of every copy in another layout.
absl::Status ConvertAllScales(Engine& engine, ScaleLayout from, ScaleLayout to,
                              QuantizedTensor& quantized);

/// The values of a quantized tensor in its source_dtype, from rowwise codes where they are there.
absl::StatusOr<Tensor> ValuesOf(Engine& engine, const QuantizedTensor& quantized,
                                const Cancellation* cancellation);

}  // namespace quantgate
