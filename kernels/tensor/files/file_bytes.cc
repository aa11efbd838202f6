#include "kernels/tensor/files/file_bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

absl::Status ErrnoStatus(const std::string& path, const char* action) {
  const int error = errno;
  const std::string message = absl::StrCat(path, ": cannot ", action, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case EFBIG:  // By RLIMIT_FSIZE or the file system.
      return absl::ResourceExhaustedError(message);
    case ENOTDIR:
    case EISDIR:
    case ENAMETOOLONG:
      return absl::InvalidArgumentError(message);
    default:
      return absl::InternalError(message);
  }
}

class ScopedDescriptor {
 public:
  explicit ScopedDescriptor(int descriptor) : descriptor_(descriptor) {}
  ~ScopedDescriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  ScopedDescriptor(const ScopedDescriptor&) = delete;
  ScopedDescriptor& operator=(const ScopedDescriptor&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

absl::Status WriteAll(int descriptor, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(path, "write");
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

/// The mode of any other file that the user makes, since mkstemp gives a file 0600.
mode_t UsualFileMode() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

absl::Status FillTemporary(const std::string& temporary, int descriptor,
                           const std::vector<std::span<const std::byte>>& pieces) {
  for (const auto& piece : pieces) QG_RETURN_IF_ERROR(WriteAll(descriptor, piece, temporary));
  if (::fchmod(descriptor, UsualFileMode()) != 0) return ErrnoStatus(temporary, "set the mode of");
  if (::fsync(descriptor) != 0) return ErrnoStatus(temporary, "sync");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<Buffer>> MapFile(const std::string& path) {
  // O_NONBLOCK: opening a pipe would otherwise wait for a writer.
  const ScopedDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return ErrnoStatus(path, "open");
  struct stat status;
  if (::fstat(file.get(), &status) != 0) return ErrnoStatus(path, "examine");
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  const size_t bytes = static_cast<size_t>(status.st_size);
  if (bytes == 0) return Buffer::Allocate(0);
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) return ErrnoStatus(path, "map");
  std::shared_ptr<const void> owner(data, [bytes](void* mapped) { ::munmap(mapped, bytes); });
  return Buffer::Wrap(static_cast<std::byte*>(data), bytes, std::move(owner));
}

absl::Status ReplaceFile(const std::string& path,
                         const std::vector<std::span<const std::byte>>& pieces) {
  std::string temporary = absl::StrCat(path, ".XXXXXX");
  const ScopedDescriptor file(::mkostemp(temporary.data(), O_CLOEXEC));
  if (file.get() < 0) return ErrnoStatus(path, "create a file beside");
  absl::Status status = FillTemporary(temporary, file.get(), pieces);
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus(path, "replace");
  }
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

absl::StatusOr<Tensor> AlignedView(DType dtype, Shape shape, const std::shared_ptr<Buffer>& buffer,
                                   size_t offset) {
  QG_ASSIGN_OR_RETURN(Tensor view, Tensor::View(dtype, std::move(shape), buffer, offset));
  const auto address = reinterpret_cast<uintptr_t>(view.data());
  if (address % static_cast<uintptr_t>(DTypeBytes(dtype)) == 0) return view;
  return Tensor::FromBytes(dtype, view.shape(), view.bytes());
}

}  // namespace quantgate
