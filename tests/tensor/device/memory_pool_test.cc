// Memory of buffers: alignment, reuse of large blocks, and room for what was asked in every size
// class.
#include "kernels/tensor/device/memory_pool.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace quantgate {
namespace QG_TEST_FILE {

constexpr size_t kMiB = size_t{1} << 20;

TEST(MemoryPool, BlocksAreAlignedAndLargeEnough) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, kMiB - 1, kMiB, kMiB + 1,
                             5 * kMiB + 12345, 8 * kMiB}) {
    void* data = TakeMemory(bytes);
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
    std::memset(data, 0x5A, bytes);  // An address sanitizer sees a block that is too small.
    ReturnMemory(data, bytes);
  }
}

#if !defined(__SANITIZE_ADDRESS__)
TEST(MemoryPool, ALargeBlockComesBackForItsSize) {
  void* first = TakeMemory(3 * kMiB);
  ReturnMemory(first, 3 * kMiB);
  void* other_size = TakeMemory(2 * kMiB);
  void* second = TakeMemory(3 * kMiB);
  void* third = TakeMemory(3 * kMiB);
  EXPECT_EQ(second, first);
  EXPECT_NE(other_size, first);
  EXPECT_NE(third, first);
  ReturnMemory(other_size, 2 * kMiB);
  ReturnMemory(second, 3 * kMiB);
  ReturnMemory(third, 3 * kMiB);
}
#endif

TEST(MemoryPool, ManyThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        const size_t bytes = kMiB + static_cast<size_t>(i % 3) * kMiB;
        auto* data = static_cast<uint8_t*>(TakeMemory(bytes));
        data[0] = data[bytes - 1] = static_cast<uint8_t>(t);
        EXPECT_EQ(data[0], t);
        EXPECT_EQ(data[bytes - 1], t);
        ReturnMemory(data, bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
