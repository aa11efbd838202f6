// What a trace of training steps showed, as a table, as JSON (the conventions of report_json.h); as
// HTML: render_html.h.
//
// JSON: one entry of "tensors" for each step, variant and output, one of "quantizations" for each
// step, variant (and rank of several) and quantized tensor, one of "overlaps" for each step,
// variant, rank and stage that communicated beside its GEMMs; steps count from 1, variants and
// ranks from 0. JSON lines: each entry as a line of its own, kinds trace_tensor,
// trace_quantization, trace_overlap, and trace for the rest.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "server/report/report_document.h"

namespace quantgate {

struct TraceStep {
  int round = 1;           ///< From 1.
  std::string kind;        ///< "forward", "backward", "optimize", ...: SessionTrace's names.
  std::string microbatch;  ///< Of steps that have one.
};

/// An output of one variant's step against the reference variant's; after an optimizer step, a
/// parameter.
struct TraceTensor {
  int step = 0;                  ///< Index into steps.
  int variant = 0;               ///< Index into variants.
  SubjectComparison comparison;  ///< Without heat maps.
};

struct TraceQuantization {
  int step = 0;
  int variant = 0;
  int rank = -1;  ///< Of a session on several; -1: there are no others.
  v1::QuantizationRecord record;
};

/// A stage of one rank that communicated beside its GEMMs.
struct TraceOverlap {
  int step = 0;
  int variant = 0;
  int rank = 0;
  v1::OverlapReport report;
};

struct TraceReport {
  std::string command;                ///< As typed.
  std::vector<std::string> variants;  ///< Their labels.
  int reference = 0;
  std::vector<TraceStep> steps;
  std::vector<TraceTensor> tensors;  ///< By step, then variant; none of the reference's own.
  std::vector<TraceQuantization> quantizations;  ///< By step, then variant; of all variants.
  std::vector<TraceOverlap> overlaps;            ///< Likewise, then rank.
  std::vector<std::string> notes;                ///< What steps remarked, each once.
  /// Where ranks of a variant had other bits of the same part; a note each too.
  std::vector<std::string> rank_differences;
  std::optional<v1::Verdict> verdict;  ///< Where the bits are to be those of the reference.
};

/// Part of all elements that a cast counted; 0 of none.
double ShareOf(int64_t part, const v1::QuantizationCounts& counts);
/// "fc1.x (input, rowwise)", "rank 1 fc1.x (input, rowwise)": what was quantized, as what, and in
/// which directions.
std::string QuantizationName(const TraceQuantization& quantization);

/// Where scales went since the same variant first quantized the same tensor. Absent for formats
/// without such scales.
struct ScaleDrift {
  std::optional<double> log2_scale;  ///< Of the scale of the whole tensor.
  std::optional<double> mean_code;   ///< Of the blocks' scales: E8M0, E4M3, or biased exponents.
  std::optional<double> scale;       ///< log2_scale less the first.
  std::optional<double> code;        ///< mean_code less the first.
};
/// One for each of report.quantizations.
std::vector<ScaleDrift> DriftsOf(const TraceReport& report);

void PrintTrace(const TraceReport& report, bool uses_colour, std::ostream& out);
nlohmann::ordered_json JsonOf(const TraceReport& report);
std::string TraceJson(const TraceReport& report);
std::string TraceJsonLines(const TraceReport& report);

}  // namespace quantgate
