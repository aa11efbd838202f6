// ParameterName: the name of a parameter, gradient or state by its parts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace quantgate {

/// "fc1.weight.2": the weight of expert 2 in layer fc1.
struct ParameterName {
  std::string path;     ///< What it is within, with its dot: "fc1.", "block1.fc1."; empty: nothing.
  std::string word;     ///< What it is: "weight", "dw".
  int64_t expert = -1;  ///< -1: of no expert, or of all.

  static ParameterName Parse(std::string_view text);
  std::string Text() const;
};

}  // namespace quantgate
