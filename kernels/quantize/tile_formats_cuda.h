// The names of kernels/quantize's kernels for what tensors are. Private to kernels/quantize.
#pragma once

#include "kernels/quantize/quantize_tiles_cuda.h"
#include "kernels/quantize/quantizer.h"

namespace quantgate {

/// Of f32, bf16 and f16.
inline SourceFormat SourceFormatOf(DType dtype) {
  if (dtype == DType::kBF16) return SourceFormat::kBF16;
  return dtype == DType::kF16 ? SourceFormat::kF16 : SourceFormat::kF32;
}

/// Of the elements of mxfp8.
inline ElementFormat ElementFormatOf(DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3:
      return ElementFormat::kE4M3;
    case DType::kF8E5M2:
      return ElementFormat::kE5M2;
    case DType::kF6E2M3:
      return ElementFormat::kE2M3;
    case DType::kF6E3M2:
      return ElementFormat::kE3M2;
    default:
      return ElementFormat::kE2M1;
  }
}

/// Of fp8_tensor, fp8_block and mxfp8.
inline TileScales TileScalesOf(QuantizerFormat format) {
  if (format == QuantizerFormat::kFp8Tensor) return TileScales::kTensor;
  return format == QuantizerFormat::kMxfp8 ? TileScales::kE8m0 : TileScales::kFp32;
}

}  // namespace quantgate
