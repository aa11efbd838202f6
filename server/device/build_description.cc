#include "server/device/build_description.h"

namespace quantgate {

// The definitions come from server/CMakeLists.txt.
BuildDescription DescribeBuild() {
  return {QUANTGATE_VERSION, QUANTGATE_REVISION, "g++ " __VERSION__, QUANTGATE_CUDA_VERSION};
}

}  // namespace quantgate
