// Chunks of eight elements of both sides, as errors_tuned_cuda.cu measures them: how a chunk is
// read, summed and counted. Each part restates a part of MeasureElement (error_found.h). Included
// by .cu files only.
#pragma once

#include <bit>

#include "kernels/compare/error_found.h"

namespace quantgate {

template <NumberEncoding kEncoding>
inline constexpr int kElementBytes = kEncoding == NumberEncoding::kF32     ? 4
                                     : kEncoding == NumberEncoding::kBytes ? 1
                                                                           : 2;

/// Eight elements as numbers.
struct FloatChunk {
  float values[kChunkElements];

  __device__ float Float(int i) const { return values[i]; }
  __device__ double Double(int i) const { return values[i]; }
  __device__ bool AreAtLeast(float smallest_normal) const {
    float least = fabsf(values[0]);
#pragma unroll
    for (int i = 1; i < kChunkElements; ++i) least = fminf(least, fabsf(values[i]));
    return least >= smallest_normal;
  }
  /// Bits that depend on every load of the chunk.
  __device__ uint32_t SomeBits() const {
    return __float_as_uint(values[0]) ^ __float_as_uint(values[kChunkElements / 2]);
  }
};

/// Eight elements of 16 bits, two in each word.
template <NumberEncoding kEncoding>
struct WordChunk {
  static constexpr bool kIsBF16 = kEncoding == NumberEncoding::kBF16;
  uint32_t words[kChunkElements / 2];

  __device__ float Float(int i) const {
    if constexpr (kIsBF16) {
      return __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xFFFF0000u);
    } else {
      return HalfToFloat(words[i / 2] >> i % 2 * 16);
    }
  }
  __device__ double Double(int i) const {
    const auto code = static_cast<uint16_t>(words[i / 2] >> i % 2 * 16);
    double value;
    if constexpr (kIsBF16) {
      asm("cvt.f64.bf16 %0, %1;" : "=d"(value) : "h"(code));
    } else {
      asm("cvt.f64.f16 %0, %1;" : "=d"(value) : "h"(code));
    }
    return value;
  }
  /// Compares with the type's own smallest normal number; doubling a code removes the sign.
  __device__ bool AreAtLeast(float) const {
    constexpr uint32_t kTwice = 2 * (kIsBF16 ? 0x0080 : 0x0400);
    uint32_t least = 0xFFFFFFFFu;
#pragma unroll
    for (const uint32_t word : words) least = __viaddmin_u16x2(word, word, least);
    return (least & 0xFFFF) >= kTwice && least >= kTwice << 16;
  }
  __device__ uint32_t SomeBits() const { return words[0]; }
};

template <NumberEncoding kEncoding>
struct ChunkOf {
  using Type = WordChunk<kEncoding>;
};
template <>
struct ChunkOf<NumberEncoding::kF32> {
  using Type = FloatChunk;
};
template <>
struct ChunkOf<NumberEncoding::kBytes> {
  using Type = FloatChunk;
};

/// Eight 8-bit codes, decoded by their table.
__device__ inline FloatChunk BytesChunk(uint2 codes, const float* table) {
  FloatChunk chunk;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    chunk.values[i] = table[codes.x >> (8 * i) & 0xFF];
    chunk.values[4 + i] = table[codes.y >> (8 * i) & 0xFF];
  }
  return chunk;
}

/// Reads a chunk from an address in shared memory, which is a multiple of the chunk's size or of 16
/// bytes. `table` decodes kBytes. Where bit 4 of the address is set, the halves of a kF32 chunk
/// change places, which leaves the sums unchanged.
template <NumberEncoding kEncoding>
__device__ inline typename ChunkOf<kEncoding>::Type ReadSharedChunk(uint32_t from,
                                                                    const float* table) {
  typename ChunkOf<kEncoding>::Type chunk;
  if constexpr (kEncoding == NumberEncoding::kF32) {
#pragma unroll
    for (int unit = 0; unit < 2; ++unit) {
      float* to = chunk.values + 4 * unit;
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
                   : "r"(from ^ unit * 16));
    }
  } else if constexpr (kEncoding == NumberEncoding::kBytes) {
    uint2 raw;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(raw.x), "=r"(raw.y) : "r"(from));
    chunk = BytesChunk(raw, table);
  } else {
    uint32_t* to = chunk.words;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from));
  }
  return chunk;
}

/// a / b, correctly rounded, where a is a difference of two numbers of the types and b is not 0;
/// NaN where b is 0 or either is not finite. y approximates 1 / b to 2^-20.04 (measured on an H200
/// over all significands of binary32). One Newton step with the exact error of y leaves 2^-40.08.
/// The remainder of q is exact, because b has at most 24 significant bits; so the last step errs by
/// 2^-80.1 of the quotient before its rounding, and a quotient of 53 by 24 bits lies no nearer than
/// 2^-78 of itself to the middle between two numbers.
__device__ inline double Quotient(double a, double b) {
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(b));
  y = fma(y, fma(-b, y, 1.0), y);
  const double q = a * y;
  return fma(fma(-b, q, a), y, q);
}

/// Facts of the subject's type, as the kernel compares with them.
struct ChunkRanges {
  float largest, smallest_normal;
  uint32_t largest_squared_high;  ///< The upper half of the square's 64 bits.

  explicit ChunkRanges(const SubjectRange& range)
      : largest(static_cast<float>(range.largest_finite)),
        smallest_normal(static_cast<float>(range.smallest_normal)),
        largest_squared_high(static_cast<uint32_t>(
            std::bit_cast<uint64_t>(range.largest_finite * range.largest_finite) >> 32)) {}
};

struct ErrorPair {
  double absolute, relative;
};

/// The sums of a chunk. `element_of(i, subject, reference)` sets the numbers of element i;
/// `exceeds` becomes true where an error is larger than `largest`. With kTakesZeros a reference of
/// 0 has the relative error 0.
template <bool kTakesZeros, class ElementOf>
__device__ inline ErrorTerms MeasureElements(ElementOf element_of, const ErrorPair& largest,
                                             bool& exceeds) {
  const auto measure = [&](int pair) {
    double s[2], r[2], error[2], quotient[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      element_of(2 * pair + i, s[i], r[i]);
      error[i] = s[i] - r[i];
      quotient[i] = Quotient(error[i], r[i]);
      if (kTakesZeros && r[i] == 0) quotient[i] = 0;
      exceeds |= fabs(error[i]) > largest.absolute;
      exceeds |= fabs(quotient[i]) > largest.relative;
    }
    ErrorTerms terms;
    terms.values[kAbsError] = fabs(error[0]) + fabs(error[1]);
    terms.values[kSquaredError] = error[0] * error[0] + error[1] * error[1];
    terms.values[kSignedError] = error[0] + error[1];
    terms.values[kRelativeError] = fabs(quotient[0]) + fabs(quotient[1]);
    terms.values[kSquaredReference] = fma(r[1], r[1], r[0] * r[0]);
    terms.values[kSquaredSubject] = fma(s[1], s[1], s[0] * s[0]);
    terms.values[kProduct] = fma(s[1], r[1], s[0] * r[0]);
    return terms;
  };
  return SumInOrder<kChunkElements / 2>(measure);
}

__device__ inline uint32_t HighWord(double x) { return static_cast<uint32_t>(__double2hiint(x)); }
__device__ inline bool IsFinite(float x) { return fabsf(x) < INFINITY; }

/// What a thread counts.
struct ElementCounts {
  uint32_t finite = 0, relative = 0, saturated = 0, flushed_to_zero = 0, subnormal = 0;
};

/// A chunk of both sides.
template <NumberEncoding kSubject, NumberEncoding kReference>
struct ChunkPair {
  typename ChunkOf<kSubject>::Type s;
  typename ChunkOf<kReference>::Type r;
  bool inside;  // Whether the chunk lies within the block.

  /// Waits until every lane of the warp has its elements in registers. The result is 0 or 1,
  /// unknown to the compiler, so that code which depends on it comes after the wait.
  __device__ uint32_t Await() const {
    uint32_t token;
    asm volatile(
        "{\n"
        ".reg .pred any;\n"
        "setp.eq.u32 any, %1, 0;\n"
        "vote.sync.any.pred any, any, 0xFFFFFFFF;\n"
        "selp.u32 %0, 1, 0, any;\n"
        "}\n"
        : "=r"(token)
        : "r"(s.SomeBits() ^ r.SomeBits())
        : "memory");
    return token;
  }

  /// Counts element by element.
  __device__ void Count(const ChunkRanges& ranges, ElementCounts& counts) const {
#pragma unroll
    for (int i = 0; i < kChunkElements; ++i) {
      const float subject = s.Float(i);
      const float magnitude = fabsf(subject);
      const float reference = fabsf(r.Float(i));
      const bool finite = IsFinite(subject) && IsFinite(reference);
      counts.finite += finite;
      counts.relative += finite && reference > 0;
      counts.saturated += magnitude == ranges.largest && reference > magnitude;
      counts.flushed_to_zero += magnitude == 0 && reference > 0;
      counts.subnormal += magnitude > 0 && magnitude < ranges.smallest_normal;
    }
  }

  /// The sums, and whether an error is larger than `largest`. The whole warp calls this.
  __device__ ErrorTerms Measure(bool all_inside, const ChunkRanges& ranges,
                                const ErrorPair& largest, ElementCounts& counts,
                                bool& exceeds) const {
    bool chunk_exceeds = false;
    const auto element = [&](int i, double& subject, double& reference) {
      subject = s.Double(i);
      reference = r.Double(i);
    };
    ErrorTerms sums = MeasureElements<false>(element, largest, chunk_exceeds);
    const bool is_finite = HighWord(sums.values[kRelativeError]) < 0x7FF00000u;
    if (__any_sync(kWholeWarp, !is_finite || !all_inside)) {
      chunk_exceeds = false;
      sums = MeasureAny(largest, chunk_exceeds);
      if (inside) Count(ranges, counts);
    } else if (HighWord(sums.values[kSquaredSubject]) >= ranges.largest_squared_high ||
               !s.AreAtLeast(ranges.smallest_normal)) {
      Count(ranges, counts);
    } else {
      counts.finite += kChunkElements;
      counts.relative += kChunkElements;
    }
    exceeds |= chunk_exceeds;
    return sums;
  }

  /// The sums where elements may be outside the block, not finite, or have a zero reference.
  __device__ ErrorTerms MeasureAny(const ErrorPair& largest, bool& exceeds) const {
    const auto element = [&](int i, double& subject, double& reference) {
      const float a = s.Float(i);
      const float b = r.Float(i);
      const bool counts = inside && IsFinite(a) && IsFinite(b);
      subject = counts ? a : 0.0f;
      reference = counts ? b : 0.0f;
    };
    return MeasureElements<true>(element, largest, exceeds);
  }
};

}  // namespace quantgate
