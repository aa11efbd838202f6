// The tensors of a quantization before it is done: dtypes and shapes without memory, for checks.
#pragma once

#include "kernels/quantize/quantizer.h"

namespace quantgate {

/// A tensor of this type whose data must not be read.
absl::StatusOr<Tensor> OutlineTensor(DType dtype, Shape shape);

/// What QuantizeCpu would make of a source of this dtype and shape in one direction: every field
/// but the values. For a quantizer and a shape that CheckQuantization accepts.
absl::StatusOr<QuantizedCopy> OutlineCopy(const QuantizerSpec& spec, Usage usage, DType source,
                                          const Shape& shape);

}  // namespace quantgate
