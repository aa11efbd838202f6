// The bitwise comparison. Most elements of most tensors are equal and ordinary numbers, so the
// tuned kernel counts the classes of equal elements in whole registers (several elements a word)
// and takes elements one at a time only where the sides differ. The plain kernel takes every
// element one at a time.
#include <algorithm>

#include "kernels/compare/compare_kernels_cuda.h"

namespace quantgate {
namespace {

constexpr unsigned kWholeWarp = 0xFFFFFFFFu;
constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 3;  // All are resident together.
constexpr int kVectorBytes = 16;
constexpr int kVectorsPerStep = 4;  // Vectors of each side that are loaded together.

// The classes of ValueClass, in its order.
enum Class { kNegativeInfinity, kNegative, kNegativeZero, kPositiveZero, kPositive };
enum { kPositiveInfinity = 5, kNan = 6 };

/// Magnitude of element_codes.h.
__device__ uint64_t MagnitudeOf(uint64_t code, const CodeRules& rules) {
  if (rules.is_twos_complement && (code & rules.sign_mask) != 0) code = 0 - code;
  return code & rules.magnitude_mask;
}

/// ClassOfCode of element_codes.h.
__device__ int ClassOf(uint64_t code, const CodeRules& rules) {
  const uint64_t magnitude = MagnitudeOf(code, rules);
  if (magnitude > rules.largest_number || (rules.nan_code != 0 && code == rules.nan_code)) {
    return kNan;
  }
  const int not_zero = rules.has_zero && magnitude == 0 ? 0 : 1;
  const int infinite = rules.has_infinity && magnitude == rules.largest_number ? 1 : 0;
  const int positive = kPositiveZero + not_zero + infinite;
  return (code & rules.sign_mask) != 0 ? 5 - positive : positive;
}

/// Counters of one block of threads.
struct SharedCounts {
  unsigned mismatch_count;
  unsigned buckets[kAllBuckets];
  unsigned confusion[kClassCount * kClassCount];
  WorstSeen worst[kThreads / 32];
  unsigned long long first_complement[kThreads / 32];
};

__device__ WorstSeen WorseOf(const WorstSeen& a, const WorstSeen& b) {
  // The larger distance wins, then the lower index; "none" has complement 0 and distance 0.
  const bool second =
      b.distance != a.distance ? b.distance > a.distance : b.complement > a.complement;
  return second ? b : a;
}

/// What one thread counts.
struct ThreadCounts {
  unsigned equal[kClassCount] = {};  // Equal elements by class.
  unsigned mismatch_count = 0;
  // The differences that rounding makes, which are by far the most: numbers of one sign, one ULP
  // apart.
  unsigned confused_negative = 0, confused_positive = 0;
  unsigned step_above = 0, step_below = 0;
  unsigned long long first_complement = 0;
  WorstSeen worst = {0, 0};
};

/// One element that differs.
__device__ void CountDifference(uint64_t subject, uint64_t reference, int64_t index,
                                const CodeRules& rules, ThreadCounts& counts,
                                SharedCounts& shared) {
  const int subject_class = ClassOf(subject, rules), reference_class = ClassOf(reference, rules);
  if (subject_class == kPositive && reference_class == kPositive) {
    ++counts.confused_positive;
  } else if (subject_class == kNegative && reference_class == kNegative) {
    ++counts.confused_negative;
  } else {
    atomicAdd(&shared.confusion[subject_class * kClassCount + reference_class], 1u);
  }
  uint64_t distance = 0;
  if (subject_class != kNan && reference_class != kNan) {
    const uint64_t s = MagnitudeOf(subject, rules), r = MagnitudeOf(reference, rules);
    const bool s_negative = (subject & rules.sign_mask) != 0;
    const bool same_sign = s_negative == ((reference & rules.sign_mask) != 0);
    distance = !same_sign ? s + r : s > r ? s - r : r - s;
    distance = min(distance, kNanDistance - 1);
    const bool is_above = same_sign ? (s > r) != s_negative : !s_negative;
    if (distance == 1) {
      counts.step_above += is_above;
      counts.step_below += !is_above;
    } else {
      const int bucket = BucketOf(distance);
      atomicAdd(&shared.buckets[kEqualBucket + (is_above ? bucket : -bucket)], 1u);
    }
  } else if (subject_class != reference_class) {
    distance = kNanDistance;
  }
  ++counts.mismatch_count;
  const WorstSeen here = {distance, ~static_cast<unsigned long long>(index)};
  counts.first_complement = max(counts.first_complement, here.complement);
  counts.worst = WorseOf(counts.worst, here);
}

__device__ void CountElement(uint64_t subject, uint64_t reference, int64_t index,
                             const CodeRules& rules, ThreadCounts& counts, SharedCounts& shared) {
  if (subject != reference) {
    CountDifference(subject, reference, index, rules, counts, shared);
    return;
  }
  const int value_class = ClassOf(subject, rules);
#pragma unroll
  for (int i = 0; i < kClassCount; ++i) counts.equal[i] += value_class == i;
}

__device__ void Clear(SharedCounts& shared) {
  auto* words = reinterpret_cast<unsigned*>(&shared);
  for (unsigned i = threadIdx.x; i < sizeof(SharedCounts) / 4; i += kThreads) words[i] = 0;
  __syncthreads();
}

__device__ void AddOverWarp(unsigned count, unsigned* total) {
  count = __reduce_add_sync(kWholeWarp, count);
  if (threadIdx.x % 32 == 0 && count != 0) atomicAdd(total, count);
}

__device__ void FindOverWarp(const ThreadCounts& counts, SharedCounts& shared) {
  unsigned long long first = counts.first_complement;
  WorstSeen worst = counts.worst;
  for (int distance = 16; distance > 0; distance /= 2) {
    first = max(first, __shfl_xor_sync(kWholeWarp, first, distance));
    const WorstSeen other = {__shfl_xor_sync(kWholeWarp, worst.distance, distance),
                             __shfl_xor_sync(kWholeWarp, worst.complement, distance)};
    worst = WorseOf(worst, other);
  }
  if (threadIdx.x % 32 == 0) {
    shared.first_complement[threadIdx.x / 32] = first;
    shared.worst[threadIdx.x / 32] = worst;
  }
}

__device__ void AddToTotal(unsigned count, unsigned long long* total) {
  if (count != 0) atomicAdd(total, count);
}

/// Adds up the counts of a block of threads and adds them to the totals; `worst` gets the worst
/// element that the block saw.
__device__ void Finish(const ThreadCounts& counts, SharedCounts& shared, ParityTotals& totals,
                       WorstSeen& worst) {
  for (int i = 0; i < kClassCount; ++i) {
    AddOverWarp(counts.equal[i], &shared.confusion[i * kClassCount + i]);
    if (i != kNan) AddOverWarp(counts.equal[i], &shared.buckets[kEqualBucket]);
  }
  AddOverWarp(counts.confused_negative, &shared.confusion[kNegative * kClassCount + kNegative]);
  AddOverWarp(counts.confused_positive, &shared.confusion[kPositive * kClassCount + kPositive]);
  AddOverWarp(counts.step_above, &shared.buckets[kEqualBucket + 1]);
  AddOverWarp(counts.step_below, &shared.buckets[kEqualBucket - 1]);
  AddOverWarp(counts.mismatch_count, &shared.mismatch_count);
  FindOverWarp(counts, shared);
  __syncthreads();
  for (int i = threadIdx.x; i < kAllBuckets; i += kThreads) {
    AddToTotal(shared.buckets[i], &totals.buckets[i]);
  }
  for (int i = threadIdx.x; i < kClassCount * kClassCount; i += kThreads) {
    AddToTotal(shared.confusion[i], &totals.confusion[i]);
  }
  if (threadIdx.x != 0) return;
  AddToTotal(shared.mismatch_count, &totals.mismatch_count);
  WorstSeen seen = shared.worst[0];
  unsigned long long first = shared.first_complement[0];
  for (int warp = 1; warp < kThreads / 32; ++warp) {
    seen = WorseOf(seen, shared.worst[warp]);
    first = max(first, shared.first_complement[warp]);
  }
  worst = WorseOf(worst, seen);
  if (first != 0) atomicMax(&totals.first_complement, first);
}

/// Compares elements [begin, count), one by one.
template <class Code>
__global__ void __launch_bounds__(kThreads)
    CompareElements(const ParityParameters parameters, int64_t begin) {
  __shared__ SharedCounts shared;
  Clear(shared);
  const Code* subject = static_cast<const Code*>(parameters.subject);
  const Code* reference = static_cast<const Code*>(parameters.reference);
  ThreadCounts counts;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = begin + int64_t{blockIdx.x} * kThreads + threadIdx.x; i < parameters.count;
       i += stride) {
    CountElement(subject[i], reference[i], i, parameters.rules, counts, shared);
  }
  __syncthreads();
  Finish(counts, shared, *parameters.totals, parameters.worst[blockIdx.x]);
}

/// Finds the classes of several codes in one word, each in a lane with its sign on top. No sum
/// below carries into the next lane: neither magnitudes nor the numbers added to them have a top
/// bit.
template <class Code>
struct LaneMasks {
  static constexpr int kBits = 8 * sizeof(Code);
  static constexpr uint32_t kOnes = sizeof(Code) == 4   ? 1u
                                    : sizeof(Code) == 2 ? 0x00010001u
                                                        : 0x01010101u;
  static constexpr uint32_t kTops = kOnes << (kBits - 1);
  static constexpr uint32_t kRest = ~kTops;

  uint32_t to_infinite;  // Added to a magnitude, sets the top bit for infinity and above.
  uint32_t to_nan;       // Likewise for the first NaN and above.

  __device__ explicit LaneMasks(const CodeRules& rules) {
    const uint32_t top = uint32_t{1} << (kBits - 1);
    const auto nan = static_cast<uint32_t>(rules.largest_number) + 1;
    to_nan = (top - nan) * kOnes;
    to_infinite = (top - (rules.has_infinity ? nan - 1 : nan)) * kOnes;
  }
};

/// Adds the bits of four words' tops, which are set for few bits a lane, to one count.
template <class Code>
__device__ unsigned CountTops(const uint32_t (&words)[4]) {
  using Masks = LaneMasks<Code>;
  uint32_t all = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) all |= (words[i] & Masks::kTops) >> i;
  return __popc(all);
}

/// What the tuned kernel counts of equal elements; zeros and the rest besides `equal` and
/// `negative` only in vectors that have them.
struct LaneCounts {
  unsigned equal = 0, negative = 0;
  unsigned zero = 0, negative_zero = 0;
  unsigned beyond = 0, negative_beyond = 0;  // Infinite or NaN.
  unsigned nan = 0, negative_nan = 0;

  __device__ void AddTo(ThreadCounts& counts) const {
    const unsigned negative_infinite = negative_beyond - negative_nan;
    const unsigned infinite = beyond - nan;
    counts.equal[kNegativeInfinity] += negative_infinite;
    counts.equal[kNegative] += negative - negative_beyond - negative_zero;
    counts.equal[kNegativeZero] += negative_zero;
    counts.equal[kPositiveZero] += zero - negative_zero;
    counts.equal[kPositive] +=
        (equal - negative) - (beyond - negative_beyond) - (zero - negative_zero);
    counts.equal[kPositiveInfinity] += infinite - negative_infinite;
    counts.equal[kNan] += nan;
  }
};

/// Counts the lanes of four words whose top bit is set in `valid`.
template <class Code>
__device__ void CountLanes(const uint32_t (&words)[4], const uint32_t (&valid)[4],
                           const LaneMasks<Code>& masks, LaneCounts& counts) {
  using Masks = LaneMasks<Code>;
  uint32_t negative[4], zero[4], beyond[4], nan[4], part[4];
  const auto count_both = [&](const uint32_t(&found)[4], unsigned& all, unsigned& negatives) {
    all += CountTops<Code>(found);
#pragma unroll
    for (int i = 0; i < 4; ++i) part[i] = found[i] & words[i];
    negatives += CountTops<Code>(part);
  };
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t magnitude = words[i] & Masks::kRest;
    negative[i] = words[i] & valid[i];
    zero[i] = ~(magnitude + Masks::kRest) & valid[i];
    beyond[i] = (magnitude + masks.to_infinite) & valid[i];
    nan[i] = (magnitude + masks.to_nan) & valid[i];
  }
  counts.equal += CountTops<Code>(valid);
  counts.negative += CountTops<Code>(negative);
  count_both(zero, counts.zero, counts.negative_zero);
  count_both(beyond, counts.beyond, counts.negative_beyond);
  count_both(nan, counts.nan, counts.negative_nan);
}

/// Counts a vector that is equal on both sides.
template <class Code>
__device__ void CountEqualVector(const uint32_t (&words)[4], const LaneMasks<Code>& masks,
                                 LaneCounts& counts) {
  using Masks = LaneMasks<Code>;
  uint32_t special = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t magnitude = words[i] & Masks::kRest;
    special |= (magnitude + masks.to_infinite) | ~(magnitude + Masks::kRest);
  }
  if ((special & Masks::kTops) != 0) {
    const uint32_t valid[4] = {Masks::kTops, Masks::kTops, Masks::kTops, Masks::kTops};
    CountLanes<Code>(words, valid, masks, counts);
    return;
  }
  counts.equal += kVectorBytes / sizeof(Code);
  counts.negative += CountTops<Code>(words);
}

/// Counts a vector with differences; `index` is that of its first element.
template <class Code>
__device__ void CountVector(const uint32_t (&subject)[4], const uint32_t (&reference)[4],
                            int64_t index, const CodeRules& rules, const LaneMasks<Code>& masks,
                            LaneCounts& lanes, ThreadCounts& counts, SharedCounts& shared) {
  using Masks = LaneMasks<Code>;
  constexpr int kLanes = 4 / sizeof(Code);
  uint32_t same[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t changed = subject[i] ^ reference[i];
    same[i] = ~(((changed & Masks::kRest) + Masks::kRest) | changed) & Masks::kTops;
  }
  CountLanes<Code>(subject, same, masks, lanes);
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    const auto pick = [i](const uint32_t(&words)[4]) {
      return i == 0 ? words[0] : i == 1 ? words[1] : i == 2 ? words[2] : words[3];
    };
    const uint32_t s = pick(subject), r = pick(reference);
    for (uint32_t differing = ~pick(same) & Masks::kTops; differing != 0;
         differing &= differing - 1) {
      const int lane = (__ffs(differing) - 1) / Masks::kBits;
      CountDifference(static_cast<Code>(s >> (lane * Masks::kBits)),
                      static_cast<Code>(r >> (lane * Masks::kBits)), index + i * kLanes + lane,
                      rules, counts, shared);
    }
  }
}

/// Compares the first `steps` * kThreads * kVectorsPerStep vectors.
template <class Code>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    CompareVectors(const ParityParameters parameters, int64_t steps) {
  __shared__ SharedCounts shared;
  Clear(shared);
  const auto* subject = static_cast<const uint4*>(parameters.subject);
  const auto* reference = static_cast<const uint4*>(parameters.reference);
  const LaneMasks<Code> masks(parameters.rules);
  ThreadCounts counts;
  LaneCounts lanes;
  for (int64_t step = blockIdx.x; step < steps; step += gridDim.x) {
    const int64_t first = step * (kThreads * kVectorsPerStep) + threadIdx.x;
    uint4 s[kVectorsPerStep], r[kVectorsPerStep];
#pragma unroll
    for (int i = 0; i < kVectorsPerStep; ++i) {
      s[i] = __ldcs(subject + first + i * kThreads);
      r[i] = __ldcs(reference + first + i * kThreads);
    }
#pragma unroll
    for (int i = 0; i < kVectorsPerStep; ++i) {
      const uint32_t words[4] = {s[i].x, s[i].y, s[i].z, s[i].w};
      const uint32_t others[4] = {r[i].x, r[i].y, r[i].z, r[i].w};
      const uint32_t changed = (words[0] ^ others[0]) | (words[1] ^ others[1]) |
                               (words[2] ^ others[2]) | (words[3] ^ others[3]);
      if (changed == 0) {
        CountEqualVector<Code>(words, masks, lanes);
      } else {
        const int64_t index =
            (first + i * kThreads) * static_cast<int64_t>(kVectorBytes / sizeof(Code));
        CountVector<Code>(words, others, index, parameters.rules, masks, lanes, counts, shared);
      }
    }
  }
  lanes.AddTo(counts);
  __syncthreads();
  Finish(counts, shared, *parameters.totals, parameters.worst[blockIdx.x]);
}

template <class Code>
__device__ void BitsAt(const ParityParameters& parameters, unsigned long long complement,
                       unsigned long long (&bits)[2]) {
  if (complement == 0) return;
  bits[0] = static_cast<const Code*>(parameters.subject)[~complement];
  bits[1] = static_cast<const Code*>(parameters.reference)[~complement];
}

/// Finds the worst element of all blocks, and reads the elements that the report shows. Runs as one
/// warp.
template <class Code>
__global__ void __launch_bounds__(32) FindWorst(const ParityParameters parameters, int count) {
  WorstSeen worst = {0, 0};
  for (int i = threadIdx.x; i < count; i += 32) worst = WorseOf(worst, parameters.worst[i]);
  for (int distance = 16; distance > 0; distance /= 2) {
    const WorstSeen other = {__shfl_xor_sync(kWholeWarp, worst.distance, distance),
                             __shfl_xor_sync(kWholeWarp, worst.complement, distance)};
    worst = WorseOf(worst, other);
  }
  if (threadIdx.x != 0) return;
  ParityTotals& totals = *parameters.totals;
  totals.worst_complement = worst.complement;
  totals.worst_distance = worst.distance;
  BitsAt<Code>(parameters, worst.complement, totals.worst_bits);
  BitsAt<Code>(parameters, totals.first_complement, totals.first_bits);
}

/// Whether LaneMasks can take the codes (the sign on top, a zero, NaN above the largest number) and
/// the addresses are aligned.
template <class Code>
bool FitsLanes(const ParityParameters& parameters) {
  constexpr uint64_t kTop = uint64_t{1} << (8 * sizeof(Code) - 1);
  const auto is_aligned = [](const void* data) {
    return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0;
  };
  return parameters.rules.sign_mask == kTop && parameters.rules.magnitude_mask == kTop - 1 &&
         parameters.rules.largest_number < kTop - 1 && parameters.rules.has_zero &&
         is_aligned(parameters.subject) && is_aligned(parameters.reference);
}

template <class Code>
void Launch(const ParityParameters& parameters, ComparePath path, cudaStream_t stream) {
  const int blocks_max = ParityWorstCount(parameters.multiprocessors);
  int64_t begin = 0;
  if constexpr (sizeof(Code) <= 4) {
    constexpr int64_t kStepElements =
        int64_t{kThreads} * kVectorsPerStep * kVectorBytes / sizeof(Code);
    const int64_t steps = parameters.count / kStepElements;
    if (path == ComparePath::kTuned && steps > 0 && FitsLanes<Code>(parameters)) {
      const auto blocks = static_cast<unsigned>(std::min<int64_t>(steps, blocks_max));
      CompareVectors<Code><<<blocks, kThreads, 0, stream>>>(parameters, steps);
      begin = steps * kStepElements;
    }
  }
  const int64_t rest = (parameters.count - begin + kThreads - 1) / kThreads;
  if (rest > 0) {
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(rest, blocks_max));
    CompareElements<Code><<<blocks, kThreads, 0, stream>>>(parameters, begin);
  }
  FindWorst<Code><<<1, 32, 0, stream>>>(parameters, blocks_max);
}

}  // namespace

int ParityWorstCount(int multiprocessors) { return multiprocessors * kBlocksPerMultiprocessor; }

cudaError_t LaunchCompareBits(const ParityParameters& parameters, ComparePath path,
                              cudaStream_t stream) {
  if (parameters.count == 0) return cudaSuccess;
  switch (parameters.rules.bytes) {
    case 1:
      Launch<uint8_t>(parameters, path, stream);
      break;
    case 2:
      Launch<uint16_t>(parameters, path, stream);
      break;
    case 4:
      Launch<uint32_t>(parameters, path, stream);
      break;
    default:
      Launch<uint64_t>(parameters, path, stream);
      break;
  }
  return cudaGetLastError();
}

}  // namespace quantgate
