// The results of `quantgate gemm --every-algorithm` as text.
#pragma once

#include <ostream>

#include "quantgate/v1/engine_service.pb.h"

namespace quantgate {

/// A row per algorithm, then a line per difference with the first element in value and hex.
void PrintAlgorithms(const v1::GemmResponse& response, bool uses_colour, std::ostream& out);

}  // namespace quantgate
