// Outlines: tensors with dtype and shape but without memory, for checks before a quantization.
#pragma once

#include <string>

#include "kernels/quantize/quantizer.h"

namespace quantgate {

/// A tensor without memory, whose data must not be read.
absl::StatusOr<Tensor> OutlineTensor(DType dtype, Shape shape);

/// The shape of the scales of a format of levels (QuantizedCopy) of a tensor of rows x columns.
Shape GroupShape(QuantizerFormat format, int group, Usage usage, int64_t rows, int64_t columns);
/// What kind of zero points codes of levels have, by their dtype.
ZeroPoint ZeroPointOf(const QuantizedCopy& copy);
/// INVALID_ARGUMENT naming `field` and the first integer zero point that is no code of the element.
/// Those that are not in host memory are not looked at.
absl::Status CheckZeroPointValues(const std::string& field, const QuantizedCopy& copy);
/// The dtype of integer zero points of codes of such an element: i8 or u8.
DType ZeroDType(DType element);

/// The copy that QuantizeCpu would make of a source of this dtype and shape in one direction, as an
/// outline. CheckQuantization must accept the quantizer and the shape.
absl::StatusOr<QuantizedCopy> OutlineCopy(const QuantizerSpec& spec, Usage usage, DType source,
                                          const Shape& shape);

}  // namespace quantgate
