#include "kernels/gemm/models/gather.h"

#include <algorithm>
#include <cstring>

#include "kernels/tensor/transpose.h"

namespace quantgate {
namespace {

template <typename T>
void ByRow(const OperandView& view, int64_t row, int64_t rows, int64_t k, int64_t depth,
           int64_t out_stride, T* out) {
  const T* in = view.at<T>(row, k);
  if (view.k_stride != 1) {
    return TransposeMatrix(in, view.k_stride, depth, rows, out, out_stride);
  }
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
    return TransposeMatrix(in, view.row_stride, columns_inside, depth_inside, out,
                           int64_t(columns));
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
