// Bugs that communication between ranks can have: names for SeededFaults, which faulty_transport.h
// and faulty_overlap.h ask for.
#pragma once

namespace quantgate {

/// Each owner of a reduce-scatter gets the rows of the next one.
inline constexpr char kFaultReduceScatterOwner[] = "rs-owner-off-by-one";
/// The maximum over a group is the rank's own value.
inline constexpr char kFaultAmaxNotReduced[] = "amax-not-reduced";
/// The maximum is taken over all ranks of the world.
inline constexpr char kFaultAmaxOverWorld[] = "amax-reduced-over-world";
/// A call on one of a rank's groups goes to another of its groups.
inline constexpr char kFaultGroupSwapped[] = "group-swapped";
/// The maximum over a group is the value of its first rank.
inline constexpr char kFaultRankZeroAmax[] = "rank0-scale-broadcast";
/// Blocks of rows begin one row late.
inline constexpr char kFaultShardOffset[] = "shard-offset-by-one";
/// A rank whose tensors are empty, or that has zeros alone, as amaxes of nothing, leaves out the
/// call.
inline constexpr char kFaultEmptyRankSkips[] = "empty-rank-skips";
/// An all-gather joins the parts from the last rank to the first.
inline constexpr char kFaultChunkOrder[] = "chunk-order-reversed";
/// Of mxfp8 the rowwise codes travel under the columnwise scales.
inline constexpr char kFaultRowBytesForColumns[] = "rowwise-bytes-for-columnwise";
/// Members do not compare their calls before they begin.
inline constexpr char kFaultCallsNotCompared[] = "calls-not-compared";
/// An all-gather whose deadline has passed goes on with what is in its buffer.
inline constexpr char kFaultDeadlinePasses[] = "deadline-passes-silently";
/// Parts are added in the order in which the members came.
inline constexpr char kFaultArrivalOrder[] = "sum-in-order-of-arrival";

// Of calls that communicate and multiply at the same time (kernels/comm/overlap/overlap.h); a ring
// has kFaultChunkOrder too.
/// A ring passes codes on without their scales: the receiver takes its own.
inline constexpr char kFaultScalesLeftBehind[] = "scales-left-behind";
/// A GEMM does not wait for the copy of what it reads.
inline constexpr char kFaultCopyNotAwaited[] = "copy-not-awaited";
/// Backward gets this rank's slot of the shared buffer in place of its own tensor.
inline constexpr char kFaultSlotKept[] = "slot-overwritten-by-next-layer";
/// A bulk reduce-scatter gives its sum as a view of the shared buffer.
inline constexpr char kFaultGradientInBuffer[] = "gradient-left-in-buffer";
/// A shared buffer is of the precision that was first in it, whatever is put into it later.
inline constexpr char kFaultBufferPrecisionKept[] = "buffer-precision-kept";
/// A view of a shared buffer is read whatever epoch it is of.
inline constexpr char kFaultStaleViewRead[] = "stale-view-read";
/// Splits of columns are as wide as the quotient and the remainder is nobody's.
inline constexpr char kFaultPipelineTail[] = "pipeline-tail-dropped";

}  // namespace quantgate
