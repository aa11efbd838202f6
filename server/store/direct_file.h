// DirectFile: writes past the page cache (O_DIRECT). The bytes of an upload are read back later or
// never, so a cached copy costs more than it brings: finding the memory for it takes several times
// as long as writing does where that memory is not the machine's own yet (measured:
// docs/performance.md section 3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "server/store/disk.h"

namespace quantgate {

class DirectFile {
 public:
  using Pieces = std::span<const std::span<const std::byte>>;

  DirectFile() = default;

  /// Opens an existing file a second time, for direct writes. The result is not open where the
  /// kernel does not say how such writes are to be aligned: on a file system without them (tmpfs),
  /// or before Linux 6.1.
  static DirectFile Open(const std::string& path);
  bool is_open() const { return file_.is_open(); }

  /// Writes as many bytes at the front of `pieces` as can be written directly, and returns their
  /// number: whole blocks. 0 where `offset` is inside a block, where the bytes are too few to be
  /// worth a wait for the device, or where the file is not open. The rest is written by
  /// File::Write.
  absl::StatusOr<int64_t> WriteFront(int64_t offset, Pieces pieces);

 private:
  DirectFile(File file, int64_t block_bytes) : file_(std::move(file)), block_bytes_(block_bytes) {}

  File file_;
  int64_t block_bytes_ = 1;
};

}  // namespace quantgate
