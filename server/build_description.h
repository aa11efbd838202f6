// What this binary is: version, revision and compiler.
#pragma once

#include <string>

namespace quantgate {

struct BuildDescription {
  std::string version;
  std::string revision;  ///< Git revision; "unknown" when built outside of a checkout.
  std::string compiler;
};

BuildDescription DescribeBuild();

}  // namespace quantgate
