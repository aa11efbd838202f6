#include "server/metrics/process_statistics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

namespace quantgate {
namespace {

// Seconds between the epoch and the boot of the machine.
double BootTime() {
  std::ifstream stat("/proc/stat");
  for (std::string line; std::getline(stat, line);) {
    if (line.starts_with("btime ")) return std::stod(line.substr(6));
  }
  return 0;
}

int64_t CountDescriptors() {
  std::error_code code;
  int64_t count = 0;
  std::filesystem::directory_iterator entries("/proc/self/fd", code);
  for (; !code && entries != std::filesystem::directory_iterator(); entries.increment(code))
    ++count;
  return count;
}

}  // namespace

// Fields of /proc/self/stat as numbered in proc(5); the command, field 2, may hold spaces.
ProcessStatistics ReadProcessStatistics() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  const size_t command_end = text.rfind(')');
  if (command_end == std::string::npos) return {};
  std::istringstream fields(text.substr(command_end + 1));
  std::string skipped;
  for (int field = 3; field <= 13; ++field) fields >> skipped;
  int64_t user_ticks = 0, system_ticks = 0, start_ticks = 0, resident_pages = 0;
  ProcessStatistics statistics;
  fields >> user_ticks >> system_ticks;  // 14, 15
  for (int field = 16; field <= 19; ++field) fields >> skipped;
  fields >> statistics.threads >> skipped >> start_ticks;  // 20, 21, 22
  fields >> statistics.virtual_bytes >> resident_pages;    // 23, 24

  const double ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  statistics.cpu_seconds = static_cast<double>(user_ticks + system_ticks) / ticks;
  statistics.start_time_seconds = BootTime() + static_cast<double>(start_ticks) / ticks;
  statistics.resident_bytes = resident_pages * ::sysconf(_SC_PAGESIZE);
  statistics.open_descriptors = CountDescriptors();
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    statistics.max_descriptors = static_cast<int64_t>(limit.rlim_cur);
  }
  return statistics;
}

}  // namespace quantgate
