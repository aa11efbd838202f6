#include "tests/server/device/device_activity.h"

#include <string>

#include "absl/status/status.h"

#ifdef QUANTGATE_HAS_CUPTI
#include <cupti.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

constexpr char kLibrary[] = "libcupti.so.13";
constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr size_t kBufferAlignment = 8;

/// Begin and end in nanoseconds.
using Interval = std::pair<uint64_t, uint64_t>;

/// CUPTI's calls, found at run time: a host without it runs all else of the benchmark.
struct Cupti {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;

  absl::Status Load() {
    void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return absl::FailedPreconditionError(dlerror());
    Find(library, "cuptiActivityRegisterCallbacks", register_callbacks);
    Find(library, "cuptiActivityEnable", enable);
    Find(library, "cuptiActivityFlushAll", flush);
    Find(library, "cuptiActivityGetNextRecord", next_record);
    const bool has_all = register_callbacks != nullptr && enable != nullptr && flush != nullptr &&
                         next_record != nullptr;
    return has_all ? absl::OkStatus()
                   : absl::FailedPreconditionError(absl::StrCat(kLibrary, " lacks an entry"));
  }

 private:
  template <typename Function>
  static void Find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
  }
};

Cupti& TheCupti() {
  static Cupti& cupti = *new Cupti;
  return cupti;
}

std::mutex intervals_mutex;
std::vector<Interval>& Intervals() {
  static auto& intervals = *new std::vector<Interval>;
  return intervals;
}

void CUPTIAPI GiveBuffer(uint8_t** buffer, size_t* size, size_t* records_max) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *records_max = 0;
}

template <typename Record>
Interval IntervalOf(const CUpti_Activity* activity) {
  const auto* record = reinterpret_cast<const Record*>(activity);
  return {record->start, record->end};
}

void Note(const CUpti_Activity* activity) {
  Interval interval;
  switch (activity->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      interval = IntervalOf<CUpti_ActivityKernel10>(activity);
      break;
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      interval = IntervalOf<CUpti_ActivityMemcpy6>(activity);
      break;
    case CUPTI_ACTIVITY_KIND_MEMSET:
      interval = IntervalOf<CUpti_ActivityMemset4>(activity);
      break;
    default:
      return;
  }
  const std::lock_guard lock(intervals_mutex);
  Intervals().push_back(interval);
}

void CUPTIAPI TakeBuffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  CUpti_Activity* activity = nullptr;
  while (TheCupti().next_record(buffer, valid_bytes, &activity) == CUPTI_SUCCESS) Note(activity);
  std::free(buffer);
}

absl::Status Checked(CUptiResult result, const char* call) {
  if (result == CUPTI_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("CUPTI: ", call, " gave ", static_cast<int>(result)));
}

}  // namespace

absl::Status RecordDeviceActivity() {
  Cupti& cupti = TheCupti();
  QG_RETURN_IF_ERROR(cupti.Load());
  QG_RETURN_IF_ERROR(
      Checked(cupti.register_callbacks(GiveBuffer, TakeBuffer), "cuptiActivityRegisterCallbacks"));
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                        CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET}) {
    QG_RETURN_IF_ERROR(Checked(cupti.enable(kind), "cuptiActivityEnable"));
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceActivity> TakeDeviceActivity() {
  QG_RETURN_IF_ERROR(
      Checked(TheCupti().flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll"));
  std::vector<Interval> intervals;
  {
    const std::lock_guard lock(intervals_mutex);
    intervals.swap(Intervals());
  }
  // Without a record of when it ran.
  std::erase_if(intervals, [](const Interval& one) { return one.first == 0; });
  DeviceActivity activity;
  if (intervals.empty()) return activity;
  std::sort(intervals.begin(), intervals.end());
  uint64_t end = intervals.front().first, busy = 0;
  for (const Interval& one : intervals) {
    if (one.second <= end) continue;
    busy += one.second - std::max(one.first, end);
    end = one.second;
  }
  activity.busy_seconds = static_cast<double>(busy) * 1e-9;
  activity.span_seconds = static_cast<double>(end - intervals.front().first) * 1e-9;
  activity.count = static_cast<int>(intervals.size());
  return activity;
}

}  // namespace quantgate

#else

namespace quantgate {

absl::Status RecordDeviceActivity() { return absl::UnimplementedError("this build has no CUPTI"); }

absl::StatusOr<DeviceActivity> TakeDeviceActivity() { return RecordDeviceActivity(); }

}  // namespace quantgate

#endif
