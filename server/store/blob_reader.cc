#include "server/store/blob_reader.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"
#include "server/store/blob_store.h"

namespace quantgate {

absl::StatusOr<size_t> BlobReader::Next(std::span<std::byte> out) {
  const size_t count = static_cast<size_t>(std::min<int64_t>(remaining(), out.size()));
  if (count == 0) return count;
  if (!file_.is_open()) {
    QG_ASSIGN_OR_RETURN(file_, store_->OpenBlob(digest_));
  }
  const auto piece = out.first(count);
  absl::Status read = file_.Read(offset_, piece);
  if (!read.ok()) {
    if (!absl::IsDataLoss(read)) return read;
    store_->Quarantine(digest_);
    return error::BlobCorrupted(digest_, std::string(read.message()));
  }
  offset_ += static_cast<int64_t>(count);
  if (hash_ == nullptr) return count;
  hash_->Update(piece);
  if (remaining() > 0) return count;
  const Sha256 actual = hash_->Finish();
  hash_ = nullptr;
  if (actual == digest_.sha256) {
    store_->RecordSize(digest_.sha256);
    return count;
  }
  store_->Quarantine(digest_);
  return error::BlobCorrupted(digest_, absl::StrCat("its bytes have SHA-256 ", actual.Hex()));
}

}  // namespace quantgate
