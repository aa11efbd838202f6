// The grid of a direction of a format of levels, and its dequantization. Private to
// kernels/quantize.
#pragma once

#include "kernels/quantize/format_quantizers.h"
#include "kernels/quantize/general/general_grid.h"

namespace quantgate {

GeneralGrid MakeLevelGrid(int64_t rows, int64_t columns, QuantizerFormat format, int group,
                          Usage usage);

/// What the zero points of a copy are.
ZeroPoint ZeroPointOf(const QuantizedCopy& copy);

/// DequantizeCpu of a copy of a format of levels; `out` has the shape of the source.
absl::Status DequantizeLevels(const QuantizedCopy& copy, Usage usage, Tensor& out,
                              const ExecutionContext& context);

}  // namespace quantgate
