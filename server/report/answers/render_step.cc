#include "server/report/answers/render_step.h"

#include <string>

#include "server/report/number_text.h"
#include "server/report/render_memory.h"
#include "server/report/render_ranks.h"
#include "server/report/text_table.h"
#include "server/report/trace_events.h"
#include "server/report/trace_report.h"

namespace quantgate {
namespace {

/// What the step did under --against, as a trace of one step.
void PrintAgainst(const v1::TraceStep& step, bool uses_colour, std::ostream& out) {
  v1::RunEvent event;
  event.mutable_trace()->add_variants("the session's own recipe");
  event.mutable_trace()->add_variants(step.label());
  TraceEvents events;
  events.Take(event);
  *event.mutable_trace_step() = step;
  event.mutable_trace_step()->set_step(1);
  event.mutable_trace_step()->set_variant(1);
  event.mutable_trace_step()->clear_memory();
  events.Take(event);
  out << "\n";
  PrintTrace(events.Finish({}), uses_colour, out);
}

}  // namespace

void PrintSessionStep(const v1::SessionStepResponse& response, bool uses_colour,
                      std::ostream& out) {
  out << "step " << response.step() << "\n";
  TextTable outputs({"output", "<type", "<fingerprint"});
  for (const v1::NamedTensor& output : response.outputs()) {
    outputs.AddRow({output.name(), TypeText(output.type()), FingerprintText(output.fingerprint())});
  }
  if (response.outputs_size() > 0) outputs.Print(out, uses_colour);
  TextTable casts({"quantized", "<by", "amax", "scale", "flushed", "saturated"});
  for (const v1::QuantizationRecord& record : response.quantizations()) {
    casts.AddRow({record.tensor(), record.quantizer(),
                  record.has_amax() ? ShortReal(record.amax()) : "",
                  record.has_scale() ? ShortReal(record.scale()) : "",
                  ShortReal(ShareOf(record.counts().flushed_to_zero(), record.counts())),
                  ShortReal(ShareOf(record.counts().saturated(), record.counts()))});
  }
  if (response.quantizations_size() > 0) casts.Print(out, uses_colour);
  for (const v1::SavedOperand& saved : response.saved()) {
    const bool is_same = saved.at_save().SerializeAsString() == saved.at_use().SerializeAsString();
    if (saved.used() && !is_same) {
      out << "CHANGED between save and use: " << saved.name() << "\n";
    }
  }
  if (response.ranks_size() > 0) {
    PrintRankReports(response.ranks(), uses_colour, out);
  }
  PrintSessionMemory(response.memory(), uses_colour, out);
  for (const std::string& difference : response.rank_differences()) {
    out << "RANKS DIFFER: " << difference << "\n";
  }
  for (const std::string& note : response.notes()) out << "note: " << note << "\n";
  if (response.has_against()) PrintAgainst(response.against(), uses_colour, out);
}

}  // namespace quantgate
