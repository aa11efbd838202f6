// Outlines: tensors with dtype and shape but without memory, for checks before a quantization.
#pragma once

#include "kernels/quantize/quantizer.h"

namespace quantgate {

/// A tensor without memory, whose data must not be read.
absl::StatusOr<Tensor> OutlineTensor(DType dtype, Shape shape);

/// The copy that QuantizeCpu would make of a source of this dtype and shape in one direction, as an
/// outline. CheckQuantization must accept the quantizer and the shape.
absl::StatusOr<QuantizedCopy> OutlineCopy(const QuantizerSpec& spec, Usage usage, DType source,
                                          const Shape& shape);

}  // namespace quantgate
