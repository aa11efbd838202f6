#include "server/disk_watch.h"

#include <sys/statvfs.h>

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quantgate {
namespace {

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

}  // namespace

DiskRoom ReadDiskRoom(const std::string& path) {
  struct statvfs info;
  if (::statvfs(path.c_str(), &info) != 0) return {kAll, kAll};
  return {static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize),
          info.f_files == 0 ? kAll : static_cast<int64_t>(info.f_favail)};
}

DiskWatch::DiskWatch(std::string path, int64_t reserve_bytes, DiskRoomReader read,
                     std::function<void(const std::string&)> log)
    : path_(std::move(path)),
      reserve_bytes_(reserve_bytes),
      read_(std::move(read)),
      log_(std::move(log)),
      bytes_(kAll),
      files_(kAll) {
  Look();
}

void DiskWatch::Look() {
  const bool was_full = is_full();
  const DiskRoom room = read_(path_);
  bytes_ = room.bytes;
  files_ = room.files;
  if (!log_ || was_full == is_full()) return;
  log_(is_full() ? absl::StrCat("not ready: ", why_full())
                 : absl::StrCat("the data directory has room again: ", room.bytes, " bytes"));
}

std::string DiskWatch::why_full() const {
  const int64_t bytes = bytes_;
  if (bytes < reserve_bytes_) {
    return absl::StrCat("the disk of the data directory is full: ", bytes,
                        " bytes are left, of which ", reserve_bytes_, " are kept in reserve");
  }
  return files_ == 0 ? "the disk of the data directory is full: it takes no more files" : "";
}

}  // namespace quantgate
