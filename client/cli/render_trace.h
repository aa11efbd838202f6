// A trace as a table, as JSON (the conventions of render_json.h) and as HTML.
//
// JSON: one entry of "tensors" for each step, variant and output, one of "quantizations" for each
// step, variant and quantized tensor; steps count from 1, variants from 0. JSON lines: each entry
// as a line of its own, kinds trace_tensor, trace_quantization, and trace for the rest.
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
