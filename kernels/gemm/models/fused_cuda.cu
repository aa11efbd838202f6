// Fused steps on CUDA cores (docs/tensor-cores.md section 1): a block of threads computes a tile of
// outputs, one chunk of k after the other. cuda_kernels.h says how a step becomes multiply-adds.
#include <type_traits>

#include "kernels/gemm/models/cuda_kernels.h"
#include "kernels/gemm/models/fused_finish.h"

namespace quantgate {
namespace {

constexpr int kDepth = kPackedDepth;  // k of a chunk, and the longest step.
constexpr int kThreads = 256;         // 16 x 16.
/// The exponent of a zero: below all others, and twice it still fits 16 bits.
constexpr int kExponentOfZero = -8192;

/// FP8 products at F = 13: 8-bit significands, exact in float.
struct Narrow {
  using Value = float;
  static constexpr int kRows = 8, kColumns = 4;  // The outputs of a thread.
  static constexpr int kBlocksPerSm = 2;

  template <int kTileRows>
  struct Planes {
    float magnitude[kDepth][kTileRows];
    float positive[kDepth][kTileRows];
    float negative[kDepth][kTileRows];  // Of negative elements, the magnitude.

    __device__ void Store(float value, int k, int row) {
      magnitude[k][row] = fabsf(value);
      positive[k][row] = value > 0 ? value : 0.0f;
      negative[k][row] = value < 0 ? -value : 0.0f;
    }
  };
};

/// All other products, F up to 25: values of at most 20 fraction bits, all of which are in the
/// upper half of a double.
template <bool kScaled>
struct Wide {
  using Value = double;
  static constexpr int kRows = 4, kColumns = 4;
  static constexpr int kBlocksPerSm = 2;

  template <int kTileRows>
  struct Planes {
    int magnitude[kDepth][kTileRows];
    int mask[kDepth][kTileRows];   // All ones where the element is negative, else 0.
    uint32_t negative[kTileRows];  // Bit i: element i is negative.

    __device__ void Store(float value, int k, int row) {
      magnitude[k][row] = __double2hiint(static_cast<double>(fabsf(value)));
      mask[k][row] = __float_as_int(value) >> 31;
    }
  };
};

/// A chunk of one operand, rows side by side.
template <class Panel, int kTileRows>
struct SharedPanel {
  typename Panel::template Planes<kTileRows> planes;
  uint32_t exponents[kDepth / 2][kTileRows];  // Those of two k in each word, 16 bits each.
  int shifts[kTileRows];
  float scales[kTileRows];  // Scales of the promoted part.
};

/// The exponent of a packed element as its format has it.
__device__ int ExponentOf(float value, int exponent_min) {
  const int field = static_cast<int>(__float_as_uint(value) >> 23 & 0xFF);
  const int exponent = field - 127 > exponent_min ? field - 127 : exponent_min;
  return value == 0 ? kExponentOfZero : exponent;
}

template <class Panel, int kTileRows>
__device__ void Store(float x, float y, int exponent_min, int k, int row,
                      SharedPanel<Panel, kTileRows>& shared) {
  shared.planes.Store(x, k, row);
  shared.planes.Store(y, k + 1, row);
  shared.exponents[k / 2][row] =
      __byte_perm(ExponentOf(x, exponent_min), ExponentOf(y, exponent_min), 0x5410);
}

template <class Panel, int kTileRows>
__device__ void LoadChunk(const PackedOperand& operand, int64_t row, int64_t chunk,
                          SharedPanel<Panel, kTileRows>& shared) {
  const auto* const values = reinterpret_cast<const float4*>(operand.values) +
                             chunk * (kDepth / 4) * operand.rows_padded + row;
#pragma unroll
  for (int i = threadIdx.x; i < kDepth / 4 * kTileRows; i += kThreads) {
    const int r = i % kTileRows, k4 = i / kTileRows;
    const float4 four = values[k4 * operand.rows_padded + r];
    Store(four.x, four.y, operand.exponent_min, 4 * k4, r, shared);
    Store(four.z, four.w, operand.exponent_min, 4 * k4 + 2, r, shared);
  }
  if constexpr (!std::is_same_v<Panel, Narrow>) {
    for (int r = threadIdx.x; r < kTileRows; r += kThreads) {
      const int64_t word = (row + r) * (operand.k_padded / kDepth) + chunk;
      shared.planes.negative[r] = row + r < operand.rows ? operand.classes[4 * word + 3] : 0;
    }
  }
  if (operand.shifts == nullptr) return;
  for (int r = threadIdx.x; r < kTileRows; r += kThreads) {
    shared.shifts[r] = operand.shifts[chunk * operand.rows_padded + row + r];
  }
}

/// The block scales of a promoted part.
template <class Panel, int kTileRows>
__device__ void LoadScales(const CudaOperand& operand, int64_t row, int64_t k,
                           SharedPanel<Panel, kTileRows>& shared) {
  for (int r = threadIdx.x; r < kTileRows; r += kThreads) {
    const bool inside = operand.scales != nullptr && row + r < operand.rows;
    shared.scales[r] = inside ? operand.ScaleAt(row + r, k) : 1.0f;
  }
}

/// The row of the tile that is a thread's i-th row: groups of four, 64 apart.
__device__ constexpr int RowOf(int place, int i) { return i / 4 * 64 + place * 4 + i % 4; }

/// A thread's kCount of the values of one k.
template <int kCount, class T>
__device__ void LoadRow(const T* line, int place, T (&out)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    *reinterpret_cast<int4*>(&out[i]) = *reinterpret_cast<const int4*>(&line[RowOf(place, i)]);
  }
}

/// The common part of the two kinds of tiles: a thread's place, and the largest exponents of a
/// step.
template <class PanelType, int kStep>
struct TilePlace {
  using Panel = PanelType;
  using Value = typename Panel::Value;
  static constexpr int kRows = Panel::kRows, kColumns = Panel::kColumns;
  static constexpr int kTileRows = 16 * kRows, kTileColumns = 16 * kColumns;
  struct Shared {
    SharedPanel<Panel, kTileRows> a;
    SharedPanel<Panel, kTileColumns> b;
  };

  const FusedTask& task;
  const Shared& shared;
  const int row_place, column_place;  // The thread's place in the tile, 0 to 15.

  template <class Body>
  static __device__ void ForEachOutput(const Body& body) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) body(r, j);
    }
  }

  /// The largest exponent of each output's products in the step at k: the larger half of the word.
  __device__ void LargestExponents(int k, uint32_t (&largest)[kRows][kColumns]) const {
    ForEachOutput([&](int r, int j) { largest[r][j] = 0x80008000u; });
#pragma unroll 4
    for (int i = 0; i < kStep / 2; ++i) {
      uint32_t a[kRows], b[kColumns];
      LoadRow(shared.a.exponents[k / 2 + i], row_place, a);
      LoadRow(shared.b.exponents[k / 2 + i], column_place, b);
      ForEachOutput(
          [&](int r, int j) { largest[r][j] = __viaddmax_s16x2(a[r], b[j], largest[r][j]); });
    }
  }
  static __device__ int LargerHalf(uint32_t pair) {
    const int high = static_cast<int>(pair) >> 16, low = static_cast<int16_t>(pair);
    return high > low ? high : low;
  }
};

template <class Panel, int kStep>
struct Tile;

template <int kStep>
struct Tile<Narrow, kStep> : TilePlace<Narrow, kStep> {
  using Place = TilePlace<Narrow, kStep>;
  using Place::ForEachOutput, Place::kColumns, Place::kRows;

  /// One step; c becomes its result.
  __device__ void Step(int k, float (&c)[kRows][kColumns], Overflows&) const {
    uint32_t largest[kRows][kColumns];
    this->LargestExponents(k, largest);
    // c becomes the accumulator of all magnitudes.
    float positive[kRows][kColumns];
    ForEachOutput([&](int r, int j) {
      const int product = Place::LargerHalf(largest[r][j]);
      // A zero has exponent field 0 and so takes no part: -127 is below every product. A non-zero
      // one is a multiple of the smallest product, 2^-32.
      const int of_c = static_cast<int>(__float_as_uint(c[r][j]) << 1 >> 24) - 127;
      const int exponent = of_c > product ? of_c : product;
      const float start = __uint_as_float(static_cast<uint32_t>(exponent - 13 + 23 + 127) << 23);
      positive[r][j] = __fadd_rz(start, c[r][j] > 0 ? c[r][j] : 0.0f);
      c[r][j] = __fadd_rz(start, fabsf(c[r][j]));
    });
    AddProducts(k, c, positive);
    ForEachOutput([&](int r, int j) {
      const float start = __uint_as_float(__float_as_uint(c[r][j]) & 0x7F800000u);
      const float sum = (positive[r][j] - c[r][j]) + (positive[r][j] - start);
      c[r][j] = __uint_as_float(__float_as_uint(sum) & ~0x3FFu);  // 13 fraction bits.
    });
  }

 private:
  __device__ void AddProducts(int k, float (&all)[kRows][kColumns],
                              float (&positive)[kRows][kColumns]) const {
    const auto& a = this->shared.a.planes;
    const auto& b = this->shared.b.planes;
#pragma unroll 4
    for (int i = k; i < k + kStep; ++i) {
      AddOuterProduct(a.magnitude[i], b.magnitude[i], all);
      AddOuterProduct(a.positive[i], b.positive[i], positive);
      AddOuterProduct(a.negative[i], b.negative[i], positive);
    }
  }
  __device__ void AddOuterProduct(const float* a_line, const float* b_line,
                                  float (&sums)[kRows][kColumns]) const {
    float a[kRows], b[kColumns];
    LoadRow(a_line, this->row_place, a);
    LoadRow(b_line, this->column_place, b);
    ForEachOutput([&](int r, int j) { sums[r][j] = __fmaf_rz(a[r], b[j], sums[r][j]); });
  }
};

template <bool kScaled, int kStep>
struct Tile<Wide<kScaled>, kStep> : TilePlace<Wide<kScaled>, kStep> {
  using Place = TilePlace<Wide<kScaled>, kStep>;
  using Place::ForEachOutput, Place::kColumns, Place::kRows, Place::shared, Place::task;
  /// Runs of products whose units are summed in 32 bits.
  static constexpr int kRuns = (kStep + 15) / 16, kRun = kStep / kRuns;

  /// One step; c becomes its result.
  __device__ void Step(int k, double (&c)[kRows][kColumns], Overflows& overflows) const {
    uint32_t largest[kRows][kColumns];
    this->LargestExponents(k, largest);
    double start[kRows][kColumns];
    int rest[kRows][kColumns];  // Units beside those of the products.
    Begin(k, largest, c, start, rest);
    int units[kRuns][kRows][kColumns] = {};
#pragma unroll
    for (int run = 0; run < kRuns; ++run) AddProducts(k + run * kRun, start, units[run]);
    ForEachOutput([&](int r, int j) {
      int64_t sum = rest[r][j];
#pragma unroll
      for (int run = 0; run < kRuns; ++run) sum += units[run][r][j];
      c[r][j] = WideSum(sum, start[r][j]);
    });
    if constexpr (kScaled) RestoreShifts(c);
    bool all_normal = !task.rule.f16_accumulator;
    if (all_normal) ForEachOutput([&](int r, int j) { all_normal &= TruncateToFloat(c[r][j]); });
    if (all_normal) return;
    ForEachOutput(
        [&](int r, int j) { RoundAccumulator(task.rule, r * kColumns + j, c[r][j], overflows); });
  }

 private:
  __device__ void Begin(int k, const uint32_t (&largest)[kRows][kColumns],
                        const double (&c)[kRows][kColumns], double (&start)[kRows][kColumns],
                        int (&rest)[kRows][kColumns]) const {
    constexpr auto kSteps = static_cast<uint32_t>((uint64_t{1} << kStep) - 1);
    const WideStart rule(task.rule);
    uint32_t a_signs[kRows], b_signs[kColumns];
    LoadRow(shared.a.planes.negative, this->row_place, a_signs);
    LoadRow(shared.b.planes.negative, this->column_place, b_signs);
    int a_shifts[kRows] = {}, b_shifts[kColumns] = {};
    if constexpr (kScaled) LoadShifts(a_shifts, b_shifts);
    ForEachOutput([&](int r, int j) {
      const int negative_products = __popc((a_signs[r] ^ b_signs[j]) >> k & kSteps);
      rest[r][j] = rule.Begin(Place::LargerHalf(largest[r][j]), a_shifts[r] + b_shifts[j], c[r][j],
                              start[r][j]) +
                   negative_products;
    });
  }
  __device__ void LoadShifts(int (&a)[kRows], int (&b)[kColumns]) const {
    LoadRow(shared.a.shifts, this->row_place, a);
    LoadRow(shared.b.shifts, this->column_place, b);
  }
  __device__ void RestoreShifts(double (&c)[kRows][kColumns]) const {
    int a[kRows], b[kColumns];
    LoadShifts(a, b);
    ForEachOutput([&](int r, int j) { c[r][j] = TimesPowerOfTwo(c[r][j], a[r] + b[j]); });
  }
  __device__ void AddProducts(int k, const double (&start)[kRows][kColumns],
                              int (&units)[kRows][kColumns]) const {
    const auto& a_planes = shared.a.planes;
    const auto& b_planes = shared.b.planes;
#pragma unroll 2
    for (int i = k; i < k + kRun; ++i) {
      int a[kRows], b[kColumns], a_mask[kRows], b_mask[kColumns];
      LoadRow(a_planes.magnitude[i], this->row_place, a);
      LoadRow(b_planes.magnitude[i], this->column_place, b);
      LoadRow(a_planes.mask[i], this->row_place, a_mask);
      LoadRow(b_planes.mask[i], this->column_place, b_mask);
      ForEachOutput([&](int r, int j) {
        const double product =
            __fma_rz(__hiloint2double(a[r], 0), __hiloint2double(b[j], 0), start[r][j]);
        units[r][j] += __double2loint(product) ^ a_mask[r] ^ b_mask[j];
      });
    }
  }
};

/// Stores a thread's accumulators, or promotes them into the stored ones, and starts again from +0.
template <class T>
__device__ void StoreOutputs(const FusedTask& task, const T& tile, int64_t row, int64_t column,
                             bool is_first_part, typename T::Value (&c)[T::kRows][T::kColumns],
                             Overflows& overflows) {
  const bool promotes = task.rule.promotion != Promotion::kNone;
  T::ForEachOutput([&](int r, int j) {
    const int row_in = RowOf(tile.row_place, r), column_in = RowOf(tile.column_place, j);
    const int64_t m = row + row_in, n = column + column_in;
    float sum = overflows.Apply(r * T::kColumns + j, static_cast<float>(c[r][j]));
    c[r][j] = 0;
    if (m >= task.m || n >= task.n) return;
    float* const out = task.accumulators + m * task.n + n;
    if (promotes) {
      const float total = is_first_part ? 0.0f : *out;
      sum = fused_rule_steps::Promote(task.rule, total, sum, tile.shared.a.scales[row_in],
                                      tile.shared.b.scales[column_in]);
    }
    *out = sum;
  });
  overflows = Overflows();
}

template <class Panel, int kStep>
__global__ void __launch_bounds__(kThreads, Panel::kBlocksPerSm) Fused(const FusedTask task) {
  using T = Tile<Panel, kStep>;
  extern __shared__ int4 shared_bytes[];
  auto& shared = *reinterpret_cast<typename T::Shared*>(shared_bytes);
  const int64_t row_tiles = (task.m + T::kTileRows - 1) / T::kTileRows;
  const int64_t row = blockIdx.x % row_tiles * T::kTileRows;
  const int64_t column = blockIdx.x / row_tiles * T::kTileColumns;
  // A warp takes 4 x 8 places of the tile, so that it reads few different words of a line.
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const T tile{{task, shared, warp / 2 * 4 + lane / 8, warp % 2 * 8 + lane % 8}};
  typename T::Value c[T::kRows][T::kColumns] = {};
  Overflows overflows;
  const bool promotes = task.rule.promotion != Promotion::kNone;
  const int64_t part_length = promotes ? task.rule.promote_k : task.end - task.begin;
  int64_t part = task.begin;
  for (int64_t k = task.begin; k < task.end; k += kDepth) {
    __syncthreads();
    LoadChunk(task.a, row, k / kDepth, shared.a);
    LoadChunk(task.b, column, k / kDepth, shared.b);
    if (promotes && k == part) {
      LoadScales(task.a_scales, row, k, shared.a);
      LoadScales(task.b_scales, column, k, shared.b);
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < kDepth; i += kStep) tile.Step(i, c, overflows);
    if (k + kDepth - part >= part_length || k + kDepth >= task.end) {
      StoreOutputs(task, tile, row, column, part == task.begin, c, overflows);
      part = k + kDepth;
    }
  }
}

template <class Panel, int kStep>
cudaError_t Launch(const FusedTask& task, cudaStream_t stream) {
  using T = Tile<Panel, kStep>;
  constexpr int kSharedBytes = sizeof(typename T::Shared);
  const cudaError_t error = cudaFuncSetAttribute(
      Fused<Panel, kStep>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  const int64_t tiles = (task.m + T::kTileRows - 1) / T::kTileRows *
                        ((task.n + T::kTileColumns - 1) / T::kTileColumns);
  Fused<Panel, kStep><<<static_cast<unsigned>(tiles), kThreads, kSharedBytes, stream>>>(task);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchFused(const FusedTask& task, cudaStream_t stream) {
  if (task.rule.out_mantissa == 13 && task.rule.align_bits == 13 && !task.rule.f16_accumulator) {
    return task.rule.step == 32 ? Launch<Narrow, 32>(task, stream)
                                : Launch<Narrow, 16>(task, stream);
  }
  // Blocks of 32 or 128 elements: only instructions of 32 products have their scales.
  if (task.a.shifts != nullptr) return Launch<Wide<true>, 32>(task, stream);
  switch (task.rule.step) {
    case 32:
      return Launch<Wide<false>, 32>(task, stream);
    case 16:
      return Launch<Wide<false>, 16>(task, stream);
    case 8:
      return Launch<Wide<false>, 8>(task, stream);
    default:
      return Launch<Wide<false>, 4>(task, stream);
  }
}

}  // namespace quantgate
