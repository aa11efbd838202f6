#include "server/metrics/process_series.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
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

ProcessSeries::ProcessSeries(prometheus::Registry& registry)
    : cpu_seconds_(
          CounterFamily(registry, "process_cpu_seconds_total", "User and system time.").Add({})),
      resident_bytes_(
          GaugeFamily(registry, "process_resident_memory_bytes", "Resident memory.").Add({})),
      virtual_bytes_(
          GaugeFamily(registry, "process_virtual_memory_bytes", "Virtual memory.").Add({})),
      start_time_(
          GaugeFamily(registry, "process_start_time_seconds", "Start, in Unix time.").Add({})),
      open_descriptors_(
          GaugeFamily(registry, "process_open_fds", "Open file descriptors.").Add({})),
      max_descriptors_(
          GaugeFamily(registry, "process_max_fds", "File descriptors allowed.").Add({})),
      threads_(GaugeFamily(registry, "quantgate_threads", "Threads.").Add({})) {}

void ProcessSeries::Refresh() {
  const ProcessStatistics process = ReadProcessStatistics();
  cpu_seconds_.Increment(std::max(0.0, process.cpu_seconds - cpu_seconds_.Value()));
  resident_bytes_.Set(static_cast<double>(process.resident_bytes));
  virtual_bytes_.Set(static_cast<double>(process.virtual_bytes));
  start_time_.Set(process.start_time_seconds);
  open_descriptors_.Set(static_cast<double>(process.open_descriptors));
  max_descriptors_.Set(static_cast<double>(process.max_descriptors));
  threads_.Set(static_cast<double>(process.threads));
}

}  // namespace quantgate
