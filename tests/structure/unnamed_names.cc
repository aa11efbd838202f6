#include "tests/structure/unnamed_names.h"

#include <cctype>
#include <regex>

namespace quantgate {

std::set<std::string> UnnamedNamespaceNames(const SourceFile& file) {
  static const std::regex kType(R"(^(?:struct|class|enum|enum class|union) (\w+)(?: .*)?[{;]$)");
  // The word before the first of ( = { ; [ unless it belongs to a class.
  static const std::regex kOther(R"(^[^=({;]*?[^\w:](\w+)(?:\[\w*\])?(?:\(| =|\{|;).*)");
  static const std::regex kNoDeclaration(
      R"(^(?:using|template|static_assert|namespace|requires)\b.*)");
  std::set<std::string> names;
  bool is_unnamed = false;
  for (const std::string& line : file.lines) {
    if (line == "namespace {") is_unnamed = true;
    if (line.starts_with("}  // namespace")) is_unnamed = false;
    const bool begins = !line.empty() && (std::isalpha(line[0]) || line[0] == '_');
    if (!is_unnamed || !begins || std::regex_match(line, kNoDeclaration)) continue;
    std::smatch match;
    if (std::regex_match(line, match, kType) || std::regex_match(line, match, kOther)) {
      names.insert(match[1]);
    }
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
