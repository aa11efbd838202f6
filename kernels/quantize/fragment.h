// Quantizing a fragment of a tensor, any run of its row-major elements, while other ranks have the
// other fragments: first the amaxes that the fragment contributes to the scales of the whole
// tensor, then, when all ranks know the largest amaxes, the codes of the fragment. The codes of all
// fragments side by side are those of the whole tensor (docs/ranks.md section 7), but for scales
// that meet subnormals: QuantizerSpec::flush_subnormals, docs/quantizers.md section 8.2.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/quantize/quantizer.h"

namespace quantgate {

/// One fragment.
struct TensorFragment {
  Tensor values;      ///< f32, bf16 or f16, in any shape; may be empty.
  int64_t begin = 0;  ///< The index of the first value among the elements of the whole tensor.
  Shape whole;        ///< [M][K], the shape of the whole tensor.

  int64_t count() const { return values.element_count(); }
};
inline std::vector<Tensor*> TensorsOf(TensorFragment& fragment) { return {&fragment.values}; }

/// The amaxes of one direction of one tensor: f32 `values` from index `first` on. The rest of
/// `values` belongs to other tensors.
struct FragmentAmaxes {
  Tensor values;
  int64_t first = 0;
};
inline std::vector<Tensor*> TensorsOf(FragmentAmaxes& amaxes) { return {&amaxes.values}; }

/// The codes of a fragment and the scales of the whole tensor.
struct QuantizedFragment {
  /// [count], one code per element of the fragment, in the order of the source also where the copy
  /// of the whole tensor is transposed. FP4: the bytes of the whole tensor that hold them, with 0
  /// in nibbles of elements of other fragments.
  Tensor codes;
  /// The copy of the whole tensor without `data`: scale_inv in the layout of QuantizedCopy, amax
  /// and scale.
  QuantizedCopy whole;
};

/// INVALID_ARGUMENT naming field, value and rule if the format cannot be quantized by fragments.
/// Per-tensor FP8, fp8_rowwise, tiles of fp8_block and nvfp4, and mxfp8 can; stochastic rounding
/// and 4over6, which compares the elements of a tile with each other, cannot. kColumnwise is for
/// mxfp8 and fp8_rowwise only, since other columnwise copies are transposes of rowwise codes.
absl::Status CheckFragment(const TensorFragment& fragment, const QuantizerSpec& spec, Usage usage);

/// The number of amaxes of one direction of a whole tensor: one for each scale unit (tensor, line,
/// tile or block), and for nvfp4 that of the tensor after them. Delayed scaling has one, too.
int64_t FragmentAmaxCount(const QuantizerSpec& spec, Usage usage, const Shape& whole);

/// f32 [FragmentAmaxCount]: max |x| over the fragment's elements in each scale unit, 0 where it has
/// none. NaN is ignored; under scale rules where it is not, it counts as an infinity, which gives
/// the same scale and survives a maximum over ranks.
absl::StatusOr<Tensor> MeasureFragmentCpu(const TensorFragment& fragment, const QuantizerSpec& spec,
                                          Usage usage, const ExecutionContext& context);

/// `amaxes` are the maxima over all fragments. Under delayed scaling `scale`, f32 [1], is used and
/// the amax is only kept, a subnormal one flushed as scales are.
absl::StatusOr<QuantizedFragment> QuantizeFragmentCpu(const TensorFragment& fragment,
                                                      const QuantizerSpec& spec, Usage usage,
                                                      const FragmentAmaxes& amaxes,
                                                      const Tensor& scale,
                                                      const ExecutionContext& context);

}  // namespace quantgate
