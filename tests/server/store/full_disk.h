// A disk that takes nothing more of any database of this process, by SQLite's own way to the
// system: what is written otherwise does not meet it.
#pragma once

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace quantgate {

class DatabaseDisk {
 public:
  DatabaseDisk() {
    sqlite3_vfs* const system = sqlite3_vfs_find("unix");
    int replaced = 0;
    for (const char* name : {"pwrite", "pwrite64"}) {
      // One of the two is not used, and null.
      if (system->xGetSystemCall(system, name) == nullptr) continue;
      system->xSetSystemCall(system, name, reinterpret_cast<sqlite3_syscall_ptr>(&Write));
      ++replaced;
    }
    EXPECT_EQ(replaced, 1);
  }
  ~DatabaseDisk() {
    is_full = false;
    sqlite3_vfs* const system = sqlite3_vfs_find("unix");
    system->xSetSystemCall(system, nullptr, nullptr);
  }
  DatabaseDisk(const DatabaseDisk&) = delete;
  DatabaseDisk& operator=(const DatabaseDisk&) = delete;

  static inline std::atomic<bool> is_full{false};

 private:
  static ssize_t Write(int descriptor, const void* bytes, size_t size, off_t offset) {
    if (!is_full) return ::pwrite(descriptor, bytes, size, offset);
    errno = ENOSPC;
    return -1;
  }
};

}  // namespace quantgate
