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
  /// Makes a mark that promises nothing, and has it on the disk before the database that it belongs
  /// to.
  static absl::StatusOr<LogMark> Begin(const std::string& path);

  /// DATA_LOSS where the log lacks pages that the mark promises, or is of another generation: the
  /// mark is lifted, on the disk, before a log is begun anew, so that no crash leaves a log of
  /// another generation.
  absl::Status Check(const std::string& log_path) const;

  /// Whether there is a log and it is of another generation. SQLite would take its pages, of
  /// another time, over those of the database's file.
  absl::StatusOr<bool> IsOfAnother(const std::string& log_path) const;

  /// Sets the mark without waiting for the disk: an older mark promises less, which is safe.
  absl::Status Set(LogEnd end);
  /// Makes the mark promise nothing, also after a crash of the machine. Called before the log is
  /// begun anew: pages of the log before are lost then, and the head may be the older one.
  absl::Status Lift();
  absl::Status Sync() { return file_.Sync(); }

 private:
  LogMark(File file, LogEnd end) : file_(std::move(file)), end_(end) {}

  absl::Status Write(LogEnd end);

  File file_;
  LogEnd end_;
};

}  // namespace quantgate
