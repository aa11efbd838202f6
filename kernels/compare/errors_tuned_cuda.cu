// The fast form of the error kernel. The values are those of MeasureElement (error_found.h); what
// is different:
// - A warp copies its elements to shared memory ahead of time, in the order of memory, and each
//   thread takes a run of them from there, so that most sums need no other thread.
// - Elements that are neither special nor zero take no branch; a chunk that has others is counted
//   element by element.
// - Left-out elements are 0 on both sides and add +0 where the plain kernel adds -0.0. The sign of
//   a zero sum reaches no report: a tensor's sums begin with +0.
// - The quotient uses that a divisor of at most 24 significant bits needs few steps.
// - A thread keeps its largest error and the first chunk that has it; LaunchFinishErrors finds the
//   element.
// - Sums cross the warp by halves: each exchange adds two lanes' sums of one half of the series and
//   gives the other half away.
#include "kernels/compare/error_found.h"
#include "kernels/compare/errors_tuned.h"

namespace quantgate {
namespace {

template <NumberEncoding kEncoding>
inline constexpr int kElementBytes = kEncoding == NumberEncoding::kF32     ? 4
                                     : kEncoding == NumberEncoding::kBytes ? 1
                                                                           : 2;

/// Where one side of a stage lies in shared memory: 32 runs, one a thread, of kRunChunks chunks of
/// eight elements. Units, what one instruction moves, are permuted within a run so that
/// neighbouring threads meet neither in copies, which go along the runs, nor in reads, which go
/// across them: of the threads that read at a time, kPhase / kUnits have runs side by side in the
/// 128 bytes of all banks, and those that wrap around take another unit first.
template <NumberEncoding kEncoding, int kRunChunks>
struct RunLayout {
  static constexpr int kChunkBytes = kChunkElements * kElementBytes<kEncoding>;
  static constexpr int kUnitBytes = kChunkBytes < 16 ? kChunkBytes : 16;
  static constexpr int kChunkUnits = kChunkBytes / kUnitBytes;
  static constexpr int kUnits = kRunChunks * kChunkUnits;
  static constexpr int kPhase = 128 / kUnitBytes;
  static constexpr int kBytes = 32 * kRunChunks * kChunkBytes;

  __device__ static uint32_t OffsetOf(int run, int chunk, int unit) {
    const int permuted = (chunk * kChunkUnits + unit) ^ (run / (kPhase / kUnits) % kUnits);
    return static_cast<uint32_t>((run * kUnits + permuted) * kUnitBytes);
  }

  /// Begins to copy a chunk, or zeros where it is not `inside` of the data. `stage` is an address
  /// of shared memory.
  __device__ static void Copy(const char* data, uint32_t index, bool inside, uint32_t stage,
                              int run, int chunk) {
    const char* from = data + (inside ? index : 0) * uint64_t{kElementBytes<kEncoding>};
    const int bytes = inside ? kUnitBytes : 0;
#pragma unroll
    for (int unit = 0; unit < kChunkUnits; ++unit) {
      const uint32_t to = stage + OffsetOf(run, chunk, unit);
      if constexpr (kUnitBytes == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
                     "l"(from + unit * kUnitBytes), "r"(bytes)
                     : "memory");
      } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes)
                     : "memory");
      }
    }
  }

  __device__ static uint4 ReadUnit(const char* stage, int run, int chunk, int unit) {
    return *reinterpret_cast<const uint4*>(stage + OffsetOf(run, chunk, unit));
  }

  /// A chunk as numbers.
  __device__ static void Read(const char* stage, int run, int chunk, const float* table,
                              float (&values)[kChunkElements]) {
    if constexpr (kEncoding == NumberEncoding::kF32) {
#pragma unroll
      for (int unit = 0; unit < 2; ++unit) {
        const uint4 raw = ReadUnit(stage, run, chunk, unit);
        values[4 * unit] = __uint_as_float(raw.x);
        values[4 * unit + 1] = __uint_as_float(raw.y);
        values[4 * unit + 2] = __uint_as_float(raw.z);
        values[4 * unit + 3] = __uint_as_float(raw.w);
      }
    } else if constexpr (kEncoding == NumberEncoding::kBytes) {
      const uint2 raw = *reinterpret_cast<const uint2*>(stage + OffsetOf(run, chunk, 0));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        values[i] = table[raw.x >> (8 * i) & 0xFF];
        values[4 + i] = table[raw.y >> (8 * i) & 0xFF];
      }
    } else {
      const uint4 raw = ReadUnit(stage, run, chunk, 0);
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
  }
};

/// a / |b|, correctly rounded, for a >= 0 a difference of binary32 numbers and b a binary32 number
/// of [2^-126, 2^126); 0 for b = 0. y approximates 1 / |b| to 2^-22.9 and, after one step, to
/// 2^-45; the remainder of q is exact, because b has so few bits; so the last step errs by 2^-90 of
/// the quotient before its rounding, and a quotient of 53 by 24 bits lies no nearer than 2^-78 of
/// itself to the middle between two numbers.
__device__ double Quotient(double a, float b) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(fabsf(b)));
  const double divisor = fabs(static_cast<double>(b));
  double y = b == 0 ? 0.0f : reciprocal;
  y = fma(y, fma(-divisor, y, 1.0), y);
  const double q = a * y;
  return fma(fma(-divisor, q, a), y, q);
}

/// Elements that need no second look have a magnitude in [low, end).
struct OrdinaryRange {
  uint32_t twice_low = 0, twice_length = 0;

  OrdinaryRange(float low, float end)
      : twice_low(2 * std::bit_cast<uint32_t>(low)),
        twice_length(2 * (std::bit_cast<uint32_t>(end) - std::bit_cast<uint32_t>(low))) {}
  /// Twice the distance of |value| above the low end, wrapped around below it.
  __device__ uint32_t Above(float value) const { return 2 * __float_as_uint(value) - twice_low; }
};

/// Facts of the types, as the kernel compares with them.
struct ChunkRanges {
  float largest, smallest_normal;
  OrdinaryRange subject, reference;
  explicit ChunkRanges(const SubjectRange& range)
      : largest(static_cast<float>(range.largest_finite)),
        smallest_normal(static_cast<float>(range.smallest_normal)),
        subject(smallest_normal, largest),
        reference(0x1p-126f, 0x1p126f) {}
};

struct ChunkValues {
  float s[kChunkElements], r[kChunkElements];
};

/// The sums of a chunk's terms, and its largest errors.
struct MeasuredChunk {
  ErrorTerms sums;
  double max_abs = 0, max_rel = 0;
};

__device__ inline double Larger(double a, double b) { return b > a ? b : a; }

/// `quotient_of(error, reference)` gives |error / reference|, and 0 for a reference of 0.
template <class QuotientOf>
__device__ inline MeasuredChunk MeasureValues(const ChunkValues& values, QuotientOf quotient_of) {
  MeasuredChunk chunk;
  const auto measure = [&](int i) {
    const double subject = values.s[i], reference = values.r[i];
    const double error = subject - reference;
    const double quotient = quotient_of(fabs(error), values.r[i]);
    chunk.max_abs = Larger(chunk.max_abs, fabs(error));
    chunk.max_rel = Larger(chunk.max_rel, quotient);
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
  chunk.sums = SumInOrder<kChunkElements>(measure);
  return chunk;
}

/// Division itself, for any reference.
__device__ inline double PlainQuotient(double a, float b) {
  return b == 0 ? 0 : a / fabs(static_cast<double>(b));
}

/// A chunk with a reference that Quotient does not take. Rare: a call, and all through memory.
__device__ __noinline__ MeasuredChunk MeasureExtreme(ChunkValues values) {
  return MeasureValues(values, PlainQuotient);
}

/// The largest of a quantity among the chunks of a thread.
struct LargestChunk {
  double value = -1;
  uint32_t number = 0;
  __device__ void Offer(double candidate, uint32_t chunk) {
    if (candidate > value) {
      value = candidate;
      number = chunk;
    }
  }
};

/// What a thread finds in its chunks, which it numbers from 0.
class ChunkMeasure {
 public:
  __device__ explicit ChunkMeasure(const ChunkRanges& ranges) : ranges_(ranges) {}

  /// The sums of the terms of one chunk; one that is not `inside` of the block has none.
  template <class IsInside>
  __device__ ErrorTerms Measure(ChunkValues values, IsInside inside, uint32_t number) {
    uint32_t s_above = 0, r_above = 0;
#pragma unroll
    for (int i = 0; i < kChunkElements; ++i) {
      s_above = max(s_above, ranges_.subject.Above(values.s[i]));
      r_above = max(r_above, ranges_.reference.Above(values.r[i]));
    }
    Counted counted;
    if (s_above >= ranges_.subject.twice_length || r_above >= ranges_.reference.twice_length) {
      counted = CountSpecial(values, inside());
    } else {
      finite_count_ += kChunkElements;
      relative_count_ += kChunkElements;
    }
    MeasuredChunk chunk;
    if (counted.is_extreme) {
      chunk = MeasureExtreme(values);
    } else {
      chunk = MeasureValues(values, Quotient);
    }
    if (counted.has_finite) max_abs_.Offer(chunk.max_abs, number);
    if (counted.has_relative) max_rel_.Offer(chunk.max_rel, number);
    return chunk.sums;
  }

  /// `position_of(number)` gives the position of a chunk's first element.
  template <class PositionOf>
  __device__ FoundErrors Found(PositionOf position_of) const {
    FoundErrors found;
    found.max_abs.Offer(max_abs_.value, position_of(max_abs_.number));
    found.max_rel.Offer(max_rel_.value, position_of(max_rel_.number));
    found.finite_count = finite_count_;
    found.relative_count = relative_count_;
    found.saturated_count = saturated_count_;
    found.flushed_to_zero_count = flushed_to_zero_count_;
    found.subnormal_count = subnormal_count_;
    return found;
  }

 private:
  struct Counted {
    bool has_finite = true, has_relative = true;
    bool is_extreme = false;  // Has a reference that Quotient does not take.
  };

  /// Counts a chunk with elements that are not ordinary; leaves 0 for both sides of those that are
  /// not finite.
  __device__ Counted CountSpecial(ChunkValues& values, bool inside) {
    uint32_t counts = 0;  // Four bits each.
#pragma unroll
    for (int i = 0; i < kChunkElements; ++i) {
      const float s = fabsf(values.s[i]), r = fabsf(values.r[i]);
      const bool finite = inside && s < INFINITY && r < INFINITY;
      if (finite) counts += r > 0 ? 0x11 : 0x01;
      if (inside && s == ranges_.largest && r > s) counts += 1u << 8;
      if (inside && s == 0 && r > 0) counts += 1u << 12;
      if (inside && s > 0 && s < ranges_.smallest_normal) counts += 1u << 16;
      if (finite && r > 0 && !(r >= 0x1p-126f && r < 0x1p126f)) counts += 1u << 20;
      if (!finite) values.s[i] = values.r[i] = 0;
    }
    finite_count_ += counts & 0xF;
    relative_count_ += counts >> 4 & 0xF;
    saturated_count_ += counts >> 8 & 0xF;
    flushed_to_zero_count_ += counts >> 12 & 0xF;
    subnormal_count_ += counts >> 16 & 0xF;
    return {(counts & 0xF) != 0, (counts >> 4 & 0xF) != 0, (counts >> 20 & 0xF) != 0};
  }

  const ChunkRanges& ranges_;
  LargestChunk max_abs_, max_rel_;
  uint32_t finite_count_ = 0, relative_count_ = 0;
  uint32_t saturated_count_ = 0, flushed_to_zero_count_ = 0, subnormal_count_ = 0;
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

/// The sum over the warp of one series, for lane `i` that of series SeriesOf(i).
__device__ double SumOverWarp(const ErrorTerms& terms) {
  static_assert(kErrorSeriesCount == 7 && kSegmentSeries == 8);
  double eight[8], four[4], two[2], one;
#pragma unroll
  for (int i = 0; i < 7; ++i) eight[i] = terms.values[i];
  eight[7] = 0;
  Exchange<4>(eight, eight + 4, 1, four);
  Exchange<2>(four, four + 2, 2, two);
  Exchange<1>(two, two + 1, 4, &one);
  one += __shfl_xor_sync(kWholeWarp, one, 8);
  one += __shfl_xor_sync(kWholeWarp, one, 16);
  return one;
}
__device__ int SeriesOf(int lane) { return (lane & 1) * 4 + (lane & 2) + (lane >> 2 & 1); }

/// Places in a block that lie equally far apart, without a division for each. Blocks are small
/// enough for 32 bits (Fits): positions, and offsets in the tensor from the block's first element.
class PositionWalk {
 public:
  /// How far one move goes.
  struct Step {
    uint32_t positions, offsets, columns;
  };

  __device__ PositionWalk(const BlockShape& block, uint32_t position)
      : count_(static_cast<uint32_t>(block.count)),
        width_(static_cast<uint32_t>(block.width)),
        wrap_(static_cast<uint32_t>(block.stride - block.width)),
        position_(position),
        offset_(static_cast<uint32_t>(position / width_ * block.stride) + position % width_),
        column_(position % width_) {}
  __device__ static Step StepOf(const BlockShape& block, uint32_t positions) {
    const auto width = static_cast<uint32_t>(block.width);
    const uint32_t rows = positions / width, columns = positions % width;
    return {positions, static_cast<uint32_t>(rows * block.stride) + columns, columns};
  }

  __device__ uint32_t offset() const { return offset_; }
  __device__ bool inside() const { return position_ < count_; }
  __device__ void Move(const Step& step) {
    position_ += step.positions;
    offset_ += step.offsets;
    column_ += step.columns;
    if (column_ >= width_) {
      column_ -= width_;
      offset_ += wrap_;
    }
  }

 private:
  const uint32_t count_, width_, wrap_;
  uint32_t position_, offset_, column_;
};

/// Elements of a segment that one thread adds up by itself.
inline constexpr int kRunElements = kSegmentElements / 32;

/// How a warp gets its segments: in stages of the same share of each thread's run, two of them at a
/// time in shared memory.
template <NumberEncoding kSubject, NumberEncoding kReference>
class WarpStages {
 public:
  static constexpr bool kIsWide =
      kSubject == NumberEncoding::kF32 || kReference == NumberEncoding::kF32;
  static constexpr int kParts = kIsWide ? 2 : 1;                          // Stages of a segment.
  static constexpr int kChunks = kRunElements / kChunkElements / kParts;  // Of a run, in a stage.
  using Subject = RunLayout<kSubject, kChunks>;
  using Reference = RunLayout<kReference, kChunks>;
  static constexpr int kBytes = Subject::kBytes + Reference::kBytes;
  static constexpr int kBlockBytes = kErrorWarps * 2 * kBytes;

  __device__ WarpStages(const ErrorParameters& parameters, const BlockShape& block,
                        uint32_t segment, uint32_t segment_step, char* memory)
      : subject_(static_cast<const char*>(parameters.subject.data) +
                 block.first * kElementBytes<kSubject>),
        reference_(static_cast<const char*>(parameters.reference.data) +
                   block.first * kElementBytes<kReference>),
        memory_(memory),
        address_(static_cast<uint32_t>(__cvta_generic_to_shared(memory))),
        first_(block, segment * kSegmentElements + FirstOf(0)),
        second_(block, segment * kSegmentElements + FirstOf(kIsWide ? 1 : 0)),
        near_(PositionWalk::StepOf(block, kIsWide ? kRunElements / 2 : FirstOf(1) - FirstOf(0))),
        far_(PositionWalk::StepOf(
            block, segment_step * kSegmentElements -
                       (kIsWide ? kRunElements / 2 : FirstOf(kChunks - 1) - FirstOf(0)))) {}

  __device__ const char* Memory(uint32_t stage) const { return memory_ + stage % 2 * kBytes; }

  /// Begins to copy the next stage; `ends_segment` says that it is a segment's last.
  __device__ void Copy(uint32_t stage, bool ends_segment) {
    const uint32_t to = address_ + stage % 2 * kBytes;
    if constexpr (kIsWide) {
      static_assert(kChunks == 2);
      CopyChunk(first_, to, 0);
      CopyChunk(second_, to, 1);
      // Member by member, so that the steps stay in registers.
      const PositionWalk::Step move = {ends_segment ? far_.positions : near_.positions,
                                       ends_segment ? far_.offsets : near_.offsets,
                                       ends_segment ? far_.columns : near_.columns};
      first_.Move(move);
      second_.Move(move);
    } else {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        CopyChunk(first_, to, i);
        first_.Move(i == kChunks - 1 ? far_ : near_);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

 private:
  /// Which chunk of a stage this thread copies i-th: neighbours copy neighbours.
  __device__ static int ChunkOf(int i) { return threadIdx.x % 32 + 32 * i; }
  /// The position in a segment of the first element of that chunk in the first stage.
  __device__ static int FirstOf(int i) {
    return ChunkOf(i) / kChunks * kRunElements + ChunkOf(i) % kChunks * kChunkElements;
  }

  __device__ void CopyChunk(const PositionWalk& from, uint32_t to, int i) const {
    const int run = ChunkOf(i) / kChunks, chunk = ChunkOf(i) % kChunks;
    Subject::Copy(subject_, from.offset(), from.inside(), to, run, chunk);
    Reference::Copy(reference_, from.offset(), from.inside(), to + Subject::kBytes, run, chunk);
  }

  const char* const subject_;  // The block's first element.
  const char* const reference_;
  char* const memory_;
  const uint32_t address_;
  PositionWalk first_, second_;  // Where the next chunks lie; wide stages have one walk for each.
  const PositionWalk::Step near_, far_;
};

template <NumberEncoding kSubject, NumberEncoding kReference>
__global__ void __launch_bounds__(kErrorThreads, 2)
    MeasureTuned(const __grid_constant__ ErrorParameters parameters,
                 const __grid_constant__ ChunkRanges ranges) {
  using Stages = WarpStages<kSubject, kReference>;
  extern __shared__ __align__(128) char memory[];
  __shared__ float tables[512];
  LoadByteValues(parameters.subject, tables);
  LoadByteValues(parameters.reference, tables + 256);
  __syncthreads();
  const BlockShape block(parameters.cut, blockIdx.y);
  double* sums = parameters.sums + blockIdx.y * parameters.cut.segments * kSegmentSeries;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto segments = static_cast<uint32_t>(block.segments());
  const uint32_t step = gridDim.x * kErrorWarps;
  const uint32_t first_segment = blockIdx.x * kErrorWarps + warp;
  Stages stages(parameters, block, first_segment, step, memory + warp * (2 * Stages::kBytes));
  stages.Copy(0, Stages::kParts == 1);
  ChunkMeasure chunks(ranges);
  uint32_t stage = 0;
  for (uint32_t segment = first_segment; segment < segments; segment += step) {
    const int left = static_cast<int>(block.count) -
                     static_cast<int>(segment * kSegmentElements + lane * kRunElements);
    ErrorTerms run = {};
#pragma unroll 1  // Here and below: the whole loop is to stay in the instruction cache.
    for (int part = 0; part < Stages::kParts; ++part, ++stage) {
      stages.Copy(stage + 1, Stages::kParts == 1 || part == 0);
      asm volatile("cp.async.wait_group 1;" ::: "memory");
      __syncwarp();
      const char* subject = stages.Memory(stage);
      const char* reference = subject + Stages::Subject::kBytes;
      const auto measure = [&](int chunk) {
        ChunkValues values;
        Stages::Subject::Read(subject, lane, chunk, tables, values.s);
        Stages::Reference::Read(reference, lane, chunk, tables + 256, values.r);
        const auto inside = [&] {
          return (part * Stages::kChunks + chunk) * kChunkElements < left;
        };
        return chunks.Measure(values, inside, stage * Stages::kChunks + chunk);
      };
      // From 0 on, which changes no sum but the sign of a zero.
#pragma unroll 1
      for (int chunk = 0; chunk < Stages::kChunks; chunk += 2) {
        run = run + SumInOrder<2>(measure, chunk);
      }
      __syncwarp();
    }
    const double total = SumOverWarp(run);
    if (lane < kSegmentSeries) sums[segment * kSegmentSeries + SeriesOf(lane)] = total;
  }
  const auto position_of = [&](uint32_t chunk) {
    constexpr uint32_t kOfRun = Stages::kParts * Stages::kChunks;
    return int64_t{(first_segment + chunk / kOfRun * step) * kSegmentElements +
                   lane * kRunElements + chunk % kOfRun * kChunkElements};
  };
  StoreFound(chunks.Found(position_of),
             parameters.slices + blockIdx.y * parameters.cut.slices + blockIdx.x);
}

template <NumberEncoding kSubject, NumberEncoding kReference>
cudaError_t Launch(const ErrorParameters& parameters, cudaStream_t stream) {
  constexpr int kBytes = WarpStages<kSubject, kReference>::kBlockBytes;
  const dim3 grid(static_cast<unsigned>(parameters.cut.slices),
                  static_cast<unsigned>(parameters.cut.rows * parameters.cut.columns));
  const auto kernel = MeasureTuned<kSubject, kReference>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  kernel<<<grid, kErrorThreads, kBytes, stream>>>(parameters, ChunkRanges(parameters.range));
  return cudaGetLastError();
}

/// Blocks begin at whole chunks in every row, and chunks at whole vectors.
bool Fits(const ErrorParameters& parameters) {
  const BlockCut& cut = parameters.cut;
  if (cut.column_count % (int64_t{kChunkElements} * cut.columns) != 0) return false;
  // PositionWalk's offsets.
  if ((cut.row_count / cut.rows + 1) * cut.column_count >= int64_t{1} << 31) return false;
  const auto is_aligned = [](const NumberSource& source, int bytes) {
    const uintptr_t unit = bytes == 1 ? 8 : 16;
    return reinterpret_cast<uintptr_t>(source.data) % unit == 0;
  };
  return is_aligned(parameters.subject, parameters.subject_bytes) &&
         is_aligned(parameters.reference, parameters.reference_bytes);
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
