// The project's own source files, read as text by the structure tests.
#pragma once

#include <string>
#include <vector>

namespace quantgate {

struct SourceFile {
  std::string path;  ///< From the repository root, with '/'.
  std::vector<std::string> lines;
};

/// Every file with one of these extensions under kernels, server, client, proto, tests, deploy and
/// cmake.
std::vector<SourceFile> ReadSources(const std::vector<std::string>& extensions);

/// Paths in quotes after #include, in order.
std::vector<std::string> QuotedIncludes(const SourceFile& file);

}  // namespace quantgate
