// The fast form of the error kernel. The values are those of MeasureElement (error_found.h); what
// is different:
// - A warp's segment comes to shared memory by bulk copies, one a row, and each thread takes a run
//   of it, so that most sums need no other thread. The segment after it comes while the last
//   chunks, which are in registers by then, are added up.
// - A chunk of elements is first taken as if it had neither zero references nor anything that is
//   not finite. Those make its sum of relative errors infinite or NaN; then it is taken again with
//   a look at each element. Subjects to be counted show in the sum of squares and in the smallest
//   magnitude.
// - Left-out elements are 0 on both sides and add +0 where the plain kernel adds -0.0. The sign of
//   a zero sum reaches no report: a tensor's sums begin with +0.
// - Squares and products of binary32 numbers have at most 48 bits, which a double holds: one of two
//   that are added needs no rounding of its own, and a fused step gives the same bits.
// - The quotient uses that a divisor of at most 24 significant bits needs few steps.
// - Errors are only asked whether they are larger than the largest so far, of the warp or the
//   block of threads. Only then, which is rare, the warp looks for the largest of the segment.
#include <algorithm>
#include <bit>

#include "kernels/compare/error_found.h"
#include "kernels/compare/errors_tuned.h"

namespace quantgate {
namespace {

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
};

/// Eight elements of 16 bits, two a word.
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
  /// The smallest normal number is the type's; twice a code has no sign.
  __device__ bool AreAtLeast(float) const {
    constexpr uint32_t kTwice = 2 * (kIsBF16 ? 0x0080 : 0x0400);
    uint32_t least = 0xFFFFFFFFu;
#pragma unroll
    for (const uint32_t word : words) least = __viaddmin_u16x2(word, word, least);
    return (least & 0xFFFF) >= kTwice && least >= kTwice << 16;
  }
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

/// Reads a chunk, which lies at a multiple of its size or of 16 bytes; `table` is of kBytes. With
/// `turn` 1 halves of a chunk of kF32 change places, of which sums know nothing.
template <NumberEncoding kEncoding>
__device__ inline typename ChunkOf<kEncoding>::Type ReadChunk(const char* from, const float* table,
                                                              int turn = 0) {
  typename ChunkOf<kEncoding>::Type chunk;
  if constexpr (kEncoding == NumberEncoding::kF32) {
#pragma unroll
    for (int unit = 0; unit < 2; ++unit) {
      const float4 raw = reinterpret_cast<const float4*>(from)[unit ^ turn];
      chunk.values[4 * unit] = raw.x;
      chunk.values[4 * unit + 1] = raw.y;
      chunk.values[4 * unit + 2] = raw.z;
      chunk.values[4 * unit + 3] = raw.w;
    }
  } else if constexpr (kEncoding == NumberEncoding::kBytes) {
    const uint2 raw = *reinterpret_cast<const uint2*>(from);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      chunk.values[i] = table[raw.x >> (8 * i) & 0xFF];
      chunk.values[4 + i] = table[raw.y >> (8 * i) & 0xFF];
    }
  } else {
    const uint4 raw = *reinterpret_cast<const uint4*>(from);
    chunk.words[0] = raw.x;
    chunk.words[1] = raw.y;
    chunk.words[2] = raw.z;
    chunk.words[3] = raw.w;
  }
  return chunk;
}

/// a / b, correctly rounded, for a a difference of numbers of the types and b not 0; NaN for b = 0
/// and where either is not finite. y approximates 1 / b to 2^-20 (an H200, all significands of
/// binary32), and e is its exact error. One step leaves 2^-39 of a divisor of at most 11
/// significant bits, 2^-51 of one of 24. The remainder of q is exact, because b has so few bits; so
/// the last step errs by 2^-77 or 2^-101 of the quotient before its rounding, and a quotient of 53
/// by 11 (24) bits lies no nearer than 2^-65 (2^-78) of itself to the middle between two numbers.
template <NumberEncoding kReference>
__device__ inline double Quotient(double a, double b) {
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(b));
  const double e = fma(-b, y, 1.0);
  y = fma(y, kReference == NumberEncoding::kF32 ? fma(e, e, e) : e, y);
  const double q = a * y;
  return fma(fma(-b, q, a), y, q);
}

/// Facts of the subject's type, as the kernel compares with them.
struct ChunkRanges {
  float largest, smallest_normal;
  uint32_t largest_squared_high;  ///< Of the square's 64 bits.

  explicit ChunkRanges(const SubjectRange& range)
      : largest(static_cast<float>(range.largest_finite)),
        smallest_normal(static_cast<float>(range.smallest_normal)),
        largest_squared_high(static_cast<uint32_t>(
            std::bit_cast<uint64_t>(range.largest_finite * range.largest_finite) >> 32)) {}
};

struct ErrorPair {
  double absolute, relative;
};

/// The sums of a chunk. `element_of(i)` gives element i's numbers; `exceeds` becomes true where an
/// error is larger than `largest`. With kTakesZeros a reference of 0 has the quotient 0.
template <NumberEncoding kReference, bool kTakesZeros, class ElementOf>
__device__ inline ErrorTerms MeasureElements(ElementOf element_of, const ErrorPair& largest,
                                             bool& exceeds) {
  const auto measure = [&](int pair) {
    double s[2], r[2], error[2], quotient[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      element_of(2 * pair + i, s[i], r[i]);
      error[i] = s[i] - r[i];
      quotient[i] = Quotient<kReference>(error[i], r[i]);
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
  bool inside;  // Of the block.

  /// Element by element.
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
    ErrorTerms sums = MeasureElements<kReference, false>(element, largest, chunk_exceeds);
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

  /// The same of any elements.
  __device__ ErrorTerms MeasureAny(const ErrorPair& largest, bool& exceeds) const {
    const auto element = [&](int i, double& subject, double& reference) {
      const float a = s.Float(i);
      const float b = r.Float(i);
      const bool counts = inside && IsFinite(a) && IsFinite(b);
      subject = counts ? a : 0.0f;
      reference = counts ? b : 0.0f;
    };
    return MeasureElements<kReference, true>(element, largest, exceeds);
  }
};

/// Elements of a segment that one thread adds up by itself.
inline constexpr int kRunElements = kSegmentElements / 32;
inline constexpr int kRunChunks = kRunElements / kChunkElements;

/// The next segment that a warp fetches, in shared memory: its first lane alone looks at it. Blocks
/// are small enough for 32 bits (Fits): positions, and offsets in the tensor from the block's first
/// element.
struct NextSegment {
  const char* subject;  ///< The block's first element.
  const char* reference;
  uint32_t count, width, stride;
  uint32_t step, step_columns, step_offset;
  uint32_t position, column, offset;  ///< Of the segment's first element.
};

/// How a warp gets its segments.
template <NumberEncoding kSubject, NumberEncoding kReference>
class SegmentFeed {
 public:
  static constexpr int kSubjectBytes = kSegmentElements * kElementBytes<kSubject>;
  static constexpr int kReferenceBytes = kSegmentElements * kElementBytes<kReference>;
  static constexpr int kBytes = kSubjectBytes + kReferenceBytes;

  __device__ SegmentFeed(const ErrorParameters& parameters, const BlockShape& block,
                         uint32_t segment, uint32_t segment_step, const char* memory,
                         const uint64_t* barrier, NextSegment& next)
      : memory_(static_cast<uint32_t>(__cvta_generic_to_shared(memory))),
        barrier_(static_cast<uint32_t>(__cvta_generic_to_shared(barrier))),
        next_(next) {
    if (threadIdx.x % 32 != 0) return;
    next.subject =
        static_cast<const char*>(parameters.subject.data) + block.first * kElementBytes<kSubject>;
    next.reference = static_cast<const char*>(parameters.reference.data) +
                     block.first * kElementBytes<kReference>;
    next.count = static_cast<uint32_t>(block.count);
    next.width = static_cast<uint32_t>(block.width);
    next.stride = static_cast<uint32_t>(block.stride);
    next.step = segment_step * kSegmentElements;
    next.step_columns = next.step % next.width;
    next.step_offset = next.step / next.width * next.stride + next.step_columns;
    next.position = segment * kSegmentElements;
    next.column = next.position % next.width;
    next.offset = next.position / next.width * next.stride + next.column;
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier_) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }

  /// Begins to copy the next segment, where there is one. The warp has met since it last read.
  __device__ void Fetch() {
    if (threadIdx.x % 32 != 0 || next_.position >= next_.count) return;
    CopyRows(min(uint32_t{kSegmentElements}, next_.count - next_.position));
    next_.position += next_.step;
    next_.offset += next_.step_offset;
    next_.column += next_.step_columns;
    if (next_.column >= next_.width) {
      next_.column -= next_.width;
      next_.offset += next_.stride - next_.width;
    }
  }

  /// Waits for the segment of the fetch of that number.
  __device__ void Wait(uint32_t number) const {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(barrier_),
        "r"(number & 1)
        : "memory");
  }

 private:
  /// One thread copies the rows that the next `length` elements lie in.
  __device__ void CopyRows(uint32_t length) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier_),
                 "r"(length * (kElementBytes<kSubject> + kElementBytes<kReference>))
                 : "memory");
    uint32_t from = next_.offset, row = min(length, next_.width - next_.column);
#pragma unroll 1
    for (uint32_t to = 0;;) {
      Copy<kElementBytes<kSubject>>(memory_, next_.subject, to, from, row);
      Copy<kElementBytes<kReference>>(memory_ + kSubjectBytes, next_.reference, to, from, row);
      to += row;
      if (to == length) break;
      from += row + next_.stride - next_.width;
      row = min(length - to, next_.width);
    }
  }

  template <int kSize>
  __device__ void Copy(uint32_t memory, const char* data, uint32_t to, uint32_t from,
                       uint32_t elements) const {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(memory + to * kSize),
        "l"(data + uint64_t{from} * kSize), "r"(elements * kSize), "r"(barrier_)
        : "memory");
  }

  const uint32_t memory_, barrier_;  // Addresses of shared memory.
  NextSegment& next_;
};

struct LargestPair {
  LargestFound absolute, relative;
};

/// The largest errors of a segment, and the lowest positions that have them, in every lane.
template <NumberEncoding kSubject, NumberEncoding kReference>
__device__ __noinline__ LargestPair FindLargest(const ErrorParameters& parameters,
                                                const BlockShape& block, uint32_t segment,
                                                const float* tables) {
  LargestPair found;
  const auto* subject = static_cast<const char*>(parameters.subject.data);
  const auto* reference = static_cast<const char*>(parameters.reference.data);
  const auto count = static_cast<uint32_t>(block.count), width = static_cast<uint32_t>(block.width);
  uint32_t position = segment * kSegmentElements + threadIdx.x % 32 * kRunElements;
  const uint32_t end = min(count, position + kRunElements);
#pragma unroll 1
  for (; position < end; position += kChunkElements) {
    const int64_t index = block.first + position / width * block.stride + position % width;
    const auto s = ReadChunk<kSubject>(subject + index * kElementBytes<kSubject>, tables);
    const auto r =
        ReadChunk<kReference>(reference + index * kElementBytes<kReference>, tables + 256);
#pragma unroll
    for (int i = 0; i < kChunkElements; ++i) {
      const double error = s.Double(i) - r.Double(i);
      if (!(IsFinite(s.Float(i)) && IsFinite(r.Float(i)))) continue;
      found.absolute.Offer(fabs(error), position + i);
      if (r.Float(i) == 0) continue;
      found.relative.Offer(fabs(Quotient<kReference>(error, r.Double(i))), position + i);
    }
  }
  found.absolute.MergeLanes();
  found.relative.MergeLanes();
  return found;
}

/// The largest error that a warp of the block of threads has found, by its bits: errors are not
/// negative. Read without waiting for other warps: any earlier value does too.
struct SharedLargest {
  unsigned long long bits[2];
};

/// The largest number below what is found there, so that an equal error still exceeds it: its
/// position may be lower. Below 0 where nothing is found.
__device__ inline double BelowShared(const unsigned long long* bits) {
  unsigned long long value;
  asm volatile("ld.relaxed.cta.shared::cta.u64 %0, [%1];"
               : "=l"(value)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(bits))));
  return value == 0 ? -1.0 : __longlong_as_double(static_cast<long long>(value - 1));
}

/// The largest errors of a warp's segments so far, which are in shared memory too.
class WarpLargest {
 public:
  __device__ WarpLargest(LargestPair& found, SharedLargest& shared)
      : found_(found), shared_(shared) {
    if (threadIdx.x % 32 == 0) found = {};
    __syncwarp();
  }

  /// What an error of the next segment must exceed to matter.
  __device__ ErrorPair Threshold() const {
    return {fmax(found_.absolute.value, BelowShared(&shared_.bits[0])),
            fmax(found_.relative.value, BelowShared(&shared_.bits[1]))};
  }
  /// Takes what a segment has, which every lane knows; segments come by their positions.
  __device__ void Offer(const LargestPair& other) {
    if (threadIdx.x % 32 == 0) {
      found_.absolute.Offer(other.absolute.value, other.absolute.position);
      found_.relative.Offer(other.relative.value, other.relative.position);
      Publish(found_.absolute.value, &shared_.bits[0]);
      Publish(found_.relative.value, &shared_.bits[1]);
    }
    __syncwarp();
  }
  __device__ const LargestPair& found() const { return found_; }

 private:
  __device__ static void Publish(double value, unsigned long long* bits) {
    if (value > 0) atomicMax(bits, static_cast<unsigned long long>(__double_as_longlong(value)));
  }

  LargestPair& found_;
  SharedLargest& shared_;
};

/// The sums over the warp: of series i / 4 for lane i. Every eight lanes' sums are added by one
/// thread. The warp has met since `memory` was last read.
__device__ inline double SumOverWarp(const ErrorTerms& terms,
                                     double (&memory)[kSegmentSeries][32]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kErrorSeriesCount; ++i) memory[i][lane] = terms.values[i];
  __syncwarp();
  const auto* from =
      reinterpret_cast<const double2*>(&memory[min(lane / 4, kErrorSeriesCount - 1)][lane % 4 * 8]);
  // Lanes that would meet at a bank take branches of the tree in other orders.
  const int turn = lane / 2 % 2 + lane / 4 % 2 * 2;
  double pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const double2 pair = from[i ^ turn];
    pairs[i] = pair.x + pair.y;
  }
  double sum = (pairs[0] + pairs[1]) + (pairs[2] + pairs[3]);
  sum += __shfl_xor_sync(kWholeWarp, sum, 1);
  sum += __shfl_xor_sync(kWholeWarp, sum, 2);
  return lane / 4 < kErrorSeriesCount ? sum : 0;
}

template <NumberEncoding kSubject, NumberEncoding kReference>
__global__ void __launch_bounds__(kSegmentThreads, 2)
    MeasureTuned(const __grid_constant__ ErrorParameters parameters,
                 const __grid_constant__ ChunkRanges ranges) {
  using Feed = SegmentFeed<kSubject, kReference>;
  extern __shared__ __align__(128) char memory[];
  __shared__ float tables[512];
  __shared__ __align__(16) double run_sums[kSegmentWarps][kSegmentSeries][32];
  __shared__ uint64_t barriers[kSegmentWarps];
  __shared__ SharedLargest shared_largest;
  __shared__ LargestPair largest_of_warp[kSegmentWarps];
  __shared__ NextSegment next_segments[kSegmentWarps];
  LoadByteValues(parameters.subject, tables);
  LoadByteValues(parameters.reference, tables + 256);
  if (threadIdx.x < 2) shared_largest.bits[threadIdx.x] = 0;
  const BlockShape block(parameters.cut, blockIdx.y);
  double* sums = parameters.sums + blockIdx.y * parameters.cut.segments * kSegmentSeries;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto segments = static_cast<uint32_t>(block.segments());
  const uint32_t step = gridDim.x * kSegmentWarps;
  const uint32_t first_segment = blockIdx.x * kSegmentWarps + warp;
  const char* subject = memory + warp * Feed::kBytes;
  Feed feed(parameters, block, first_segment, step, subject, &barriers[warp], next_segments[warp]);
  __syncthreads();
  feed.Fetch();
  const int first = lane * kRunElements;
  const char* run_subject = subject + first * kElementBytes<kSubject>;
  const char* run_reference = subject + Feed::kSubjectBytes + first * kElementBytes<kReference>;
  // Threads whose runs lie in the same banks take their chunks in other orders, of which the sums
  // know nothing: whole branches of the tree change places.
  const int turn = lane / 2 % kRunChunks;
  const int half_turn =
      kSubject == NumberEncoding::kF32 && kReference == NumberEncoding::kF32 ? lane % 2 : 0;
  WarpLargest largest(largest_of_warp[warp], shared_largest);
  ElementCounts counts;
  uint32_t number = 0;
  for (uint32_t segment = first_segment; segment < segments; segment += step, ++number) {
    const uint32_t left = static_cast<uint32_t>(block.count) - segment * kSegmentElements;
    const ErrorPair threshold = largest.Threshold();
    feed.Wait(number);
    ErrorTerms run = {};
    bool exceeds = false;
    const auto measure = [&](int i) {
      const int begin = (i ^ turn) * kChunkElements;
      const ChunkPair<kSubject, kReference> chunk = {
          ReadChunk<kSubject>(run_subject + begin * kElementBytes<kSubject>, tables, half_turn),
          ReadChunk<kReference>(run_reference + begin * kElementBytes<kReference>, tables + 256,
                                half_turn),
          first + begin < left};
      if (i == kRunChunks - 1) {
        __syncwarp();
        feed.Fetch();
      }
      return chunk.Measure(left >= kSegmentElements, ranges, threshold, counts, exceeds);
    };
    // From 0 on, which changes no sum but the sign of a zero.
#pragma unroll 1  // The loop is to stay in the instruction cache.
    for (int i = 0; i < kRunChunks; i += 2) run = run + SumInOrder<2>(measure, i);
    const double total = SumOverWarp(run, run_sums[warp]);
    if (lane % 4 == 0) sums[segment * kSegmentSeries + lane / 4] = total;
    if (__any_sync(kWholeWarp, exceeds)) {
      largest.Offer(FindLargest<kSubject, kReference>(parameters, block, segment, tables));
    }
  }
  FoundErrors found;
  found.max_abs = largest.found().absolute;
  found.max_rel = largest.found().relative;
  found.finite_count = counts.finite;
  found.relative_count = counts.relative;
  found.saturated_count = counts.saturated;
  found.flushed_to_zero_count = counts.flushed_to_zero;
  found.subnormal_count = counts.subnormal;
  StoreFound(found, parameters.slices + blockIdx.y * parameters.cut.slices + blockIdx.x);
}

template <NumberEncoding kSubject, NumberEncoding kReference>
cudaError_t Launch(const ErrorParameters& parameters, cudaStream_t stream) {
  constexpr int kBytes = kSegmentWarps * SegmentFeed<kSubject, kReference>::kBytes;
  const dim3 grid(static_cast<unsigned>(parameters.cut.slices),
                  static_cast<unsigned>(parameters.cut.rows * parameters.cut.columns));
  const auto kernel = MeasureTuned<kSubject, kReference>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  kernel<<<grid, kSegmentThreads, kBytes, stream>>>(parameters, ChunkRanges(parameters.range));
  return cudaGetLastError();
}

/// Blocks begin at whole chunks in every row, and rows of blocks at whole units of bulk copies.
bool Fits(const ErrorParameters& parameters) {
  constexpr int kUnit = 16;  // Bytes.
  const BlockCut& cut = parameters.cut;
  const int unit_elements = kUnit / std::min(parameters.subject_bytes, parameters.reference_bytes);
  const int64_t elements = std::max(kChunkElements, unit_elements);
  if (cut.column_count % (elements * cut.columns) != 0) return false;
  // SegmentFeed's offsets, with a step beyond the end.
  const int64_t stepped = int64_t{cut.slices} * kSegmentWarps * kSegmentElements;
  const int64_t rows = cut.row_count / cut.rows + 1 + stepped / (cut.column_count / cut.columns);
  if ((rows + 1) * cut.column_count >= int64_t{1} << 31) return false;
  const auto is_aligned = [](const NumberSource& source) {
    return reinterpret_cast<uintptr_t>(source.data) % kUnit == 0;
  };
  return is_aligned(parameters.subject) && is_aligned(parameters.reference);
}

}  // namespace

bool LaunchTunedSegments(const ErrorParameters& parameters, cudaStream_t stream,
                         cudaError_t& error) {
  using enum NumberEncoding;
  if (!Fits(parameters)) return false;
  const NumberEncoding subject = parameters.subject.encoding;
  const NumberEncoding reference = parameters.reference.encoding;
  if (subject == kF32 && reference == kF32) {
    error = Launch<kF32, kF32>(parameters, stream);
  } else if (subject == kBF16 && reference == kF32) {
    error = Launch<kBF16, kF32>(parameters, stream);
  } else if (subject == kBF16 && reference == kBF16) {
    error = Launch<kBF16, kBF16>(parameters, stream);
  } else if (subject == kF16 && reference == kF32) {
    error = Launch<kF16, kF32>(parameters, stream);
  } else if (subject == kF16 && reference == kF16) {
    error = Launch<kF16, kF16>(parameters, stream);
  } else if (subject == kBytes && reference == kF32) {
    error = Launch<kBytes, kF32>(parameters, stream);
  } else if (subject == kBytes && reference == kBytes) {
    error = Launch<kBytes, kBytes>(parameters, stream);
  } else {
    return false;
  }
  return true;
}

}  // namespace quantgate
