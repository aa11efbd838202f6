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

  /// A second way into a file that exists. Not open where the kernel does not say how such writes
  /// are to be aligned: a file system without them (tmpfs), or Linux before 6.1.
  static DirectFile Open(const std::string& path);
  bool is_open() const { return file_.is_open(); }

  /// Writes the bytes at the front of `pieces` that can go this way, and returns how many these
  /// are: whole blocks, and none if `offset` is inside of a block or there are too few to be worth
  /// a wait for the device, or the file is not open. The rest is File::Write's.
  absl::StatusOr<int64_t> WriteFront(int64_t offset, Pieces pieces);

 private:
  DirectFile(File file, int64_t block_bytes) : file_(std::move(file)), block_bytes_(block_bytes) {}

  File file_;
  int64_t block_bytes_ = 1;
};

}  // namespace quantgate
