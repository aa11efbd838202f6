#include "server/store/blob_upload.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "server/errors.h"
#include "server/limits.h"
#include "server/store/blob_store.h"

namespace quantgate {
namespace {

/// `pieces` less their first `count` bytes.
std::vector<std::span<const std::byte>> Without(int64_t count, BlobUpload::Pieces pieces) {
  std::vector<std::span<const std::byte>> rest;
  for (const auto& piece : pieces) {
    const size_t skip = std::min(piece.size(), static_cast<size_t>(count));
    count -= static_cast<int64_t>(skip);
    if (skip < piece.size()) rest.push_back(piece.subspan(skip));
  }
  return rest;
}

}  // namespace

BlobUpload::BlobUpload(BlobStore* store, std::string key, Digest digest, File file,
                       FileIdentity identity, int64_t offset, std::unique_ptr<Sha256Stream> hash)
    : store_(store),
      key_(std::move(key)),
      digest_(digest),
      identity_(identity),
      stays_open_(store->open_uploads_.fetch_add(1) < store->options_.open_uploads_max),
      hash_(std::move(hash)),
      hashed_(offset),
      written_(offset),
      writeback_started_(offset) {
  if (stays_open_) {
    Use(std::move(file));
  } else {
    --store->open_uploads_;
  }
}

BlobUpload::~BlobUpload() {
  if (stays_open_) --store_->open_uploads_;
  if (is_over_ || IsPresent()) {
    store_->ForgetPartial(key_);
    return;
  }
  // A hash of more bytes than the file has is of no use to a resume, which then hashes the file.
  if (hashed_ != written_) hash_ = nullptr;
  store_->EndUpload(key_, written_, std::move(hash_));
}

void BlobUpload::Use(File file) {
  file_ = std::move(file);
  // Without fsync nothing has to reach the device, so all writes go to the page cache.
  if (store_->options_.fsync) direct_file_ = DirectFile::Open(store_->PartialPath(key_));
}

absl::Status BlobUpload::Open() {
  if (file_.is_open()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(File file, File::OpenForWriting(store_->PartialPath(key_)));
  QG_ASSIGN_OR_RETURN(const FileIdentity now, file.Identity());
  if (now != identity_) {
    is_over_ = true;
    return absl::DataLossError("the file of this upload was replaced; send all of it again");
  }
  Use(std::move(file));
  return absl::OkStatus();
}

void BlobUpload::Rest() {
  if (stays_open_) return;
  file_ = File();
  direct_file_ = DirectFile();
}

bool BlobUpload::IsPresent() const { return store_->Contains(digest_); }

void BlobUpload::Hash(Pieces pieces) {
  for (const auto& piece : pieces) {
    hash_->Update(piece);
    hashed_ += static_cast<int64_t>(piece.size());
  }
}

absl::Status BlobUpload::Write(Pieces pieces) {
  QG_RETURN_IF_ERROR(Open());
  int64_t bytes = 0;
  for (const auto& piece : pieces) bytes += static_cast<int64_t>(piece.size());
  QG_ASSIGN_OR_RETURN(const int64_t direct, direct_file_.WriteFront(written_, pieces));
  if (direct < bytes) QG_RETURN_IF_ERROR(file_.Write(written_ + direct, Without(direct, pieces)));
  written_ += bytes;
  if (store_->options_.fsync && written_ - writeback_started_ >= kWritebackBytes) {
    file_.StartWriteback(writeback_started_, written_ - writeback_started_);
    writeback_started_ = written_;
  }
  Rest();
  return absl::OkStatus();
}

absl::Status BlobUpload::Commit() {
  if (written_ < digest_.size) return error::UploadTruncated(written_, digest_.size);
  const Digest actual{hash_->Finish(), hashed_};
  if (actual != digest_) {
    is_over_ = true;
    return error::DigestMismatch(digest_, actual);
  }
  hash_ = nullptr;
  hashed_ = -1;  // The hash is finished: a failure below must not save it for a resume.
  if (store_->options_.fsync) {
    QG_RETURN_IF_ERROR(Open());
    QG_RETURN_IF_ERROR(file_.Sync());
  }
  QG_RETURN_IF_ERROR(store_->Publish(store_->PartialPath(key_), digest_));
  is_over_ = true;
  return absl::OkStatus();
}

}  // namespace quantgate
