#include "server/store/blob_reader.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"
#include "server/store/blob_store.h"

namespace quantgate {

absl::Status BlobReader::Reopen() {
  QG_ASSIGN_OR_RETURN(file_, store_->OpenBlob(digest_));
  QG_ASSIGN_OR_RETURN(const FileIdentity now, file_.Identity());
  if (now == identity_) return absl::OkStatus();
  // The blob was set aside and uploaded again: bytes read from the earlier file may be damaged.
  return error::BlobCorrupted(digest_, "it was replaced while it was read");
}

absl::Status BlobReader::Damaged(const std::string& how) {
  store_->Quarantine(digest_, "read", identity_);
  return error::BlobCorrupted(digest_, how);
}

absl::StatusOr<size_t> BlobReader::Next(std::span<std::byte> out) {
  const size_t count = static_cast<size_t>(std::min<int64_t>(remaining(), out.size()));
  if (count == 0) return count;
  if (!file_.is_open()) QG_RETURN_IF_ERROR(Reopen());
  const auto piece = out.first(count);
  absl::Status read = file_.Read(offset_, piece);
  if (!read.ok()) return absl::IsDataLoss(read) ? Damaged(std::string(read.message())) : read;
  offset_ += static_cast<int64_t>(count);
  hash_->Update(piece);
  if (remaining() > 0) return count;
  const Sha256 actual = hash_->Finish();
  if (actual != expected_) return Damaged(absl::StrCat("what was read has SHA-256 ", actual.Hex()));
  if (expected_ == digest_.sha256) store_->RecordSize(digest_.sha256);
  return count;
}

}  // namespace quantgate
