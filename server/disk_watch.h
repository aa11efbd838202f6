// DiskWatch: whether the file system of the data directory has room left. Uploads are refused by
// what they want; this tells probes that a server can hardly record anything. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

namespace quantgate {

/// What an unprivileged writer may still take.
struct DiskRoom {
  int64_t bytes = 0;
  int64_t files = 0;
};
using DiskRoomReader = std::function<DiskRoom(const std::string& path)>;

/// By statvfs. All there is where the file system cannot be asked or does not count files.
DiskRoom ReadDiskRoom(const std::string& path);

class DiskWatch {
 public:
  /// `log` may be empty. Looks once.
  DiskWatch(std::string path, int64_t reserve_bytes, DiskRoomReader read,
            std::function<void(const std::string&)> log);

  /// Asks the file system, which may take its time. By one thread at a time.
  void Look();
  /// As of the last look; empty: there is room.
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
