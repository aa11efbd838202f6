// Fused steps on CUDA cores (docs/tensor-cores.md section 1): a block computes a tile of outputs,
// chunk after chunk of k. cuda_kernels.h says how a step becomes multiply-adds.
#include "kernels/gemm/cuda_kernels.h"
#include "kernels/gemm/fused_finish.h"

namespace quantgate {
namespace {

constexpr int kDepth = kPackedDepth;  // k of one chunk, and the longest step.
constexpr int kThreads = 256;         // 16 x 16.
/// The exponent of a zero, in 16 bits: below all others, and twice it still fits.
constexpr int kExponentOfZero = -8192;

/// FP8 products at F = 13: 8-bit significands, exact in float.
struct Narrow {
  using Value = float;
  using Word = float;  // What the planes in shared memory hold of a value.
  static constexpr int kRows = 8, kColumns = 4;  // Outputs of a thread.
  static constexpr int kBlocksPerSm = 2;

  static __device__ Word WordOf(float value) { return value; }
  static __device__ Value ValueOf(Word word) { return word; }
  static __device__ Value MulAdd(Value a, Value b, Value c) { return __fmaf_rz(a, b, c); }
};

/// All others, F up to 25: values of at most 20 fraction bits, of which the upper half of a double
/// has all.
struct Wide {
  using Value = double;
  using Word = int;
  static constexpr int kRows = 4, kColumns = 4;
  static constexpr int kBlocksPerSm = 1;

  static __device__ Word WordOf(float value) { return __double2hiint(value); }
  static __device__ Value ValueOf(Word word) { return __hiloint2double(word, 0); }
  static __device__ Value MulAdd(Value a, Value b, Value c) { return __fma_rz(a, b, c); }
};

/// One operand's share of a chunk, rows side by side.
template <class Panel, int kTileRows>
struct SharedPanel {
  typename Panel::Word magnitude[kDepth][kTileRows];
  typename Panel::Word positive[kDepth][kTileRows];
  typename Panel::Word negative[kDepth][kTileRows];  // Of negative elements, the magnitude.
  uint32_t exponents[kDepth / 2][kTileRows];         // Of two k, 16 bits each.
  int shifts[kTileRows];
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
  const float values[2] = {x, y};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float value = values[i];
    shared.magnitude[k + i][row] = Panel::WordOf(fabsf(value));
    shared.positive[k + i][row] = Panel::WordOf(value > 0 ? value : 0.0f);
    shared.negative[k + i][row] = Panel::WordOf(value < 0 ? -value : 0.0f);
  }
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
  for (int r = threadIdx.x; r < kTileRows; r += kThreads) {
    shared.shifts[r] =
        operand.shifts == nullptr ? 0 : operand.shifts[chunk * operand.rows_padded + row + r];
  }
}

/// The row of a tile that is a thread's i-th: fours, 64 apart.
__device__ constexpr int RowOf(int place, int i) { return i / 4 * 64 + place * 4 + i % 4; }

/// A thread's kCount of the values of one k.
template <int kCount, class T>
__device__ void LoadRow(const T* line, int place, T (&out)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    *reinterpret_cast<int4*>(&out[i]) = *reinterpret_cast<const int4*>(&line[RowOf(place, i)]);
  }
}

template <class Panel, int kStep>
struct Tile {
  static constexpr int kRows = Panel::kRows, kColumns = Panel::kColumns;
  static constexpr int kTileRows = 16 * kRows, kTileColumns = 16 * kColumns;
  using Value = typename Panel::Value;
  using Word = typename Panel::Word;
  struct Shared {
    SharedPanel<Panel, kTileRows> a;
    SharedPanel<Panel, kTileColumns> b;
  };

  const FusedTask& task;
  const Shared& shared;
  const int row_place, column_place;  // Of the thread, 0 to 15.

  /// The largest exponent of each output's products in the step at k.
  __device__ void LargestExponents(int k, uint32_t (&largest)[kRows][kColumns]) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) largest[r][j] = 0x80008000u;
    }
#pragma unroll 4
    for (int i = 0; i < kStep / 2; ++i) {
      uint32_t a[kRows], b[kColumns];
      LoadRow(shared.a.exponents[k / 2 + i], row_place, a);
      LoadRow(shared.b.exponents[k / 2 + i], column_place, b);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          largest[r][j] = __viaddmax_s16x2(a[r], b[j], largest[r][j]);
        }
      }
    }
  }

  /// Adds the step's products: magnitudes to `all`, those of the positive ones to `positive`.
  __device__ void AddProducts(int k, Value (&all)[kRows][kColumns],
                              Value (&positive)[kRows][kColumns]) const {
#pragma unroll 4
    for (int i = k; i < k + kStep; ++i) {
      Word a[kRows], b[kColumns];
      LoadRow(shared.a.magnitude[i], row_place, a);
      LoadRow(shared.b.magnitude[i], column_place, b);
      AddOuterProduct(a, b, all);
      LoadRow(shared.a.positive[i], row_place, a);
      LoadRow(shared.b.positive[i], column_place, b);
      AddOuterProduct(a, b, positive);
      LoadRow(shared.a.negative[i], row_place, a);
      LoadRow(shared.b.negative[i], column_place, b);
      AddOuterProduct(a, b, positive);
    }
  }

  static __device__ void AddOuterProduct(const Word (&a)[kRows], const Word (&b)[kColumns],
                                         Value (&sums)[kRows][kColumns]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        sums[r][j] = Panel::MulAdd(Panel::ValueOf(a[r]), Panel::ValueOf(b[j]), sums[r][j]);
      }
    }
  }

  __device__ void Step(int k, Value (&c)[kRows][kColumns]) const {
    uint32_t largest[kRows][kColumns];
    LargestExponents(k, largest);
    Value positive[kRows][kColumns];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const int high = static_cast<int>(largest[r][j]) >> 16;
        const int low = static_cast<int16_t>(largest[r][j]);
        Begin(r, j, high > low ? high : low, c[r][j], positive[r][j]);
      }
    }
    AddProducts(k, c, positive);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) Finish(r, j, positive[r][j], c[r][j]);
    }
  }

  /// Two accumulators at the step's start value with the accumulator c truncated onto them; c
  /// becomes the one of all magnitudes.
  __device__ void Begin(int r, int j, int product_exponent, float& c, float& positive) const {
    // A zero has exponent field 0 and so takes no part: -127 is below every product. A non-zero one
    // is a multiple of the smallest product, 2^-32.
    const int c_exponent = static_cast<int>(__float_as_uint(c) << 1 >> 24) - 127;
    const int exponent = c_exponent > product_exponent ? c_exponent : product_exponent;
    const float start = __uint_as_float(static_cast<uint32_t>(exponent - 13 + 23 + 127) << 23);
    positive = __fadd_rz(start, c > 0 ? c : 0.0f);
    c = __fadd_rz(start, fabsf(c));
  }
  __device__ void Begin(int r, int j, int product_exponent, double& c, double& positive) const {
    const int shift = ShiftOf(r, j);
    BeginWide(task.rule, product_exponent + shift, shift, c, positive);
  }

  __device__ void Finish(int, int, float positive, float& all) const {
    const float start = __uint_as_float(__float_as_uint(all) & 0x7F800000u);
    const float sum = (positive - all) + (positive - start);
    all = __uint_as_float(__float_as_uint(sum) & ~0x3FFu);  // 13 fraction bits.
  }
  __device__ void Finish(int r, int j, double positive, double& all) const {
    all = FinishWide(task.rule, ShiftOf(r, j), positive, all);
  }

  __device__ int ShiftOf(int r, int j) const {
    return shared.a.shifts[RowOf(row_place, r)] + shared.b.shifts[RowOf(column_place, j)];
  }
};

/// Stores a thread's accumulators, or promotes them into what is stored.
template <class T, class Value>
__device__ void StoreOutputs(const FusedTask& task, const T& tile, int64_t row, int64_t column,
                             int64_t part, Value (&c)[T::kRows][T::kColumns]) {
  const bool promotes = task.rule.promotion != Promotion::kNone;
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
    const int64_t m = row + RowOf(tile.row_place, r);
#pragma unroll
    for (int j = 0; j < T::kColumns; ++j) {
      const int64_t n = column + RowOf(tile.column_place, j);
      if (m < task.m && n < task.n) {
        float* const out = task.accumulators + m * task.n + n;
        float sum = static_cast<float>(c[r][j]);
        if (promotes) {
          const float total = part == task.begin ? 0.0f : *out;
          const float a_scale =
              task.a_scales.scales == nullptr ? 1 : task.a_scales.ScaleAt(m, part);
          const float b_scale =
              task.b_scales.scales == nullptr ? 1 : task.b_scales.ScaleAt(n, part);
          sum = fused_rule_steps::Promote(task.rule, total, sum, a_scale, b_scale);
        }
        *out = sum;
      }
      c[r][j] = 0;
    }
  }
}

template <class Panel, int kStep>
__global__ void __launch_bounds__(kThreads, Panel::kBlocksPerSm) Fused(const FusedTask task) {
  using T = Tile<Panel, kStep>;
  extern __shared__ int4 shared_bytes[];
  auto& shared = *reinterpret_cast<typename T::Shared*>(shared_bytes);
  const int64_t row_tiles = (task.m + T::kTileRows - 1) / T::kTileRows;
  const int64_t row = blockIdx.x % row_tiles * T::kTileRows;
  const int64_t column = blockIdx.x / row_tiles * T::kTileColumns;
  // A warp has 4 x 8 of the threads' places, so that it reads few different words of a line.
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const T tile{task, shared, warp / 2 * 4 + lane / 8, warp % 2 * 8 + lane % 8};
  typename T::Value c[T::kRows][T::kColumns] = {};
  const bool promotes = task.rule.promotion != Promotion::kNone;
  const int64_t part_length = promotes ? task.rule.promote_k : task.end - task.begin;
  int64_t part = task.begin;
  for (int64_t k = task.begin; k < task.end; k += kDepth) {
    __syncthreads();
    LoadChunk(task.a, row, k / kDepth, shared.a);
    LoadChunk(task.b, column, k / kDepth, shared.b);
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < kDepth; i += kStep) tile.Step(i, c);
    if (k + kDepth - part >= part_length || k + kDepth >= task.end) {
      StoreOutputs(task, tile, row, column, part, c);
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
  switch (task.rule.step) {
    case 32:
      return Launch<Wide, 32>(task, stream);
    case 16:
      return Launch<Wide, 16>(task, stream);
    case 8:
      return Launch<Wide, 8>(task, stream);
    default:
      return Launch<Wide, 4>(task, stream);
  }
}

}  // namespace quantgate
