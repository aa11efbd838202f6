#include "server/runs/memory_store.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/status_macros.h"
#include "server/errors.h"

namespace quantgate {

void MemoryStore::Add(const Digest& digest, std::shared_ptr<Buffer> buffer) {
  const std::lock_guard lock(mutex_);
  blobs_.insert_or_assign(digest, std::move(buffer));
}

absl::StatusOr<std::shared_ptr<Buffer>> MemoryStore::Bring(const Digest& digest) {
  if (digest.size == 0 && digest == Digest::Of({})) return Buffer::Allocate(0);
  if (!elsewhere_) return absl::NotFoundError("");
  QG_ASSIGN_OR_RETURN(Found found, elsewhere_(digest));
  const Digest actual = Digest::Of({found.buffer->data(), found.buffer->size()});
  if (actual != digest) return error::BlobCorrupted(digest, "its bytes are others");
  for (auto& [type, name] : found.registrations) {
    TensorRecord record;
    record.digest = digest;
    record.type = type;
    record.name = name;
    Register(std::move(record));
  }
  return std::move(found.buffer);
}

const MemoryStore::Blob* MemoryStore::Look(const Digest& digest) {
  const auto known = blobs_.find(digest);
  if (known != blobs_.end()) return &known->second;
  Blob brought = Bring(digest);
  if (absl::IsNotFound(brought.status())) return nullptr;
  return &blobs_.emplace(digest, std::move(brought)).first->second;
}

bool MemoryStore::Contains(const Digest& digest) {
  const std::lock_guard lock(mutex_);
  return Look(digest) != nullptr;
}

absl::StatusOr<Digest> MemoryStore::Put(std::span<const std::byte> bytes) {
  const Digest digest = Digest::Of(bytes);
  QG_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, Buffer::Allocate(bytes.size()));
  if (!bytes.empty()) std::memcpy(buffer->data(), bytes.data(), bytes.size());
  Add(digest, std::move(buffer));
  return digest;
}

absl::StatusOr<std::shared_ptr<Buffer>> MemoryStore::Load(const Digest& digest) {
  const std::lock_guard lock(mutex_);
  const Blob* const blob = Look(digest);
  if (blob == nullptr) return error::BlobNotFound(digest);
  return *blob;
}

absl::StatusOr<std::optional<TensorRecord>> MemoryStore::FindRequest(const std::string& request_id,
                                                                     const Sha256& content) {
  const std::lock_guard lock(mutex_);
  const auto known = requests_.find(request_id);
  if (known == requests_.end()) return std::nullopt;
  if (known->second.first != content) return error::RequestIdReused(request_id);
  return records_[static_cast<size_t>(known->second.second) - 1];
}

TensorRecord MemoryStore::Register(TensorRecord record) {
  const auto same = std::find_if(records_.begin(), records_.end(), [&](const TensorRecord& known) {
    return known.digest == record.digest && known.type == record.type && known.name == record.name;
  });
  if (same != records_.end()) return *same;
  record.id = static_cast<int64_t>(records_.size()) + 1;
  return records_.emplace_back(std::move(record));
}

absl::StatusOr<TensorRecord> MemoryStore::Put(const TensorRecord& record,
                                              const std::string& request_id,
                                              const Sha256& content) {
  QG_ASSIGN_OR_RETURN(const std::optional<TensorRecord> earlier, FindRequest(request_id, content));
  if (earlier.has_value()) return *earlier;
  const std::lock_guard lock(mutex_);
  TensorRecord kept = Register(record);
  if (!request_id.empty()) requests_.emplace(request_id, std::pair(content, kept.id));
  return kept;
}

absl::StatusOr<std::vector<TensorRecord>> MemoryStore::Find(const Digest& digest) {
  const std::lock_guard lock(mutex_);
  const Blob* const blob = Look(digest);
  if (blob != nullptr && !blob->ok()) return blob->status();
  std::vector<TensorRecord> found;
  std::copy_if(records_.rbegin(), records_.rend(), std::back_inserter(found),
               [&](const TensorRecord& record) { return record.digest == digest; });
  return found;
}

absl::StatusOr<TensorPage> MemoryStore::List(int64_t before_id, int page_size) {
  const std::lock_guard lock(mutex_);
  TensorPage page;
  for (auto record = records_.rbegin(); record != records_.rend(); ++record) {
    if (before_id != 0 && record->id >= before_id) continue;
    if (static_cast<int>(page.records.size()) == page_size) {
      page.next_before_id = page.records.back().id;
      break;
    }
    page.records.push_back(*record);
  }
  return page;
}

}  // namespace quantgate
