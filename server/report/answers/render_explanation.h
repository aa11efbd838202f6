// The candidates of Engine.Explain as text.
#pragma once

#include <ostream>

#include "quantgate/v1/engine_service.pb.h"

namespace quantgate {

/// Of a GEMM: the diagnosis, a row for each candidate, and what follows. Of codes: a row for each
/// candidate, its rules below the table, and the conclusion.
void PrintExplanation(const v1::ExplainResponse& response, bool uses_colour, std::ostream& out);

}  // namespace quantgate
