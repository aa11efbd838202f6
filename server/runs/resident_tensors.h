// ResidentTensors: tensors that stay in an engine's memory between calls, under a budget. The least
// recently used one is evicted first: to host memory if nothing else has its bytes, else it is
// dropped. Thread-safe; the loading of a tensor delays only calls for the same tensor.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"

namespace quantgate {

struct ResidentUsage {
  int64_t resident_bytes = 0;  ///< Bytes of tensors in the engine's memory.
  int64_t resident_tensors = 0;
  int64_t spilled_bytes = 0;  ///< Bytes of tensors in host memory, waiting to be used again.
  int64_t bytes_max = 0;
  // Totals over the life of the object.
  int64_t hits = 0;    ///< Calls that found the tensor kept, or being loaded by another call.
  int64_t misses = 0;  ///< Loads. A call that waited for a load that failed counts in both.
  int64_t spilled_bytes_total = 0;
  int64_t dropped_bytes_total = 0;
};

class ResidentTensors {
 public:
  /// Where a tensor's bytes are besides the engine's memory.
  enum class Source {
    kStored,  ///< In the blob store: the tensor is dropped when it is evicted.
    /// Nowhere: spilled to host memory, up to as many bytes as the budget; beyond that, dropped and
    /// made again.
    kGenerated,
  };

  /// With `bytes_max` 0 nothing is kept (for the CPU engine, which has the blobs mapped into
  /// memory).
  ResidentTensors(Engine& engine, int64_t bytes_max) : engine_(engine), bytes_max_(bytes_max) {}
  ResidentTensors(const ResidentTensors&) = delete;
  ResidentTensors& operator=(const ResidentTensors&) = delete;

  /// The bytes under `key` as a tensor in the engine's memory; `load` makes it, in any memory, the
  /// first time and whenever it was dropped. One call at a time loads a key: others wait for it,
  /// and load it themselves where that fails or the tensor, larger than the budget, is not kept.
  /// `load` may use this object, but not for `key`.
  absl::StatusOr<Tensor> Get(const std::string& key, Source source,
                             absl::FunctionRef<absl::StatusOr<Tensor>()> load,
                             const Cancellation* cancellation);

  /// Allocates a tensor U8 [bytes] in the engine's memory, for a caller that fills it and then
  /// calls Add. Each success needs one EndFilling of as many bytes. RESOURCE_EXHAUSTED where more
  /// than half of the budget would be in the course of filling, or the memory cannot be allocated.
  absl::StatusOr<Tensor> StartFilling(int64_t bytes);
  void EndFilling(int64_t bytes);
  /// Keeps a tensor of the engine's memory under `key`, as if Get had brought it. Does nothing
  /// where a tensor is kept under `key` already, or where this one is larger than the budget.
  void Add(const std::string& key, Source source, const Tensor& tensor);

  ResidentUsage usage() const;

 private:
  struct Entry {
    std::string key;
    Source source;
    Tensor device;  ///< No value while spilled.
    Tensor host;    ///< Has a value while spilled.
  };
  using Entries = std::list<Entry>;  // The most recently used first.

  /// Loads a tensor and brings it into the engine's memory. Where that is full, all kept tensors
  /// are evicted first.
  absl::StatusOr<Tensor> Bring(absl::FunctionRef<absl::StatusOr<Tensor>()> load,
                               const Cancellation* cancellation) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Keeps `tensor` in place of what was kept under `key`.
  absl::Status Insert(const std::string& key, Source source, const Tensor& tensor)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status MakeRoom(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Evict(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Engine& engine_;
  const int64_t bytes_max_;
  mutable std::mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, Entries::iterator> by_key_ ABSL_GUARDED_BY(mutex_);
  ResidentUsage usage_ ABSL_GUARDED_BY(mutex_);
  int64_t filling_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unordered_set<std::string> on_their_way_ ABSL_GUARDED_BY(mutex_);  // Keys being loaded.
  std::condition_variable has_arrived_;
};

}  // namespace quantgate
