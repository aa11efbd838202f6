#include "tests/structure/unnamed_names.h"

#include <cctype>
#include <regex>

namespace quantgate {

namespace {

/// Whether a line begins a declaration outside of classes and functions.
bool Begins(const std::string& line) {
  return !line.empty() && (std::isalpha(line[0]) || line[0] == '_');
}

/// The types and constants that a line declares.
std::set<std::string> TypesAndConstants(const std::string& line) {
  static const std::regex kType(R"(^(?:struct|class|enum class|enum|union) (\w+)(?: .*)?[{;]$)");
  static const std::regex kConstant(R"((\w+)(?:\[\w*\])? = )");
  std::set<std::string> names;
  std::smatch match;
  if (std::regex_match(line, match, kType)) names.insert(match[1]);
  if (line.find("constexpr ") == std::string::npos) return names;
  const std::string declared = line.substr(0, line.find('('));
  for (std::sregex_iterator one(declared.begin(), declared.end(), kConstant), end; one != end;
       ++one) {
    names.insert((*one)[1]);
  }
  return names;
}

}  // namespace

std::set<std::string> UnnamedNamespaceNames(const SourceFile& file) {
  // The word before the first of ( = { ; [ unless it belongs to a class.
  static const std::regex kOther(R"(^[^=({;]*?[^\w:](\w+)(?:\[\w*\])?(?:\(| =|\{|;).*)");
  static const std::regex kNoDeclaration(
      R"(^(?:using|template|static_assert|namespace|requires)\b.*)");
  std::set<std::string> names;
  bool is_unnamed = false;
  for (const std::string& line : file.lines) {
    if (line == "namespace {") is_unnamed = true;
    if (line.starts_with("}  // namespace")) is_unnamed = false;
    if (!is_unnamed || !Begins(line) || std::regex_match(line, kNoDeclaration)) continue;
    std::set<std::string> found = TypesAndConstants(line);
    std::smatch match;
    if (found.empty() && std::regex_match(line, match, kOther)) found.insert(match[1]);
    names.merge(found);
  }
  return names;
}

std::set<std::string> SourcesWithOptions(const SourceFile& cmake_list) {
  std::string text;
  for (const std::string& line : cmake_list.lines) text += line + " ";
  const std::string folder = cmake_list.path.substr(0, cmake_list.path.rfind('/') + 1);
  static const std::regex kCall(R"(set_source_files_properties\(([^)]*?)PROPERTIES)");
  static const std::regex kSource(R"(\S+\.cc)");
  std::set<std::string> sources;
  for (std::sregex_iterator call(text.begin(), text.end(), kCall), end; call != end; ++call) {
    const std::string arguments = (*call)[1];
    for (std::sregex_iterator source(arguments.begin(), arguments.end(), kSource); source != end;
         ++source) {
      sources.insert(folder + source->str());
    }
  }
  return sources;
}

}  // namespace quantgate
