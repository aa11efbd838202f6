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

/// Which file it is, whatever its name.
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

  /// O_CREAT | O_RDWR, mode 0600.
  static absl::StatusOr<File> OpenForWriting(const std::string& path);
  /// NOT_FOUND when there is none, DATA_LOSS for what is no regular file.
  static absl::StatusOr<File> OpenForReading(const std::string& path);
  /// For SyncAsDirectory.
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
  /// Makes renames and creations inside durable.
  absl::Status SyncAsDirectory() const;

 private:
  int descriptor_ = -1;
};

absl::Status MakeDirectories(const std::string& path);
/// The same by its path.
absl::Status SyncDirectory(const std::string& path);
absl::Status RenameFile(const std::string& from, const std::string& to);
/// Removing what is not there is fine.
void RemoveFile(const std::string& path);
/// Bytes an unprivileged writer may still write below `path`.
int64_t FreeBytes(const std::string& path);

}  // namespace quantgate
