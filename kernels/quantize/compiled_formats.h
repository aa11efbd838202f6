// The formats that quantizers are compiled for. Private to kernels/quantize.
#pragma once

#include "kernels/numerics/format_list.h"

namespace quantgate {

/// The types of sources, and of the results of dequantization.
using SourceFormats = FormatTypes<BFloat16, Float16, Float32>;
/// Elements of fp8_tensor and fp8_block.
using Fp8Formats = FormatTypes<E4M3, E5M2>;
/// Elements of any format: those of mxfp8, which include those of the others.
using QuantizedFormats = FormatTypes<E4M3, E5M2, E2M3, E3M2, E2M1>;
/// What the general path quantizes and every engine dequantizes: these and AMD's FP8.
using GeneralFormats = FormatTypes<E4M3, E5M2, E2M3, E3M2, E2M1, E4M3Fnuz, E5M2Fnuz>;

}  // namespace quantgate
