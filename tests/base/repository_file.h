// Where a test finds a file of the repository, in the tree that built it and in a bundle.
#pragma once

#include <cstdlib>
#include <string>

namespace quantgate {

/// `path` below the repository's root, or below $QUANTGATE_TEST_ROOT where that is set: a bundle
/// has the files that its tests read and stands anywhere.
inline std::string RepositoryFile(const std::string& path) {
  const char* root = std::getenv("QUANTGATE_TEST_ROOT");
  const bool is_bundle = root != nullptr && *root != '\0';
  return std::string(is_bundle ? root : QUANTGATE_SOURCE_DIR) + "/" + path;
}

}  // namespace quantgate
