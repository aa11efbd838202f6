#include "kernels/layer/parameter_name.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace quantgate {

ParameterName ParameterName::Parse(std::string_view text) {
  ParameterName name;
  size_t dot = text.rfind('.');
  if (dot != text.npos && absl::SimpleAtoi(std::string(text.substr(dot + 1)), &name.expert)) {
    text = text.substr(0, dot);
    dot = text.rfind('.');
  } else {
    name.expert = -1;
  }
  const size_t begin = dot == text.npos ? 0 : dot + 1;
  name.path = std::string(text.substr(0, begin));
  name.word = std::string(text.substr(begin));
  return name;
}

std::string ParameterName::Text() const {
  return expert < 0 ? absl::StrCat(path, word) : absl::StrCat(path, word, ".", expert);
}

}  // namespace quantgate
