#include "client/cli/output.h"

#include <filesystem>
#include <span>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/download.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/files/file_bytes.h"

namespace quantgate {
namespace {
namespace fs = std::filesystem;
}  // namespace

absl::Status CheckOutput(const std::string& option, const std::string& path,
                         const std::vector<std::string>& suffixes,
                         const std::set<std::string>& inputs) {
  const auto refuse = [&](const std::string& rule) {
    return absl::InvalidArgumentError(absl::StrCat(option, ": \"", path, "\" ", rule));
  };
  bool has_suffix = false;
  for (const std::string& suffix : suffixes) has_suffix |= absl::EndsWith(path, suffix);
  if (!has_suffix) return refuse(absl::StrCat("must end in ", absl::StrJoin(suffixes, " or ")));
  std::error_code error;
  fs::path directory = fs::path(path).parent_path();
  if (directory.empty()) directory = ".";
  if (!fs::is_directory(directory, error)) return refuse("lies in no existing directory");
  if (fs::is_directory(path, error)) return refuse("is a directory");
  for (const std::string& input : inputs) {
    if (fs::equivalent(path, input, error)) return refuse("is an input of this command");
  }
  return absl::OkStatus();
}

absl::Status WriteTextFile(const std::string& path, const std::string& text) {
  return ReplaceFile(path, {std::as_bytes(std::span(text))});
}

absl::StatusOr<std::vector<NamedTensor>> FetchAndWrite(
    Connection& connection, const std::vector<v1::NamedTensor>& tensors, const std::string& path,
    const std::map<std::string, std::string>& metadata) {
  std::vector<NamedTensor> fetched;
  for (const v1::NamedTensor& tensor : tensors) {
    QG_ASSIGN_OR_RETURN(Tensor value, FetchTensor(connection, tensor));
    if (value.dtype() == DType::kF4E2M1x2) {
      // Two codes a byte: the files' own F4 counts codes, and few readers know it.
      QG_ASSIGN_OR_RETURN(value, value.Reinterpret(DType::kU8, value.shape()));
    }
    fetched.push_back({tensor.name(), std::move(value)});
  }
  QG_RETURN_IF_ERROR(WriteSafetensors(path, fetched, metadata));
  return fetched;
}

}  // namespace quantgate
