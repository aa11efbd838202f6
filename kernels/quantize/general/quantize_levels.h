// What both engines make of a format of levels: the rule and the grid of a direction. Private to
// kernels/quantize.
#pragma once

#include "kernels/numerics/level_rule.h"
#include "kernels/quantize/format_quantizers.h"
#include "kernels/quantize/general/general_grid.h"

namespace quantgate {

/// `spec` has its scale rule and its group resolved.
LevelRule MakeLevelRule(const QuantizerSpec& spec, DType source);
GeneralGrid MakeLevelGrid(int64_t rows, int64_t columns, QuantizerFormat format, int group,
                          Usage usage);

/// What the zero points of a copy are.
ZeroPoint ZeroPointOf(const QuantizedCopy& copy);

/// DequantizeCpu of a copy of a format of levels; `out` has the shape of the source.
absl::Status DequantizeLevels(const QuantizedCopy& copy, Usage usage, Tensor& out,
                              const ExecutionContext& context);

}  // namespace quantgate
