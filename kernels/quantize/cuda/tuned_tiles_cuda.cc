#include "kernels/quantize/cuda/quantize_tiles_cuda.h"

namespace quantgate {
namespace {

bool IsAligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

}  // namespace

bool TunedTilesTake(const TileQuantization& job) {
  const bool is_fp8 = VisitFormat<Fp8Formats>(job.element, []<class F>() {});
  const bool is_usual = job.source_format == kFormatId<BFloat16> && is_fp8 &&
                        job.rounding == ElementRounding::kNearestEven &&
                        job.overflow == Overflow::kSaturate;
  if (!is_usual || !IsAligned(job.source) || !IsAligned(job.row_codes) ||
      !IsAligned(job.column_codes) || !IsAligned(job.column_scales)) {
    return false;
  }
  if (job.scales != ScaleKind::kTensor && job.subnormals != Subnormals::kKept) return false;
  if (job.scales == ScaleKind::kLine) return false;
  const bool is_micro = job.scales == ScaleKind::kE8m0;
  if (is_micro ? job.block_length != 32 || job.turns_columnwise : !job.turns_columnwise) {
    return false;
  }
  return is_micro ? TunedMicroTake(job) : TunedBlocksTake(job);
}

cudaError_t LaunchTunedTiles(const TileQuantization& job, cudaStream_t stream) {
  return job.scales == ScaleKind::kE8m0 ? LaunchTunedMicro(job, stream)
                                        : LaunchTunedBlocks(job, stream);
}

}  // namespace quantgate
