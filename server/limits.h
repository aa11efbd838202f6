// Every bound of the service, each with its reason. Bounds that an operator may change are in
// ServerOptions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace quantgate {

/// Bytes of one message. Protobuf 3.21 grows larger strings by doubling and glibc maps them anew
/// each time, which halves the transfer rate; gRPC clients have the same default.
inline constexpr int kMessageBytesMax = 4 << 20;
/// Bytes that a client should send at a time: the smallest size on the plateau of the transfer rate
/// (256 KiB to 4 MiB), so that a slow client holds little memory.
inline constexpr int64_t kChunkBytes = 1 << 20;
/// Bytes of one tensor inside a request, or of all tensors inside a response: three of them fit a
/// message.
inline constexpr int64_t kInlineBytesMax = 1 << 20;
/// Digests in one FindMissing: 4096 x 40 bytes is far below a message and answers in milliseconds.
inline constexpr int kFindMissingMax = 4096;

// Defaults of the bounds that an operator may change, which a command in its own process has too.
/// Bytes of one blob.
inline constexpr int64_t kBlobBytesMaxDefault = int64_t{64} << 30;
/// Bytes of a tensor that a request makes or names.
inline constexpr int64_t kTensorBytesMaxDefault = int64_t{8} << 30;
/// Runs that wait; one more is RESOURCE_EXHAUSTED.
inline constexpr int kQueueCapacityDefault = 64;
/// For each wait of a rank for other ranks.
inline constexpr absl::Duration kRankDeadlineDefault = absl::Seconds(60);

/// Length of upload ids and request ids: a UUID with room for a prefix.
inline constexpr int kTokenLengthMax = 64;
/// Length of a tensor's name, for people to read.
inline constexpr int kNameLengthMax = 256;
/// Saved operands that a response lists of a session; sums count all of them.
inline constexpr size_t kSessionOperandsMax = 1000;
/// Entries of a page: by default, and at most.
inline constexpr int kPageSizeDefault = 100;
inline constexpr int kPageSizeMax = 1000;

/// Chunks that one upload may have between receiving and disk: enough that receiving, hashing and
/// writing seldom wait for each other while other work delays one of them.
inline constexpr int kUploadChunksInFlight = 16;
/// Bytes of chunks that one write takes: from 2 MiB on, larger writes to a disk are no faster.
inline constexpr int64_t kUploadWriteBytes = 4 << 20;
/// Bytes that uploads may hold in memory before streams are read one message at a time.
inline constexpr int64_t kUploadBytesInFlight = 256 << 20;
/// An upload stream without a message for this long is ended; the upload can be resumed.
inline constexpr absl::Duration kUploadIdleMax = absl::Minutes(2);
/// Uploads may keep their files open between two messages, one upload for so many descriptors of
/// the limit. An open upload takes two descriptors, so in all they take half of the quarter that
/// ConnectionsMax leaves for calls.
inline constexpr int64_t kDescriptorsPerOpenUpload = 16;
/// Interrupted uploads that are remembered, and how long their bytes are kept: by SteadyNow, and by
/// the times of the files for the time before the server's start.
inline constexpr int kPartialUploadsMax = 4096;
inline constexpr absl::Duration kPartialUploadAgeMax = absl::Hours(24);
/// The room that the disk should have left to record runs in progress: their events (8 MiB of each
/// are in memory at a time), the database's log (a few MiB) and copies of it at a checkpoint.
inline constexpr int64_t kDiskReserveBytes = 64 << 20;
/// Bytes after which the kernel is told to start writing an upload back, so that the last fsync has
/// little left to do.
inline constexpr int64_t kWritebackBytes = 8 << 20;

/// Connections at most, where descriptors allow them (ConnectionsMax): each costs gRPC some 20 KiB
/// before its first call. A server that has descriptors for fewer than kConnectionsLeast does not
/// start.
inline constexpr int64_t kConnectionsMax = 4096;
inline constexpr int64_t kConnectionsLeast = 4;
/// A connection without calls is closed after this long, so that clients which keep a connection
/// for later do not keep others out; gRPC's clients connect again when they call.
inline constexpr absl::Duration kConnectionIdleMax = absl::Minutes(2);
/// How long a peer may leave what was sent to it unacknowledged.
inline constexpr absl::Duration kKeepaliveTimeout = absl::Seconds(20);

/// Bytes prepared for clients that have not taken them (SendBudget), in all and for one connection,
/// and the size of the piece that a stream begins with. A client that reads nothing costs one such
/// piece, and three thousand of those clients less than the bound.
inline constexpr int64_t kSendBytesMax = 256 << 20;
inline constexpr int64_t kSendConnectionBytesMax = 16 << 20;
inline constexpr int64_t kSendPieceBytesLeast = 64 << 10;
/// The size that pieces grow to at most: the smallest on the plateau of the transfer rate. A client
/// is not seen to take any of a piece before it has taken all of it.
inline constexpr int64_t kSendPieceBytesMost = 256 << 10;
/// What a connection may hold of the part that is kept for those that hold little: two of the
/// largest pieces, one that is sent and one that is read meanwhile.
inline constexpr int64_t kSendConnectionBytesShare = 2 * kSendPieceBytesMost;
/// A call is ended when its client has not taken a message within this time plus the time that the
/// message takes at kSendRateLeast bytes a second. So a stream without a reader, which may have
/// waited for room first, ends within little more than two minutes. A client that reads a stream at
/// kSendRateLeast, with pauses no longer than this time, is never cut off.
inline constexpr absl::Duration kSendIdleMax = absl::Seconds(45);
/// Replaces kSendIdleMax while other connections wait for room to send.
inline constexpr absl::Duration kSendIdleWhenShort = absl::Seconds(10);
inline constexpr int64_t kSendRateLeast = 16 << 10;
/// Bytes of a connection that the kernel may hold unsent. By default it holds megabytes, and a
/// client that takes them slowly would seem to take nothing for minutes.
inline constexpr int kUnsentBytesMax = 128 << 10;
/// A piece that takes longer to send is followed by a smaller one.
inline constexpr absl::Duration kSendPieceTime = absl::Seconds(1);
/// Bytes of events that stay in memory after the ends of their runs, for clients that have yet to
/// be sent them. Other events of ended runs are read from the disk again.
inline constexpr size_t kEndedEventBytesMax = size_t{64} << 20;

/// Memory of messages that gRPC has received, beyond which it ends streams with RESOURCE_EXHAUSTED.
/// A thousand uploads that send a chunk at the same moment stay below it.
inline constexpr int64_t kGrpcBufferBytesMax = int64_t{3} << 29;
/// Streams of one connection: 16 connections carry 1000 uploads within this bound.
inline constexpr int kStreamsPerConnectionMax = 128;
/// gRPC's threads for reflection, the one service that takes a thread for each stream.
inline constexpr int kReflectionThreadsMax = 4;
/// Metadata of one call; QuantGate reads none beyond gRPC's own.
inline constexpr int kMetadataBytesMax = 16 << 10;
/// A status text longer than this is cut: it travels in HTTP/2 trailers, which peers limit to 8
/// KiB.
inline constexpr int kStatusMessageBytesMax = 2048;
/// How long a client that was refused for a full queue should wait.
inline constexpr absl::Duration kRetryAfter = absl::Seconds(1);

/// HTTP connections open at once. One more closes the oldest that has sent no request: probes and
/// scrapers are few and send theirs at once. Descriptors for kHttpConnectionsKept connections are
/// set aside.
inline constexpr int kHttpConnectionsMax = 64;
inline constexpr int kHttpConnectionsKept = 8;
/// The time that a connection has to send its request: longer than a probe waits, and short enough
/// that slow connections soon end.
inline constexpr absl::Duration kHttpRequestTimeMax = absl::Seconds(5);
/// A connection answers one request and is ended this long after it was accepted. Prometheus waits
/// 10 s for a scrape by default, other probes less.
inline constexpr absl::Duration kHttpConnectionAgeMax = absl::Seconds(10);
/// Bytes of a request's line and headers together, and of an answer's headers.
inline constexpr size_t kHttpConnectionBytes = 8 << 10;

/// The greatest age of the device clocks that a report states.
inline constexpr absl::Duration kDescriptionAgeMax = absl::Seconds(1);

/// Unary calls that may wait for a device, in a queue beside that of the runs.
inline constexpr int kUnaryQueueCapacity = 256;
/// Finished runs that are kept, and the bytes of their events. The oldest go first.
inline constexpr int kRunsKept = 1000;
inline constexpr int64_t kRunEventBytesKept = int64_t{1} << 30;
/// Bytes of the latest events of a run in progress that are also in memory, for clients that follow
/// it.
inline constexpr size_t kLiveEventBytesMax = size_t{8} << 20;
/// Steps of a trace over all rounds and variants: each is an event, of which a run's database row
/// and its streams take a few KiB.
inline constexpr int64_t kTraceStepsMax = 100'000;
/// Ended sessions that are remembered, so that a late call learns how its session ended.
inline constexpr size_t kEndedSessionsKept = 4096;

/// Bounds on the training sessions that a server holds.
struct SessionLimits {
  int sessions_max = 1024;
  int64_t bytes_max = int64_t{16} << 30;  ///< Bytes of all sessions together.
  absl::Duration lease_default = absl::Minutes(15);
  absl::Duration lease_max = absl::Hours(24);
  /// A session that was not used for so long may be evicted for another one, the least recently
  /// used first.
  absl::Duration idle_min = absl::Minutes(1);
};

}  // namespace quantgate
