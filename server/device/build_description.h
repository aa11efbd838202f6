// What this binary is: version, revision and compiler.
#pragma once

#include <string>

namespace quantgate {

struct BuildDescription {
  std::string version;
  std::string revision;  ///< Git revision; "unknown" when built outside of a checkout.
  std::string compiler;
  std::string cuda;  ///< Version of the toolkit; empty where built without the CUDA engine.
};

BuildDescription DescribeBuild();

}  // namespace quantgate
