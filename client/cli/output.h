// Files that a command writes: all of a file or nothing of it, and never an input.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/connection.h"
#include "kernels/tensor/files/tensor_file.h"

namespace quantgate {

/// INVALID_ARGUMENT when `path` (of option `option`) does not end in one of `suffixes`, is one of
/// `inputs` (under any name), or lies in no directory; for asking before hours of work, not after.
absl::Status CheckOutput(const std::string& option, const std::string& path,
                         const std::vector<std::string>& suffixes,
                         const std::set<std::string>& inputs);

/// Writes text by way of a temporary file beside it and a rename.
absl::Status WriteTextFile(const std::string& path, const std::string& text);

/// Fetches `tensors` and writes them as safetensors, FP4 codes as U8. Returns what was written.
absl::StatusOr<std::vector<NamedTensor>> FetchAndWrite(
    Connection& connection, const std::vector<v1::NamedTensor>& tensors, const std::string& path,
    const std::map<std::string, std::string>& metadata);

}  // namespace quantgate
