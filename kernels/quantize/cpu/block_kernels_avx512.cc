// AVX-512 loops of the block formats.
#include "kernels/quantize/cpu/lanes_avx512.h"
// The bodies of the loops, in these lanes:
#include "kernels/quantize/cpu/fp8_block_kernels_body.h"
#include "kernels/quantize/cpu/level_kernels_body.h"
#include "kernels/quantize/cpu/mxfp8_kernels_body.h"
#include "kernels/quantize/nvfp4/nvfp4_kernels_body.h"

namespace quantgate {

Mxfp8TileFunction Avx512Mxfp8Tile(DType source, DType element) {
  return FindMxTile(source, element);
}

Fp8BlockTileFunction Avx512Fp8BlockTile(DType source, DType element) {
  return FindFp8Tile(source, element);
}

Fp8TensorTileFunction Avx512Fp8TensorTile(DType source, DType element) {
  return FindFp8TensorTile(source, element);
}

Fp8LineAmaxFunction Avx512Fp8LineAmax(DType source) { return FindFp8LineAmax(source); }

Fp8LineTileFunction Avx512Fp8LineTile(DType source, DType element) {
  return FindFp8LineTile(source, element);
}

LevelFunctions Avx512Levels(DType source, Levels levels) { return FindLevels(source, levels); }

Nvfp4Functions Avx512Nvfp4(DType source) { return FindNvfp4(source); }

}  // namespace quantgate
