// Splitting text that may hold JSON: separators inside brackets, braces and double quotes do not
// count.
#pragma once

#include <string_view>
#include <vector>

namespace quantgate {

/// The parts of `text` between separators of the outermost level; one part, perhaps empty, where
/// there is none. Brackets that do not match leave the rest one part.
inline std::vector<std::string_view> SplitOutsideJson(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  int depth = 0;
  bool is_quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_quoted) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        is_quoted = false;
      }
      continue;
    }
    if (c == '"' && depth > 0) is_quoted = true;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c != separator || depth != 0) continue;
    parts.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

}  // namespace quantgate
