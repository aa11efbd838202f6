#include "server/device/description_reader.h"

#include <utility>

#include "server/limits.h"

namespace quantgate {

DescriptionReader::DescriptionReader(std::function<DeviceDescription()> read, bool is_quick,
                                     std::function<absl::Time()> now)
    : read_(std::move(read)), now_(std::move(now)) {
  if (!is_quick) thread_ = std::thread([this] { Work(); });
}

DescriptionReader::~DescriptionReader() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  is_asked_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool DescriptionReader::IsYounger(absl::Duration age) const {
  return latest_.has_value() && now_() - read_at_ < age;
}

void DescriptionReader::Refresh() {
  if (!thread_.joinable()) return;
  const std::lock_guard lock(mutex_);
  if (asked_ || IsYounger(kDescriptionAgeMax / 2)) return;
  asked_ = true;
  is_asked_.notify_one();
}

DeviceDescription DescriptionReader::Get() {
  std::unique_lock lock(mutex_);
  if (IsYounger(kDescriptionAgeMax)) return *latest_;
  if (!thread_.joinable()) {
    read_at_ = now_();
    latest_ = read_();
    return *latest_;
  }
  asked_ = true;
  is_asked_.notify_one();
  has_read_.wait(lock, [this] { return !asked_; });
  return *latest_;
}

void DescriptionReader::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    is_asked_.wait(lock, [this] { return stopping_ || asked_; });
    if (stopping_) return;
    lock.unlock();
    const absl::Time begin = now_();
    DeviceDescription description = read_();
    lock.lock();
    latest_ = std::move(description);
    read_at_ = begin;
    asked_ = false;
    has_read_.notify_all();
  }
}

}  // namespace quantgate
