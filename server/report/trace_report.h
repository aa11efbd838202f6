// The results of a trace of training steps, as a table and as JSON (by the conventions of
// report_json.h). render_html.h makes HTML of them.
//
// JSON: one entry of "tensors" for each step, variant and output, one of "subjects" for each
// tensor of the user's own that was held against a variant's, one of "quantizations" for each
// step, variant (and rank of several) and quantized tensor, one of "overlaps" for each step,
// variant, rank and stage that communicated beside its GEMMs, one of "memories" for each step and
// variant, one of "diagnoses" for each step and variant of which a subject fails; steps count from
// 1, variants and ranks from 0. JSON lines: each entry as a line of its own, kinds trace_tensor,
// trace_subject, trace_diagnosis, trace_quantization, trace_overlap, trace_memory, and trace for
// the rest.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "quantgate/v1/sessions_service.pb.h"
#include "server/report/report_document.h"

namespace quantgate {

struct TraceStep {
  int round = 1;           ///< Number of the round, from 1.
  std::string kind;        ///< "forward", "backward", "optimize", ...: SessionTrace's names.
  std::string microbatch;  ///< The microbatch of a step that has one.
};

/// The comparison of an output of one variant's step with that of the reference variant; after an
/// optimizer step, of a parameter.
struct TraceTensor {
  int step = 0;                  ///< Index into steps.
  int variant = 0;               ///< Index into variants.
  SubjectComparison comparison;  ///< The comparison, without heat maps.
};

/// Why subjects of a step fail.
struct TraceDiagnosis {
  int step = 0;
  int variant = 0;
  v1::Diagnosis diagnosis;
};

struct TraceQuantization {
  int step = 0;
  int variant = 0;
  int rank = -1;  ///< Rank of a session on several ranks; -1 for a session on one.
  v1::QuantizationRecord record;
  /// v1.TraceQuantization.scale_against_reference_log2.
  std::optional<double> scale_against_reference = {};
};

/// A stage of one rank that communicated beside its GEMMs.
struct TraceOverlap {
  int step = 0;
  int variant = 0;
  int rank = 0;
  v1::OverlapReport report;
};

/// What one variant holds for backwards after a step.
struct TraceMemory {
  int step = 0;
  int variant = 0;
  v1::SessionMemory memory;
};

/// What a variant is called from a step on that changed its recipe or its ranks.
struct TraceLabel {
  int step = 0;
  int variant = 0;
  std::string label;
};

struct TraceReport {
  std::string command;                   ///< The command as typed.
  std::vector<std::string> variants;     ///< Their labels when the trace began.
  std::vector<TraceLabel> changes = {};  ///< Ordered by step.
  int reference = 0;
  std::vector<TraceStep> steps;
  /// Ordered by step, then variant; without the reference variant's own.
  std::vector<TraceTensor> tensors;
  /// Tensors computed elsewhere, each held against its variant's; likewise ordered.
  std::vector<TraceTensor> subjects = {};
  /// Likewise ordered. None from servers of version 0.1.0.
  std::vector<TraceDiagnosis> diagnoses = {};
  bool lists_tried = false;  ///< Whether text lists what diagnoses tried too.
  /// Of all variants; ordered by step, then variant.
  std::vector<TraceQuantization> quantizations;
  /// Ordered by step, variant and rank.
  std::vector<TraceOverlap> overlaps;
  /// Of all variants; ordered by step, then variant. None from servers of version 0.1.0.
  std::vector<TraceMemory> memories;
  /// The notes of the steps, each once.
  std::vector<std::string> notes;
  /// Parts of tensors that ranks of a variant held with different bits. Each of them is also a
  /// note.
  std::vector<std::string> rank_differences;
  /// Present where something is required of variants or subjects.
  std::optional<v1::Verdict> verdict;
};

/// The label that a variant has after a step.
const std::string& LabelAt(const TraceReport& report, int step, int variant);
/// Whether any variant saved anything for backward.
bool HasMemory(const TraceReport& report);
/// The share of `part` in all elements that a cast counted; 0 where it counted none.
double ShareOf(int64_t part, const v1::QuantizationCounts& counts);
/// "fc1.x (input, rowwise)", "rank 1 fc1.x (input, rowwise)": what was quantized, as what, and in
/// which directions.
std::string QuantizationName(const TraceQuantization& quantization);

/// How far scales have moved since the same variant first quantized the same tensor. Members are
/// absent for formats without such scales.
struct ScaleDrift {
  /// log2 of the scale of the whole tensor.
  std::optional<double> log2_scale;
  /// Mean code of the blocks' scales: E8M0, E4M3, or biased exponents.
  std::optional<double> mean_code;
  /// log2_scale minus its first value.
  std::optional<double> scale;
  /// mean_code minus its first value.
  std::optional<double> code;
};
/// One for each of report.quantizations.
std::vector<ScaleDrift> DriftsOf(const TraceReport& report);

void PrintTrace(const TraceReport& report, bool uses_colour, std::ostream& out);
nlohmann::ordered_json JsonOf(const TraceReport& report);
std::string TraceJson(const TraceReport& report);
std::string TraceJsonLines(const TraceReport& report);

}  // namespace quantgate
