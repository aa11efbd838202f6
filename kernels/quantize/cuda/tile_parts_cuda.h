// What the kernels of quantize_tiles_cuda.h share: elements, counts, and the plain code for one
// tile, to which the tuned kernels fall back. Included by .cu files only.
#pragma once

#include "kernels/numerics/e8m0.h"
#include "kernels/quantize/cuda/quantize_tiles_cuda.h"
#include "kernels/quantize/element_kind.h"

namespace quantgate {

inline constexpr int kCountKinds = 7;
inline constexpr int kWarpLanes = 32;
inline constexpr uint32_t kInfinityBits = 0x7F800000;

__device__ inline float LoadElement(const void* source, FormatId format, int64_t i) {
  return VisitFormatIn(SourceFormats{}, format, [&]<class Source>() {
    return DecodeFloat<Source>(static_cast<const typename Source::Storage*>(source)[i]);
  });
}

__device__ inline uint32_t MagnitudeBits(float value) {
  return __float_as_uint(value) & 0x7FFFFFFF;
}

__device__ inline FloatClass ClassOf(float value) {
  const uint32_t magnitude = MagnitudeBits(value);
  if (magnitude > kInfinityBits) return FloatClass::kNan;
  if (magnitude == kInfinityBits) return FloatClass::kInfinite;
  return magnitude == 0 ? FloatClass::kZero : FloatClass::kFinite;
}

/// The counts of the warps of a block of threads, in shared memory.
template <int kWarps>
struct WarpCounts {
  uint32_t of[kWarps][kCountKinds];
};

/// The counts of one thread, in the order of QuantizationCounts.
struct ThreadCounts {
  uint32_t of[kCountKinds] = {};

  __device__ void Add(ElementKind kind, uint32_t count = 1) {
#pragma unroll
    for (int i = 0; i < kCountKinds; ++i) of[i] += static_cast<int>(kind) == i ? count : 0;
  }

  /// Every thread of a block must call this; the block adds its sums, so that few additions meet at
  /// one address. A warp must have counted less than 2^32.
  template <int kWarps>
  __device__ void AddTo(unsigned long long* counts, WarpCounts<kWarps>& warps) const {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kCountKinds; ++i) {
      const uint32_t sum = __reduce_add_sync(0xFFFFFFFF, of[i]);
      if (thread % kWarpLanes == 0) warps.of[thread / kWarpLanes][i] = sum;
    }
    __syncthreads();
    if (thread >= kCountKinds) return;
    unsigned long long sum = 0;
    for (const auto& of_warp : warps.of) sum += of_warp[thread];
    if (sum != 0) atomicAdd(&counts[thread], sum);
  }
};

/// The threads that share a tile.
struct BlockThreads {
  static constexpr int kWarps = 8;
  __device__ static int Warp() { return static_cast<int>(threadIdx.x) / kWarpLanes; }
  __device__ static void Sync() { __syncthreads(); }
};
struct WarpThreads {
  static constexpr int kWarps = 1;
  __device__ static int Warp() { return 0; }
  __device__ static void Sync() { __syncwarp(); }
};

/// The magnitude bits of the amaxes of the rows and columns of a tile, later the bits of the
/// factors. Aligned to the vectors in which they are read.
template <int kSide>
struct alignas(16) TileFactors {
  uint32_t row[kSide], column[kSide];
};

/// One tile of kSide x kSide, smaller at the edges, by the scalar functions of kernels/numerics.
template <class Element, class Threads, int kSide>
class PlainTile {
 public:
  __device__ PlainTile(const TileQuantization& job, int64_t row_begin, int64_t column_begin,
                       TileFactors<kSide>& factors)
      : job_(job),
        row_begin_(row_begin),
        column_begin_(column_begin),
        height_(static_cast<int>(min(int64_t{kSide}, job.rows - row_begin))),
        width_(static_cast<int>(min(int64_t{kSide}, job.columns - column_begin))),
        factors_(factors) {}

  __device__ void Quantize(ThreadCounts& counts) {
    if (job_.scales == ScaleKind::kTensor) {
      if (job_.amax_bits != nullptr) RaiseTensorAmax();
    } else if (job_.scales == ScaleKind::kLine) {
      LoadFactors();
    } else {
      FindAmaxes();
      MakeFactors();
    }
    if (job_.row_codes != nullptr) Encode(job_.row_codes, false, false, true, counts);
    if (job_.column_codes != nullptr) {
      Encode(job_.column_codes, true, job_.turns_columnwise, job_.row_codes == nullptr, counts);
    }
    Threads::Sync();  // The factors are free for another tile.
  }

  /// kLine: raises the amaxes of the tile's lines.
  __device__ void RaiseLineAmaxes() {
    FindAmaxes();
    for (int i = Thread(); i < kSide; i += kThreads) {
      if (job_.row_lines != nullptr && i < height_) {
        atomicMax(job_.row_lines + row_begin_ + i, factors_.row[i]);
      }
      if (job_.column_lines != nullptr && i < width_) {
        atomicMax(job_.column_lines + column_begin_ + i, factors_.column[i]);
      }
    }
    Threads::Sync();  // The amaxes are free for another tile.
  }

 private:
  static constexpr int kThreads = Threads::kWarps * kWarpLanes;

  __device__ static int Thread() { return static_cast<int>(threadIdx.x) % kThreads; }
  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % kWarpLanes; }

  __device__ float At(int row, int column) const {
    return LoadElement(job_.source, job_.source_format,
                       (row_begin_ + row) * job_.columns + column_begin_ + column);
  }

  /// NaN as 0, or as the largest of all where it makes an amax NaN.
  __device__ uint32_t AmaxBitsAt(int row, int column) const {
    const uint32_t magnitude = MagnitudeBits(At(row, column));
    const bool ignores_nan =
        job_.scales != ScaleKind::kE8m0 || !PropagatesNan(job_.scale_options.rule);
    return magnitude > kInfinityBits && ignores_nan ? 0 : magnitude;
  }

  __device__ void RaiseTensorAmax() {
    uint32_t amax = 0;
    for (int row = Threads::Warp(); row < height_; row += Threads::kWarps) {
      for (int column = Lane(); column < width_; column += kWarpLanes) {
        amax = max(amax, AmaxBitsAt(row, column));
      }
    }
    amax = __reduce_max_sync(0xFFFFFFFF, amax);
    if (Lane() == 0) atomicMax(job_.amax_bits, amax);
  }

  __device__ void FindAmaxes() {
    for (int i = Thread(); i < kSide; i += kThreads) factors_.row[i] = factors_.column[i] = 0;
    Threads::Sync();
    constexpr int kAcross = kSide / kWarpLanes;
    uint32_t of_columns[kAcross] = {};
    for (int row = Threads::Warp(); row < height_; row += Threads::kWarps) {
      uint32_t of_row = 0;
      for (int j = 0; j < kAcross; ++j) {
        const int column = j * kWarpLanes + Lane();
        const uint32_t magnitude = column < width_ ? AmaxBitsAt(row, column) : 0;
        of_columns[j] = max(of_columns[j], magnitude);
        of_row = max(of_row, magnitude);
      }
      of_row = __reduce_max_sync(0xFFFFFFFF, of_row);
      if (Lane() == 0) factors_.row[row] = of_row;
    }
    for (int j = 0; j < kAcross; ++j) {
      atomicMax(&factors_.column[j * kWarpLanes + Lane()], of_columns[j]);
    }
    Threads::Sync();
  }

  __device__ void LoadFactors() {
    for (int i = Thread(); i < kSide; i += kThreads) {
      if (job_.row_lines != nullptr && i < height_) {
        factors_.row[i] = job_.row_lines[row_begin_ + i];
      }
      if (job_.column_lines != nullptr && i < width_) {
        factors_.column[i] = job_.column_lines[column_begin_ + i];
      }
    }
    Threads::Sync();
  }

  __device__ void MakeFactors() {
    uint32_t of_tile = 0;
    if (job_.has_tiles) {
      for (int i = 0; i < kSide; ++i) of_tile = max(of_tile, factors_.row[i]);
      Threads::Sync();
    }
    for (int i = Thread(); i < kSide; i += kThreads) {
      MakeFactor(i, false, of_tile, factors_.row[i]);
      MakeFactor(i, true, of_tile, factors_.column[i]);
    }
    Threads::Sync();
  }

  /// Of line i of the tile in one direction; writes the scale where the line is within the tensor.
  __device__ void MakeFactor(int i, bool is_columnwise, uint32_t of_tile, uint32_t& bits) const {
    const float amax = __uint_as_float(job_.has_tiles ? of_tile : bits);
    void* scales = is_columnwise ? job_.column_scales : job_.row_scales;
    const bool is_inside = i < (is_columnwise ? width_ : height_);
    if (job_.scales == ScaleKind::kE8m0) {
      const uint8_t code = E8m0Scale<Element>(amax, job_.scale_options.rule, job_.subnormals);
      bits = __float_as_uint(E8m0Multiplier(code));
      if (scales == nullptr || !is_inside) return;
      const int64_t line = (is_columnwise ? column_begin_ : row_begin_) + i;
      const int64_t block = (is_columnwise ? row_begin_ : column_begin_) / kSide;
      const int64_t blocks = (is_columnwise ? job_.rows : job_.columns) / kSide;
      const int64_t index = is_columnwise && !job_.turns_columnwise ? block * job_.columns + line
                                                                    : line * blocks + block;
      static_cast<uint8_t*>(scales)[index] = code;
      return;
    }
    const float scale =
        ComputeScale(amax, MaxFinite<Element>(), job_.scale_options, job_.subnormals);
    bits = __float_as_uint(scale);
    if (scales == nullptr || !is_inside || (job_.has_tiles && i != 0)) return;
    const int64_t begin = is_columnwise ? column_begin_ : row_begin_;
    const int64_t across = is_columnwise ? job_.rows : job_.columns;
    const int64_t line = job_.has_tiles ? begin / kSide : begin + i;
    const int64_t block = (is_columnwise ? row_begin_ : column_begin_) / kSide;
    static_cast<float*>(scales)[line * ((across + kSide - 1) / kSide) + block] =
        ScaleInverse(scale, job_.subnormals);
  }

  /// Codes in the order in which they stand: lines of the code array, whose inner index runs along
  /// the source's rows where the array is turned.
  __device__ void Encode(uint8_t* codes, bool by_column, bool is_turned, bool is_counted,
                         ThreadCounts& counts) const {
    constexpr int kPerByte = FormatConstants<Element>::kBits == 4 ? 2 : 1;
    const int lines = is_turned ? width_ : height_, length = is_turned ? height_ : width_;
    const int64_t stride = (is_turned ? job_.rows : job_.columns) / kPerByte;
    const int64_t first = (is_turned ? column_begin_ : row_begin_) * stride +
                          (is_turned ? row_begin_ : column_begin_) / kPerByte;
    for (int line = Threads::Warp(); line < lines; line += Threads::kWarps) {
      for (int i = Lane() * kPerByte; i < length; i += kWarpLanes * kPerByte) {
        uint8_t byte = 0;
        for (int j = 0; j < kPerByte; ++j) {
          const int row = is_turned ? i : line, column = is_turned ? line : i + j;
          byte |= EncodeAt(row, column, by_column, is_counted, counts) << (4 * j);
        }
        codes[first + line * stride + i / kPerByte] = byte;
      }
    }
  }

  __device__ uint8_t EncodeAt(int row, int column, bool by_column, bool is_counted,
                              ThreadCounts& counts) const {
    const float value = At(row, column);
    const float factor = job_.scales == ScaleKind::kTensor ? *job_.tensor_scale
                         : by_column ? __uint_as_float(factors_.column[column])
                                     : __uint_as_float(factors_.row[row]);
    const float scaled = value * factor;
    const uint8_t code = EncodeFloat<Element>(scaled, job_.rounding, job_.overflow);
    if (is_counted) {
      counts.Add(KindOfElement<Element>(ClassOf(value), scaled, code, job_.rounding));
    }
    return code;
  }

  const TileQuantization& job_;
  const int64_t row_begin_, column_begin_;
  const int height_, width_;
  TileFactors<kSide>& factors_;
};

}  // namespace quantgate
