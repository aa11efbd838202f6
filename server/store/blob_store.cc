#include "server/store/blob_store.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"
#include "server/limits.h"

namespace quantgate {
namespace {

constexpr char kTemporaryPrefix[] = "put.";

const Digest& EmptyDigest() {
  static const Digest digest = Digest::Of({});
  return digest;
}

std::string PartialKey(const std::string& upload_id, const Digest& digest) {
  return absl::StrCat(digest.sha256.Hex(), ".", digest.size, ".", upload_id);
}

// The hash of the first `size` bytes of a file, such as those of an upload that is resumed after a
// restart.
absl::StatusOr<std::unique_ptr<Sha256Stream>> HashPrefix(const File& file, int64_t size) {
  auto hash = std::make_unique<Sha256Stream>();
  std::vector<std::byte> piece(static_cast<size_t>(std::min(size, kChunkBytes)));
  for (int64_t offset = 0; offset < size;) {
    const auto part = std::span(piece).first(
        static_cast<size_t>(std::min<int64_t>(size - offset, static_cast<int64_t>(piece.size()))));
    QG_RETURN_IF_ERROR(file.Read(offset, part));
    hash->Update(part);
    offset += static_cast<int64_t>(part.size());
  }
  return hash;
}

absl::StatusOr<int64_t> SizeOfFile(const std::string& path) {
  QG_ASSIGN_OR_RETURN(const File file, File::OpenForReading(path));
  return file.Size();
}

}  // namespace

absl::StatusOr<BlobName> ParseBlobName(const std::string& file_name) {
  const size_t dot = file_name.find('.');
  QG_ASSIGN_OR_RETURN(const Sha256 sha256, Sha256::FromHex(file_name.substr(0, dot)));
  if (dot == std::string::npos) return BlobName{sha256, std::nullopt};
  int64_t size;
  if (!absl::SimpleAtoi(file_name.substr(dot + 1), &size)) {
    return absl::InvalidArgumentError("no name of a blob");
  }
  return BlobName{sha256, size};
}

absl::StatusOr<Sha256> HashOfFile(const std::string& path) {
  QG_ASSIGN_OR_RETURN(const File file, File::OpenForReading(path));
  return HashOfFile(file);
}

absl::StatusOr<Sha256> HashOfFile(const File& file) {
  QG_ASSIGN_OR_RETURN(const int64_t size, file.Size());
  QG_ASSIGN_OR_RETURN(const auto hash, HashPrefix(file, size));
  return hash->Finish();
}

size_t BlobStore::Sha256Hash::operator()(const Sha256& sha256) const {
  size_t hash;
  std::memcpy(&hash, sha256.bytes.data(), sizeof(hash));
  return hash;
}

absl::StatusOr<std::unique_ptr<BlobStore>> BlobStore::Open(BlobStoreOptions options) {
  auto store = std::unique_ptr<BlobStore>(new BlobStore(std::move(options)));
  QG_RETURN_IF_ERROR(store->ScanBlobs());
  QG_RETURN_IF_ERROR(store->ScanPartials());
  return store;
}

absl::Status BlobStore::ScanBlobs() {
  std::error_code code;
  const std::filesystem::recursive_directory_iterator files(options_.blobs_path, code);
  if (code) return error::FromErrno(code.value(), "listing the blob store");
  for (const auto& entry : files) {
    if (entry.is_regular_file(code)) QG_RETURN_IF_ERROR(ScanBlob(entry.path().string()));
  }
  return absl::OkStatus();
}

absl::Status BlobStore::ScanBlob(const std::string& path) {
  const absl::StatusOr<BlobName> name = ParseBlobName(path.substr(path.rfind('/') + 1));
  if (!name.ok()) return absl::OkStatus();  // Not a file of this store.
  QG_ASSIGN_OR_RETURN(const int64_t size, SizeOfFile(path));
  if (name->size.has_value() && size != *name->size) {
    (void)RenameFile(path, options_.quarantine_path + "/" + name->sha256.Hex());
    options_.on_corruption("startup");
    return absl::OkStatus();
  }
  const std::lock_guard lock(mutex_);
  blobs_[name->sha256] = {size, name->size.has_value()};
  committed_bytes_ += size;
  return absl::OkStatus();
}

absl::Status BlobStore::ScanPartials() {
  const std::lock_guard lock(mutex_);
  std::error_code code;
  const std::filesystem::directory_iterator files(options_.partial_path, code);
  if (code) return error::FromErrno(code.value(), "listing partial uploads");
  const auto now = std::filesystem::file_time_type::clock::now();
  for (const auto& entry : files) {
    const std::string key = entry.path().filename().string();
    // The age is measured by the wall clock alone, which may have been set back since.
    const absl::Duration age =
        std::max(absl::FromChrono(now - entry.last_write_time(code)), absl::ZeroDuration());
    if (key.starts_with(kTemporaryPrefix) || age > kPartialUploadAgeMax) {
      RemoveFile(entry.path().string());
      continue;
    }
    Partial& partial = partials_[key];
    partial.size = partial.reserved = static_cast<int64_t>(entry.file_size(code));
    partial.touched = options_.now() - age;
    reserved_bytes_ += partial.reserved;
  }
  return absl::OkStatus();
}

std::string BlobStore::BlobPath(const Sha256& sha256, const Blob& blob) const {
  const std::string hex = sha256.Hex();
  const std::string size = blob.is_size_recorded ? absl::StrCat(".", blob.size) : "";
  return absl::StrCat(options_.blobs_path, "/", hex.substr(0, 2), "/", hex.substr(2, 2), "/", hex,
                      size);
}

absl::StatusOr<File> BlobStore::OpenFile(const Sha256& sha256, Blob& blob) const {
  const std::lock_guard lock(mutex_);
  const auto it = blobs_.find(sha256);
  if (it == blobs_.end()) return absl::UnavailableError("there is no such blob");
  blob = it->second;
  return File::OpenForReading(BlobPath(sha256, blob));
}

absl::StatusOr<bool> BlobStore::Look(const Digest& digest, std::string_view where) {
  if (digest.size == 0) return digest == EmptyDigest();
  Blob blob;
  const absl::StatusOr<File> file = OpenFile(digest.sha256, blob);
  if (absl::IsUnavailable(file.status())) return false;
  std::string damage;
  std::optional<FileIdentity> identity;
  if (file.ok()) {
    QG_ASSIGN_OR_RETURN(identity, file->Identity());
    QG_ASSIGN_OR_RETURN(const int64_t size, file->Size());
    if (size != blob.size) damage = absl::StrCat("its file has ", size, " bytes");
  } else if (absl::IsNotFound(file.status()) || absl::IsDataLoss(file.status())) {
    damage =
        absl::IsNotFound(file.status()) ? "its file is gone" : std::string(file.status().message());
  } else {
    return file.status();
  }
  if (damage.empty() && blob.size != digest.size && !blob.is_size_recorded) {
    QG_ASSIGN_OR_RETURN(const Sha256 actual, HashOfFile(*file));
    if (actual == digest.sha256) {
      RecordSize(digest.sha256);
    } else {
      damage = absl::StrCat("its bytes have SHA-256 ", actual.Hex());
    }
  }
  if (damage.empty()) return blob.size == digest.size;
  Quarantine(digest, where, identity);
  return error::BlobCorrupted(digest, damage);
}

void BlobStore::RecordSize(const Sha256& sha256) {
  const std::lock_guard lock(mutex_);
  const auto it = blobs_.find(sha256);
  if (it == blobs_.end() || it->second.is_size_recorded) return;
  const Blob recorded = {it->second.size, true};
  if (RenameFile(BlobPath(sha256, it->second), BlobPath(sha256, recorded)).ok()) {
    it->second = recorded;
  }
}

bool BlobStore::Contains(const Digest& digest) {
  const absl::StatusOr<bool> is_there = Look(digest, "lookup");
  return is_there.ok() && *is_there;
}

int64_t BlobStore::UsedBytes() const { return committed_bytes_ + reserved_bytes_; }

absl::Status BlobStore::CheckRoom(int64_t bytes) const {
  if (bytes > options_.store_bytes_max - UsedBytes()) {
    return error::QuotaExceeded(bytes, UsedBytes(), options_.store_bytes_max);
  }
  if (bytes > FreeBytes(options_.blobs_path)) {
    return error::DiskFull(absl::StrCat(bytes, " bytes are wanted"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Digest> BlobStore::Put(std::span<const std::byte> bytes) {
  const Digest digest = Digest::Of(bytes);
  if (Contains(digest)) return digest;
  std::string path;
  {
    const std::lock_guard lock(mutex_);
    QG_RETURN_IF_ERROR(CheckRoom(digest.size));
    reserved_bytes_ += digest.size;
    path = PartialPath(absl::StrCat(kTemporaryPrefix, next_temporary_++));
  }
  absl::Status stored = [&]() -> absl::Status {
    QG_ASSIGN_OR_RETURN(File file, File::OpenForWriting(path));
    QG_RETURN_IF_ERROR(file.Write(0, bytes));
    if (options_.fsync) QG_RETURN_IF_ERROR(file.Sync());
    return Publish(path, digest);
  }();
  if (!stored.ok()) RemoveFile(path);
  const std::lock_guard lock(mutex_);
  reserved_bytes_ -= digest.size;
  if (!stored.ok()) return stored;
  return digest;
}

absl::Status BlobStore::Publish(const std::string& path, const Digest& digest) noexcept {
  const std::string target = BlobPath(digest.sha256, {digest.size, true});
  const std::string shard = target.substr(0, target.rfind('/'));
  std::error_code code;
  const bool is_new_shard = !std::filesystem::exists(shard, code);
  if (is_new_shard) QG_RETURN_IF_ERROR(MakeDirectories(shard));
  QG_RETURN_IF_ERROR(RenameFile(path, target));
  if (options_.fsync) {
    QG_RETURN_IF_ERROR(SyncDirectory(shard));
    if (is_new_shard) {
      QG_RETURN_IF_ERROR(SyncDirectory(shard.substr(0, shard.rfind('/'))));
      QG_RETURN_IF_ERROR(SyncDirectory(options_.blobs_path));
    }
  }
  const std::lock_guard lock(mutex_);
  if (blobs_.emplace(digest.sha256, Blob{digest.size, true}).second) {
    committed_bytes_ += digest.size;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Buffer>> BlobStore::Load(const Digest& digest) {
  QG_ASSIGN_OR_RETURN(BlobReader reader, Read(digest, 0, 0));
  QG_ASSIGN_OR_RETURN(auto buffer, Buffer::Allocate(static_cast<size_t>(digest.size)));
  for (size_t offset = 0; offset < buffer->size();) {
    const size_t want = std::min<size_t>(buffer->size() - offset, kChunkBytes);
    QG_ASSIGN_OR_RETURN(const size_t count, reader.Next(std::span(buffer->data() + offset, want)));
    offset += count;
  }
  return buffer;
}

absl::StatusOr<File> BlobStore::OpenBlob(const Digest& digest) {
  QG_ASSIGN_OR_RETURN(const bool is_there, Look(digest, "read"));
  Blob blob;
  absl::StatusOr<File> file =
      is_there ? OpenFile(digest.sha256, blob) : error::BlobNotFound(digest);
  // The blob was removed after it was looked at.
  if (is_there && absl::IsUnavailable(file.status())) return error::BlobNotFound(digest);
  if (is_there && absl::IsNotFound(file.status())) {
    Quarantine(digest, "read", std::nullopt);
    return error::BlobCorrupted(digest, "its file is gone");
  }
  return file;
}

absl::StatusOr<BlobReader> BlobStore::Read(const Digest& digest, int64_t offset, int64_t limit,
                                           const Cancellation* cancellation) {
  QG_ASSIGN_OR_RETURN(const bool is_there, Look(digest, "read"));
  if (!is_there) return error::BlobNotFound(digest);
  if (offset < 0 || offset > digest.size) {
    return error::RangeBeyondBlob("offset", offset, digest.size);
  }
  if (limit < 0) return error::RangeBeyondBlob("limit", limit, digest.size);
  const int64_t left = digest.size - offset;
  const int64_t end = offset + (limit == 0 ? left : std::min(limit, left));
  if (digest.size == 0) return BlobReader(this, digest, File(), 0, 0);

  QG_ASSIGN_OR_RETURN(File file, OpenBlob(digest));
  QG_ASSIGN_OR_RETURN(const FileIdentity identity, file.Identity());
  BlobReader reader(this, digest, std::move(file), offset, end);
  reader.identity_ = identity;
  reader.expected_ = digest.sha256;
  reader.hash_ = std::make_unique<Sha256Stream>();
  if (offset == 0 && end == digest.size) return reader;
  // A part cannot be checked against the hash of the whole. So the whole is read first, and the
  // part's own hash is taken from verified bytes: when they are read again, the disk may return
  // others.
  QG_ASSIGN_OR_RETURN(BlobReader whole, Read(digest, 0, 0));
  Sha256Stream part;
  std::vector<std::byte> piece(static_cast<size_t>(std::min(digest.size, kChunkBytes)));
  for (int64_t at = 0; whole.remaining() > 0;) {
    if (cancellation != nullptr) QG_RETURN_IF_ERROR(cancellation->Check());
    QG_ASSIGN_OR_RETURN(const size_t count, whole.Next(piece));
    const int64_t from = std::clamp<int64_t>(offset - at, 0, static_cast<int64_t>(count));
    const int64_t to = std::clamp<int64_t>(end - at, from, static_cast<int64_t>(count));
    part.Update(
        std::span(piece).subspan(static_cast<size_t>(from), static_cast<size_t>(to - from)));
    at += static_cast<int64_t>(count);
  }
  reader.expected_ = part.Finish();
  return reader;
}

void BlobStore::Quarantine(const Digest& digest, std::string_view where,
                           std::optional<FileIdentity> damaged) {
  {
    const std::lock_guard lock(mutex_);
    const auto it = blobs_.find(digest.sha256);
    if (it == blobs_.end()) return;
    const std::string path = BlobPath(digest.sha256, it->second);
    // An upload may have brought an undamaged file since.
    std::optional<FileIdentity> now;
    if (const auto file = File::OpenForReading(path); file.ok()) {
      const auto identity = file->Identity();
      if (identity.ok()) now = *identity;
    }
    if (now != damaged) return;
    committed_bytes_ -= it->second.size;
    blobs_.erase(it);
    (void)RenameFile(path, options_.quarantine_path + "/" + digest.sha256.Hex());
  }
  options_.on_corruption(where);
}

absl::Status BlobStore::MakeRoomForPartial() {
  if (partials_.size() < kPartialUploadsMax) return absl::OkStatus();
  auto oldest = partials_.end();
  for (auto it = partials_.begin(); it != partials_.end(); ++it) {
    if (it->second.is_busy) continue;
    if (oldest == partials_.end() || it->second.touched < oldest->second.touched) oldest = it;
  }
  if (oldest == partials_.end()) {
    return error::LimitExceeded("uploads", kPartialUploadsMax + 1, kPartialUploadsMax);
  }
  reserved_bytes_ -= oldest->second.reserved;
  RemoveFile(PartialPath(oldest->first));
  partials_.erase(oldest);
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, BlobStore::Partial>::iterator> BlobStore::ClaimPartial(
    const std::string& key, const std::string& upload_id, const Digest& digest, int64_t offset) {
  const auto same = blobs_.find(digest.sha256);
  if (same != blobs_.end() && same->second.size != digest.size) {
    return Refuse("header.digest.size", absl::StrCat(digest.size),
                  absl::StrCat("the blob with this SHA-256 has ", same->second.size, " bytes"));
  }
  auto it = partials_.find(key);
  const int64_t have = it == partials_.end() ? 0 : it->second.size;
  if (it != partials_.end() && it->second.is_busy) return error::UploadBusy(upload_id);
  if (offset != have) return error::OffsetMismatch(offset, have);
  const int64_t reserved = it == partials_.end() ? 0 : it->second.reserved;
  QG_RETURN_IF_ERROR(CheckRoom(digest.size - reserved));
  if (it == partials_.end()) {
    QG_RETURN_IF_ERROR(MakeRoomForPartial());
    it = partials_.emplace(key, Partial{}).first;
  }
  it->second.is_busy = true;
  it->second.reserved = digest.size;
  it->second.touched = options_.now();
  reserved_bytes_ += digest.size - reserved;
  return it;
}

absl::StatusOr<std::unique_ptr<BlobUpload>> BlobStore::BeginUpload(const std::string& upload_id,
                                                                   const Digest& digest,
                                                                   int64_t offset) {
  if (digest.size > options_.blob_bytes_max) {
    return error::LimitExceeded("header.digest.size", digest.size, options_.blob_bytes_max);
  }
  (void)Contains(digest);  // Sets a damaged blob aside; the upload then brings it again.
  const std::string key = PartialKey(upload_id, digest);
  std::unique_ptr<Sha256Stream> hash;
  {
    const std::lock_guard lock(mutex_);
    QG_ASSIGN_OR_RETURN(const auto claimed, ClaimPartial(key, upload_id, digest, offset));
    hash = std::move(claimed->second.hash);
  }
  absl::StatusOr<File> file = File::OpenForWriting(PartialPath(key));
  absl::Status ready = file.status();
  if (ready.ok()) ready = file->Truncate(offset);
  if (ready.ok() && hash == nullptr) {
    auto rehashed = HashPrefix(*file, offset);
    ready = rehashed.status();
    if (rehashed.ok()) hash = *std::move(rehashed);
  }
  FileIdentity identity;
  if (ready.ok()) {
    const auto found = file->Identity();
    ready = found.status();
    if (found.ok()) identity = *found;
  }
  if (absl::IsResourceExhausted(ready) && offset > 0) {
    EndUpload(key, offset, std::move(hash));  // Leaves the upload as it was, for another try.
    return ready;
  }
  if (!ready.ok()) {
    // A partial file that cannot be read is of no use: the client starts again.
    ForgetPartial(key);
    return ready;
  }
  return std::unique_ptr<BlobUpload>(
      new BlobUpload(this, key, digest, *std::move(file), identity, offset, std::move(hash)));
}

absl::StatusOr<UploadState> BlobStore::QueryUpload(const std::string& upload_id,
                                                   const Digest& digest) {
  if (Contains(digest)) return UploadState{digest.size, true};
  const std::lock_guard lock(mutex_);
  const auto it = partials_.find(PartialKey(upload_id, digest));
  if (it == partials_.end()) return error::UploadNotFound(upload_id);
  return UploadState{it->second.size, false};
}

void BlobStore::EndUpload(const std::string& key, int64_t size,
                          std::unique_ptr<Sha256Stream> hash) {
  const std::lock_guard lock(mutex_);
  const auto it = partials_.find(key);
  if (it == partials_.end()) return;
  Partial& partial = it->second;
  reserved_bytes_ += size - partial.reserved;
  partial.is_busy = false;
  partial.size = partial.reserved = size;
  partial.touched = options_.now();
  partial.hash = std::move(hash);
}

void BlobStore::ExpirePartials() {
  const std::lock_guard lock(mutex_);
  const absl::Time now = options_.now();
  for (auto it = partials_.begin(); it != partials_.end();) {
    const bool is_old = !it->second.is_busy && now - it->second.touched > kPartialUploadAgeMax;
    if (!is_old) {
      ++it;
      continue;
    }
    reserved_bytes_ -= it->second.reserved;
    RemoveFile(PartialPath(it->first));
    it = partials_.erase(it);
  }
}

void BlobStore::ForgetPartial(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto it = partials_.find(key);
  if (it == partials_.end()) return;
  reserved_bytes_ -= it->second.reserved;
  RemoveFile(PartialPath(key));  // Does nothing where the file was published.
  partials_.erase(it);
}

BlobStoreUsage BlobStore::usage() const {
  const std::lock_guard lock(mutex_);
  BlobStoreUsage usage;
  usage.committed_bytes = committed_bytes_;
  usage.committed_objects = static_cast<int64_t>(blobs_.size());
  for (const auto& [key, partial] : partials_) usage.partial_bytes += partial.size;
  usage.partial_objects = static_cast<int64_t>(partials_.size());
  return usage;
}

}  // namespace quantgate
