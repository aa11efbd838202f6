// Transposition within memory, tile by tile.
#pragma once

#include <cstdint>

namespace quantgate {

/// out[c * out_stride + r] = in[r * in_stride + c] for r < rows, c < columns, which do not overlap.
/// T: uint8_t, uint16_t or uint32_t.
template <typename T>
void TransposeMatrix(const T* in, int64_t in_stride, int64_t rows, int64_t columns, T* out,
                     int64_t out_stride);

}  // namespace quantgate
