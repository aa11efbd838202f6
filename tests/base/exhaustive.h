// Tests that have more cases than a run of all tests has time for.
#pragma once

#include <cstdlib>

namespace quantgate {

/// Whether this program is the ctest entry NAME_exhaustive (cmake/quantgate_targets.cmake), which
/// runs every case. The entry NAME runs a part of them that meets every rule and every path.
inline bool IsExhaustive() { return std::getenv("QUANTGATE_EXHAUSTIVE") != nullptr; }

}  // namespace quantgate
