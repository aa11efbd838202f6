// How a warp of errors_tuned_cuda.cu brings its segments to shared memory: by bulk copies, one
// segment ahead. Included by .cu files only.
#pragma once

#include "kernels/compare/error_chunks_cuda.h"

namespace quantgate {

/// Tells the compiler that every lane of the warp has the same number, so that it computes with it
/// in uniform registers, once for the warp.
__device__ inline uint32_t Uniform(uint32_t x) { return __shfl_sync(kWholeWarp, x, 0); }

/// The address of `p` within shared memory.
__device__ inline uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// Fetches the segments of a warp: a first one, and then each one `segment_step` after the last.
/// Every lane has all of this state, and one of them starts the copies: with uniform numbers and
/// without a branch that lanes take differently, a copy takes a few instructions. Positions in the
/// block, and offsets in the tensor from the block's first element, fit 32 bits (Fits in
/// errors_tuned_cuda.cu).
template <NumberEncoding kSubject, NumberEncoding kReference>
class SegmentFeed {
 public:
  static constexpr int kSubjectBytes = kSegmentElements * kElementBytes<kSubject>;
  static constexpr int kReferenceBytes = kSegmentElements * kElementBytes<kReference>;
  static constexpr int kBytes = kSubjectBytes + kReferenceBytes;

  /// Called by the whole warp. `memory` and `barrier` are addresses of shared memory for one
  /// segment.
  __device__ SegmentFeed(const ErrorParameters& parameters, const BlockShape& block,
                         uint32_t segment, uint32_t segment_step, uint32_t memory, uint32_t barrier)
      : memory_(memory), barrier_(barrier) {
    const uint64_t first = uint64_t{Uniform(static_cast<uint32_t>(block.first >> 32))} << 32 |
                           Uniform(static_cast<uint32_t>(block.first));
    subject_ = static_cast<const char*>(parameters.subject.data) + first * kElementBytes<kSubject>;
    reference_ =
        static_cast<const char*>(parameters.reference.data) + first * kElementBytes<kReference>;
    count_ = Uniform(static_cast<uint32_t>(block.count));
    width_ = Uniform(static_cast<uint32_t>(block.width));
    stride_ = Uniform(static_cast<uint32_t>(block.stride));
    step_ = segment_step * kSegmentElements;
    step_columns_ = Uniform(step_ % width_);
    step_offset_ = Uniform(step_ / width_ * stride_ + step_columns_);
    position_ = segment * kSegmentElements;
    column_ = Uniform(position_ % width_);
    offset_ = Uniform(position_ / width_ * stride_ + column_);
    if (threadIdx.x % 32 != 0) return;
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier_) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }

  /// Begins to copy the next segment, where there is one. A copy does not wait for earlier reads of
  /// shared memory, so `token`, 0 or 1, must depend on the end of these reads (ChunkPair::Await).
  __device__ void Fetch(uint32_t token) {
    if (position_ < count_ && token <= 1)
      CopyRows(min(uint32_t{kSegmentElements}, count_ - position_));
    position_ += step_;
    offset_ += step_offset_;
    column_ += step_columns_;
    if (column_ >= width_) {
      column_ -= width_;
      offset_ += stride_ - width_;
    }
  }

  /// Waits for the segment of fetch `number`, counted from 0.
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
  /// True in one lane, the same at every call.
  static __device__ bool IsElected() {
    uint32_t elected;
    asm volatile(
        "{\n"
        ".reg .pred is_elected;\n"
        "elect.sync _|is_elected, 0xFFFFFFFF;\n"
        "selp.u32 %0, 1, 0, is_elected;\n"
        "}\n"
        : "=r"(elected));
    return elected != 0;
  }

  /// Copies the rows that the next `length` elements lie in.
  __device__ void CopyRows(uint32_t length) const {
    const bool is_elected = IsElected();
    if (is_elected) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier_),
                   "r"(length * (kElementBytes<kSubject> + kElementBytes<kReference>))
                   : "memory");
    }
    uint32_t from = offset_, row = min(length, width_ - column_);
#pragma unroll 1
    for (uint32_t to = 0;;) {
      if (is_elected) {
        Copy<kElementBytes<kSubject>>(memory_, subject_, to, from, row);
        Copy<kElementBytes<kReference>>(memory_ + kSubjectBytes, reference_, to, from, row);
      }
      to += row;
      if (to == length) break;
      from += row + stride_ - width_;
      row = min(length - to, width_);
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
  const char* subject_;              // The block's first element.
  const char* reference_;
  uint32_t count_, width_, stride_;
  uint32_t step_, step_columns_, step_offset_;
  uint32_t position_, column_, offset_;  // Those of the next segment's first element.
};

}  // namespace quantgate
