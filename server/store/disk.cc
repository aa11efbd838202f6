#include "server/store/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/errors.h"

namespace quantgate {

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    if (is_open()) ::close(descriptor_);
    descriptor_ = other.Release();
  }
  return *this;
}

File::~File() {
  if (is_open()) ::close(descriptor_);
}

int File::Release() { return std::exchange(descriptor_, -1); }

absl::StatusOr<File> File::OpenForWriting(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor < 0) return error::FromErrno(errno, "creating a file");
  return File(descriptor);
}

absl::StatusOr<File> File::OpenForReading(const std::string& path) {
  // O_NONBLOCK, since opening a pipe that is in a file's place would block.
  File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) {
    if (errno == ENOENT) return absl::NotFoundError("no such file");
    return error::FromErrno(errno, "opening a file");
  }
  struct stat info;
  if (::fstat(file.descriptor(), &info) != 0) return error::FromErrno(errno, "opening a file");
  if (!S_ISREG(info.st_mode)) return absl::DataLossError("it is no regular file");
  return file;
}

absl::StatusOr<File> File::OpenDirectory(const std::string& path) {
  File directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.is_open()) return error::FromErrno(errno, "opening a directory");
  return directory;
}

absl::StatusOr<FileIdentity> File::Identity() const {
  struct stat info;
  if (::fstat(descriptor_, &info) != 0) return error::FromErrno(errno, "reading of a file");
  return FileIdentity{info.st_dev, info.st_ino};
}

absl::StatusOr<int64_t> File::Size() const {
  struct stat info;
  if (::fstat(descriptor_, &info) != 0) return error::FromErrno(errno, "reading a file's size");
  return static_cast<int64_t>(info.st_size);
}

absl::Status File::Write(int64_t offset, std::span<const std::span<const std::byte>> pieces) {
  std::vector<iovec> vectors;
  vectors.reserve(pieces.size());
  for (const auto& piece : pieces) {
    if (piece.empty()) continue;
    vectors.push_back({const_cast<std::byte*>(piece.data()), piece.size()});
  }
  size_t next = 0;
  while (next < vectors.size()) {
    const int count = static_cast<int>(std::min<size_t>(vectors.size() - next, IOV_MAX));
    const ssize_t written = ::pwritev(descriptor_, &vectors[next], count, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return error::FromErrno(errno, "writing a file");
    offset += written;
    size_t left = static_cast<size_t>(written);
    while (next < vectors.size() && left >= vectors[next].iov_len) left -= vectors[next++].iov_len;
    if (left > 0) {
      vectors[next].iov_base = static_cast<char*>(vectors[next].iov_base) + left;
      vectors[next].iov_len -= left;
    }
  }
  return absl::OkStatus();
}

absl::Status File::Write(int64_t offset, std::span<const std::byte> bytes) {
  return Write(offset, std::span<const std::span<const std::byte>>(&bytes, 1));
}

absl::Status File::Read(int64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(descriptor_, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return error::FromErrno(errno, "reading a file");
    if (count == 0) return absl::DataLossError("the file ends early");
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += count;
  }
  return absl::OkStatus();
}

absl::Status File::Truncate(int64_t size) {
  if (::ftruncate(descriptor_, size) != 0) return error::FromErrno(errno, "truncating a file");
  return absl::OkStatus();
}

void File::StartWriteback(int64_t offset, int64_t size) {
  // A hint only: Sync() writes what this fails to start.
  (void)::sync_file_range(descriptor_, offset, size, SYNC_FILE_RANGE_WRITE);
}

absl::Status File::Sync() {
  if (::fdatasync(descriptor_) != 0) return error::FromErrno(errno, "syncing a file");
  return absl::OkStatus();
}

absl::Status File::SyncAsDirectory() const {
  if (::fsync(descriptor_) != 0) return error::FromErrno(errno, "syncing a directory");
  return absl::OkStatus();
}

absl::Status MakeDirectories(const std::string& path) {
  std::error_code code;
  std::filesystem::create_directories(path, code);
  if (code) return error::FromErrno(code.value(), "creating a directory");
  return absl::OkStatus();
}

absl::Status SyncDirectory(const std::string& path) {
  QG_ASSIGN_OR_RETURN(const File directory, File::OpenDirectory(path));
  return directory.SyncAsDirectory();
}

absl::Status RenameFile(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return error::FromErrno(errno, "renaming a file");
  return absl::OkStatus();
}

void RemoveFile(const std::string& path) { ::unlink(path.c_str()); }

int64_t FreeBytes(const std::string& path) {
  struct statvfs info;
  if (::statvfs(path.c_str(), &info) != 0) return std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

}  // namespace quantgate
