// SideFiles: large values in files beside a database, which would write them as dozens of pages. A
// file grows at its end only. Thread-safe.
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

  /// Adds bytes to file `name`, which has no '/' in it, and makes the file where there is none. A
  /// crash of this process takes nothing of them; RESOURCE_EXHAUSTED for a full disk.
  absl::StatusOr<Place> Append(const std::string& name, std::string_view bytes) noexcept;
  /// Whether Append finds the file open, as it is from one Append to the next Sync.
  bool IsOpen(const std::string& name) const;
  /// NOT_FOUND without the file; DATA_LOSS where it ends before the bytes do.
  absl::StatusOr<std::string> Read(const std::string& name, Place place) const;
  /// Removing what is not there is fine.
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
  const File open_directory_;  ///< Open, since there may be no descriptor left to sync it.
  std::mutex sync_mutex_;      ///< Before mutex_.
  mutable std::mutex mutex_;
  struct Growing {
    File file;
    int64_t size = 0;
  };
  /// Files with bytes that the disk may lack.
  absl::flat_hash_map<std::string, Growing> unsynced_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quantgate
