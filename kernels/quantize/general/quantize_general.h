// What both engines' general paths make of a request: the rule and the grid of a direction. Private
// to kernels/quantize.
#pragma once

#include "kernels/numerics/library_rule.h"
#include "kernels/quantize/format_quantizers.h"
#include "kernels/quantize/general/general_grid.h"

namespace quantgate {

/// Of f32, bf16 or f16.
StepFormat StepFormatOf(DType source);

/// `spec` has its scale rule resolved, and is quantized.
LibraryRule MakeLibraryRule(const QuantizerSpec& spec, DType source);
GeneralGrid MakeGeneralGrid(int64_t rows, int64_t columns, const QuantizerSpec& spec, Usage usage);

}  // namespace quantgate
