// Transposition through shared memory, so that rows of source and result are both read and written
// in whole lines.
#include <algorithm>

#include "kernels/tensor/tensor_kernels_cuda.h"

namespace quantgate {
namespace {

constexpr int kSide = 32;
constexpr int kThreadRows = 8;
// Threads of a tile: kSide x kThreadRows.
constexpr unsigned kGridYMax = 65535;

/// Tiles of kSide x kSide elements.
template <class T>
__global__ void TransposeElements(const TransposeParameters parameters) {
  __shared__ T tile[kSide][kSide + 1];
  const T* from = static_cast<const T*>(parameters.from);
  T* to = static_cast<T*>(parameters.to);
  const int64_t column_begin = int64_t{blockIdx.x} * kSide;
  for (int64_t row_begin = int64_t{blockIdx.y} * kSide; row_begin < parameters.rows;
       row_begin += int64_t{gridDim.y} * kSide) {
    for (int y = threadIdx.y; y < kSide; y += kThreadRows) {
      const int64_t row = row_begin + y, column = column_begin + threadIdx.x;
      if (row < parameters.rows && column < parameters.columns) {
        tile[y][threadIdx.x] = from[row * parameters.columns + column];
      }
    }
    __syncthreads();
    for (int y = threadIdx.y; y < kSide; y += kThreadRows) {
      const int64_t row = row_begin + threadIdx.x, column = column_begin + y;
      if (row < parameters.rows && column < parameters.columns) {
        to[column * parameters.rows + row] = tile[threadIdx.x][y];
      }
    }
    __syncthreads();
  }
}

/// A square of kLanes x kLanes elements in as many words: word i is row i, and afterwards column i.
template <int kLanes>
__device__ void TransposeSquare(uint32_t (&words)[kLanes]) {
  if constexpr (kLanes == 2) {
    const uint32_t a = words[0], b = words[1];
    words[0] = __byte_perm(a, b, 0x5410);
    words[1] = __byte_perm(a, b, 0x7632);
  } else if constexpr (kLanes == 4) {
    const uint32_t even_low = __byte_perm(words[0], words[1], 0x5140);   // 00 10 01 11
    const uint32_t even_high = __byte_perm(words[0], words[1], 0x7362);  // 02 12 03 13
    const uint32_t odd_low = __byte_perm(words[2], words[3], 0x5140);
    const uint32_t odd_high = __byte_perm(words[2], words[3], 0x7362);
    words[0] = __byte_perm(even_low, odd_low, 0x5410);
    words[1] = __byte_perm(even_low, odd_low, 0x7632);
    words[2] = __byte_perm(even_high, odd_high, 0x5410);
    words[3] = __byte_perm(even_high, odd_high, 0x7632);
  }
}

/// Tiles of kSide x kSide words, a word being kLanes elements and a row of the tile kLanes rows of
/// the tensor; for tensors of whole words in both directions.
template <int kLanes>
__global__ void __launch_bounds__(kSide* kThreadRows)
    TransposeWords(const TransposeParameters parameters) {
  __shared__ uint32_t tile[kLanes][kSide][kSide + 1];
  const auto* from = static_cast<const uint32_t*>(parameters.from);
  auto* to = static_cast<uint32_t*>(parameters.to);
  const int64_t word_columns = parameters.columns / kLanes, word_rows = parameters.rows / kLanes;
  const int64_t column_begin = int64_t{blockIdx.x} * kSide;
  for (int64_t row_begin = int64_t{blockIdx.y} * kSide; row_begin < word_rows;
       row_begin += int64_t{gridDim.y} * kSide) {
#pragma unroll
    for (int step = 0; step < kSide / kThreadRows; ++step) {
      const int y = threadIdx.y + step * kThreadRows;
      const int64_t row = row_begin + y, column = column_begin + threadIdx.x;
      if (row < word_rows && column < word_columns) {
        uint32_t words[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          words[i] = __ldcs(from + (row * kLanes + i) * word_columns + column);
        }
        TransposeSquare(words);
        for (int i = 0; i < kLanes; ++i) tile[i][y][threadIdx.x] = words[i];
      }
    }
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kSide / kThreadRows; ++step) {
      const int y = threadIdx.y + step * kThreadRows;
      const int64_t row = row_begin + threadIdx.x, column = column_begin + y;
      if (row < word_rows && column < word_columns) {
        for (int i = 0; i < kLanes; ++i) {
          to[(column * kLanes + i) * word_rows + row] = tile[i][threadIdx.x][y];
        }
      }
    }
    __syncthreads();
  }
}

dim3 GridFor(int64_t rows, int64_t columns) {
  const int64_t tile_rows = (rows + kSide - 1) / kSide;
  return dim3(static_cast<unsigned>((columns + kSide - 1) / kSide),
              static_cast<unsigned>(std::min<int64_t>(tile_rows, kGridYMax)));
}

template <class T>
void Launch(const TransposeParameters& parameters, KernelPath path, cudaStream_t stream) {
  constexpr int kLanes = 4 / sizeof(T);
  const dim3 threads(kSide, kThreadRows);
  const int64_t rows = parameters.rows, columns = parameters.columns;
  if (path == KernelPath::kTuned && rows % kLanes == 0 && columns % kLanes == 0 &&
      reinterpret_cast<uintptr_t>(parameters.from) % 4 == 0) {
    TransposeWords<kLanes>
        <<<GridFor(rows / kLanes, columns / kLanes), threads, 0, stream>>>(parameters);
  } else {
    TransposeElements<T><<<GridFor(rows, columns), threads, 0, stream>>>(parameters);
  }
}

}  // namespace

cudaError_t LaunchTranspose(const TransposeParameters& parameters, KernelPath path,
                            cudaStream_t stream) {
  if (parameters.rows == 0 || parameters.columns == 0) return cudaSuccess;
  switch (parameters.element_bytes) {
    case 1:
      Launch<uint8_t>(parameters, path, stream);
      break;
    case 2:
      Launch<uint16_t>(parameters, path, stream);
      break;
    case 4:
      Launch<uint32_t>(parameters, path, stream);
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // namespace quantgate
