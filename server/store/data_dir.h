// The data directory: its layout, and the lock that keeps a second server out.
//   LOCK  quantgate.db  quantgate.db-mark  quantgate.db-files/<run id>  hardware_checks.json
//   cas/ab/cd/<sha256>.<size>  partial/<sha256>.<size>.<upload id>  quarantine/<sha256>
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/store/disk.h"

namespace quantgate {

class DataDir {
 public:
  /// Whether a server has used the directory. Creates nothing.
  static bool Exists(const std::string& path);
  /// Creates what is missing and takes the lock. FAILED_PRECONDITION naming the path when it is
  /// locked by another process, not a directory, or not writable.
  static absl::StatusOr<DataDir> Open(const std::string& path);

  /// FAILED_PRECONDITION where the database is gone or empty but blobs or events are there: a start
  /// would forget without notice what they belong to.
  absl::Status CheckHistory() const;
  /// Removes the files beside a database that is gone or empty, so that a new one can be created.
  /// FAILED_PRECONDITION where there is a database.
  absl::Status BeginAnew() const;

  const std::string& path() const { return path_; }
  std::string database_path() const { return path_ + "/quantgate.db"; }
  std::string side_files_path() const { return database_path() + "-files"; }
  std::string blobs_path() const { return path_ + "/cas"; }
  std::string partial_path() const { return path_ + "/partial"; }
  std::string hardware_checks_path() const { return path_ + "/hardware_checks.json"; }
  std::string quarantine_path() const { return path_ + "/quarantine"; }

 private:
  DataDir(std::string path, File lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;
  File lock_;
};

}  // namespace quantgate
