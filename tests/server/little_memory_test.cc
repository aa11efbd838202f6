// A program under a bound on its address space: threads to come have their stacks, and one that
// cannot be had ends the program with a line.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <latch>
#include <thread>
#include <vector>

#include "server/process_memory.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// Of programs that bound themselves.
constexpr rlim_t kBound = rlim_t{1} << 30;

void BoundAddressSpace(rlim_t bytes) {
  const rlimit limit = {bytes, RLIM_INFINITY};
  if (::setrlimit(RLIMIT_AS, &limit) != 0) std::abort();
}

/// From here on there is no more than what is taken already.
void TakeAllAddresses() {
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  unsigned long pages = 0;
  if (file == nullptr || std::fscanf(file, "%lu", &pages) != 1) std::abort();
  std::fclose(file);
  BoundAddressSpace(pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)));
}

/// So many at once.
void HoldThreads(int count) {
  std::latch all_begun(count);
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&] { all_begun.arrive_and_wait(); });
  for (std::thread& thread : threads) thread.join();
}

class LittleMemoryTest : public testing::Test {
 protected:
  LittleMemoryTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(LittleMemoryTest, GrpcsExecutorHasItsThreadsWhenNoAddressIsLeft) {
  EXPECT_EXIT(
      {
        BoundAddressSpace(kBound);
        if (!PrepareForLittleMemory()) std::abort();
        KeepThreadStacks();
        TakeAllAddresses();
        HoldThreads(2 * static_cast<int>(::sysconf(_SC_NPROCESSORS_CONF)));
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(LittleMemoryTest, AThreadThatCannotBeHadEndsTheProgramWithALine) {
  EXPECT_EXIT(
      {
        BoundAddressSpace(kBound);
        if (!PrepareForLittleMemory()) std::abort();
        TakeAllAddresses();
        pthread_t thread;
        const auto wait = [](void*) -> void* {
          for (;;) ::pause();
        };
        // As gRPC does, which takes no notice of a failure.
        for (int i = 0; i < 1000; ++i) (void)::pthread_create(&thread, nullptr, wait, nullptr);
        std::_Exit(0);
      },
      testing::ExitedWithCode(kExitWithoutMemory),
      "quantgated: ends, since it could not have a thread; RLIMIT_AS is 1024 MiB");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
