// Launchers of the tuned NVFP4 kernels: both directions of a bf16 tensor in two passes, by the
// default scale rule. Plain types only, since nvcc compiles them. Private to kernels/quantize.
#pragma once

#include "kernels/quantize/nvfp4/nvfp4_kernels.h"

namespace quantgate {

/// What the first pass leaves for the second, besides amaxes.
inline constexpr int kNvfp4TableCodes = 128;
struct Nvfp4Tables {
  uint32_t amax_bits[2];  ///< The amaxes found so far, by direction.
  uint32_t blocks_done;   ///< Blocks of threads that have finished the first pass.
  uint32_t padding;
  /// By direction: encode_sixth, as bits of fp32, and the smallest amax of a block, as bits of
  /// bf16, for which scalar functions quantize the block.
  uint2 facts[2];
  /// By direction, for every code of a block scale except NaN: an eighth of the factor of the
  /// elements, as bits of fp32.
  uint32_t factors[2][kNvfp4TableCodes];
  uint4 transform[32];  ///< By lane: the Hadamard transform as operand B.
};

/// The first pass needs these leading bytes of Nvfp4Tables to be zero.
inline constexpr int kNvfp4ZeroedBytes = 16;

/// Both directions of one quantization (not empty, at most 65535 * 512 rows and 2^30 columns) by
/// scale rule two_level, to nearest even or stochastically, neither row-scaled nor 4over6. A
/// direction that is not wanted has null codes. Source, sizes, tiles and rounding must be the same
/// in both. The source is bf16, aligned to 16 bytes.
struct Nvfp4TileParameters {
  Nvfp4Parameters rowwise, columnwise;
  /// Whether the first pass must find the amax; otherwise it is given.
  bool finds_rowwise = false, finds_columnwise = false;
  Nvfp4Tables* tables = nullptr;  ///< Scratch.
  unsigned long long* counts = nullptr;
  int multiprocessors = 0;  ///< The number of SMs.
};

/// Finds the amaxes and counts the zeros of the source in one pass, then makes the tables.
cudaError_t LaunchNvfp4Survey(const Nvfp4TileParameters& parameters, cudaStream_t stream);

/// Writes codes, scales and counts of all wanted directions in one pass, after the survey.
cudaError_t LaunchNvfp4Tiles(const Nvfp4TileParameters& parameters, cudaStream_t stream);

/// As LaunchNvfp4Dequantize; `out` must be aligned to 16 bytes.
cudaError_t LaunchNvfp4DequantizeEights(const Nvfp4DequantizeParameters& parameters,
                                        cudaStream_t stream);

}  // namespace quantgate
