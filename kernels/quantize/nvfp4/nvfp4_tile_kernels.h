// Launchers of the tuned NVFP4 kernels: both directions of a bf16 tensor in two passes, by the
// usual rule. Plain types only. Private to kernels/quantize.
#pragma once

#include "kernels/quantize/nvfp4/nvfp4_kernels.h"

namespace quantgate {

/// What the first pass leaves for the second, beside amaxes.
inline constexpr int kNvfp4TableCodes = 128;
struct Nvfp4Tables {
  uint32_t amax_bits[2];  ///< Found so far, by direction.
  uint32_t blocks_done;   ///< Of the first pass.
  uint32_t padding;
  /// By direction: encode_sixth, as bits of fp32, and the bits of bf16 from which on the amax of a
  /// block leaves it to scalar functions.
  uint2 facts[2];
  /// By direction, for every code of a block scale but that of NaN: an eighth of the factor that
  /// multiplies elements, as bits of fp32.
  uint32_t factors[2][kNvfp4TableCodes];
  uint4 transform[32];  ///< By lane: the Hadamard transform as operand B.
};

/// The first pass begins with these bytes of Nvfp4Tables zeroed.
inline constexpr int kNvfp4ZeroedBytes = 16;

/// Both directions of one quantization (not empty, at most 65535 * 512 rows and 2^30 columns) by
/// scale rule two_level, to nearest even or stochastically, neither row-scaled nor 4over6. A
/// direction that is not wanted has no codes. Of source, sizes, tiles and rounding both directions
/// have the same. The source is bf16, aligned to 16 bytes.
struct Nvfp4TileParameters {
  Nvfp4Parameters rowwise, columnwise;
  /// Whether each amax is to be found; it is given otherwise.
  bool finds_rowwise = false, finds_columnwise = false;
  Nvfp4Tables* tables = nullptr;  ///< Scratch.
  unsigned long long* counts = nullptr;
  int multiprocessors = 0;  ///< Of the device.
};

/// Amaxes, and the zeros among what is counted, in one pass; then the tables.
cudaError_t LaunchNvfp4Survey(const Nvfp4TileParameters& parameters, cudaStream_t stream);

/// Codes, scales and counts of all wanted directions in one pass, after the survey.
cudaError_t LaunchNvfp4Tiles(const Nvfp4TileParameters& parameters, cudaStream_t stream);

/// As LaunchNvfp4Dequantize, to an `out` aligned to 16 bytes.
cudaError_t LaunchNvfp4DequantizeEights(const Nvfp4DequantizeParameters& parameters,
                                        cudaStream_t stream);

}  // namespace quantgate
