// Bugs that communication between ranks can have: names for SeededFaults, which
// faulty_communication.h asks for.
#pragma once

namespace quantgate {

/// Each rank gets the next rank's rows of a reduce-scatter.
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
/// A rank whose tensors are empty, or have only zeros as amaxes of empty tensors do, leaves out the
/// call.
inline constexpr char kFaultEmptyRankSkips[] = "empty-rank-skips";
/// An all-gather joins the parts from the last rank to the first.
inline constexpr char kFaultChunkOrder[] = "chunk-order-reversed";
/// mxfp8's rowwise codes are sent with the columnwise scales.
inline constexpr char kFaultRowBytesForColumns[] = "rowwise-bytes-for-columnwise";
/// Members do not compare their calls before they begin.
inline constexpr char kFaultCallsNotCompared[] = "calls-not-compared";
/// An all-gather whose deadline has passed goes on with what is in its buffer.
inline constexpr char kFaultDeadlinePasses[] = "deadline-passes-silently";
/// Parts are added in the order in which the members arrived.
inline constexpr char kFaultArrivalOrder[] = "sum-in-order-of-arrival";

// The faults below are of calls that communicate while a GEMM runs
// (kernels/comm/overlap/overlap.h). A ring has kFaultChunkOrder too.
/// A ring passes codes on without their scales: the receiver takes its own.
inline constexpr char kFaultScalesLeftBehind[] = "scales-left-behind";
/// A GEMM does not wait for the copy of what it reads.
inline constexpr char kFaultCopyNotAwaited[] = "copy-not-awaited";
/// Backward gets this rank's slot of the shared buffer in place of its own tensor.
inline constexpr char kFaultSlotKept[] = "slot-overwritten-by-next-layer";
/// A bulk reduce-scatter gives its sum as a view of the shared buffer.
inline constexpr char kFaultGradientInBuffer[] = "gradient-left-in-buffer";
/// A shared buffer keeps the precision of the first operand that was put into it.
inline constexpr char kFaultBufferPrecisionKept[] = "buffer-precision-kept";
/// A view of a shared buffer is read although it is of an earlier epoch.
inline constexpr char kFaultStaleViewRead[] = "stale-view-read";
/// Splits of columns are as wide as the quotient; the remaining columns are left out.
inline constexpr char kFaultPipelineTail[] = "pipeline-tail-dropped";

}  // namespace quantgate
