// Formats of levels on the CPU, as the general path calls them. Private to kernels/quantize.
#pragma once

#include "kernels/quantize/format_quantizers.h"
#include "kernels/quantize/general/general_grid.h"

namespace quantgate {

GeneralGrid MakeLevelGrid(int64_t rows, int64_t columns, QuantizerFormat format, int group,
                          Usage usage);

/// Writes one copy of `request`, and gives its counts.
absl::StatusOr<QuantizationCounts> QuantizeLevels(const FormatRequest& request, Usage usage,
                                                  QuantizedTensor& quantized);

/// DequantizeCpu of a copy of a format of levels; `out` has the shape of the source.
absl::Status DequantizeLevels(const QuantizedCopy& copy, Usage usage, Tensor& out,
                              const ExecutionContext& context);

}  // namespace quantgate
