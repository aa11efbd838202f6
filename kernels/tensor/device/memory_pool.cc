#include "kernels/tensor/device/memory_pool.h"

#include <bit>
#include <cstdlib>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace quantgate {
namespace {

constexpr size_t kAlignmentBytes = 64;       // A cache line, and one AVX-512 register.
constexpr size_t kPooledBytesMin = 1 << 20;  // Below, malloc itself keeps the pages.

// An address sanitizer must see every free.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kPooling = false;
#else
constexpr bool kPooling = true;
#endif

/// Sizes that share blocks: rounded up to four steps per power of two, so at most a fifth is
/// unused.
size_t BlockBytes(size_t bytes) {
  // One byte more than asked keeps an empty tensor's pointer distinct and not null.
  size_t step = kAlignmentBytes;
  if (bytes >= kPooledBytesMin) step = std::bit_floor(bytes) / 4;
  return (bytes / step + 1) * step;
}

class Pool {
 public:
  void* Take(size_t block_bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<void*>& blocks = blocks_[block_bytes];
    if (blocks.empty()) return nullptr;
    void* data = blocks.back();
    blocks.pop_back();
    kept_bytes_ -= block_bytes;
    return data;
  }

  bool Keep(void* data, size_t block_bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (kept_bytes_ + block_bytes > kPoolBytesMax) return false;
    blocks_[block_bytes].push_back(data);
    kept_bytes_ += block_bytes;
    return true;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<size_t, std::vector<void*>> blocks_;
  size_t kept_bytes_ = 0;
};

/// Never destroyed: buffers may outlive static objects.
Pool& ThePool() {
  static Pool& pool = *new Pool;
  return pool;
}

bool IsPooled(size_t bytes) { return kPooling && bytes >= kPooledBytesMin; }

}  // namespace

void* TakeMemory(size_t bytes) {
  const size_t block_bytes = BlockBytes(bytes);
  if (IsPooled(bytes)) {
    if (void* data = ThePool().Take(block_bytes)) return data;
  }
  return std::aligned_alloc(kAlignmentBytes, block_bytes);
}

void ReturnMemory(void* data, size_t bytes) {
  if (IsPooled(bytes) && ThePool().Keep(data, BlockBytes(bytes))) return;
  std::free(data);
}

}  // namespace quantgate
