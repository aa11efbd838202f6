// The fast form of the error kernel. Its values are those of MeasureElement (error_found.h). The
// differences:
// - Bulk copies, one a row, bring a warp's segment to shared memory, and each thread takes a run of
//   it, so that most sums need no other thread. The next segment arrives while the last chunks,
//   which are in registers by then, are added up. What is the same for all lanes, such as where a
//   segment lies, is computed once for the warp.
// - A chunk of elements is first taken as if every element were finite and no reference were zero.
//   Otherwise its sum of relative errors is infinite or NaN, and the chunk is taken again element
//   by element. Subjects that have to be counted show in the sum of squares and in the smallest
//   magnitude.
// - Left-out elements are 0 on both sides and add +0 where the plain kernel adds -0.0. The sign of
//   a zero sum reaches no report: a tensor's sums begin with +0.
// - Squares and products of binary32 numbers have at most 48 bits, which a double holds: where two
//   of them are added, a fused step gives the same bits as a product and an addition.
// - The quotient takes few steps, since its divisor has at most 24 significant bits.
// - Each error is only compared with the largest so far, of the warp or of the block of threads.
//   Where it is larger, which is rare, the warp looks for the largest error in the runs of the
//   threads that have such errors.
#include <algorithm>

#include "kernels/compare/compare_kernels_cuda.h"
#include "kernels/compare/largest_errors_cuda.h"
#include "kernels/compare/segment_feed_cuda.h"

namespace quantgate {
namespace {

/// The sums over the warp, that of series i / 4 in lane i. One thread adds the sums of eight lanes.
/// The warp must have synchronised since `memory` was last read.
__device__ inline double SumOverWarp(const ErrorTerms& terms, int lane,
                                     double (&memory)[kSegmentSeries][32]) {
#pragma unroll
  for (int i = 0; i < kErrorSeriesCount; ++i) memory[i][lane] = terms.values[i];
  __syncwarp();
  const auto* from =
      reinterpret_cast<const double2*>(&memory[min(lane / 4, kErrorSeriesCount - 1)][lane % 4 * 8]);
  // Lanes that would read the same bank take the branches of the tree in different orders.
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

/// The lane, in a register that the compiler keeps; it would read threadIdx anew at every use,
/// which is slow.
__device__ inline int KeptLane() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
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
  PrepareFinish(parameters);
  LoadByteValues(parameters.subject, tables);
  LoadByteValues(parameters.reference, tables + 256);
  if (threadIdx.x == 0) shared_largest.Clear();
  const BlockShape block(parameters.cut, blockIdx.y);
  double* sums = parameters.sums + blockIdx.y * parameters.cut.segments * kSegmentSeries;
  const int lane = KeptLane();
  const uint32_t warp = Uniform(threadIdx.x / 32);
  const uint32_t segments = Uniform(static_cast<uint32_t>(block.segments()));
  const uint32_t step = gridDim.x * kSegmentWarps;
  const uint32_t first_segment = blockIdx.x * kSegmentWarps + warp;
  const uint32_t subject = SharedAddress(memory) + warp * Feed::kBytes;
  Feed feed(parameters, block, first_segment, step, subject, SharedAddress(&barriers[warp]));
  __syncthreads();
  feed.Fetch(0);
  const int first = lane * kRunElements;
  const uint32_t run_subject = subject + first * kElementBytes<kSubject>;
  const uint32_t run_reference = subject + Feed::kSubjectBytes + first * kElementBytes<kReference>;
  // Threads whose runs lie in the same banks take their chunks in different orders, which leaves
  // the sums unchanged: whole branches of the tree change places.
  const int turn = lane / 2 % kRunChunks;
  constexpr bool kTurnsHalves =
      kSubject == NumberEncoding::kF32 && kReference == NumberEncoding::kF32;
  const uint32_t half = kTurnsHalves ? lane % 2 * 16 : 0;
  WarpLargest largest(largest_of_warp[warp], shared_largest);
  ElementCounts counts;
  // While the first segment is on its way, finds the largest errors of a few of its runs, so that
  // few of the others exceed them.
  constexpr unsigned kFirstRuns = 0xFF;
  if (first_segment < segments) {
    largest.Offer(
        FindLargest<kSubject, kReference>(parameters, block, first_segment, kFirstRuns, tables));
  }
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
          ReadSharedChunk<kSubject>(run_subject + (begin * kElementBytes<kSubject> ^ half), tables),
          ReadSharedChunk<kReference>(run_reference + (begin * kElementBytes<kReference> ^ half),
                                      tables + 256),
          first + begin < left};
      if (i == kRunChunks - 1) {
        feed.Fetch(chunk.Await());
      }
      return chunk.Measure(left >= kSegmentElements, ranges, threshold, counts, exceeds);
    };
    // Begins at +0, which changes nothing but the sign of a zero sum.
#pragma unroll 1  // So that the loop stays in the instruction cache.
    for (int i = 0; i < kRunChunks; i += 2) run = run + SumInOrder<2>(measure, i);
    const double total = SumOverWarp(run, lane, run_sums[warp]);
    if (lane % 4 == 0) sums[segment * kSegmentSeries + lane / 4] = total;
    const unsigned runs = __ballot_sync(kWholeWarp, exceeds);
    if (runs != 0) {
      largest.Offer(FindLargest<kSubject, kReference>(parameters, block, segment, runs, tables));
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

/// Whether blocks begin at whole chunks in every row, rows of blocks at whole units of bulk copies,
/// and offsets fit 32 bits.
bool Fits(const ErrorParameters& parameters) {
  constexpr int kUnit = 16;  // Bytes.
  const BlockCut& cut = parameters.cut;
  const int unit_elements = kUnit / std::min(parameters.subject_bytes, parameters.reference_bytes);
  const int64_t elements = std::max(kChunkElements, unit_elements);
  if (cut.column_count % (elements * cut.columns) != 0) return false;
  // The offsets of SegmentFeed reach one step beyond the end.
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
