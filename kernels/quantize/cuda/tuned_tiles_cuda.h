// The tuned kernels, a pair per file; TunedTilesTake has looked at what they have in common.
// Private to kernels/quantize.
#pragma once

#include "kernels/quantize/cuda/quantize_tiles_cuda.h"

namespace quantgate {

/// fp8_tensor and fp8_block.
bool TunedBlocksTake(const TileQuantization& job);
cudaError_t LaunchTunedBlocks(const TileQuantization& job, cudaStream_t stream);
/// fp8_block with scales of 128 elements, of the jobs that TunedBlocksTake.
cudaError_t LaunchTunedLines(const TileQuantization& job, cudaStream_t stream);

/// mxfp8.
bool TunedMicroTake(const TileQuantization& job);
cudaError_t LaunchTunedMicro(const TileQuantization& job, cudaStream_t stream);

}  // namespace quantgate
