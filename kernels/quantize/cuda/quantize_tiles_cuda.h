// The kernels of fp8_tensor, fp8_block and mxfp8. Private to kernels/quantize; kept free of the
// headers that nvcc is slow on.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/numerics/cast.h"
#include "kernels/numerics/scale_rule.h"
#include "kernels/quantize/quantizer_formats.h"

namespace quantgate {

/// One rule, a source of rows x columns, and the copies that are wanted: layouts as QuantizedCopy.
struct TileQuantization {
  const void* source = nullptr;
  FormatId source_format = kFormatId<BFloat16>;
  int64_t rows = 0, columns = 0;

  FormatId element = kFormatId<E4M3>;
  ScaleKind scales = ScaleKind::kTensor;  ///< kTensor, kF32 or kE8m0.
  int block_length = 1;
  bool has_tiles = false;         ///< One scale per tile, block_dim 2.
  bool turns_columnwise = false;  ///< Columnwise codes and scales lie transposed.
  ScaleOptions scale_options;
  ElementRounding rounding = ElementRounding::kNearestEven;
  Overflow overflow = Overflow::kSaturate;

  uint8_t* row_codes = nullptr;  ///< Null: no rowwise copy.
  uint8_t* column_codes = nullptr;
  void* row_scales = nullptr;  ///< float or uint8_t; not of kTensor.
  void* column_scales = nullptr;
  const float* tensor_scale = nullptr;   ///< kTensor: what multiplies.
  uint32_t* amax_bits = nullptr;         ///< kTensor, or null: max |x|, to be raised from 0.
  unsigned long long* counts = nullptr;  ///< [7], added to: of the rowwise copy if it is wanted.
};

/// Any rule and any source.
cudaError_t LaunchPlainTiles(const TileQuantization& job, int multiprocessors, cudaStream_t stream);

/// Whether the tuned kernels take the job: a bf16 source, E4M3 or E5M2, nearest even, saturating,
/// mxfp8's round-up rule, and addresses and strides fit for vectors.
bool TunedTilesTake(const TileQuantization& job);
/// For jobs that TunedTilesTake. A per-tensor cast comes right behind LaunchTensorScale.
cudaError_t LaunchTunedTiles(const TileQuantization& job, cudaStream_t stream);

/// Raises *amax_bits, fp32 magnitude bits, to max |x| of the elements; NaN counts as 0.
cudaError_t LaunchAmax(const void* source, FormatId format, int64_t count, uint32_t* amax_bits,
                       int multiprocessors, cudaStream_t stream);

/// What becomes the scale of a per-tensor cast, on the device.
struct TensorScaleJob {
  const float* given_scale = nullptr;  ///< Delayed scaling; null: from the amax.
  bool has_given_amax = false;         ///< Of a group: it becomes *amax.
  float given_amax = 0.0f;
  float max_finite = 448.0f;
  ScaleOptions options;
  bool is_empty = false;  ///< Nothing was measured: scale 1 (docs/numerics.md section 4).
  unsigned long long* zeroed = nullptr;  ///< What becomes 0 first, *amax in it.
  int zeroed_words = 0;
  float* amax = nullptr;
  float* scale = nullptr;
  float* scale_inv = nullptr;
};
cudaError_t LaunchTensorScale(const TensorScaleJob& job, cudaStream_t stream);

/// One copy of rows x columns back to values.
struct TileDequantization {
  const uint8_t* codes = nullptr;
  FormatId element = kFormatId<E4M3>;
  ScaleKind scales = ScaleKind::kTensor;
  int block_bits =
      0;  ///< Blocks have 2^block_bits elements: a division would cost more than all else.
  bool has_tiles = false;
  bool is_columnwise = false;
  bool is_turned = false;  ///< The codes and scales lie transposed.
  const void* scale_inv = nullptr;
  int64_t rows = 0, columns = 0;
  void* out = nullptr;
  FormatId out_format = kFormatId<BFloat16>;
};
cudaError_t LaunchDequantizeTiles(const TileDequantization& job, int multiprocessors,
                                  cudaStream_t stream);

/// Adds the kinds of a source's own codes to counts[7].
cudaError_t LaunchCountSource(const void* source, FormatId format, int64_t count,
                              unsigned long long* counts, int multiprocessors, cudaStream_t stream);

}  // namespace quantgate
