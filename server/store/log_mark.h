// LogMark: records in a file of its own how much of a database's log is known to be on the disk.
// After a crash SQLite takes the log up to the first page whose checksum does not match, and cannot
// tell a page that was never fully written from one that was damaged since. The mark says which
// pages were promised to be there. Not thread-safe.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/checked_files.h"
#include "server/store/disk.h"

namespace quantgate {

class LogMark {
 public:
  LogMark() = default;
  /// DATA_LOSS for a mark that is gone or damaged, since nobody knows then what the log had.
  static absl::StatusOr<LogMark> Open(const std::string& path);
  /// Creates a mark that promises nothing. The disk has it before it has the database of the mark.
  static absl::StatusOr<LogMark> Begin(const std::string& path);

  /// DATA_LOSS where the log lacks pages that the mark promises, or is of another generation.
  /// Before a log is begun anew the mark is lifted, on the disk, so that no crash leaves a log of
  /// another generation than the mark's.
  absl::Status Check(const std::string& log_path) const;

  /// Whether there is a log, and it is of another generation than the mark's. SQLite would take the
  /// pages of that log, which are of another time, in place of those in the database's file.
  absl::StatusOr<bool> IsOfAnother(const std::string& log_path) const;

  /// Sets the mark without waiting for the disk: an older mark promises less, which is safe.
  absl::Status Set(LogEnd end);
  /// Makes the mark promise nothing, also after a crash of the machine. Called before the log is
  /// begun anew: from then on pages of the earlier log are lost, and a crash may leave its head.
  absl::Status Lift();
  absl::Status Sync() { return file_.Sync(); }

 private:
  LogMark(File file, LogEnd end) : file_(std::move(file)), end_(end) {}

  absl::Status Write(LogEnd end);

  File file_;
  LogEnd end_;
};

}  // namespace quantgate
