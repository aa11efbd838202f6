// Every error the service gives, by name, so that code, wording and details live in one place.
// Details travel as payloads of the absl::Status; server/rpc/call.h turns them into a
// v1.ErrorDetail at the one status exit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/digest.h"

namespace quantgate::error {

/// What an error carries besides its code and text, the parts of a Refusal included. It corresponds
/// to v1.ErrorDetail.
struct Detail {
  std::string field;
  std::string value;
  std::string rule;
  std::vector<Digest> missing;
  std::optional<absl::Duration> retry_after;
  std::string reason;
  std::optional<int64_t> committed_size;
};
Detail DetailOf(const absl::Status& status);

/// FAILED_PRECONDITION listing the blobs that have to be uploaded first.
absl::Status BlobsMissing(const std::string& field, std::vector<Digest> missing);
absl::Status BlobNotFound(const Digest& digest);
absl::Status UploadNotFound(const std::string& upload_id);
absl::Status RunNotFound(const std::string& run_id);
absl::Status SessionNotFound(const std::string& session_id);
/// FAILED_PRECONDITION of a session that has ended; `how`: "closed", "evicted" or "expired".
absl::Status SessionEnded(const std::string& session_id, std::string_view how);
/// FAILED_PRECONDITION of a session of a trace, which only its run uses and closes.
absl::Status SessionOfRun(const std::string& session_id, const std::string& run_id);
/// ABORTED: another client's step came first.
absl::Status SessionStepConflict(int64_t expected_step, int64_t step);
/// ABORTED: the session of this request is being opened.
absl::Status SessionBusy(const std::string& request_id);

/// OUT_OF_RANGE of an upload, with the size that the server has committed.
absl::Status OffsetMismatch(int64_t offset, int64_t committed_size);
absl::Status RangeBeyondBlob(const std::string& field, int64_t value, int64_t size);
absl::Status SequenceBeyondEnd(int64_t sequence, int64_t last_sequence);
absl::Status DigestMismatch(const Digest& declared, const Digest& actual);
absl::Status UploadTruncated(int64_t committed_size, int64_t declared_size);
/// ABORTED: retry once the other stream has ended.
absl::Status UploadBusy(const std::string& upload_id);
absl::Status ChunkCorrupted(int64_t offset, uint32_t declared, uint32_t actual);
absl::Status BlobCorrupted(const Digest& digest, const std::string& finding);
/// ALREADY_EXISTS: a request id used for something else.
absl::Status RequestIdReused(const std::string& request_id);

/// The following are RESOURCE_EXHAUSTED and state their reason.
absl::Status QueueFull(const std::string& queue, int capacity);
absl::Status DiskFull(const std::string& operation);
/// For a run that has ended and whose end is not stored: the code of `why`, usually
/// RESOURCE_EXHAUSTED. Then the error has the reason of `why` and the time after which to ask
/// again.
absl::Status EndNotStored(const std::string& run_id, const absl::Status& why);
absl::Status QuotaExceeded(int64_t wanted, int64_t used, int64_t limit);
/// All sessions together would hold more of `what` (sessions, bytes) than `limit`.
absl::Status SessionsFull(const std::string& what, int64_t wanted, int64_t limit);
/// A trace of so many variants has fewer places for its sessions now.
absl::Status TraceHasNoRoom(int64_t variants, int64_t places);
/// A trace of so many variants, each of which needs one of the server's places for sessions.
absl::Status TraceNeverFits(int64_t variants, int64_t sessions_max);
absl::Status LimitExceeded(const std::string& field, int64_t value, int64_t limit);

/// UNAVAILABLE while the server shuts down: another server may take the call.
absl::Status Draining();
/// INTERNAL: a defect of the server itself.
absl::Status Internal(const std::string& what);
/// RESOURCE_EXHAUSTED: clients have not taken what they were sent, so there is no room to send
/// more.
absl::Status NoRoomToSend();
/// A failed system call: DiskFull for ENOSPC and EDQUOT, RESOURCE_EXHAUSTED where descriptors or
/// memory are lacking or a file may not grow, DATA_LOSS for EIO, else INTERNAL. Never names a path.
absl::Status FromErrno(int error_number, const std::string& operation);

}  // namespace quantgate::error
