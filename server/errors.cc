#include "server/errors.h"

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/limits.h"

namespace quantgate::error {
namespace {

constexpr char kField[] = "quantgate/field";
constexpr char kValue[] = "quantgate/value";
constexpr char kRule[] = "quantgate/rule";
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

absl::Status About(absl::Status status, const std::string& field, const std::string& value,
                   const std::string& rule) {
  return With(With(With(std::move(status), kField, field), kValue, value), kRule, rule);
}

absl::Status Exhausted(const std::string& reason, const std::string& text) {
  return With(absl::ResourceExhaustedError(text), kReason, reason);
}

}  // namespace

Detail DetailOf(const absl::Status& status) {
  Detail detail;
  detail.field = Payload(status, kField);
  detail.value = Payload(status, kValue);
  detail.rule = Payload(status, kRule);
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

absl::Status InvalidField(const std::string& field, const std::string& value,
                          const std::string& rule) {
  return About(absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ": ", rule)), field,
               value, rule);
}

absl::Status MissingField(const std::string& field, const std::string& rule) {
  return About(absl::InvalidArgumentError(absl::StrCat(field, " is absent: ", rule)), field, "",
               rule);
}

BrokenRule BrokenRuleOf(const absl::Status& status) {
  const std::string text(status.message());
  const size_t end = text.find_first_of(" :");
  if (end == std::string::npos) return {};
  const bool says_is = text.compare(end, 4, " is ") == 0;
  if (!says_is && text.compare(end, 2, ": ") != 0) return {};
  const size_t value = end + (says_is ? 4 : 2);
  const size_t rule = text.find(says_is ? ": " : "; ", value);
  if (rule == std::string::npos) return {};
  return {text.substr(0, end), text.substr(value, rule - value), text.substr(rule + 2)};
}

absl::Status AtField(absl::Status status, const std::string& field) {
  if (status.ok() || status.GetPayload(kField).has_value()) return status;
  const BrokenRule broken = BrokenRuleOf(status);
  const std::string text(status.message());
  if (broken.field.empty()) {
    return About(absl::Status(status.code(), absl::StrCat(field, ": ", text)), field, "", text);
  }
  const std::string prefix = field.empty() ? "" : field + ".";
  return About(absl::Status(status.code(), prefix + text), prefix + broken.field, broken.value,
               broken.rule);
}

absl::Status BlobsMissing(const std::string& field, std::vector<Digest> missing) {
  const std::string list = absl::StrJoin(missing, ",", [](std::string* out, const Digest& digest) {
    absl::StrAppend(out, digest.Text());
  });
  return With(About(absl::FailedPreconditionError(absl::StrCat(
                        field, " names blobs that are not stored: ", list, "; upload them first")),
                    field, list, "must be stored"),
              kMissing, list);
}

absl::Status BlobNotFound(const Digest& digest) {
  return About(absl::NotFoundError(absl::StrCat("no blob ", digest.Text())), "digest",
               digest.Text(), "must be stored");
}

absl::Status UploadNotFound(const std::string& upload_id) {
  return About(absl::NotFoundError(absl::StrCat("no upload '", upload_id, "' of this digest")),
               "upload_id", upload_id, "must be an upload of this digest");
}

absl::Status RunNotFound(const std::string& run_id) {
  return About(absl::NotFoundError(absl::StrCat("no run '", run_id, "'")), "run_id", run_id,
               "must be a run of this server");
}

absl::Status TensorNotFound(const Digest& digest) {
  return About(absl::NotFoundError(absl::StrCat("no tensor is registered for blob ", digest.Text(),
                                                "; give its dtype and shape")),
               "digest", digest.Text(), "must be registered, or come with a type");
}

absl::Status SessionNotFound(const std::string& session_id) {
  return About(absl::NotFoundError(absl::StrCat("no session '", session_id, "'")), "session_id",
               session_id, "must be a session of this server");
}

absl::Status SessionEnded(const std::string& session_id, std::string_view how) {
  std::string rule = absl::StrCat("the session is ", std::string(how));
  if (how == "evicted") rule += ": it was idle, and another one needed its place";
  if (how == "expired") rule += ": no call named it for as long as its lease";
  rule += "; restore it from a checkpoint";
  return About(
      absl::FailedPreconditionError(absl::StrCat("session_id is ", session_id, ": ", rule)),
      "session_id", session_id, rule);
}

absl::Status SessionElsewhere(int64_t expected_step, int64_t step) {
  const std::string rule =
      absl::StrCat("the session is at step ", step, ": another client's step came first");
  return About(absl::AbortedError(absl::StrCat("expected_step is ", expected_step, ": ", rule)),
               "expected_step", absl::StrCat(expected_step), rule);
}

absl::Status SessionBusy(const std::string& request_id) {
  return With(
      absl::AbortedError(absl::StrCat("request '", request_id, "' is opening its session now")),
      kRetryAfter, absl::StrCat(absl::ToInt64Milliseconds(quantgate::kRetryAfter)));
}

absl::Status OffsetMismatch(int64_t offset, int64_t committed_size) {
  return With(About(absl::OutOfRangeError(absl::StrCat("header.offset is ", offset,
                                                       ": the server has ", committed_size,
                                                       " bytes of this upload, go on from there")),
                    "header.offset", absl::StrCat(offset), "must equal the committed size"),
              kCommitted, absl::StrCat(committed_size));
}

absl::Status RangeBeyondBlob(const std::string& field, int64_t value, int64_t size) {
  const std::string rule = absl::StrCat("must lie within the blob's ", size, " bytes");
  return About(absl::OutOfRangeError(absl::StrCat(field, " is ", value, ": ", rule)), field,
               absl::StrCat(value), rule);
}

absl::Status SequenceBeyondEnd(int64_t sequence, int64_t last_sequence) {
  const std::string rule = absl::StrCat("the run's last event is ", last_sequence);
  return About(absl::OutOfRangeError(absl::StrCat("from_sequence is ", sequence, ": ", rule)),
               "from_sequence", absl::StrCat(sequence), rule);
}

absl::Status DigestMismatch(const Digest& declared, const Digest& actual) {
  return About(absl::InvalidArgumentError(absl::StrCat("header.digest is ", declared.Text(),
                                                       ": the bytes received have ", actual.Text(),
                                                       "; the upload is discarded")),
               "header.digest", declared.Text(), "must be the digest of the bytes");
}

absl::Status UploadTruncated(int64_t committed_size, int64_t declared_size) {
  return With(
      About(
          absl::InvalidArgumentError(absl::StrCat("the upload ended after ", committed_size, " of ",
                                                  declared_size, " bytes; resume it from there")),
          "header.digest.size", absl::StrCat(declared_size), "must equal the number of bytes sent"),
      kCommitted, absl::StrCat(committed_size));
}

absl::Status UploadBusy(const std::string& upload_id) {
  return With(
      absl::AbortedError(absl::StrCat("another stream is writing upload '", upload_id, "'")),
      kRetryAfter, absl::StrCat(absl::ToInt64Milliseconds(quantgate::kRetryAfter)));
}

absl::Status ChunkCorrupted(int64_t offset, uint32_t declared, uint32_t actual) {
  return With(About(absl::DataLossError(absl::StrCat("crc32c is ", absl::Hex(declared),
                                                     ": the chunk at offset ", offset, " has ",
                                                     absl::Hex(actual), "; send it again")),
                    "crc32c", absl::StrCat(absl::Hex(declared)), "must be the CRC32C of data"),
              kCommitted, absl::StrCat(offset));
}

absl::Status BlobCorrupted(const Digest& digest, const std::string& finding) {
  return About(absl::DataLossError(absl::StrCat("stored blob ", digest.Text(), " is damaged: ",
                                                finding, "; it is set aside, upload it again")),
               "digest", digest.Text(), "must match the stored bytes");
}

absl::Status RequestIdReused(const std::string& request_id) {
  const std::string rule = "was used for a request with other content";
  return About(absl::AlreadyExistsError(absl::StrCat("request_id is ", request_id, ": ", rule)),
               "request_id", request_id, rule);
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
  absl::Status status(why.code(), absl::StrCat(run_id, " has ended, but its end cannot be stored: ",
                                               why.message(), "; it is told once it is stored"));
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

absl::Status LimitExceeded(const std::string& field, int64_t value, int64_t limit) {
  const std::string rule = absl::StrCat("the limit is ", limit);
  return About(Exhausted("limit", absl::StrCat(field, " is ", value, ": ", rule)), field,
               absl::StrCat(value), rule);
}

absl::Status Draining() {
  return With(absl::UnavailableError("the server is shutting down"), kRetryAfter,
              absl::StrCat(absl::ToInt64Milliseconds(quantgate::kRetryAfter)));
}

absl::Status NoRoomToSend() {
  return With(Exhausted("bytes_budget",
                        "there is no room for the answer: too much waits to be read by clients"),
              kRetryAfter, absl::StrCat(absl::ToInt64Milliseconds(quantgate::kRetryAfter)));
}

absl::Status Internal(const std::string& what) { return absl::InternalError(what); }

absl::Status FromErrno(int error_number, const std::string& operation) {
  if (error_number == ENOSPC || error_number == EDQUOT) return DiskFull(operation);
  if (error_number == EMFILE || error_number == ENFILE) {
    return Exhausted("limit", absl::StrCat(operation, ": ", std::strerror(error_number)));
  }
  if (error_number == ENOMEM) {
    return Exhausted("memory", absl::StrCat(operation, ": ", std::strerror(error_number)));
  }
  const std::string text = absl::StrCat(operation, ": ", std::strerror(error_number));
  return error_number == EIO ? absl::DataLossError(text) : absl::InternalError(text);
}

}  // namespace quantgate::error
