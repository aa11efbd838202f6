// SideFiles: large values in files beside a database, which itself would store each in dozens of
// pages. Values are only ever appended to a file. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/disk.h"

namespace quantgate {

class SideFiles {
 public:
  /// Where bytes are within their file.
  struct Place {
    int64_t offset = 0;
    int64_t size = 0;
  };

  /// Makes the directory where there is none.
  static absl::StatusOr<std::unique_ptr<SideFiles>> Open(const std::string& directory);

  /// Appends bytes to file `name`, which has no '/' in it; creates the file where there is none.
  /// The bytes survive a crash of this process. RESOURCE_EXHAUSTED for a full disk.
  absl::StatusOr<Place> Append(const std::string& name, std::string_view bytes) noexcept;
  /// Whether Append finds the file open, as it is from one Append to the next Sync.
  bool IsOpen(const std::string& name) const;
  /// The bytes at a place. NOT_FOUND without the file; DATA_LOSS where it ends before the bytes do.
  absl::StatusOr<std::string> Read(const std::string& name, Place place) const;
  /// Removes a file; does nothing where there is none.
  void Remove(const std::string& name);
  /// Moves a file that nobody adds to into another directory of the same file system.
  absl::Status SetAside(const std::string& name, const std::string& directory) const;
  /// Waits until the disk has the bytes that were added before the call.
  absl::Status Sync();
  std::vector<std::string> Names() const;

 private:
  SideFiles(std::string directory, File open_directory)
      : directory_(std::move(directory)), open_directory_(std::move(open_directory)) {}
  std::string PathOf(const std::string& name) const;

  const std::string directory_;
  /// Kept open, since there may be no descriptor left when it is synced.
  const File open_directory_;
  std::mutex sync_mutex_;  ///< Locked before mutex_ where both are held.
  mutable std::mutex mutex_;
  struct Growing {
    File file;
    int64_t size = 0;
  };
  /// Files with bytes that the disk may lack.
  absl::flat_hash_map<std::string, Growing> unsynced_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quantgate
