// Packs operands of the exact GEMM as fp64 numbers, and bounds their rows.
#include <algorithm>

#include "kernels/gemm/exact/exact_cuda_kernels.h"

namespace quantgate {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int64_t kGridMax = 65535;
/// The most groups of 16 rows that a block of threads packs.
constexpr int64_t kGroupsOfBlock = 8;

/// Decodes elements; those of up to 8 bits by a table.
struct Decoder {
  const ExactCudaOperand& source;
  const float* table;  // Null for wider elements.

  /// An element times the scale of its block; +0 beyond the operand, whatever the scale.
  __device__ double operator()(int64_t row, int64_t k, double scale) const {
    if (row >= source.operand.rows || k >= source.operand.k) return 0;
    const uint32_t code = source.operand.CodeAt(row, k);
    return source.Combine(table == nullptr ? source.Decode(code) : table[code], scale);
  }
};

/// CudaOperand::ScaleAt for blocks that are powers of two.
struct ScaleReader {
  const CudaOperand& operand;
  int row_shift, k_shift;

  __device__ double operator()(int64_t row, int64_t k) const {
    if (row >= operand.rows || k >= operand.k) return 1;
    const int64_t index =
        (row >> row_shift) * operand.scale_row_stride + (k >> k_shift) * operand.scale_block_stride;
    return operand.ScaleValue(index);
  }
};

/// A lane's four elements of 16 rows x 8 k: (r, k), (r + 8, k), (r, k + 4), (r + 8, k + 4).
__device__ void StoreFragment(const double (&values)[4], uint32_t* packed) {
  *reinterpret_cast<uint4*>(packed) =
      make_uint4(__double2hiint(values[0]), __double2hiint(values[1]), __double2hiint(values[2]),
                 __double2hiint(values[3]));
}
__device__ void StoreFragment(const double (&values)[4], double* packed) {
  auto* out = reinterpret_cast<double2*>(packed);
  out[0] = make_double2(values[0], values[1]);
  out[32] = make_double2(values[2], values[3]);
}
template <class Word>
constexpr bool kNarrow = sizeof(Word) == 4;

/// A lane packs the four elements that it will read, so a warp packs 16 rows x 8 k at a time. No
/// block of scales ends within these 8.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    PackOperands(const __grid_constant__ ExactPackTask task) {
  __shared__ float values_of_codes[256];
  const ExactPackedOperand& packing = task.operands[blockIdx.z];
  const ExactCudaOperand& source = packing.source;
  const FormatId format = source.operand.format;
  const bool has_table =
      format != kFormatId<Float32> && format != kFormatId<BFloat16> && format != kFormatId<Float16>;
  if (has_table) values_of_codes[threadIdx.x] = source.Decode(threadIdx.x);
  __syncthreads();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t step = int64_t(blockIdx.x) * kWarps + warp;
  if (step >= task.k_padded / 8) return;
  const Decoder decode{source, has_table ? values_of_codes : nullptr};
  const CudaOperand& operand = source.operand;
  const ScaleReader scale_of{operand, 31 - __clz(operand.row_block), 31 - __clz(operand.k_block)};
  const int64_t groups = packing.row_tiles * (kExactTileRows / 16);
  for (int64_t group = blockIdx.y; group < groups; group += gridDim.y) {
    const int64_t row = group * 16 + lane / 4, k = step * 8 + lane % 4;
    double scales[2] = {1, 1};
    if (source.is_scaled()) {
      scales[0] = scale_of(row, step * 8);
      scales[1] = scale_of(row + 8, step * 8);
    }
    const double values[4] = {decode(row, k, scales[0]), decode(row + 8, k, scales[1]),
                              decode(row, k + 4, scales[0]), decode(row + 8, k + 4, scales[1])};
    const int64_t at = ExactPackedIndex(row, k, task.k_padded, kNarrow<Word>);
    StoreFragment(values, static_cast<Word*>(packing.packed) + at);
  }
}

__global__ void PackPlainly(const __grid_constant__ ExactPackTask task) {
  const ExactPackedOperand& packing = task.operands[blockIdx.z];
  const int64_t k = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (k >= task.k_padded) return;
  for (int64_t row = blockIdx.y; row < packing.row_tiles * kExactTileRows; row += gridDim.y) {
    const double value = packing.source.At(row, k);
    const int64_t at = ExactPackedIndex(row, k, task.k_padded, task.narrow);
    if (task.narrow) {
      static_cast<uint32_t*>(packing.packed)[at] = static_cast<uint32_t>(__double2hiint(value));
    } else {
      static_cast<double*>(packing.packed)[at] = value;
    }
  }
}

int64_t MostRowTiles(const ExactPackTask& task) {
  return std::max(task.operands[0].row_tiles, task.operands[1].row_tiles);
}

constexpr int kBoundRows = 32;
constexpr int kBoundDepth = 64;
constexpr int kNoBit = 1 << 20;

/// The exponent of the lowest bit that is set in a normal number; kNoBit for zero.
__device__ int LowestExponent(double x) {
  if (x == 0) return kNoBit;
  const auto bits = static_cast<unsigned long long>(__double_as_longlong(x));
  const int field = static_cast<int>(bits >> 52) & 0x7FF;
  const unsigned long long significand = (bits & 0xFFFFFFFFFFFFF) | 0x10000000000000;
  return field - 1023 - 52 + (__ffsll(static_cast<long long>(significand)) - 1);
}

/// The elements of a lane of warp w in 32 rows x 64 k: in the w-th 8 k, its four elements of each
/// 16 rows.
struct LaneShare {
  double values[2][4];

  template <class Word>
  __device__ void Load(const ExactPacked& packed, int64_t row, int64_t k) {
    const int lane = threadIdx.x % 32;
    for (int half = 0; half < 2; ++half) {
      if (k >= packed.k_padded) {
        for (double& value : values[half]) value = 0;
        continue;
      }
      const int64_t at = ExactPackedIndex(row + half * 16 + lane / 4, k + lane % 4, packed.k_padded,
                                          kNarrow<Word>);
      LoadFragment(static_cast<const Word*>(packed.words) + at, values[half]);
    }
  }
};

__device__ void StoreBounds(const ExactBoundedRows& rows, int64_t row, double sum, int exponent,
                            double inflation) {
  const double norm = sqrt(sum * inflation) * (1 + 0x1p-50);
  const double lowest_bit =
      exponent == kNoBit ? error_bound::kInfinity : error_bound::PowerOfTwo(exponent);
  rows.norm[row] = norm;
  rows.lowest_bit[row] = lowest_bit;
  // Non-negative doubles are ordered as their bits.
  if (error_bound::IsFinite(norm)) {
    atomicMax(rows.ratio_max,
              static_cast<unsigned long long>(__double_as_longlong(norm / lowest_bit)));
  }
}

/// 256 threads compute squares, and one more warp adds the squares of 32 rows in the order of k
/// while the others compute the next ones.
template <class Word>
__global__ void __launch_bounds__(kThreads + 32) BoundRows(const ExactRowBoundsTask task) {
  __shared__ double squares[2][kBoundDepth][kBoundRows + 1];
  __shared__ int lowest[kBoundRows];
  const ExactBoundedRows rows = blockIdx.y == 0 ? task.operands[0] : task.operands[1];
  const int64_t first_row = int64_t(blockIdx.x) * kBoundRows;
  if (first_row >= rows.packed.rows) return;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const bool squares_here = thread < kThreads;
  if (thread < kBoundRows) lowest[thread] = kNoBit;
  int lowest_here[2][2] = {{kNoBit, kNoBit}, {kNoBit, kNoBit}};
  double sum = 0;
  LaneShare share;
  if (squares_here) share.Load<Word>(rows.packed, first_row, warp * 8);
  const int64_t tiles = (rows.packed.k_padded + kBoundDepth - 1) / kBoundDepth;
  for (int64_t tile = 0; tile <= tiles; ++tile) {
    if (squares_here && tile < tiles) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const double x = share.values[i / 4][i % 4];
        const int k = warp * 8 + lane % 4 + i % 4 / 2 * 4;
        squares[tile % 2][k][i / 4 * 16 + i % 2 * 8 + lane / 4] = x * x;
        int& here = lowest_here[i / 4][i % 2];
        here = min(here, LowestExponent(x));
      }
      share.Load<Word>(rows.packed, first_row, (tile + 1) * kBoundDepth + warp * 8);
    }
    if (!squares_here && tile > 0) {
#pragma unroll 16
      for (int k = 0; k < kBoundDepth; ++k) sum += squares[(tile - 1) % 2][k][lane];
    }
    __syncthreads();
  }
  if (squares_here) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      atomicMin(&lowest[i / 2 * 16 + i % 2 * 8 + lane / 4], lowest_here[i / 2][i % 2]);
    }
  }
  __syncthreads();
  const int64_t row = first_row + lane;
  if (squares_here || row >= rows.packed.rows) return;
  StoreBounds(rows, row, sum, lowest[lane], task.inflation);
}

}  // namespace

cudaError_t LaunchExactPack(const ExactPackTask& task, cudaStream_t stream) {
  const int64_t groups = MostRowTiles(task) * (kExactTileRows / 16);
  if (groups == 0) return cudaSuccess;
  const int64_t steps = task.k_padded / 8, shares = (groups + kGroupsOfBlock - 1) / kGroupsOfBlock;
  const dim3 grid(static_cast<unsigned>((steps + kWarps - 1) / kWarps),
                  static_cast<unsigned>(std::min(shares, kGridMax)), 2);
  if (task.narrow) {
    PackOperands<uint32_t><<<grid, kThreads, 0, stream>>>(task);
  } else {
    PackOperands<double><<<grid, kThreads, 0, stream>>>(task);
  }
  return cudaGetLastError();
}

cudaError_t LaunchExactPackPlain(const ExactPackTask& task, cudaStream_t stream) {
  const int64_t rows = MostRowTiles(task) * kExactTileRows;
  if (rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((task.k_padded + kThreads - 1) / kThreads),
                  static_cast<unsigned>(std::min(rows, kGridMax)), 2);
  PackPlainly<<<grid, kThreads, 0, stream>>>(task);
  return cudaGetLastError();
}

cudaError_t LaunchExactRowBounds(const ExactRowBoundsTask& task, cudaStream_t stream) {
  const int64_t a = task.operands[0].packed.rows, b = task.operands[1].packed.rows;
  const int64_t blocks = ((a < b ? b : a) + kBoundRows - 1) / kBoundRows;
  if (blocks == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(blocks), 2);
  if (task.operands[0].packed.narrow) {
    BoundRows<uint32_t><<<grid, kThreads + 32, 0, stream>>>(task);
  } else {
    BoundRows<double><<<grid, kThreads + 32, 0, stream>>>(task);
  }
  return cudaGetLastError();
}

}  // namespace quantgate
