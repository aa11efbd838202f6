// The kernels of fp8_tensor, fp8_block, fp8_rowwise and mxfp8. Private to kernels/quantize. It
// includes no headers that nvcc is slow to compile.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/numerics/cast.h"
#include "kernels/numerics/scale_rule.h"
#include "kernels/quantize/compiled_formats.h"

namespace quantgate {

/// A source of rows x columns, one rule, and the wanted copies in the layouts of QuantizedCopy.
struct TileQuantization {
  const void* source = nullptr;
  FormatId source_format = kFormatId<BFloat16>;
  int64_t rows = 0, columns = 0;

  FormatId element = kFormatId<E4M3>;
  ScaleKind scales = ScaleKind::kTensor;  ///< kTensor, kLine, kF32 or kE8m0.
  int block_length = 1;
  bool has_tiles = false;         ///< One scale per tile (block_dim 2).
  bool turns_columnwise = false;  ///< Columnwise codes and scales are stored transposed.
  ScaleOptions scale_options;
  Subnormals subnormals = Subnormals::kKept;  ///< Where scales of blocks are made.
  ElementRounding rounding = ElementRounding::kNearestEven;
  Overflow overflow = Overflow::kSaturate;

  uint8_t* row_codes = nullptr;  ///< Null: no rowwise copy.
  uint8_t* column_codes = nullptr;
  void* row_scales = nullptr;  ///< float or uint8_t; not for kTensor.
  void* column_scales = nullptr;
  const float* tensor_scale = nullptr;  ///< kTensor: the factor of the elements.
  /// kLine, of the wanted copies: [rows] and [columns], zero at first, then the magnitude bits of
  /// the amaxes of all lines, then the bits of their factors.
  uint32_t* row_lines = nullptr;
  uint32_t* column_lines = nullptr;
  uint32_t* amax_bits = nullptr;         ///< kTensor, or null: is raised from 0 to max |x|.
  unsigned long long* counts = nullptr;  ///< [7]: the counts of the rowwise copy if it is wanted,
                                         ///< else of the columnwise one, are added.
};

/// kLine: makes the factors and the scales of all lines. LaunchPlainTiles follows.
cudaError_t LaunchLineScales(const TileQuantization& job, int multiprocessors, cudaStream_t stream);

/// Takes any rule and any source.
cudaError_t LaunchPlainTiles(const TileQuantization& job, int multiprocessors, cudaStream_t stream);

/// Whether the tuned kernels take the job: a bf16 source, E4M3 or E5M2, nearest even, saturating,
/// mxfp8's round-up rule, scales of blocks that keep subnormals, and addresses and strides fit for
/// vectors.
bool TunedTilesTake(const TileQuantization& job);
/// For jobs that TunedTilesTake accepts. A per-tensor cast must directly follow LaunchTensorScale.
cudaError_t LaunchTunedTiles(const TileQuantization& job, cudaStream_t stream);

// The tuned kernels behind the two, a pair per file. TunedTilesTake has checked what they share.

/// fp8_tensor and fp8_block.
bool TunedBlocksTake(const TileQuantization& job);
cudaError_t LaunchTunedBlocks(const TileQuantization& job, cudaStream_t stream);
/// fp8_block with scales of 128 elements, for jobs that TunedBlocksTake accepts.
cudaError_t LaunchTunedLines(const TileQuantization& job, cudaStream_t stream);

/// mxfp8.
bool TunedMicroTake(const TileQuantization& job);
cudaError_t LaunchTunedMicro(const TileQuantization& job, cudaStream_t stream);

/// Raises *amax_bits, fp32 magnitude bits, to max |x| of the elements; NaN counts as 0.
cudaError_t LaunchAmax(const void* source, FormatId format, int64_t count, uint32_t* amax_bits,
                       int multiprocessors, cudaStream_t stream);

/// How the scale of a per-tensor cast is made on the device.
struct TensorScaleJob {
  const float* given_scale = nullptr;  ///< Of delayed scaling; null: made from the amax.
  bool has_given_amax = false;         ///< given_amax is that of a group and becomes *amax.
  float given_amax = 0.0f;
  float max_finite = 448.0f;
  ScaleOptions options;
  Subnormals subnormals = Subnormals::kKept;
  bool is_empty = false;  ///< Nothing was measured: scale 1 (docs/numerics.md section 4).
  unsigned long long* zeroed = nullptr;  ///< Words that are set to 0 first; *amax lies in them.
  int zeroed_words = 0;
  float* amax = nullptr;
  float* scale = nullptr;
  float* scale_inv = nullptr;
};
cudaError_t LaunchTensorScale(const TensorScaleJob& job, cudaStream_t stream);

/// The dequantization of one copy of rows x columns.
struct TileDequantization {
  const uint8_t* codes = nullptr;
  FormatId element = kFormatId<E4M3>;
  ScaleKind scales = ScaleKind::kTensor;
  /// Blocks have 2^block_bits elements, since a division would cost more than everything else.
  int block_bits = 0;
  bool has_tiles = false;
  bool is_columnwise = false;
  bool is_turned = false;  ///< Codes and scales are stored transposed.
  const void* scale_inv = nullptr;
  int64_t rows = 0, columns = 0;
  void* out = nullptr;
  FormatId out_format = kFormatId<BFloat16>;
};
cudaError_t LaunchDequantizeTiles(const TileDequantization& job, int multiprocessors,
                                  cudaStream_t stream);

/// Elements that identity keeps as they are, or cast.
struct KeptElements {
  const void* source = nullptr;
  const void* kept = nullptr;
  FormatId source_format = kFormatId<BFloat16>, kept_format = kFormatId<BFloat16>;
  int64_t count = 0;
};
/// Counts their kinds (KindOfKept) and adds them to counts[7].
cudaError_t LaunchCountKept(const KeptElements& elements, unsigned long long* counts,
                            int multiprocessors, cudaStream_t stream);

}  // namespace quantgate
