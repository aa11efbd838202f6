#include "server/store/direct_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "kernels/base/status_macros.h"
#include "server/errors.h"
#include "server/limits.h"

namespace quantgate {
namespace {

/// The least number of bytes that are written directly. Below it, the wait for the device costs
/// more than a copy to the page cache.
constexpr int64_t kDirectBytesMin = 256 << 10;
/// An alignment of the buffer in memory, which the alignment of the device must divide.
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kHugePageBytes = 2 << 20;

struct Free {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};

std::byte* NewBuffer() {
  auto* bytes = static_cast<std::byte*>(std::aligned_alloc(kHugePageBytes, kUploadWriteBytes));
  // Few large pages make few large requests to the device. This is a hint: small pages work too.
  if (bytes != nullptr) (void)::madvise(bytes, kUploadWriteBytes, MADV_HUGEPAGE);
  return bytes;
}

/// One buffer for each thread that writes, not for each file: a thousand open uploads need no more.
std::span<std::byte> AlignedBuffer() {
  thread_local const std::unique_ptr<std::byte, Free> buffer(NewBuffer());
  return {buffer.get(), buffer == nullptr ? 0 : static_cast<size_t>(kUploadWriteBytes)};
}

/// Copies bytes out of pieces, one part after the other.
class PieceReader {
 public:
  explicit PieceReader(DirectFile::Pieces pieces) : pieces_(pieces) {}

  void Fill(std::span<std::byte> out) {
    while (!out.empty()) {
      const auto rest = pieces_.front().subspan(offset_);
      const size_t count = std::min(rest.size(), out.size());
      if (count > 0) std::memcpy(out.data(), rest.data(), count);
      out = out.subspan(count);
      offset_ += count;
      if (offset_ < pieces_.front().size()) continue;
      pieces_ = pieces_.subspan(1);
      offset_ = 0;
    }
  }

 private:
  DirectFile::Pieces pieces_;
  size_t offset_ = 0;
};

}  // namespace

DirectFile DirectFile::Open(const std::string& path) {
  struct statx info;
  if (::statx(AT_FDCWD, path.c_str(), 0, STATX_DIOALIGN, &info) != 0 ||
      (info.stx_mask & STATX_DIOALIGN) == 0 || info.stx_dio_offset_align == 0 ||
      info.stx_dio_mem_align == 0 || kPageBytes % info.stx_dio_mem_align != 0) {
    return {};
  }
  // Parts of a block could be written too, but each would go through the page cache.
  const int64_t block_bytes = std::max(info.stx_dio_offset_align, info.stx_blksize);
  if (kUploadWriteBytes % block_bytes != 0) return {};
  return {File(::open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC)), block_bytes};
}

absl::StatusOr<int64_t> DirectFile::WriteFront(int64_t offset, Pieces pieces) {
  if (!is_open()) return 0;
  int64_t bytes = 0;
  for (const auto& piece : pieces) bytes += static_cast<int64_t>(piece.size());
  bytes -= bytes % block_bytes_;
  if (offset % block_bytes_ != 0 || bytes < kDirectBytesMin) return 0;
  const std::span<std::byte> buffer = AlignedBuffer();
  if (buffer.empty()) return 0;
  PieceReader reader(pieces);
  for (int64_t done = 0; done < bytes;) {
    const int64_t count = std::min(bytes - done, kUploadWriteBytes);
    const auto part = buffer.first(static_cast<size_t>(count));
    reader.Fill(part);
    QG_RETURN_IF_ERROR(file_.Write(offset + done, part));
    done += count;
  }
  return bytes;
}

}  // namespace quantgate
