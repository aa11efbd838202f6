// The names of kernels/quantize's kernels for what tensors are. Private to kernels/quantize.
#pragma once

#include "kernels/quantize/quantize_tiles_cuda.h"
#include "kernels/quantize/quantizer.h"

namespace quantgate {

/// Of fp8_tensor, fp8_block and mxfp8.
inline TileScales TileScalesOf(QuantizerFormat format) {
  if (format == QuantizerFormat::kFp8Tensor) return TileScales::kTensor;
  return format == QuantizerFormat::kMxfp8 ? TileScales::kE8m0 : TileScales::kFp32;
}

}  // namespace quantgate
