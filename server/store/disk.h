// The few file operations that durable storage needs, with errors as status. Errors never name a
// path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quantgate {

/// Tells files apart, whatever their names.
struct FileIdentity {
  uint64_t device = 0, inode = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

/// An open file, closed on destruction. Not thread-safe.
class File {
 public:
  File() = default;
  explicit File(int descriptor) : descriptor_(descriptor) {}
  File(File&& other) noexcept : descriptor_(other.Release()) {}
  File& operator=(File&& other) noexcept;
  ~File();

  /// Opens a file for reading and writing; creates it with mode 0600 where there is none.
  static absl::StatusOr<File> OpenForWriting(const std::string& path);
  /// NOT_FOUND where there is none, DATA_LOSS for anything but a regular file.
  static absl::StatusOr<File> OpenForReading(const std::string& path);
  /// Opens a directory, for SyncAsDirectory.
  static absl::StatusOr<File> OpenDirectory(const std::string& path);

  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  int Release();

  absl::StatusOr<int64_t> Size() const;
  absl::StatusOr<FileIdentity> Identity() const;
  /// Writes every piece in order at `offset`.
  absl::Status Write(int64_t offset, std::span<const std::span<const std::byte>> pieces);
  absl::Status Write(int64_t offset, std::span<const std::byte> bytes);
  /// Fills `bytes`; DATA_LOSS when the file ends before.
  absl::Status Read(int64_t offset, std::span<std::byte> bytes) const;
  absl::Status Truncate(int64_t size);
  /// Asks the kernel to start writing [offset, offset + size) to the device, without waiting.
  void StartWriteback(int64_t offset, int64_t size);
  absl::Status Sync();
  /// Makes renames and creations inside this directory durable.
  absl::Status SyncAsDirectory() const;

 private:
  int descriptor_ = -1;
};

absl::Status MakeDirectories(const std::string& path);
/// Makes renames and creations inside the directory `path` durable.
absl::Status SyncDirectory(const std::string& path);
absl::Status RenameFile(const std::string& from, const std::string& to);
/// Removes a file; does nothing where there is none.
void RemoveFile(const std::string& path);
/// Bytes an unprivileged writer may still write below `path`.
int64_t FreeBytes(const std::string& path);

}  // namespace quantgate
