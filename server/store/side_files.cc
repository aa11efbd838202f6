#include "server/store/side_files.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace quantgate {

absl::StatusOr<std::unique_ptr<SideFiles>> SideFiles::Open(const std::string& directory) {
  QG_RETURN_IF_ERROR(MakeDirectories(directory));
  QG_ASSIGN_OR_RETURN(File opened, File::OpenDirectory(directory));
  return std::unique_ptr<SideFiles>(new SideFiles(directory, std::move(opened)));
}

std::string SideFiles::PathOf(const std::string& name) const {
  return absl::StrCat(directory_, "/", name);
}

absl::StatusOr<SideFiles::Place> SideFiles::Append(const std::string& name,
                                                   std::string_view bytes) noexcept {
  const std::lock_guard lock(mutex_);
  auto found = unsynced_.find(name);
  if (found == unsynced_.end()) {
    Growing opened;
    QG_ASSIGN_OR_RETURN(opened.file, File::OpenForWriting(PathOf(name)));
    QG_ASSIGN_OR_RETURN(opened.size, opened.file.Size());
    found = unsynced_.emplace(name, std::move(opened)).first;
  }
  Growing& growing = found->second;
  // The bytes come after any that a failed attempt may have left.
  const Place place = {growing.size, static_cast<int64_t>(bytes.size())};
  QG_RETURN_IF_ERROR(growing.file.Write(place.offset, std::as_bytes(std::span(bytes))));
  growing.size += place.size;
  return place;
}

bool SideFiles::IsOpen(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return unsynced_.contains(name);
}

absl::StatusOr<std::string> SideFiles::Read(const std::string& name, Place place) const {
  QG_ASSIGN_OR_RETURN(const File file, File::OpenForReading(PathOf(name)));
  std::string bytes(static_cast<size_t>(place.size), '\0');
  QG_RETURN_IF_ERROR(file.Read(place.offset, std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

absl::Status SideFiles::SetAside(const std::string& name, const std::string& directory) const {
  return RenameFile(PathOf(name), directory + "/" + name);
}

void SideFiles::Remove(const std::string& name) {
  const std::lock_guard lock(mutex_);
  unsynced_.erase(name);
  RemoveFile(PathOf(name));
}

absl::Status SideFiles::Sync() {
  // A second caller waits for the disk too.
  const std::lock_guard one_at_a_time(sync_mutex_);
  absl::flat_hash_map<std::string, Growing> unsynced;
  {
    const std::lock_guard lock(mutex_);
    unsynced.swap(unsynced_);
  }
  if (unsynced.empty()) return absl::OkStatus();
  for (auto& [name, growing] : unsynced) QG_RETURN_IF_ERROR(growing.file.Sync());
  return open_directory_.SyncAsDirectory();
}

std::vector<std::string> SideFiles::Names() const {
  std::vector<std::string> names;
  std::error_code ended;
  for (std::filesystem::directory_iterator entry(directory_, ended), end; !ended && entry != end;
       entry.increment(ended)) {
    names.push_back(entry->path().filename().string());
  }
  return names;
}

}  // namespace quantgate
