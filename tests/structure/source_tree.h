// The project's own source files, read as text by the structure tests.
#pragma once

#include <string>
#include <vector>

namespace quantgate {

struct SourceFile {
  std::string path;  ///< From the repository root, with '/'.
  std::vector<std::string> lines;
};

/// The paths of all files under kernels, server, client, proto, tests, deploy, docs and cmake.
std::vector<std::string> AllFiles();

/// Those of them with one of these extensions.
std::vector<SourceFile> ReadSources(const std::vector<std::string>& extensions);

/// Paths in quotes after #include, in order.
std::vector<std::string> QuotedIncludes(const SourceFile& file);

/// All that people read: code, scripts, build lists and documents, those of the root too; recorded
/// vectors left out.
std::vector<SourceFile> ReadTexts();

/// The Markdown files among them.
std::vector<SourceFile> ReadDocuments();

/// A document named in a source file, and the sections named with it.
struct Citation {
  std::string where;                  ///< "path:line".
  std::string document;               ///< As written: "docs/quantizers.md".
  std::vector<std::string> sections;  ///< "3", "10.2"; of a range its ends.
};

/// Every Markdown file that `file` names. "section" and its numbers may stand on the next line.
/// Sections that a document of docs/ names without a file are its own.
std::vector<Citation> Citations(const SourceFile& file);

/// The path from the repository root of a document named in `citing_path`, relative to the root or
/// to that file's folder; empty when there is none.
std::string FindDocument(const std::string& citing_path, const std::string& document);

/// The numbers of a document's headings, in order: "3" of "## 3. Title", "3.1" of "### 3.1 Title".
std::vector<std::string> NumberedHeadings(const std::string& document_path);

}  // namespace quantgate
