#include "kernels/gemm/gather.h"

#include <algorithm>
#include <cstring>

namespace quantgate {
namespace {

/// out[i * out_stride + j] = in[j * in_stride + i] for i < out_rows, j < out_columns.
template <typename T>
void Transpose(const T* in, int64_t in_stride, int64_t out_rows, int64_t out_columns, T* out,
               int64_t out_stride) {
  constexpr int64_t kBlock = 64 / sizeof(T);  // One cache line of the input.
  for (int64_t begin = 0; begin < out_rows; begin += kBlock) {
    const int64_t end = std::min(out_rows, begin + kBlock);
    for (int64_t j = 0; j < out_columns; ++j) {
      for (int64_t i = begin; i < end; ++i) out[i * out_stride + j] = in[j * in_stride + i];
    }
  }
}

template <typename T>
void ByRow(const OperandView& view, int64_t row, int64_t rows, int64_t k, int64_t depth,
           int64_t out_stride, T* out) {
  const T* in = view.at<T>(row, k);
  if (view.k_stride != 1) return Transpose(in, view.k_stride, rows, depth, out, out_stride);
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(out + r * out_stride, in + r * view.row_stride, depth * sizeof(T));
  }
}

template <typename T>
void ByK(const OperandView& view, int64_t row, int columns, int64_t k, int64_t depth, T* out) {
  const int64_t columns_inside = std::min<int64_t>(columns, view.rows - row);
  const int64_t depth_inside = std::min(depth, view.k - k);
  if (columns_inside < columns || depth_inside < depth) {
    std::memset(out, 0, depth * columns * sizeof(T));
  }
  const T* in = view.at<T>(row, k);
  if (view.k_stride == 1) {
    return Transpose(in, view.row_stride, depth_inside, columns_inside, out, int64_t(columns));
  }
  for (int64_t i = 0; i < depth_inside; ++i) {
    std::memcpy(out + i * columns, in + i * view.k_stride, columns_inside * sizeof(T));
  }
}

}  // namespace

void GatherByRow(const OperandView& view, int64_t row, int64_t rows, int64_t k, int64_t depth,
                 int64_t out_stride, void* out) {
  switch (DTypeBytes(view.dtype)) {
    case 1:
      return ByRow(view, row, rows, k, depth, out_stride, static_cast<uint8_t*>(out));
    case 2:
      return ByRow(view, row, rows, k, depth, out_stride, static_cast<uint16_t*>(out));
    default:
      return ByRow(view, row, rows, k, depth, out_stride, static_cast<uint32_t*>(out));
  }
}

void GatherByK(const OperandView& view, int64_t row, int columns, int64_t k, int64_t depth,
               void* out) {
  switch (DTypeBytes(view.dtype)) {
    case 1:
      return ByK(view, row, columns, k, depth, static_cast<uint8_t*>(out));
    case 2:
      return ByK(view, row, columns, k, depth, static_cast<uint16_t*>(out));
    default:
      return ByK(view, row, columns, k, depth, static_cast<uint32_t*>(out));
  }
}

}  // namespace quantgate
