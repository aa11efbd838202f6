// Quantizing a run of a tensor's row-major elements while other ranks have the others, wherever
// runs begin and end: the amaxes that a run contributes to the scales of the whole tensor, and,
// when all ranks know the largest of them, the run's codes. Runs put side by side are the codes of
// the whole tensor (docs/ranks.md section 7).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/quantize/quantizer.h"

namespace quantgate {

struct TensorFragment {
  Tensor values;      ///< f32, bf16 or f16, in any shape; perhaps none.
  int64_t begin = 0;  ///< The first one's place among the elements of the whole tensor.
  Shape whole;        ///< Rank 2: [M][K].

  int64_t count() const { return values.element_count(); }
};
inline std::vector<Tensor*> TensorsOf(TensorFragment& fragment) { return {&fragment.values}; }

/// Amaxes of one direction of one tensor among those of others: f32 `values` from `first` on.
struct FragmentAmaxes {
  Tensor values;
  int64_t first = 0;
};
inline std::vector<Tensor*> TensorsOf(FragmentAmaxes& amaxes) { return {&amaxes.values}; }

struct QuantizedFragment {
  /// Flat, of the fragment's elements. FP4: bytes [begin / 2, end / 2) of the whole tensor, and 0
  /// in nibbles of elements that are not the fragment's.
  Tensor codes;
  /// Of the whole tensor, `data` absent: scale_inv in the layout of QuantizedCopy, amax.
  QuantizedCopy whole;
  Tensor scale;  ///< f32 [1], per-tensor FP8 only.
};

/// INVALID_ARGUMENT naming field, value and rule: per-tensor FP8, tiles of fp8_block and nvfp4, and
/// mxfp8 can be quantized so; elements rounded stochastically and 4over6, which weighs the elements
/// of a tile against each other, cannot. Under `kColumnwise` only mxfp8: other columnwise copies
/// are transposes of rowwise codes.
absl::Status CheckFragment(const TensorFragment& fragment, const QuantizerSpec& spec, Usage usage);

/// How many amaxes a direction of a whole tensor has: one for each scale unit (tensor, tile or
/// block), and for nvfp4 the tensor's own after them. Delayed scaling too has one.
int64_t FragmentAmaxCount(const QuantizerSpec& spec, Usage usage, const Shape& whole);

/// f32 [FragmentAmaxCount]: max |x| over the fragment's elements in each scale unit, 0 where it has
/// none. NaN takes no part; under scale rules in which it does, it counts as an infinity, which
/// gives the same scale and survives a maximum over ranks.
absl::StatusOr<Tensor> MeasureFragmentCpu(const TensorFragment& fragment, const QuantizerSpec& spec,
                                          Usage usage, const ExecutionContext& context);

/// `amaxes` are the largest over all fragments. Under delayed scaling `scale` is f32 [1], and the
/// amax is only kept.
absl::StatusOr<QuantizedFragment> QuantizeFragmentCpu(const TensorFragment& fragment,
                                                      const QuantizerSpec& spec, Usage usage,
                                                      const FragmentAmaxes& amaxes,
                                                      const Tensor& scale,
                                                      const ExecutionContext& context);

}  // namespace quantgate
