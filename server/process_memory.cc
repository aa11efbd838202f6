#include "server/process_memory.h"

#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <latch>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace quantgate {
namespace {

/// The smallest bound under which a server starts; it takes most of that at its start.
constexpr uint64_t kAddressSpaceLeast = uint64_t{320} << 20;
/// Size of a thread's stack under a bound; the default is 8 MiB. The deepest stacks are those of
/// parsers, whose depth is bounded.
constexpr size_t kStackBytes = 2 << 20;
/// Stacks kept under a bound for threads that start later, besides those of gRPC's executor (two
/// for each CPU): for gRPC's timers and event engine, and for the thread that waits for a second
/// signal.
constexpr int kStacksKept = 6;
/// The C library keeps at most 40 MiB of stacks of ended threads.
constexpr int kStacksKeptMax = 19;
/// Arenas of the allocator under a bound; each takes 64 MiB of addresses.
constexpr int kArenas = 2;
/// With this much address space left, a failure has another reason: an arena is the largest piece
/// that is requested without a check of the result.
constexpr uint64_t kPlenty = uint64_t{128} << 20;

uint64_t address_space_limit = 0;  // 0 without a limit. Constant once threads run.

thread_local bool was_refused_memory = false;

void OnNoMemory() {
  was_refused_memory = true;
  throw std::bad_alloc();
}

/// A line of text that is assembled without allocating memory.
class Line {
 public:
  Line& operator<<(const char* text) {
    while (*text != '\0' && size_ < sizeof(bytes_) - 1) bytes_[size_++] = *text++;
    return *this;
  }
  Line& operator<<(uint64_t number) {
    char digits[21];
    char* at = digits + sizeof(digits) - 1;
    *at = '\0';
    do {
      *--at = static_cast<char>('0' + number % 10);
    } while ((number /= 10) > 0);
    return *this << at;
  }
  void Write() {
    bytes_[size_++] = '\n';
    (void)!::write(STDERR_FILENO, bytes_, size_);
  }

 private:
  char bytes_[512];
  size_t size_ = 0;
};

/// The first number of /proc/self/statm, in bytes; 0 where it cannot be read.
uint64_t AddressSpace() {
  const int file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[32] = {};
  (void)!::read(file, text, sizeof(text) - 1);
  ::close(file);
  uint64_t pages = 0;
  for (const char* at = text; *at >= '0' && *at <= '9'; ++at) {
    pages = pages * 10 + static_cast<uint64_t>(*at - '0');
  }
  return pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

void OnTerminate() {
  // Where an exception leaves a noexcept function that has something to destroy,
  // std::current_exception does not show it here.
  const bool is_hidden = std::current_exception() == nullptr && std::uncaught_exceptions() > 0;
  if (is_hidden && was_refused_memory) EndWithout("memory");
  if (const std::exception_ptr thrown = std::current_exception(); thrown != nullptr) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::bad_alloc&) {
      EndWithout("memory");
    } catch (const std::system_error& error) {
      if (error.code() == std::errc::resource_unavailable_try_again) EndWithout("a thread");
    } catch (...) {
    }
  }
  std::abort();
}

void OnSignal(int signal) {
  // An exception for lack of memory may have left libraries, such as Protobuf's maps, in a broken
  // state that raises this signal.
  if (was_refused_memory) EndWithout("memory");
  if (address_space_limit != 0 && AddressSpace() + kPlenty > address_space_limit) {
    EndWithout("memory or a thread");
  }
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

}  // namespace

void EndWithout(const char* what) {
  Line line;
  line << "quantgated: ends, since it could not have " << what;
  if (address_space_limit != 0) {
    line << "; RLIMIT_AS is " << (address_space_limit >> 20) << " MiB, of which "
         << (AddressSpace() >> 20) << " MiB are taken";
  }
  line.Write();
  ::_exit(kExitWithoutMemory);
}

bool PrepareForLittleMemory() {
  std::set_terminate(OnTerminate);
  std::set_new_handler(OnNoMemory);
  rlimit limit;
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return true;
  address_space_limit = limit.rlim_cur;
  if (address_space_limit < kAddressSpaceLeast) {
    Line line;
    line << "quantgated: RLIMIT_AS is " << (address_space_limit >> 20)
         << " MiB; it must be at least " << (kAddressSpaceLeast >> 20) << " MiB";
    line.Write();
    return false;
  }
  ::mallopt(M_ARENA_MAX, kArenas);
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) == 0) {
    ::pthread_attr_setstacksize(&attributes, kStackBytes);
    ::pthread_setattr_default_np(&attributes);
    ::pthread_attr_destroy(&attributes);
  }
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS}) ::signal(signal, OnSignal);
  return true;
}

// The C library keeps the stacks of ended threads for later threads.
void KeepThreadStacks() {
  if (address_space_limit == 0) return;
  const auto of_executor = 2 * static_cast<int>(::sysconf(_SC_NPROCESSORS_CONF));
  const int count = std::min(kStacksKeptMax, of_executor + kStacksKept);
  std::latch all_begun(count);
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&] { all_begun.arrive_and_wait(); });
  for (std::thread& thread : threads) thread.join();
}

void KeepLargeBuffers() {
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);  // The largest value that glibc accepts.
  ::mallopt(M_TRIM_THRESHOLD, 256 << 20);
  ::mallopt(M_TOP_PAD, 16 << 20);
  // Each arena keeps up to 64 MiB that trimming does not give back; glibc would have eight arenas
  // for each core.
  ::mallopt(M_ARENA_MAX, static_cast<int>(std::max(2L, ::sysconf(_SC_NPROCESSORS_ONLN) / 2)));
}

// Trims only after a high peak, and not between two requests: searching the heap takes
// milliseconds, and memory that was given back costs page faults when it is needed again.
void HeapTrimmer::Observe(int64_t load) {
  constexpr int64_t kWorthIt = 16 << 20;
  constexpr int kQuietTimes = 3;
  peak_ = std::max(peak_, load);
  quiet_times_ = load > peak_ / 4 ? 0 : quiet_times_ + 1;
  if (peak_ < kWorthIt || quiet_times_ < kQuietTimes) return;
  ::malloc_trim(0);
  peak_ = load;
  quiet_times_ = 0;
}

}  // namespace quantgate
