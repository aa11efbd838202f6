#include "tests/structure/source_tree.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace quantgate {
namespace {
namespace fs = std::filesystem;
}

std::vector<SourceFile> ReadSources(const std::vector<std::string>& extensions) {
  const fs::path root = QUANTGATE_SOURCE_DIR;
  std::vector<SourceFile> files;
  for (const char* folder : {"kernels", "server", "client", "proto", "tests", "deploy", "cmake"}) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file()) continue;
      const std::string extension = entry.path().extension().string();
      if (std::find(extensions.begin(), extensions.end(), extension) == extensions.end()) continue;
      SourceFile file{fs::relative(entry.path(), root).generic_string(), {}};
      std::ifstream in(entry.path());
      for (std::string line; std::getline(in, line);) file.lines.push_back(line);
      files.push_back(std::move(file));
    }
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

std::vector<std::string> QuotedIncludes(const SourceFile& file) {
  std::vector<std::string> includes;
  for (const std::string& line : file.lines) {
    if (!line.starts_with("#include \"")) continue;
    const size_t begin = line.find('"') + 1;
    includes.push_back(line.substr(begin, line.find('"', begin) - begin));
  }
  return includes;
}

}  // namespace quantgate
