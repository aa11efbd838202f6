// Blocked transposition. A tile of 64 x 64 elements is moved in small squares that fit SSE2
// registers, which every x86-64 has; the scalar path goes element by element.
#include "kernels/tensor/transpose.h"

#include <emmintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

constexpr int64_t kTile = 64;

// Columns that one thread takes: neighbouring tiles, so that the prefetcher sees runs of lines.
constexpr int64_t kStrip = 4 * kTile;

struct Strides {
  int64_t in;   // Elements between rows of the source: its columns.
  int64_t out;  // Elements between rows of the result: the source's rows.
};

template <class T>
void TransposeElements(const T* in, T* out, int64_t rows, int64_t columns, Strides strides) {
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) out[c * strides.out + r] = in[r * strides.in + c];
  }
}

__m128i Load(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
void Store(void* p, __m128i v) { _mm_storeu_si128(static_cast<__m128i*>(p), v); }

/// One round of interleaving neighbours `Distance` registers apart. After log2(n) rounds of n
/// registers, element i of register j has become element j of register i.
template <class Unpack>
void Interleave(__m128i* v, int count, Unpack unpack) {
  __m128i next[16];
  for (int i = 0; i < count / 2; ++i) unpack(v[i], v[i + count / 2], next[2 * i], next[2 * i + 1]);
  std::copy(next, next + count, v);
}

struct UnpackBytes {
  void operator()(__m128i a, __m128i b, __m128i& low, __m128i& high) const {
    low = _mm_unpacklo_epi8(a, b);
    high = _mm_unpackhi_epi8(a, b);
  }
};
struct UnpackWords {
  void operator()(__m128i a, __m128i b, __m128i& low, __m128i& high) const {
    low = _mm_unpacklo_epi16(a, b);
    high = _mm_unpackhi_epi16(a, b);
  }
};
struct UnpackDwords {
  void operator()(__m128i a, __m128i b, __m128i& low, __m128i& high) const {
    low = _mm_unpacklo_epi32(a, b);
    high = _mm_unpackhi_epi32(a, b);
  }
};

template <class T>
struct Square;
template <>
struct Square<uint8_t> {
  using Unpack = UnpackBytes;
  static constexpr int kSide = 16, kRounds = 4;
};
template <>
struct Square<uint16_t> {
  using Unpack = UnpackWords;
  static constexpr int kSide = 8, kRounds = 3;
};
template <>
struct Square<uint32_t> {
  using Unpack = UnpackDwords;
  static constexpr int kSide = 4, kRounds = 2;
};

template <class T>
void TransposeSquare(const T* in, T* out) {
  constexpr int kSide = Square<T>::kSide;
  __m128i v[kSide];
  for (int i = 0; i < kSide; ++i) v[i] = Load(in + i * kTile);
  for (int round = 0; round < Square<T>::kRounds; ++round) {
    Interleave(v, kSide, typename Square<T>::Unpack());
  }
  for (int i = 0; i < kSide; ++i) Store(out + i * kTile, v[i]);
}

/// A whole row of a tile has a size the compiler knows.
template <class T>
void CopyRow(const T* from, T* to, int64_t count) {
  if (count == kTile) {
    std::memcpy(to, from, kTile * sizeof(T));
  } else {
    std::copy_n(from, count, to);
  }
}

/// The copies touch every line of the source and of the result once. Squares moved directly would
/// come back to a line after others of the same cache set, since rows lie a power of two apart in
/// most tensors.
template <class T>
void TransposeTile(const T* in, T* out, int64_t rows, int64_t columns, Strides strides) {
  constexpr int64_t kSide = Square<T>::kSide;
  alignas(64) T source[kTile * kTile];
  alignas(64) T result[kTile * kTile];
  // Squares at an edge read beyond it.
  if (rows % kSide != 0 || columns % kSide != 0) std::fill_n(source, kTile * kTile, T(0));
  for (int64_t r = 0; r < rows; ++r) CopyRow(in + r * strides.in, source + r * kTile, columns);
  for (int64_t r = 0; r < rows; r += kSide) {
    for (int64_t c = 0; c < columns; c += kSide) {
      TransposeSquare(source + r * kTile + c, result + c * kTile + r);
    }
  }
  for (int64_t c = 0; c < columns; ++c) {
    CopyRow(result + c * kTile, out + c * strides.out, rows);
  }
}

template <class T>
void TransposeAll(const Tensor& tensor, Tensor& out, const ExecutionContext& context) {
  const int64_t rows = tensor.rows(), columns = tensor.columns();
  const Strides strides = {columns, rows};
  const auto tile = context.isa == Isa::kScalar ? &TransposeElements<T> : &TransposeTile<T>;
  const T* from = tensor.as<T>();
  T* to = out.as<T>();
  ParallelFor(context, columns, kStrip, [&](int64_t begin, int64_t end) {
    for (int64_t r = 0; r < rows; r += kTile) {
      for (int64_t c = begin; c < end; c += kTile) {
        tile(from + r * columns + c, to + c * rows + r, std::min(kTile, rows - r),
             std::min(kTile, end - c), strides);
      }
    }
  });
}

}  // namespace

template <typename T>
void TransposeMatrix(const T* in, int64_t in_stride, int64_t rows, int64_t columns, T* out,
                     int64_t out_stride) {
  for (int64_t r = 0; r < rows; r += kTile) {
    for (int64_t c = 0; c < columns; c += kTile) {
      TransposeTile(in + r * in_stride + c, out + c * out_stride + r, std::min(kTile, rows - r),
                    std::min(kTile, columns - c), {in_stride, out_stride});
    }
  }
}
template void TransposeMatrix(const uint8_t*, int64_t, int64_t, int64_t, uint8_t*, int64_t);
template void TransposeMatrix(const uint16_t*, int64_t, int64_t, int64_t, uint16_t*, int64_t);
template void TransposeMatrix(const uint32_t*, int64_t, int64_t, int64_t, uint32_t*, int64_t);

absl::Status CheckTranspose(DType dtype) {
  const int bytes = DTypeBytes(dtype);
  if (bytes == 1 || bytes == 2 || bytes == 4) return absl::OkStatus();
  return Refuse("tensor", DTypeName(dtype), "only elements of 1, 2 or 4 bytes can be transposed");
}

absl::StatusOr<Tensor> Transpose2d(const Tensor& tensor, const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckTranspose(tensor.dtype()));
  QG_ASSIGN_OR_RETURN(Tensor out,
                      Tensor::Allocate(tensor.dtype(), {tensor.columns(), tensor.rows()}));
  switch (DTypeBytes(tensor.dtype())) {
    case 1:
      TransposeAll<uint8_t>(tensor, out, context);
      break;
    case 2:
      TransposeAll<uint16_t>(tensor, out, context);
      break;
    default:
      TransposeAll<uint32_t>(tensor, out, context);
      break;
  }
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return out;
}

}  // namespace quantgate
