// Decodes operands of any format and layout once into the form that the GEMM kernels read: four k
// of a row together, rows side by side.
#include "kernels/gemm/models/cuda_kernels.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/fused_step.h"

namespace quantgate {
namespace {

constexpr int kTile = 32;  // Rows and k of the tile of a block of threads.
constexpr int kWarps = 8;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

/// Reads the codes of rows [row, row + kTile) by k in [k, k + kTile) along the contiguous dim and
/// keeps them as [row][k]; 0 beyond the operand.
__device__ void LoadCodes(const CudaOperand& operand, int64_t row, int64_t k,
                          uint32_t (&codes)[kTile][kTile + 1]) {
  const int lane = threadIdx.x % 32;
  const bool by_k = operand.k_stride == 1;
  for (int i = threadIdx.x / 32; i < kTile; i += kWarps) {
    const int r = by_k ? i : lane;
    const int j = by_k ? lane : i;
    const bool inside = row + r < operand.rows && k + j < operand.k;
    codes[r][j] = inside ? operand.CodeAt(row + r, k + j) : 0;
  }
  __syncthreads();
}

/// Tiles of k are in x of the grid, tiles of rows in y, which may be fewer than there are.
template <class Body>
__device__ void ForEachTile(int64_t rows_padded, const Body& body) {
  const int64_t k = int64_t(blockIdx.x) * kTile;
  for (int64_t row = int64_t(blockIdx.y) * kTile; row < rows_padded;
       row += int64_t(gridDim.y) * kTile) {
    body(row, k);
    __syncthreads();
  }
}

__device__ float FiniteValue(FormatId format, uint32_t code) {
  return VisitFormatIn(OperandFormats{}, format, [&]<class Format>() {
    if constexpr (Format::kMantissaBits == Float32::kMantissaBits) {
      return std::bit_cast<float>(RoundToTf32(code));
    } else {
      return DecodeFloat<Format>(static_cast<typename Format::Storage>(code));
    }
  });
}

__global__ void PackProducts(const PackProductsTask task) {
  __shared__ uint32_t codes[kTile][kTile + 1];
  const int lane = threadIdx.x % 32;
  ForEachTile(task.rows_padded, [&](int64_t row, int64_t k) {
    LoadCodes(task.operand, row, k, codes);
    const int64_t source = task.order == ProductOrder::kPairsOfFour
                               ? fused_rule_steps::PairsOfFour(0, lane)
                               : int64_t(lane);
    for (int i = threadIdx.x / 32; i < kTile; i += kWarps) {
      const bool inside = row + i < task.operand.rows && k + source < task.k_end;
      const uint32_t code = codes[i][source];
      const float value = FiniteValue(task.operand.format, code);
      const uint32_t bits = std::bit_cast<uint32_t>(value);
      FusedElement scale{1, 0, FloatClass::kFinite, false};
      if (inside && task.use == ScaleUse::kExponents) {
        scale = task.operand.ScaleElementAt(row + i, k + source);
      }
      const bool is_nan_scale = scale.kind == FloatClass::kNan;
      const bool is_nan = inside && (is_nan_scale || (bits & 0x7FFFFFFF) > 0x7F800000);
      const bool is_infinite = inside && !is_nan_scale && (bits & 0x7FFFFFFF) == 0x7F800000;
      const bool is_zero = inside && (bits & 0x7FFFFFFF) == 0;
      const uint32_t nan = __ballot_sync(kAllLanes, is_nan);
      const uint32_t infinite = __ballot_sync(kAllLanes, is_infinite);
      const uint32_t zero = __ballot_sync(kAllLanes, is_zero);
      const uint32_t negative = __ballot_sync(kAllLanes, inside && bits >> 31 != 0);
      const bool keeps = inside && !is_nan && !is_infinite;
      const int64_t k4 = (k + lane) / 4;
      task.values[(k4 * task.rows_padded + row + i) * 4 + lane % 4] =
          keeps ? value : std::bit_cast<float>(inside ? bits & 0x80000000 : 0u);
      if (lane != 0) continue;
      // One scale for all of kPackedDepth: blocks are 32 or 128.
      if (task.shifts != nullptr) {
        task.shifts[k / kTile * task.rows_padded + row + i] = scale.exponent;
      }
      if (row + i >= task.operand.rows) continue;
      reinterpret_cast<uint4*>(task.classes)[(row + i) * (task.k_padded / 32) + k / kTile] =
          make_uint4(nan, infinite, zero, negative);
      if ((nan | infinite) != 0) task.special_rows[0] = task.special_rows[1 + row + i] = 1;
    }
  });
}

__global__ void PackReals(const PackRealsTask task) {
  __shared__ uint32_t codes[kTile][kTile + 1];
  const int lane = threadIdx.x % 32;
  ForEachTile(task.rows_padded, [&](int64_t row, int64_t k) {
    LoadCodes(task.operand, row, k, codes);
    for (int i = threadIdx.x / 32; i < kTile; i += kWarps) {
      const bool inside = row + i < task.operand.rows && k + lane < task.operand.k;
      float value = task.padding;
      if (inside) {
        value = VisitFormatIn(OperandFormats{}, task.operand.format, [&]<class Format>() {
          return DecodeFloat<Format>(static_cast<typename Format::Storage>(codes[i][lane]));
        });
        if (task.operand.scales != nullptr) value *= task.operand.ScaleAt(row + i, k + lane);
      }
      task.values[((k + lane) / 4 * task.rows_padded + row + i) * 4 + lane % 4] = value;
    }
  });
}

/// Twice the value of an E2M1 code: 0, 1, 2, 3, 4, 6, 8 or 12, with its sign.
__device__ uint32_t TwiceE2M1(uint32_t code) {
  const Unpacked u = Unpack<E2M1>(static_cast<uint8_t>(code));
  const int twice = static_cast<int>(u.significand) << u.exponent;
  return static_cast<uint32_t>(u.negative ? -twice : twice) & 0xFF;
}

/// A thread for each row and group of 16.
__global__ void PackGroups(const PackGroupsTask task) {
  constexpr int kGroup = 16;
  const int64_t groups = task.k_padded / kGroup;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < groups * task.rows_padded;
       i += int64_t(gridDim.x) * blockDim.x) {
    const int64_t row = i % task.rows_padded, k = i / task.rows_padded * kGroup;
    const bool inside = row < task.operand.rows && k < task.operand.k;
    for (int word = 0; word < kGroup / 4; ++word) {
      uint32_t packed = 0;
      for (int j = 0; inside && j < 4; ++j) {
        packed |= TwiceE2M1(task.operand.CodeAt(row, k + word * 4 + j)) << (8 * j);
      }
      task.values[(k / 4 + word) * task.rows_padded + row] = packed;
    }
    FusedElement scale;
    if (inside) scale = task.operand.ScaleElementAt(row, k);
    task.scales[i] = static_cast<int>(scale.significand) + 256 * scale.exponent;
    if (scale.kind == FloatClass::kNan) task.special_rows[0] = task.special_rows[1 + row] = 1;
  }
}

dim3 TileGrid(int64_t rows_padded, int64_t k_padded) {
  constexpr int64_t kGridMax = 65535;
  const int64_t row_tiles = rows_padded / kTile;
  return dim3(static_cast<unsigned>(k_padded / kTile),
              static_cast<unsigned>(row_tiles < kGridMax ? row_tiles : kGridMax));
}

}  // namespace

cudaError_t LaunchPackProducts(const PackProductsTask& task, cudaStream_t stream) {
  PackProducts<<<TileGrid(task.rows_padded, task.k_padded), 32 * kWarps, 0, stream>>>(task);
  return cudaGetLastError();
}

cudaError_t LaunchPackReals(const PackRealsTask& task, cudaStream_t stream) {
  PackReals<<<TileGrid(task.rows_padded, task.k_padded), 32 * kWarps, 0, stream>>>(task);
  return cudaGetLastError();
}

cudaError_t LaunchPackGroups(const PackGroupsTask& task, cudaStream_t stream) {
  constexpr int64_t kGridMax = 1 << 20;
  const int64_t blocks = (task.k_padded / 16 * task.rows_padded + 255) / 256;
  PackGroups<<<static_cast<unsigned>(blocks < kGridMax ? blocks : kGridMax), 256, 0, stream>>>(
      task);
  return cudaGetLastError();
}

}  // namespace quantgate
