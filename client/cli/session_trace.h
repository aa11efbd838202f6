// Plays a SessionTrace: a session for each variant, all of them taking the same steps side by side,
// and every output held against the reference variant's as soon as both are there.
//
// The client plays, by Sessions and Engine.Compare: any server can do it, the one in this process
// too, tensors stay where they were computed, and the comparisons are those of every other report.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/tensor_comparison.h"
#include "client/connection.h"
#include "client/tensor_source.h"
#include "quantgate/v1/session_trace.pb.h"

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

/// Steps of one trace, rounds counted.
inline constexpr int kTraceStepsMax = 100000;

/// What is wrong with the trace itself, before a server is asked: INVALID_ARGUMENT.
absl::Status CheckTrace(const v1::SessionTrace& trace);

/// Called before each step with the number of steps done and of all.
using TraceProgress = std::function<void(int done, int of)>;

/// Sessions are closed in the end, whatever it is. A step that a variant refuses ends the trace
/// with that error, naming variant and step. `lease_seconds` as OpenSessionRequest's.
absl::StatusOr<TraceReport> PlayTrace(Connection& connection, const v1::SessionTrace& trace,
                                      TensorSources& sources, int lease_seconds,
                                      const TraceProgress& progress);

/// Bitwise: whether all variants have the reference's bits, and the ranks of each the same.
v1::Verdict JudgeTrace(const TraceReport& report);

}  // namespace quantgate
