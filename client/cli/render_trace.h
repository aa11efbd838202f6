// A trace as a table, as JSON (the conventions of render_json.h) and as HTML.
//
// JSON: one entry of "tensors" for each step, variant and output, one of "quantizations" for each
// step, variant (and rank of several) and quantized tensor, one of "overlaps" for each step,
// variant, rank and stage that communicated beside its GEMMs; steps count from 1, variants and
// ranks from 0. JSON lines: each entry as a line of its own, kinds trace_tensor,
// trace_quantization, trace_overlap, and trace for the rest.
#pragma once

#include <ostream>
#include <string>

#include "client/cli/session_trace.h"

namespace quantgate {

void PrintTrace(const TraceReport& report, bool uses_colour, std::ostream& out);
std::string TraceJson(const TraceReport& report);
std::string TraceJsonLines(const TraceReport& report);
/// Needs nothing else, as RenderHtml's.
std::string TraceHtml(const TraceReport& report);

}  // namespace quantgate
