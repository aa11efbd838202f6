// QuantizePlan and DequantizePlan: validated requests to turn one tensor into codes and scales, and
// back. Create is the last place that can say INVALID_ARGUMENT.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/engine/engine.h"
#include "kernels/layer/step_recorder.h"
#include "kernels/quantize/recipe/recipe.h"
#include "kernels/validate/run/described_copy.h"
#include "kernels/validate/tensor_slot.h"

namespace quantgate {

struct QuantizeRequest {
  /// f32, bf16 or f16 [..., K]; a weight [E][N][K] is quantized matrix by matrix
  /// (quantized_stack.h).
  Tensor source;
  /// Only for fp8_delayed: both tensors, or neither for a fresh state.
  DelayedScalingState state;
  Recipe recipe;
  TensorRole role = TensorRole::kInput;
  Usages usages;
  uint64_t seed = 0;  ///< The seed of stochastic rounding.
  ScaleLayout scale_layout = ScaleLayout::kLogical;
  /// As QuantizeArguments has them; not for a stack.
  Tensor rowwise_codes = {}, columnwise_codes = {};
};

struct QuantizeResult {
  QuantizedTensor quantized;  ///< The scales are in the layout that was asked for.
  QuantizationRecord record;
  Tensor amax_history;  ///< f32 [length] after this cast; absent but for fp8_delayed.
};

class QuantizePlan {
 public:
  /// Slots, which errors name too: "tensor", "scale", "amax_history".
  static absl::StatusOr<QuantizePlan> Create(QuantizeRequest request);
  const QuantizeRequest& request() const { return request_; }
  /// This plan with its tensors loaded. INVALID_ARGUMENT for values that no state of delayed
  /// scaling has.
  absl::StatusOr<QuantizePlan> WithTensors(SlotLoader load) const;
  /// Quantizes. The plan must have its tensors: the source in the engine's memory, the state in
  /// host memory.
  absl::StatusOr<QuantizeResult> Run(Engine& engine, const Cancellation* cancellation) const;

 private:
  explicit QuantizePlan(QuantizeRequest request) : request_(std::move(request)) {}
  QuantizeRequest request_;
};

struct DequantizeRequest {
  QuantizedCopy parts;  ///< data, scale_inv and amax, each absent if not given.
  Usage usage = Usage::kRowwise;
  QuantizedDescription description;
  DType out_dtype = DType::kF32;  ///< f32, bf16 or f16.
};

class DequantizePlan {
 public:
  /// Slots are named as PartField. Parts may be of a stack. UNIMPLEMENTED for columnwise nvfp4,
  /// which Transformer Engine does not dequantize either.
  static absl::StatusOr<DequantizePlan> Create(DequantizeRequest request);
  DType out_dtype() const { return out_dtype_; }
  const Shape& shape() const { return is_stack() ? shape_ : described_.shape; }
  /// This plan with its tensors loaded.
  absl::StatusOr<DequantizePlan> WithTensors(SlotLoader load) const;
  /// The dequantized tensor, of shape() and out_dtype().
  absl::StatusOr<Tensor> Run(Engine& engine, const Cancellation* cancellation) const;

 private:
  DequantizePlan(DescribedCopy described, Usage usage, DType out_dtype)
      : described_(std::move(described)), usage_(usage), out_dtype_(out_dtype) {}
  bool is_stack() const { return !shape_.empty(); }
  absl::StatusOr<Tensor> RunOne(Engine& engine, const QuantizedCopy& matrix,
                                const Cancellation* cancellation) const;

  DescribedCopy described_;  ///< Of a stack its first matrix, by outlines.
  Usage usage_;
  DType out_dtype_;
  QuantizedCopy stack_;  ///< The parts of a stack (quantized_stack.h); absent of one matrix.
  Shape shape_;          ///< [E][N][K] of a stack, else empty.
};

}  // namespace quantgate
