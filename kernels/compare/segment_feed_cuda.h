// How a warp of errors_tuned_cuda.cu gets its segments into shared memory: by bulk copies, one
// segment ahead. Included by .cu files only.
#pragma once

#include "kernels/compare/error_chunks_cuda.h"

namespace quantgate {

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

}  // namespace quantgate
