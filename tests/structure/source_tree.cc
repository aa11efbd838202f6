#include "tests/structure/source_tree.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>

namespace quantgate {
namespace {
namespace fs = std::filesystem;

/// A line of a comment without its marks.
std::string WithoutCommentMarks(const std::string& line) {
  const size_t begin = line.find_first_not_of(" /#");
  return begin == std::string::npos ? "" : line.substr(begin);
}

std::vector<std::string> AllMatches(const std::string& text, const std::regex& pattern) {
  std::vector<std::string> matches;
  for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match) {
    matches.push_back(match->str());
  }
  return matches;
}

}  // namespace

std::vector<std::string> AllFiles() {
  const fs::path root = QUANTGATE_SOURCE_DIR;
  std::vector<std::string> paths;
  for (const char* folder :
       {"kernels", "server", "client", "proto", "tests", "deploy", "docs", "cmake"}) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file()) continue;
      paths.push_back(fs::relative(entry.path(), root).generic_string());
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<SourceFile> ReadSources(const std::vector<std::string>& extensions) {
  const fs::path root = QUANTGATE_SOURCE_DIR;
  std::vector<SourceFile> files;
  for (const std::string& path : AllFiles()) {
    const std::string extension = fs::path(path).extension().string();
    if (std::find(extensions.begin(), extensions.end(), extension) == extensions.end()) continue;
    SourceFile file{path, {}};
    std::ifstream in(root / path);
    for (std::string line; std::getline(in, line);) file.lines.push_back(line);
    files.push_back(std::move(file));
  }
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

std::vector<SourceFile> ReadTexts() {
  const fs::path root = QUANTGATE_SOURCE_DIR;
  std::vector<SourceFile> files =
      ReadSources({".h", ".cc", ".cu", ".cuh", ".inc", ".py", ".sh", ".proto", ".txt", ".cmake",
                   ".md", ".html", ".json", ""});
  std::erase_if(files, [](const SourceFile& file) { return file.path.starts_with("tests/data/"); });
  for (const auto& entry : fs::directory_iterator(root)) {
    if (!entry.is_regular_file()) continue;
    SourceFile file{entry.path().filename().generic_string(), {}};
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);) file.lines.push_back(line);
    files.push_back(std::move(file));
  }
  return files;
}

std::vector<SourceFile> ReadDocuments() {
  std::vector<SourceFile> files = ReadTexts();
  std::erase_if(files, [](const SourceFile& file) { return !file.path.ends_with(".md"); });
  return files;
}

std::vector<Citation> Citations(const SourceFile& file) {
  // 1, 2: a document and the sections after it; 3, 4: sections "of" a document; 5, 6: sections of
  // no document, which are this one's, and whether they are "there", in what was cited before.
  static const std::string kNumbers = R"((\d+(?:\.\d+)*(?:(?:, | and | to )\d+(?:\.\d+)*)*))";
  static const std::regex kCitation(
      R"(([\w./-]+\.md)\b\)?(?:,? (?:sections? )?)" + kNumbers + R"()?|\bsections? )" + kNumbers +
      R"( of \[?([\w./-]+\.md)\b|(?:", )?\bsections? )" + kNumbers + R"(( there\b)?)");
  static const std::regex kNumber(R"(\d+(?:\.\d+)*)");
  const bool is_document = file.path.starts_with("docs/");
  std::vector<Citation> citations;
  for (size_t i = 0; i < file.lines.size(); ++i) {
    const std::string& line = file.lines[i];
    const std::string next = i + 1 < file.lines.size() ? file.lines[i + 1] : "";
    const std::string text = line + " " + WithoutCommentMarks(next);
    const bool may_cite = text.find(".md") != std::string::npos ||
                          (is_document && text.find("section") != std::string::npos);
    if (!may_cite) continue;
    for (std::sregex_iterator match(text.begin(), text.end(), kCitation), end; match != end;
         ++match) {
      if (static_cast<size_t>(match->position()) >= line.size()) break;  // Of the next line.
      const std::string where = file.path + ":" + std::to_string(i + 1);
      if ((*match)[1].matched) {
        citations.push_back({where, match->str(1), AllMatches(match->str(2), kNumber)});
      } else if ((*match)[4].matched) {
        citations.push_back({where, match->str(4), AllMatches(match->str(3), kNumber)});
      } else if (is_document && !match->str().starts_with('"') && !(*match)[6].matched) {
        citations.push_back({where, file.path, AllMatches(match->str(5), kNumber)});
      }
    }
  }
  return citations;
}

std::string FindDocument(const std::string& citing_path, const std::string& document) {
  const fs::path root = QUANTGATE_SOURCE_DIR;
  const fs::path name = fs::path(document).relative_path();
  for (const fs::path& path : {name, fs::path(citing_path).parent_path() / name}) {
    if (fs::is_regular_file(root / path)) return path.generic_string();
  }
  return "";
}

std::vector<std::string> NumberedHeadings(const std::string& document_path) {
  static const std::regex kHeading(R"(^#{2,3} (\d+(?:\.\d+)*)\.? .*)");
  std::ifstream in(fs::path(QUANTGATE_SOURCE_DIR) / document_path);
  std::vector<std::string> numbers;
  std::smatch match;
  for (std::string line; std::getline(in, line);) {
    if (std::regex_match(line, match, kHeading)) numbers.push_back(match.str(1));
  }
  return numbers;
}

}  // namespace quantgate
