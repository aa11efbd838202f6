#include "server/errors.h"

#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/base/refusal.h"
#include "server/limits.h"

namespace quantgate::error {
namespace {

constexpr char kMissing[] = "quantgate/missing";
constexpr char kRetryAfter[] = "quantgate/retry_after_ms";
constexpr char kReason[] = "quantgate/reason";
constexpr char kCommitted[] = "quantgate/committed_size";

absl::Status With(absl::Status status, const char* key, const std::string& value) {
  status.SetPayload(key, absl::Cord(value));
  return status;
}

std::string Payload(const absl::Status& status, const char* key) {
  auto payload = status.GetPayload(key);
  return payload.has_value() ? std::string(*payload) : std::string();
}

absl::Status Refused(absl::StatusCode code, const std::string& field, const std::string& value,
                     const std::string& rule) {
  return StatusOf({.code = code, .field = field, .value = value, .rule = rule});
}

absl::Status Exhausted(const std::string& reason, const std::string& text) {
  return With(absl::ResourceExhaustedError(text), kReason, reason);
}

}  // namespace

Detail DetailOf(const absl::Status& status) {
  Detail detail;
  if (std::optional<Refusal> refusal = RefusalOf(status)) {
    detail.field = std::move(refusal->field);
    detail.value = std::move(refusal->value);
    detail.rule = std::move(refusal->rule);
  }
  detail.reason = Payload(status, kReason);
  int64_t number;
  if (absl::SimpleAtoi(Payload(status, kRetryAfter), &number)) {
    detail.retry_after = absl::Milliseconds(number);
  }
  if (absl::SimpleAtoi(Payload(status, kCommitted), &number)) detail.committed_size = number;
  for (const std::string& text : std::vector<std::string>(
           absl::StrSplit(Payload(status, kMissing), ',', absl::SkipEmpty()))) {
    const std::vector<std::string> parts = absl::StrSplit(text, '/');
    auto sha256 = Sha256::FromHex(parts[0]);
    if (sha256.ok() && parts.size() == 2 && absl::SimpleAtoi(parts[1], &number)) {
      detail.missing.push_back({*sha256, number});
    }
  }
  return detail;
}

absl::Status BlobsMissing(const std::string& field, std::vector<Digest> missing) {
  const std::string list = absl::StrJoin(missing, ",", [](std::string* out, const Digest& digest) {
    absl::StrAppend(out, digest.Text());
  });
  return With(Refused(absl::StatusCode::kFailedPrecondition, field, list,
                      "these blobs are not stored; upload them first"),
              kMissing, list);
}

absl::Status BlobNotFound(const Digest& digest) {
  return Refused(absl::StatusCode::kNotFound, "digest", digest.Text(), "no such blob is stored");
}

absl::Status UploadNotFound(const std::string& upload_id) {
  return Refused(absl::StatusCode::kNotFound, "upload_id", absl::StrCat("'", upload_id, "'"),
                 "no such upload of this digest is under way");
}

absl::Status RunNotFound(const std::string& run_id) {
  return Refused(absl::StatusCode::kNotFound, "run_id", absl::StrCat("'", run_id, "'"),
                 "this server has no such run");
}

absl::Status SessionNotFound(const std::string& session_id) {
  return Refused(absl::StatusCode::kNotFound, "session_id", absl::StrCat("'", session_id, "'"),
                 "this server has no such session");
}

absl::Status SessionEnded(const std::string& session_id, std::string_view how) {
  std::string rule = absl::StrCat("the session is ", std::string(how));
  if (how == "evicted") rule += ": it was idle, and another one needed its place";
  if (how == "expired") rule += ": no call named it for as long as its lease";
  rule += "; restore it from a checkpoint";
  return RefusePrecondition("session_id", session_id, rule);
}

absl::Status SessionOfRun(const std::string& session_id, const std::string& run_id) {
  return RefusePrecondition(
      "session_id", session_id,
      absl::StrCat("the session is of the trace ", run_id, ", which alone steps and closes it"));
}

absl::Status SessionStepConflict(int64_t expected_step, int64_t step) {
  return Refused(
      absl::StatusCode::kAborted, "expected_step", absl::StrCat(expected_step),
      absl::StrCat("the session is at step ", step, ": another client's step came first"));
}

absl::Status SessionBusy(const std::string& request_id) {
  return With(Refused(absl::StatusCode::kAborted, "request_id", absl::StrCat("'", request_id, "'"),
                      "the session of this request is being opened"),
              kRetryAfter, absl::StrCat(absl::ToInt64Milliseconds(quantgate::kRetryAfter)));
}

absl::Status OffsetMismatch(int64_t offset, int64_t committed_size) {
  return With(Refused(absl::StatusCode::kOutOfRange, "header.offset", absl::StrCat(offset),
                      absl::StrCat("the server has ", committed_size,
                                   " bytes of this upload, go on from there")),
              kCommitted, absl::StrCat(committed_size));
}

absl::Status RangeBeyondBlob(const std::string& field, int64_t value, int64_t size) {
  return Refused(absl::StatusCode::kOutOfRange, field, absl::StrCat(value),
                 absl::StrCat("must lie within the blob's ", size, " bytes"));
}

absl::Status SequenceBeyondEnd(int64_t sequence, int64_t last_sequence) {
  return Refused(absl::StatusCode::kOutOfRange, "from_sequence", absl::StrCat(sequence),
                 absl::StrCat("the run's last event is ", last_sequence));
}

absl::Status DigestMismatch(const Digest& declared, const Digest& actual) {
  return Refuse(
      "header.digest", declared.Text(),
      absl::StrCat("the bytes received have ", actual.Text(), "; the upload is discarded"));
}

absl::Status UploadTruncated(int64_t committed_size, int64_t declared_size) {
  return With(Refuse("header.digest.size", absl::StrCat(declared_size),
                     absl::StrCat("the upload ended after ", committed_size,
                                  " bytes; resume it from there")),
              kCommitted, absl::StrCat(committed_size));
}

absl::Status UploadBusy(const std::string& upload_id) {
  return With(Refused(absl::StatusCode::kAborted, "upload_id", absl::StrCat("'", upload_id, "'"),
                      "another stream is writing this upload"),
              kRetryAfter, absl::StrCat(absl::ToInt64Milliseconds(quantgate::kRetryAfter)));
}

absl::Status ChunkCorrupted(int64_t offset, uint32_t declared, uint32_t actual) {
  return With(Refused(absl::StatusCode::kDataLoss, "crc32c", absl::StrCat(absl::Hex(declared)),
                      absl::StrCat("the chunk at offset ", offset, " has ", absl::Hex(actual),
                                   "; send it again")),
              kCommitted, absl::StrCat(offset));
}

absl::Status BlobCorrupted(const Digest& digest, const std::string& finding) {
  return Refused(
      absl::StatusCode::kDataLoss, "digest", digest.Text(),
      absl::StrCat("the stored blob is damaged: ", finding, "; it is set aside, upload it again"));
}

absl::Status RequestIdReused(const std::string& request_id) {
  return Refused(absl::StatusCode::kAlreadyExists, "request_id", request_id,
                 "was used for a request with other content");
}

absl::Status QueueFull(const std::string& queue, int capacity) {
  return With(Exhausted("queue_full", absl::StrCat("the ", queue, " queue is full (", capacity,
                                                   " waiting); try again later")),
              kRetryAfter, absl::StrCat(absl::ToInt64Milliseconds(quantgate::kRetryAfter)));
}

absl::Status DiskFull(const std::string& operation) {
  return Exhausted("disk", absl::StrCat("the server's disk is full (", operation, ")"));
}

absl::Status EndNotStored(const std::string& run_id, const absl::Status& why) {
  absl::Status status(
      why.code(), absl::StrCat(run_id, " has ended, but its end cannot be stored: ", why.message(),
                               "; it will be reported once it is stored"));
  if (!absl::IsResourceExhausted(why)) return status;
  return With(With(std::move(status), kReason, Payload(why, kReason)), kRetryAfter,
              absl::StrCat(absl::ToInt64Milliseconds(quantgate::kRetryAfter)));
}

absl::Status QuotaExceeded(int64_t wanted, int64_t used, int64_t limit) {
  return Exhausted("quota", absl::StrCat(wanted, " more bytes do not fit the blob store: ", used,
                                         " of ", limit, " bytes are used"));
}

absl::Status SessionsFull(const std::string& what, int64_t wanted, int64_t limit) {
  return With(Exhausted("sessions", absl::StrCat(what, ": ", wanted, " of ", limit,
                                                 ", and none is idle; close one, or try later")),
              kRetryAfter, absl::StrCat(absl::ToInt64Milliseconds(quantgate::kRetryAfter)));
}

absl::Status TraceHasNoRoom(int64_t variants, int64_t places) {
  return With(Exhausted("sessions", absl::StrCat("sessions: the trace's variants need ", variants,
                                                 " places, and ", places,
                                                 " are free or idle; close some, or try later")),
              kRetryAfter, absl::StrCat(absl::ToInt64Milliseconds(quantgate::kRetryAfter)));
}

absl::Status TraceNeverFits(int64_t variants, int64_t sessions_max) {
  return With(Refused(absl::StatusCode::kResourceExhausted, "trace.variants",
                      absl::StrCat(variants, " given"),
                      absl::StrCat("each has a session, and this server has places for ",
                                   sessions_max, " (sessions_max): the trace can never fit")),
              kReason, "limit");
}

absl::Status LimitExceeded(const std::string& field, int64_t value, int64_t limit) {
  return With(Refused(absl::StatusCode::kResourceExhausted, field, absl::StrCat(value),
                      absl::StrCat("the limit is ", limit)),
              kReason, "limit");
}

absl::Status Draining() {
  return With(absl::UnavailableError("the server is shutting down"), kRetryAfter,
              absl::StrCat(absl::ToInt64Milliseconds(quantgate::kRetryAfter)));
}

absl::Status NoRoomToSend() {
  return With(
      Exhausted("bytes_budget",
                "there is no room for the answer: clients have not read what they were sent"),
      kRetryAfter, absl::StrCat(absl::ToInt64Milliseconds(quantgate::kRetryAfter)));
}

absl::Status Internal(const std::string& what) { return absl::InternalError(what); }

absl::Status FromErrno(int error_number, const std::string& operation) {
  if (error_number == ENOSPC || error_number == EDQUOT) return DiskFull(operation);
  if (error_number == EMFILE || error_number == ENFILE) {
    return Exhausted("limit", absl::StrCat(operation, ": ", std::strerror(error_number)));
  }
  if (error_number == EFBIG) {
    return Exhausted("limit", absl::StrCat(operation, ": ", std::strerror(error_number),
                                           ", by RLIMIT_FSIZE or the file system"));
  }
  if (error_number == ENOMEM) {
    return Exhausted("memory", absl::StrCat(operation, ": ", std::strerror(error_number)));
  }
  const std::string text = absl::StrCat(operation, ": ", std::strerror(error_number));
  return error_number == EIO ? absl::DataLossError(text) : absl::InternalError(text);
}

}  // namespace quantgate::error
