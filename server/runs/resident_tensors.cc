#include "server/runs/resident_tensors.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

int64_t BytesOf(const Tensor& tensor) {
  return tensor.has_value() ? static_cast<int64_t>(tensor.byte_size()) : 0;
}

}  // namespace

absl::StatusOr<Tensor> ResidentTensors::Get(const std::string& key, Source source,
                                            absl::FunctionRef<absl::StatusOr<Tensor>()> load,
                                            const Cancellation* cancellation) {
  if (bytes_max_ == 0) return load();
  std::unique_lock<std::mutex> lock(mutex_);
  const bool must_wait = on_their_way_.contains(key);
  if (must_wait) ++usage_.hits;
  has_arrived_.wait(lock, [&] { return !on_their_way_.contains(key); });
  const auto found = by_key_.find(key);
  const bool is_kept = found != by_key_.end();
  if (is_kept && !must_wait) ++usage_.hits;
  if (!is_kept) ++usage_.misses;
  if (is_kept) entries_.splice(entries_.begin(), entries_, found->second);
  if (is_kept && found->second->device.has_value()) return found->second->device;
  const Tensor spilled = is_kept ? found->second->host : Tensor();

  on_their_way_.insert(key);
  // Others wait for the key, however loading it ends, a throw for want of memory included.
  const absl::Cleanup arrival = [&] {
    if (!lock.owns_lock()) lock.lock();
    on_their_way_.erase(key);
    has_arrived_.notify_all();
  };
  lock.unlock();
  absl::StatusOr<Tensor> tensor =
      is_kept ? Bring([&] { return absl::StatusOr<Tensor>(spilled); }, cancellation)
              : Bring(load, cancellation);
  lock.lock();
  QG_RETURN_IF_ERROR(tensor.status());
  QG_RETURN_IF_ERROR(Insert(key, source, *tensor));
  return tensor;
}

absl::StatusOr<Tensor> ResidentTensors::Bring(absl::FunctionRef<absl::StatusOr<Tensor>()> load,
                                              const Cancellation* cancellation) {
  const auto bring = [&]() -> absl::StatusOr<Tensor> {
    QG_ASSIGN_OR_RETURN(const Tensor tensor, load());
    return engine_.ToDevice(tensor, cancellation);
  };
  absl::StatusOr<Tensor> tensor = bring();
  if (!absl::IsResourceExhausted(tensor.status())) return tensor;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (usage_.resident_bytes == 0) return tensor;
    QG_RETURN_IF_ERROR(MakeRoom(bytes_max_));
  }
  return bring();
}

absl::Status ResidentTensors::Insert(const std::string& key, Source source, const Tensor& tensor) {
  const int64_t bytes = BytesOf(tensor);
  if (bytes > bytes_max_) return absl::OkStatus();
  const auto old = by_key_.find(key);
  if (old != by_key_.end()) Forget(old->second);
  QG_RETURN_IF_ERROR(MakeRoom(bytes));
  // Both or none, where memory is refused.
  Entries entry;
  entry.push_front({key, source, tensor, Tensor()});
  by_key_.emplace(key, entry.begin());
  entries_.splice(entries_.begin(), entry);
  usage_.resident_bytes += bytes;
  ++usage_.resident_tensors;
  return absl::OkStatus();
}

absl::Status ResidentTensors::MakeRoom(int64_t bytes) {
  auto entry = entries_.end();
  while (usage_.resident_bytes + bytes > bytes_max_ && entry != entries_.begin()) {
    --entry;
    if (!entry->device.has_value()) continue;
    const auto evicted = entry++;
    QG_RETURN_IF_ERROR(Evict(evicted));
  }
  return absl::OkStatus();
}

absl::Status ResidentTensors::Evict(Entries::iterator entry) {
  const int64_t bytes = BytesOf(entry->device);
  const bool has_room = usage_.spilled_bytes + bytes <= bytes_max_;
  if (entry->source == Source::kStored || !has_room) {
    usage_.dropped_bytes_total += bytes;
    Forget(entry);
    return absl::OkStatus();
  }
  QG_ASSIGN_OR_RETURN(entry->host, engine_.ToHost(entry->device, nullptr));
  entry->device = Tensor();
  usage_.resident_bytes -= bytes;
  --usage_.resident_tensors;
  usage_.spilled_bytes += bytes;
  usage_.spilled_bytes_total += bytes;
  return absl::OkStatus();
}

void ResidentTensors::Forget(Entries::iterator entry) {
  usage_.resident_bytes -= BytesOf(entry->device);
  usage_.resident_tensors -= entry->device.has_value() ? 1 : 0;
  usage_.spilled_bytes -= BytesOf(entry->host);
  by_key_.erase(entry->key);
  entries_.erase(entry);
}

absl::StatusOr<Tensor> ResidentTensors::StartFilling(int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (bytes > bytes_max_ / 2 - filling_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat(bytes, " bytes: ", filling_bytes_,
                                                     " are being filled, and at most ",
                                                     bytes_max_ / 2, " may be at once"));
  }
  // Makes room first, so that kept tensors and those being filled stay within the budget together.
  QG_RETURN_IF_ERROR(MakeRoom(filling_bytes_ + bytes));
  QG_ASSIGN_OR_RETURN(Tensor tensor, engine_.Allocate(DType::kU8, {bytes}));
  filling_bytes_ += bytes;
  return tensor;
}

void ResidentTensors::EndFilling(int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  filling_bytes_ -= bytes;
}

void ResidentTensors::Add(const std::string& key, Source source, const Tensor& tensor) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (by_key_.contains(key)) return;
  // Where an eviction fails the tensor is not kept, and its first use loads it.
  (void)Insert(key, source, tensor);
}

ResidentUsage ResidentTensors::usage() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  ResidentUsage usage = usage_;
  usage.bytes_max = bytes_max_;
  return usage;
}

}  // namespace quantgate
