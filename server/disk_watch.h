// DiskWatch: whether the file system of the data directory has room left to record runs, for
// readiness probes and metrics. (Uploads are checked by their own sizes.) Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

namespace quantgate {

/// Bytes and files that an unprivileged writer may still add.
struct DiskRoom {
  int64_t bytes = 0;
  int64_t files = 0;
};
using DiskRoomReader = std::function<DiskRoom(const std::string& path)>;

/// Reads the room by statvfs. INT64_MAX where the file system cannot be asked, and for the number
/// of files where it does not count them.
DiskRoom ReadDiskRoom(const std::string& path);

class DiskWatch {
 public:
  /// `log` may be empty. Calls Look once.
  DiskWatch(std::string path, int64_t reserve_bytes, DiskRoomReader read,
            std::function<void(const std::string&)> log);

  /// Asks the file system, which may be slow. Called by one thread at a time.
  void Look();
  /// Why there is no room, as of the last Look; empty where there is room.
  std::string why_full() const;
  int64_t free_bytes() const { return bytes_; }

 private:
  bool is_full() const { return bytes_ < reserve_bytes_ || files_ == 0; }

  const std::string path_;
  const int64_t reserve_bytes_;
  const DiskRoomReader read_;
  const std::function<void(const std::string&)> log_;
  std::atomic<int64_t> bytes_, files_;
};

}  // namespace quantgate
