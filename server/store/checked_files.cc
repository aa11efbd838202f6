#include "server/store/checked_files.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/crc32c.h"
#include "kernels/base/status_macros.h"
#include "server/store/disk.h"

namespace quantgate {
namespace {

constexpr char kName[] = "quantgate";
constexpr int64_t kCrcBytes = 4;
// https://www.sqlite.org/fileformat2.html sections 1.3 and 4.1.
constexpr int kHeadBytes = 100;
constexpr int64_t kLogHeadBytes = 32;
constexpr int64_t kFrameHeadBytes = 24;
constexpr int64_t kFrameBytes = kFrameHeadBytes + kDatabasePageBytes;

using Page = std::array<std::byte, kDatabasePageBytes>;

thread_local std::string damage;
thread_local bool was_file_too_large = false;

int Damaged(std::string what) {
  damage = std::move(what);
  return SQLITE_CORRUPT;
}

/// The checksum of a page and its number, which counts from 1.
uint32_t PageCrc(std::span<const std::byte> page, uint32_t number) {
  const uint32_t crc = ExtendCrc32c(0, page.first(kDatabasePageBytes - kCrcBytes));
  return ExtendCrc32c(crc, std::as_bytes(std::span(&number, 1)));
}

void SetCrc(Page& page, uint32_t number) {
  const uint32_t crc = PageCrc(page, number);
  std::memcpy(page.data() + kDatabasePageBytes - kCrcBytes, &crc, kCrcBytes);
}

bool PageFits(std::span<const std::byte> page, uint32_t number) {
  uint32_t crc;
  std::memcpy(&crc, page.data() + kDatabasePageBytes - kCrcBytes, kCrcBytes);
  return crc == PageCrc(page, number);
}

bool IsPage(int size, int64_t offset) {
  return size == kDatabasePageBytes && offset % kDatabasePageBytes == 0;
}

/// The kind of a database by its head.
DatabaseKind KindOfHead(const std::byte* head) {
  if (std::memcmp(head, "SQLite format 3", 16) != 0) return DatabaseKind::kDamaged;
  const int page_bytes = static_cast<int>(head[16]) << 8 | static_cast<int>(head[17]);
  const int reserved = static_cast<int>(head[20]);
  if (page_bytes != kDatabasePageBytes) return DatabaseKind::kDamaged;
  if (reserved == kReservedPageBytes) return DatabaseKind::kChecked;
  return reserved == 0 ? DatabaseKind::kUnchecked : DatabaseKind::kDamaged;
}

/// The methods of SQLite's own file system, and a copy in which some of them are replaced.
struct Methods {
  const sqlite3_io_methods* system = nullptr;
  sqlite3_io_methods checked{};
};
/// Each is filled by the first file of its kind; all files of a kind have the same methods.
Methods database_methods, log_methods;
std::mutex methods_mutex;

// SQLite is written in C: an exception that passed through it would leave its locks taken.
int ReadDatabase(sqlite3_file* file, void* bytes, int size, sqlite3_int64 offset) noexcept {
  const int code = database_methods.system->xRead(file, bytes, size, offset);
  const auto* read = static_cast<const std::byte*>(bytes);
  if (IsPage(size, offset)) {
    const auto number = static_cast<uint32_t>(offset / kDatabasePageBytes + 1);
    // SQLite reads no page that it has not written before, so one that is not there is damage.
    const bool is_there = code == SQLITE_OK && PageFits({read, kDatabasePageBytes}, number);
    if (is_there || (code != SQLITE_OK && code != SQLITE_IOERR_SHORT_READ)) return code;
    return Damaged(absl::StrCat("page ", number));
  }
  // SQLite reads the head before it knows the size of pages. An empty file is a new database.
  if (offset == 0 && size == kHeadBytes && code == SQLITE_OK &&
      KindOfHead(read) != DatabaseKind::kChecked) {
    return Damaged("its head");
  }
  return code;
}

/// The result for SQLite of the system's xWrite. Called just after it, while errno is its own.
int Written(int code) {
  if (code == SQLITE_OK) return code;
  was_file_too_large = code == SQLITE_IOERR_WRITE && errno == EFBIG;
  return was_file_too_large ? SQLITE_FULL : code;
}

int WriteLog(sqlite3_file* file, const void* bytes, int size, sqlite3_int64 offset) noexcept {
  return Written(log_methods.system->xWrite(file, bytes, size, offset));
}

int WriteDatabase(sqlite3_file* file, const void* bytes, int size, sqlite3_int64 offset) noexcept {
  if (!IsPage(size, offset)) return SQLITE_IOERR_WRITE;
  // The bytes belong to SQLite and may be in the log already as they are, so a copy gets the
  // checksum.
  static thread_local Page page;
  std::memcpy(page.data(), bytes, kDatabasePageBytes);
  SetCrc(page, static_cast<uint32_t>(offset / kDatabasePageBytes + 1));
  return Written(database_methods.system->xWrite(file, page.data(), size, offset));
}

/// The running sum over a log: over its head and over its frames, without bytes 8 to 23 of each
/// frame's head.
struct LogSum {
  uint32_t first = 0, second = 0;
  friend bool operator==(const LogSum&, const LogSum&) = default;

  /// Adds words in this machine's byte order, in which its SQLite writes them.
  void Add(std::span<const std::byte> bytes) {
    for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
      uint32_t words[2];
      std::memcpy(words, bytes.data() + i, 8);
      first += words[0] + second;
      second += words[1] + first;
    }
  }
};

uint32_t Swapped(uint32_t word) {
  return std::endian::native == std::endian::little ? __builtin_bswap32(word) : word;
}

uint32_t BigEndian(const std::byte* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, 4);
  return Swapped(word);
}

LogSum SumAt(const std::byte* bytes) { return {BigEndian(bytes), BigEndian(bytes + 4)}; }

int ReadLog(sqlite3_file* file, void* bytes, int size, sqlite3_int64 offset) noexcept {
  const int code = log_methods.system->xRead(file, bytes, size, offset);
  const int64_t frame_begin = offset - kFrameHeadBytes;
  if (code != SQLITE_OK || size != kDatabasePageBytes || frame_begin < kLogHeadBytes ||
      (frame_begin - kLogHeadBytes) % kFrameBytes != 0) {
    return code;
  }
  // The sum before this frame is in the head of the frame before it, or in the head of the log.
  std::byte before[8], head[kFrameHeadBytes];
  const int64_t sum_offset = frame_begin == kLogHeadBytes
                                 ? kLogHeadBytes - 8
                                 : frame_begin - kFrameBytes + kFrameHeadBytes - 8;
  int read = log_methods.system->xRead(file, before, sizeof(before), sum_offset);
  if (read == SQLITE_OK) {
    read = log_methods.system->xRead(file, head, sizeof(head), frame_begin);
  }
  if (read != SQLITE_OK) return read;
  LogSum sum = SumAt(before);
  sum.Add({head, 8});
  sum.Add({static_cast<const std::byte*>(bytes), kDatabasePageBytes});
  if (sum == SumAt(head + 16)) return code;
  return Damaged(absl::StrCat("page ", BigEndian(head), " in its log"));
}

int OpenFile(sqlite3_vfs*, const char* path, sqlite3_file* file, int flags,
             int* out_flags) noexcept {
  sqlite3_vfs* const system = sqlite3_vfs_find("unix");
  const int code = system->xOpen(system, path, file, flags, out_flags);
  const bool is_database = (flags & SQLITE_OPEN_MAIN_DB) != 0;
  if (code != SQLITE_OK || (!is_database && (flags & SQLITE_OPEN_WAL) == 0)) return code;
  const std::lock_guard lock(methods_mutex);
  Methods& methods = is_database ? database_methods : log_methods;
  if (methods.system == nullptr) {
    methods.system = file->pMethods;
    methods.checked = *file->pMethods;
    methods.checked.iVersion = 2;  // Without memory mapping, which would bypass xRead.
    methods.checked.xRead = is_database ? ReadDatabase : ReadLog;
    methods.checked.xWrite = is_database ? WriteDatabase : WriteLog;
  }
  if (methods.system != file->pMethods) {
    file->pMethods->xClose(file);
    file->pMethods = nullptr;
    return SQLITE_CANTOPEN;
  }
  file->pMethods = &methods.checked;
  return SQLITE_OK;
}

/// Registers the file system with SQLite by its name, once. False where that failed.
bool Register() {
  static sqlite3_vfs vfs = [] {
    sqlite3_vfs copy = *sqlite3_vfs_find("unix");
    copy.zName = kName;
    copy.pNext = nullptr;
    copy.xOpen = OpenFile;
    return copy;
  }();
  static const bool is_registered = sqlite3_vfs_register(&vfs, /*makeDflt=*/0) == SQLITE_OK;
  return is_registered;
}

}  // namespace

int OpenChecked(const std::string& path, sqlite3** connection) {
  if (!Register()) return SQLITE_ERROR;
  // SQLite creates the files beside it with the same mode. An existing file is not opened here:
  // closing it would drop the locks that another connection of this process holds.
  const int made = ::open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (made < 0 && errno != EEXIST) return SQLITE_CANTOPEN;
  if (made >= 0) ::close(made);
  const int code =
      sqlite3_open_v2(path.c_str(), connection,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, kName);
  if (code != SQLITE_OK) return code;
  int reserved = kReservedPageBytes;
  return sqlite3_file_control(*connection, "main", SQLITE_FCNTL_RESERVE_BYTES, &reserved);
}

int OpenCheckedToRead(const std::string& path, sqlite3** connection) {
  if (!Register()) return SQLITE_ERROR;
  return sqlite3_open_v2(path.c_str(), connection, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX,
                         kName);
}

bool WasFileTooLarge() { return was_file_too_large; }

std::string TakeDamage() { return std::exchange(damage, {}); }

absl::StatusOr<DatabaseKind> KindOfDatabase(const std::string& path) {
  const auto file = File::OpenForReading(path);
  if (absl::IsNotFound(file.status())) return DatabaseKind::kAbsent;
  QG_RETURN_IF_ERROR(file.status());
  QG_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  if (size == 0) return DatabaseKind::kEmpty;
  if (size < kDatabasePageBytes) return DatabaseKind::kDamaged;
  std::byte head[kHeadBytes];
  QG_RETURN_IF_ERROR(file->Read(0, head));
  return KindOfHead(head);
}

absl::StatusOr<std::vector<int64_t>> DamagedPages(const std::string& path) {
  QG_ASSIGN_OR_RETURN(const File file, File::OpenForReading(path));
  QG_ASSIGN_OR_RETURN(const int64_t size, file.Size());
  std::vector<int64_t> damaged;
  Page page;
  for (int64_t number = 1; (number - 1) * kDatabasePageBytes < size; ++number) {
    const absl::Status read = file.Read((number - 1) * kDatabasePageBytes, page);
    if (!read.ok() && !absl::IsDataLoss(read)) return read;
    if (!read.ok() || !PageFits(page, static_cast<uint32_t>(number))) damaged.push_back(number);
  }
  return damaged;
}

absl::StatusOr<int64_t> BytesByHead(const std::string& path) {
  QG_ASSIGN_OR_RETURN(const File file, File::OpenForReading(path));
  Page page;
  const absl::Status read = file.Read(0, page);
  if (absl::IsDataLoss(read) || !PageFits(page, 1)) return 0;
  QG_RETURN_IF_ERROR(read);
  return int64_t{BigEndian(page.data() + 28)} * kDatabasePageBytes;
}

absl::Status ReplaceFirstPage(const std::string& path, const std::string& empty,
                              const std::string& aside) {
  Page page;
  QG_ASSIGN_OR_RETURN(File file, File::OpenForWriting(path));
  QG_ASSIGN_OR_RETURN(const int64_t size, file.Size());
  QG_RETURN_IF_ERROR(file.Read(0, page));
  QG_ASSIGN_OR_RETURN(File kept, File::OpenForWriting(aside));
  QG_RETURN_IF_ERROR(kept.Write(0, page));
  QG_RETURN_IF_ERROR(kept.Sync());
  QG_ASSIGN_OR_RETURN(const File source, File::OpenForReading(empty));
  QG_RETURN_IF_ERROR(source.Read(0, page));
  // https://www.sqlite.org/fileformat2.html section 1.3: bytes 18 and 19 allow a log; bytes 28 to
  // 31 are the file's size in pages.
  page[18] = page[19] = std::byte{2};
  const uint32_t pages = Swapped(static_cast<uint32_t>(size / kDatabasePageBytes));
  std::memcpy(page.data() + 28, &pages, 4);
  SetCrc(page, 1);
  QG_RETURN_IF_ERROR(file.Write(0, page));
  return file.Sync();
}

absl::StatusOr<LogEnd> ReadLogEnd(const std::string& path) {
  const auto file = File::OpenForReading(path);
  if (absl::IsNotFound(file.status())) return LogEnd();
  QG_RETURN_IF_ERROR(file.status());
  QG_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  if (size == 0) return LogEnd();
  if (size < kLogHeadBytes) {
    return absl::DataLossError("the database's log (-wal) ends within its head");
  }
  std::byte head[kLogHeadBytes];
  QG_RETURN_IF_ERROR(file->Read(0, head));
  LogSum sum;
  sum.Add(std::span(head).first(kLogHeadBytes - 8));
  if (sum != SumAt(head + kLogHeadBytes - 8)) {
    return absl::DataLossError("the head of the database's log is damaged");
  }
  LogEnd end = {LogGeneration(file->descriptor()), 0};
  std::vector<std::byte> frame(kFrameBytes);
  for (int64_t pages = 1; kLogHeadBytes + pages * kFrameBytes <= size; ++pages) {
    QG_RETURN_IF_ERROR(file->Read(kLogHeadBytes + (pages - 1) * kFrameBytes, frame));
    sum.Add(std::span(frame).first(8));
    sum.Add(std::span(frame).subspan(kFrameHeadBytes));
    if (std::memcmp(frame.data() + 8, head + 16, 8) != 0 || sum != SumAt(frame.data() + 16)) break;
    if (BigEndian(frame.data() + 4) != 0) end.pages = pages;
  }
  return end;
}

uint64_t LogGeneration(int descriptor) {
  uint64_t generation = 0;
  return ::pread(descriptor, &generation, sizeof(generation), 16) == sizeof(generation) ? generation
                                                                                        : 0;
}

}  // namespace quantgate
