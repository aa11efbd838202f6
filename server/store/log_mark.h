// LogMark: how much of a database's log the disk was known to have, in a file of its own. After a
// crash SQLite takes the log up to the first page that does not fit, and cannot tell a page that
// was never written whole from one that was damaged since: with the mark it is known which of them
// were promised. Not thread-safe.
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
  /// DATA_LOSS for a mark that is gone or damaged: what the log had cannot be told.
  static absl::StatusOr<LogMark> Open(const std::string& path);
  /// One that asks for nothing, on the disk before the database that it belongs to.
  static absl::StatusOr<LogMark> Begin(const std::string& path);

  /// DATA_LOSS where the log lacks pages that it had, or is of another generation: the mark is
  /// lifted, on the disk, before a log is begun anew, so that no crash leaves one that it does not
  /// tell of.
  absl::Status Check(const std::string& log_path) const;

  /// Whether there is a log and it is of another generation. SQLite would take its pages, of another
  /// time, over those of the database's file.
  absl::StatusOr<bool> IsOfAnother(const std::string& log_path) const;

  /// Not waiting for the disk: an older mark asks for less.
  absl::Status Set(LogEnd end);
  /// Nothing is asked of the log from now on, whatever happens to the machine. Before it is begun
  /// anew: pages of the one before are lost then, and the head may be the older one.
  absl::Status Lift();
  absl::Status Sync() { return file_.Sync(); }

 private:
  LogMark(File file, LogEnd end) : file_(std::move(file)), end_(end) {}

  absl::Status Write(LogEnd end);

  File file_;
  LogEnd end_;
};

}  // namespace quantgate
