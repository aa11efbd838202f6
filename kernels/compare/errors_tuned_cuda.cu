// The fast form of the error kernel. The values are those of MeasureElement (error_found.h); what
// is different:
// - A thread loads its eight elements at once, the next ones before it measures these.
// - Elements that are neither special nor zero take no branch; a chunk that has others looks at it
//   again, one element at a time, for the counts.
// - Left-out elements are 0 on both sides and add +0 where the plain kernel adds -0.0. The sign of
//   a zero sum reaches no report: a tensor's sums begin with +0.
// - The quotient uses that a divisor of at most 24 significant bits needs few steps.
// - Maxima are watched by the upper words of the errors; only what may be larger is looked at.
// - Sums cross the warp by halves: each exchange adds two lanes' sums of one half of the series and
//   stretches, and gives the other half away.
#include "kernels/compare/error_found.h"
#include "kernels/compare/errors_tuned.h"

namespace quantgate {
namespace {

/// Eight elements as loaded, and as numbers.
template <NumberEncoding kEncoding>
struct Chunk;
template <>
struct Chunk<NumberEncoding::kF32> {
  uint4 raw[2];
  __device__ void Load(const void* data, int64_t at) {
    const auto* from = reinterpret_cast<const uint4*>(static_cast<const float*>(data) + at);
    raw[0] = __ldcs(from);
    raw[1] = __ldcs(from + 1);
  }
  __device__ void Values(const float*, float (&values)[kChunkElements]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      values[4 * i] = __uint_as_float(raw[i].x);
      values[4 * i + 1] = __uint_as_float(raw[i].y);
      values[4 * i + 2] = __uint_as_float(raw[i].z);
      values[4 * i + 3] = __uint_as_float(raw[i].w);
    }
  }
};
template <NumberEncoding kEncoding>
struct HalvesChunk {
  uint4 raw;
  __device__ void Load(const void* data, int64_t at) {
    raw = __ldcs(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(data) + at));
  }
  __device__ void Values(const float*, float (&values)[kChunkElements]) const {
    const uint32_t words[] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kEncoding == NumberEncoding::kBF16) {
        values[2 * i] = __uint_as_float(words[i] << 16);
        values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
      } else {
        values[2 * i] = HalfToFloat(words[i]);
        values[2 * i + 1] = HalfToFloat(words[i] >> 16);
      }
    }
  }
};
template <>
struct Chunk<NumberEncoding::kBF16> : HalvesChunk<NumberEncoding::kBF16> {};
template <>
struct Chunk<NumberEncoding::kF16> : HalvesChunk<NumberEncoding::kF16> {};
template <>
struct Chunk<NumberEncoding::kBytes> {
  uint2 raw;
  __device__ void Load(const void* data, int64_t at) {
    raw = __ldcs(reinterpret_cast<const uint2*>(static_cast<const uint8_t*>(data) + at));
  }
  __device__ void Values(const float* table, float (&values)[kChunkElements]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[i] = table[raw.x >> (8 * i) & 0xFF];
      values[4 + i] = table[raw.y >> (8 * i) & 0xFF];
    }
  }
};

__device__ double Widen(float value) { return value; }

/// a / |b|, correctly rounded, for a >= 0 and b != 0 of at most 24 significant bits, both of the
/// range of differences of binary32 numbers. y approximates 1 / |b| to 2^-22.9 and, after one step,
/// to 2^-45; the remainder of q is exact, because b has so few bits; so the last step errs by
/// 2^-90 of the quotient before its rounding, and a quotient of 53 by 24 bits lies no nearer than
/// 2^-78 of itself to the middle between two numbers. For b = 0: not a number, or infinite.
__device__ double Quotient(double a, double b) {
  const int high = __double2hiint(b);
  const uint32_t significand = __funnelshift_l(__double2loint(b), high, 3) & 0x7FFFFF;
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;"
      : "=f"(reciprocal)
      : "f"(__uint_as_float(0x3F800000u | significand)));
  const uint32_t bits = __float_as_uint(reciprocal);
  // To binary64, times 2 to the negated exponent of b: both biases at once.
  const uint32_t exponent = 0x38000000u + 0x3FF00000u - (high & 0x7FF00000);
  double y =
      __hiloint2double(static_cast<int>((bits >> 3) + exponent), static_cast<int>(bits << 29));
  y = fma(y, fma(-fabs(b), y, 1.0), y);
  const double q = a * y;
  return fma(fma(-fabs(b), q, a), y, q);
}

/// Elements of one thread's chunk that need no second look have a magnitude in [low, end).
struct OrdinaryRange {
  uint32_t twice_low, twice_length;
  __device__ OrdinaryRange(float low, float end)
      : twice_low(2 * std::bit_cast<uint32_t>(low)),
        twice_length(2 * (std::bit_cast<uint32_t>(end) - std::bit_cast<uint32_t>(low))) {}
  /// Twice the distance of |value| above the low end, wrapped around below it.
  __device__ uint32_t Above(float value) const {
    return 2 * std::bit_cast<uint32_t>(value) - twice_low;
  }
};

struct ChunkRanges {
  float largest, smallest_normal;
  OrdinaryRange subject, reference;
  __device__ explicit ChunkRanges(const SubjectRange& range)
      : largest(static_cast<float>(range.largest_finite)),
        smallest_normal(static_cast<float>(range.smallest_normal)),
        subject(smallest_normal, largest),
        reference(std::bit_cast<float>(1u), std::bit_cast<float>(0x7F800000u)) {}
};

/// Upper words of the largest errors that a block of threads has found so far; 0 while they are 0.
/// An error whose upper word is less is not the largest.
struct SharedReach {
  int abs, rel;
};

__device__ inline int UpperWord(double largest) {
  return largest > 0 ? __double2hiint(largest) : 0;
}

/// Looks at each element of the chunk from `index` for the maxima, in memory: rarely called, it
/// must not cost the caller its registers.
template <NumberEncoding kSubject, NumberEncoding kReference>
__device__ __noinline__ void OfferChunk(const void* subject, const void* reference,
                                        const float* tables, int64_t index, int64_t position,
                                        FoundErrors& found, SharedReach* reach) {
#pragma unroll
  for (int i = 0; i < kChunkElements; ++i) {
    const double s = FloatAt(subject, kSubject, tables, index + i);
    const double r = FloatAt(reference, kReference, tables + 256, index + i);
    if (!(fabs(s) < INFINITY && fabs(r) < INFINITY)) continue;
    const double error = fabs(s - r);
    found.max_abs.Offer(error, position + i);
    if (r != 0) found.max_rel.Offer(Quotient(error, r), position + i);
  }
  atomicMax(&reach->abs, UpperWord(found.max_abs.value));
  atomicMax(&reach->rel, UpperWord(found.max_rel.value));
}

/// The chunks that one thread measures.
template <NumberEncoding kSubject, NumberEncoding kReference>
class ChunkMeasure {
 public:
  __device__ ChunkMeasure(const ErrorParameters& parameters, const float* tables,
                          SharedReach* reach)
      : subject_(parameters.subject.data),
        reference_(parameters.reference.data),
        tables_(tables),
        reach_(reach),
        ranges_(parameters.range) {}

  /// The sums of the terms of the chunk at `index`; what else it has goes to `found`.
  __device__ ErrorTerms Measure(const Chunk<kSubject>& subject, const Chunk<kReference>& reference,
                                int64_t index, int64_t position, FoundErrors& found) {
    float s[kChunkElements], r[kChunkElements];
    subject.Values(tables_, s);
    reference.Values(tables_ + 256, r);
    uint32_t s_above = 0, r_above = 0;
#pragma unroll
    for (int i = 0; i < kChunkElements; ++i) {
      s_above = max(s_above, ranges_.subject.Above(s[i]));
      r_above = max(r_above, ranges_.reference.Above(r[i]));
    }
    if (s_above >= ranges_.subject.twice_length || r_above >= ranges_.reference.twice_length) {
      CountSpecial(s, r, found);
    } else {
      ordinary_chunks_ += 1;
    }
    int abs_reached = 0, rel_reached = 0;
    const auto measure = [&](int i) {
      const double subject = Widen(s[i]), reference = Widen(r[i]);
      const double error = subject - reference;
      double quotient = Quotient(fabs(error), reference);
      if (r[i] == 0) quotient = 0;
      abs_reached = max(abs_reached, __double2hiint(error) & 0x7FFFFFFF);
      rel_reached = max(rel_reached, __double2hiint(quotient));
      ErrorTerms terms;
      terms.values[kAbsError] = fabs(error);
      terms.values[kSquaredError] = error * error;
      terms.values[kSignedError] = error;
      terms.values[kRelativeError] = quotient;
      terms.values[kSquaredReference] = reference * reference;
      terms.values[kSquaredSubject] = subject * subject;
      terms.values[kProduct] = subject * reference;
      return terms;
    };
    const ErrorTerms sums = SumInOrder<kChunkElements>(measure);
    const volatile SharedReach& reach = *reach_;
    if (abs_reached >= max(reach.abs, least_abs_) || rel_reached >= max(reach.rel, least_rel_)) {
      OfferChunk<kSubject, kReference>(subject_, reference_, tables_, index, position, found,
                                       reach_);
      // A thread offers its first zero, and no further one.
      least_abs_ = found.max_abs.value >= 0 ? 1 : 0;
      least_rel_ = found.max_rel.value >= 0 ? 1 : 0;
    }
    return sums;
  }

  /// Adds the elements of chunks that were not counted one by one.
  __device__ void AddOrdinary(FoundErrors& found) const {
    found.finite_count += int64_t{kChunkElements} * ordinary_chunks_;
    found.relative_count += int64_t{kChunkElements} * ordinary_chunks_;
  }

 private:
  /// Counts a chunk with elements that are not ordinary; leaves 0 for both sides of those that are
  /// not finite.
  __device__ void CountSpecial(float (&s)[kChunkElements], float (&r)[kChunkElements],
                               FoundErrors& found) const {
    uint32_t counts = 0;  // Four bits each.
#pragma unroll
    for (int i = 0; i < kChunkElements; ++i) {
      const float s_magnitude = fabsf(s[i]), r_magnitude = fabsf(r[i]);
      const bool finite = s_magnitude < INFINITY && r_magnitude < INFINITY;
      if (s_magnitude == ranges_.largest && r_magnitude > s_magnitude) counts += 1u << 8;
      if (s_magnitude == 0 && r_magnitude > 0) counts += 1u << 12;
      if (s_magnitude > 0 && s_magnitude < ranges_.smallest_normal) counts += 1u << 16;
      if (finite) counts += r_magnitude > 0 ? 0x11 : 0x01;
      if (!finite) s[i] = r[i] = 0;
    }
    found.finite_count += counts & 0xF;
    found.relative_count += counts >> 4 & 0xF;
    found.saturated_count += counts >> 8 & 0xF;
    found.flushed_to_zero_count += counts >> 12 & 0xF;
    found.subnormal_count += counts >> 16 & 0xF;
  }

  const void* const subject_;
  const void* const reference_;
  const float* const tables_;
  SharedReach* const reach_;
  const ChunkRanges ranges_;
  // What an error's upper word must be at least, whatever the block of threads has found.
  int least_abs_ = 0, least_rel_ = 0;
  uint32_t ordinary_chunks_ = 0;
};

/// One exchange across the warp: of kCount pairs, each lane keeps and adds the first or the second
/// ones, and its partner the others.
template <int kCount>
__device__ inline void Exchange(const double* first, const double* second, int distance,
                                double* kept) {
  const bool keeps_second = (threadIdx.x & distance) != 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const double keep = keeps_second ? second[i] : first[i];
    const double give = keeps_second ? first[i] : second[i];
    kept[i] = keep + __shfl_xor_sync(kWholeWarp, give, distance);
  }
}

/// Adds one segment's sums over lanes and stretches and stores them. `pairs` has the sums of two
/// stretches each, already added over neighbouring lanes: of the first stretch in even lanes.
__device__ void StoreExchanged(const ErrorTerms (&pairs)[2], double* to) {
  static_assert(kSegmentStretches == 4 && kErrorSeriesCount == 7);
  double seven[8], four[4], two[2], one;
  Exchange<7>(pairs[0].values, pairs[1].values, 2, seven);
  seven[7] = 0;
  Exchange<4>(seven, seven + 4, 4, four);
  Exchange<2>(four, four + 2, 8, two);
  Exchange<1>(two, two + 1, 16, &one);
  // Lanes now differ in the stretch by bits 0 and 1, in the series by bits 2, 3 and 4.
  one += __shfl_xor_sync(kWholeWarp, one, 1);
  one += __shfl_xor_sync(kWholeWarp, one, 2);
  const int lane = threadIdx.x % 32;
  if (lane % 4 == 0) to[(lane & 4) | (lane >> 2 & 2) | (lane >> 4 & 1)] = one;
}

/// The chunks of one thread: of each of its warp's segments one chunk a stretch.
class ChunkWalk {
 public:
  __device__ ChunkWalk(const BlockShape& block, int64_t segment, int64_t segment_step)
      : block_(block),
        position_(segment * kSegmentElements + threadIdx.x % 32 * kChunkElements),
        index_(block.IndexOf(position_)),
        column_(static_cast<int>(position_ % block.width)) {
    near_ = StepOf(kStretchElements);
    far_ = StepOf((segment_step - 1) * kSegmentElements + kStretchElements);
  }
  __device__ int64_t position() const { return position_; }
  __device__ int64_t index() const { return index_; }
  __device__ bool inside() const { return position_ < block_.count; }
  /// To the next stretch of the segment, or from its last to the first of the next segment.
  __device__ void Advance(bool to_next_segment) {
    const Step& step = to_next_segment ? far_ : near_;
    position_ += step.positions;
    index_ += step.indices;
    column_ += step.columns;
    if (column_ >= block_.width) {
      column_ -= static_cast<int>(block_.width);
      index_ += block_.stride - block_.width;
    }
  }

 private:
  struct Step {
    int64_t positions, indices;
    int columns;
  };
  __device__ Step StepOf(int64_t positions) const {
    const int64_t rows = positions / block_.width, columns = positions % block_.width;
    return {positions, rows * block_.stride + columns, static_cast<int>(columns)};
  }

  const BlockShape& block_;
  int64_t position_, index_;
  int column_;
  Step near_, far_;
};

template <NumberEncoding kSubject, NumberEncoding kReference>
__global__ void __launch_bounds__(kErrorThreads, 2)
    MeasureTuned(const __grid_constant__ ErrorParameters parameters) {
  __shared__ float tables[512];
  __shared__ SharedReach reach;
  if (threadIdx.x == 0) reach = {0, 0};
  LoadByteValues(parameters.subject, tables);
  LoadByteValues(parameters.reference, tables + 256);
  __syncthreads();
  const BlockShape block(parameters.cut, blockIdx.y);
  double* sums = parameters.sums + blockIdx.y * parameters.cut.segments * kSegmentSeries;
  const int64_t segments = block.segments();
  const int64_t step = int64_t{gridDim.x} * kErrorWarps;
  int64_t segment = int64_t{blockIdx.x} * kErrorWarps + threadIdx.x / 32;
  ChunkWalk walk(block, segment, step);
  Chunk<kSubject> next_subject;
  Chunk<kReference> next_reference;
  const auto load = [&] {
    if (!walk.inside()) return;
    next_subject.Load(parameters.subject.data, walk.index());
    next_reference.Load(parameters.reference.data, walk.index());
  };
  load();
  ChunkMeasure<kSubject, kReference> chunks(parameters, tables, &reach);
  FoundErrors found;
  for (; segment < segments; segment += step) {
    ErrorTerms pairs[2], first;
#pragma unroll
    for (int stretch = 0; stretch < kSegmentStretches; ++stretch) {
      const bool inside = walk.inside();
      const int64_t position = walk.position(), index = walk.index();
      const Chunk<kSubject> subject = next_subject;
      const Chunk<kReference> reference = next_reference;
      walk.Advance(stretch == kSegmentStretches - 1);
      load();
      ErrorTerms terms = {};
      if (inside) terms = chunks.Measure(subject, reference, index, position, found);
      if (stretch % 2 == 0) {
        first = terms;
      } else {
        Exchange<kErrorSeriesCount>(first.values, terms.values, 1, pairs[stretch / 2].values);
      }
    }
    StoreExchanged(pairs, sums + segment * kSegmentSeries);
  }
  chunks.AddOrdinary(found);
  StoreFound(found, parameters.slices + blockIdx.y * parameters.cut.slices + blockIdx.x);
}

template <NumberEncoding kSubject, NumberEncoding kReference>
void Launch(const ErrorParameters& parameters, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(parameters.cut.slices),
                  static_cast<unsigned>(parameters.cut.rows * parameters.cut.columns));
  MeasureTuned<kSubject, kReference><<<grid, kErrorThreads, 0, stream>>>(parameters);
}

/// Blocks begin at whole chunks in every row, and chunks at whole vectors.
bool Fits(const ErrorParameters& parameters) {
  const BlockCut& cut = parameters.cut;
  if (cut.column_count % (int64_t{kChunkElements} * cut.columns) != 0) return false;
  if (cut.column_count / cut.columns >= int64_t{1} << 30) return false;  // ChunkWalk's columns.
  const auto is_aligned = [](const NumberSource& source, int bytes) {
    const uintptr_t unit = bytes == 1 ? 8 : 16;
    return reinterpret_cast<uintptr_t>(source.data) % unit == 0;
  };
  return is_aligned(parameters.subject, parameters.subject_bytes) &&
         is_aligned(parameters.reference, parameters.reference_bytes);
}

}  // namespace

bool LaunchTunedSegments(const ErrorParameters& parameters, cudaStream_t stream) {
  using enum NumberEncoding;
  if (!Fits(parameters)) return false;
  const NumberEncoding subject = parameters.subject.encoding;
  const NumberEncoding reference = parameters.reference.encoding;
  if (subject == kF32 && reference == kF32) {
    Launch<kF32, kF32>(parameters, stream);
  } else if (subject == kBF16 && reference == kF32) {
    Launch<kBF16, kF32>(parameters, stream);
  } else if (subject == kBF16 && reference == kBF16) {
    Launch<kBF16, kBF16>(parameters, stream);
  } else if (subject == kF16 && reference == kF32) {
    Launch<kF16, kF32>(parameters, stream);
  } else if (subject == kF16 && reference == kF16) {
    Launch<kF16, kF16>(parameters, stream);
  } else if (subject == kBytes && reference == kF32) {
    Launch<kBytes, kF32>(parameters, stream);
  } else if (subject == kBytes && reference == kBytes) {
    Launch<kBytes, kBytes>(parameters, stream);
  } else {
    return false;
  }
  return true;
}

}  // namespace quantgate
