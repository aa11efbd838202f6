// The tuned kernels, a pair per file; TunedTilesTake has looked at what they have in common.
// Private to kernels/quantize.
#pragma once

#include "kernels/quantize/quantize_tiles_cuda.h"

namespace quantgate {

/// fp8_tensor and fp8_block.
bool TunedBlocksTake(const TileQuantization& job);
cudaError_t LaunchTunedBlocks(const TileQuantization& job, cudaStream_t stream);
/// How the kernel of fp8_block's lines cuts a job into strips of tiles.
struct StripShape {
  uint32_t interleave = 4;  ///< Strips whose tiles take turns from the top down: a power of two.
  uint32_t cluster = 8;     ///< Blocks of a cluster, at most: their scales fill a sector of memory.
  bool forgets = false;     ///< The source is given away by the L2 before codes are.
  uint32_t waves = 2;       ///< Strips that fill an H200 so many times come before longer ones.
};
/// fp8_block with scales of 128 elements, of the jobs that TunedBlocksTake.
cudaError_t LaunchTunedLines(const TileQuantization& job, const StripShape& shape,
                             cudaStream_t stream);

/// mxfp8.
bool TunedMicroTake(const TileQuantization& job);
cudaError_t LaunchTunedMicro(const TileQuantization& job, cudaStream_t stream);

}  // namespace quantgate
