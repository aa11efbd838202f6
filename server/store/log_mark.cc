#include "server/store/log_mark.h"

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <span>

#include "absl/strings/str_cat.h"
#include "kernels/base/crc32c.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

constexpr size_t kMarkBytes = 20;

struct MarkBytes {
  std::byte bytes[kMarkBytes];
  uint32_t Crc() const { return ExtendCrc32c(0, std::span(bytes).first(kMarkBytes - 4)); }
};

}  // namespace

absl::StatusOr<LogMark> LogMark::Open(const std::string& path) {
  QG_ASSIGN_OR_RETURN(File file, File::OpenForWriting(path));
  QG_ASSIGN_OR_RETURN(const int64_t size, file.Size());
  if (size == 0) {
    return absl::DataLossError(
        "the mark of the database's log is gone or empty, so that nobody knows what the log had");
  }
  MarkBytes mark;
  uint32_t crc;
  const absl::Status read = file.Read(0, mark.bytes);
  std::memcpy(&crc, mark.bytes + kMarkBytes - 4, 4);
  if (!read.ok() || size != kMarkBytes || crc != mark.Crc()) {
    return absl::DataLossError("the mark of the database's log is damaged");
  }
  LogEnd end;
  std::memcpy(&end.generation, mark.bytes, 8);
  std::memcpy(&end.pages, mark.bytes + 8, 8);
  return LogMark(std::move(file), end);
}

absl::StatusOr<LogMark> LogMark::Begin(const std::string& path) {
  QG_ASSIGN_OR_RETURN(File file, File::OpenForWriting(path));
  LogMark mark(std::move(file), {});
  QG_RETURN_IF_ERROR(mark.Write({}));
  QG_RETURN_IF_ERROR(mark.file_.Sync());
  QG_RETURN_IF_ERROR(SyncDirectory(std::filesystem::absolute(path).parent_path().string()));
  return mark;
}

absl::Status LogMark::Check(const std::string& log_path) const {
  if (end_.pages == 0) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const LogEnd found, ReadLogEnd(log_path));
  if (found.generation == 0) {
    return absl::DataLossError(
        absl::StrCat("the database's log is gone, which had ", end_.pages, " pages"));
  }
  if (found.generation != end_.generation) {
    return absl::DataLossError(
        absl::StrCat("the database's log (-wal) is not the one of which the disk had ", end_.pages,
                     " pages, but for example an older one that was put back"));
  }
  if (found.pages >= end_.pages) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the database's log is damaged: ", found.pages, " of ",
                                          end_.pages, " pages are as they were written"));
}

absl::StatusOr<bool> LogMark::IsOfAnother(const std::string& log_path) const {
  if (end_.pages == 0) return false;
  QG_ASSIGN_OR_RETURN(const LogEnd found, ReadLogEnd(log_path));
  return found.generation != 0 && found.generation != end_.generation;
}

absl::Status LogMark::Set(LogEnd end) { return end == end_ ? absl::OkStatus() : Write(end); }

absl::Status LogMark::Write(LogEnd end) {
  MarkBytes mark;
  std::memcpy(mark.bytes, &end.generation, 8);
  std::memcpy(mark.bytes + 8, &end.pages, 8);
  const uint32_t crc = mark.Crc();
  std::memcpy(mark.bytes + kMarkBytes - 4, &crc, 4);
  QG_RETURN_IF_ERROR(file_.Write(0, mark.bytes));
  end_ = end;
  return absl::OkStatus();
}

absl::Status LogMark::Lift() {
  if (end_ == LogEnd()) return absl::OkStatus();
  QG_RETURN_IF_ERROR(Set({}));
  return Sync();
}

}  // namespace quantgate
