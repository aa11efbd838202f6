#include "server/report/trace_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/report/number_text.h"
#include "server/report/render_memory.h"
#include "server/report/render_ranks.h"
#include "server/report/render_table.h"
#include "server/report/report_json.h"
#include "server/report/text_table.h"

namespace quantgate {
namespace {

using Json = nlohmann::ordered_json;

std::string StepText(const TraceReport& report, int index) {
  const TraceStep& step = report.steps[index];
  return absl::StrCat(index + 1, " ", step.kind,
                      step.microbatch.empty() ? "" : absl::StrCat(" ", step.microbatch));
}

/// The table of `tensors`; with `judges` also whether each meets what is required of it.
void PrintTraceComparisons(const TraceReport& report, const std::vector<TraceTensor>& tensors,
                           bool judges, bool uses_colour, std::ostream& out) {
  std::vector<std::string> head = {"step",      "<tensor", "<variant",       "differ",
                                   "worst ulp", "SQNR dB", "relative error", "cosine"};
  if (judges) head.insert(head.end(), {"of its bound", "<required"});
  TextTable table(head);
  for (const TraceTensor& tensor : tensors) {
    const SubjectComparison& comparison = tensor.comparison;
    const v1::ParityReport& parity = comparison.result.parity();
    const v1::ErrorReport& error = comparison.result.error();
    std::vector<std::string> row = {StepText(report, tensor.step), comparison.tensor,
                                    LabelAt(report, tensor.step, tensor.variant)};
    if (!comparison.result.has_parity()) {
      row.insert(row.end(), {comparison.difference, ""});
    } else if (parity.equal()) {
      row.insert(row.end(), {"=", "0"});
    } else {
      row.insert(row.end(),
                 {Percent(parity.mismatch_count(), parity.element_count()),
                  parity.worst_ulp() == INT64_MAX ? "NaN" : UlpText(parity.worst_ulp())});
    }
    if (comparison.result.has_error()) {
      row.insert(row.end(), {Decibels(error.sqnr_db()), ShortReal(error.relative_frobenius()),
                             absl::StrCat(error.cosine())});
    } else {
      row.insert(row.end(), {"-", "-", "-"});
    }
    if (judges) {
      row.push_back(comparison.bound ? BoundShare(comparison.bound->worst_ratio()) : "-");
      row.push_back(comparison.passes ? "passes" : "fails");
    }
    table.AddRow(row);
    if (parity.equal()) table.SetTone(3, Tone::kGood);
  }
  table.Print(out, uses_colour);
}

void PrintTensors(const TraceReport& report, bool uses_colour, std::ostream& out) {
  if (!report.tensors.empty()) {
    out << "\nAgainst " << report.variants[report.reference] << "\n";
    PrintTraceComparisons(report, report.tensors, /*judges=*/false, uses_colour, out);
  }
  if (!report.subjects.empty()) {
    out << "\nSubjects, each against its variant's tensor\n";
    PrintTraceComparisons(report, report.subjects, report.verdict.has_value(), uses_colour, out);
  }
  for (const TraceDiagnosis& one : report.diagnoses) {
    out << "\nstep " << StepText(report, one.step) << " of "
        << LabelAt(report, one.step, one.variant) << ": ";
    PrintDiagnosis(one.diagnosis, report.lists_tried, out);
  }
}

std::string RealOrDash(const std::optional<double>& value) {
  return value.has_value() ? ShortReal(*value) : "-";
}

void PrintTraceQuantizations(const TraceReport& report, bool uses_colour, std::ostream& out) {
  if (report.quantizations.empty()) return;
  out << "\nQuantizations; drift is log2 of the scale against the variant's first of that tensor, "
         "or the change of the blocks' mean scale code; against reference: log2 of the scale over "
         "the reference variant's of that step\n";
  const bool has_groups =
      std::any_of(report.quantizations.begin(), report.quantizations.end(),
                  [](const auto& one) { return !one.record.amax_group().empty(); });
  std::vector<std::string> head = {"step",  "<quantized", "<variant", "underflow", "saturated",
                                   "scale", "scale_inv",  "drift",    "mean code", "drift"};
  const bool has_others =
      std::any_of(report.quantizations.begin(), report.quantizations.end(),
                  [](const auto& one) { return one.scale_against_reference.has_value(); });
  if (has_others) head.push_back("against reference");
  if (has_groups) head.push_back("<amax over");
  TextTable table(head);
  const std::vector<ScaleDrift> drifts = DriftsOf(report);
  for (size_t i = 0; i < report.quantizations.size(); ++i) {
    const TraceQuantization& quantization = report.quantizations[i];
    const v1::QuantizationRecord& record = quantization.record;
    std::vector<std::string> row = {
        StepText(report, quantization.step),
        QuantizationName(quantization),
        LabelAt(report, quantization.step, quantization.variant),
        ShortReal(ShareOf(record.counts().flushed_to_zero(), record.counts())),
        ShortReal(ShareOf(record.counts().saturated(), record.counts())),
        record.has_scale() ? ShortReal(record.scale()) : "-",
        record.has_scale_inv() ? ShortReal(record.scale_inv()) : "-",
        RealOrDash(drifts[i].scale),
        RealOrDash(drifts[i].mean_code),
        RealOrDash(drifts[i].code)};
    if (has_others) row.push_back(RealOrDash(quantization.scale_against_reference));
    if (has_groups) row.push_back(record.amax_group());
    table.AddRow(row);
  }
  table.Print(out, uses_colour);
}

Json Placed(const TraceReport& report, int step, int variant) {
  return Json{{"step", step + 1}, {"variant", variant}, {"label", LabelAt(report, step, variant)}};
}

Json OfTensor(const TraceReport& report, const TraceTensor& tensor) {
  Json json = Placed(report, tensor.step, tensor.variant);
  json.update(JsonOf(tensor.comparison));
  return json;
}

Json OfDiagnosis(const TraceReport& report, const TraceDiagnosis& diagnosis) {
  Json json = Placed(report, diagnosis.step, diagnosis.variant);
  json.update(JsonOf(diagnosis.diagnosis));
  return json;
}

void SetRealOrNull(Json& json, const std::string& key, const std::optional<double>& value) {
  if (value.has_value()) {
    SetReal(json, key, *value);
  } else {
    json[key] = json[key + "_bits"] = nullptr;
  }
}

Json OfQuantization(const TraceReport& report, const TraceQuantization& quantization,
                    const ScaleDrift& drift) {
  Json json = Placed(report, quantization.step, quantization.variant);
  json["rank"] = quantization.rank < 0 ? Json() : Json(quantization.rank);
  json["name"] = QuantizationName(quantization);
  json.update(JsonOf(quantization.record));
  const v1::QuantizationCounts& counts = quantization.record.counts();
  SetReal(json, "underflow_rate", ShareOf(counts.flushed_to_zero(), counts));
  SetReal(json, "saturation_rate", ShareOf(counts.saturated(), counts));
  SetRealOrNull(json, "scale_drift_log2", drift.scale);
  SetRealOrNull(json, "scale_against_reference_log2", quantization.scale_against_reference);
  SetRealOrNull(json, "mean_scale_code", drift.mean_code);
  SetRealOrNull(json, "scale_code_drift", drift.code);
  return json;
}

Json OfMemory(const TraceReport& report, const TraceMemory& memory) {
  Json json = Placed(report, memory.step, memory.variant);
  json.update(JsonOf(memory.memory));
  return json;
}

Json OfOverlap(const TraceReport& report, const TraceOverlap& overlap) {
  Json json = Placed(report, overlap.step, overlap.variant);
  json["rank"] = overlap.rank;
  json.update(JsonOf(overlap.report));
  return json;
}

/// The report without its tensors, diagnoses, quantizations, overlaps and memories.
Json OfFrame(const TraceReport& report) {
  Json steps = Json::array();
  for (const TraceStep& step : report.steps) {
    steps.push_back(Json{{"step", static_cast<int>(steps.size()) + 1},
                         {"round", step.round},
                         {"kind", step.kind},
                         {"microbatch", step.microbatch}});
  }
  Json json{{"command", report.command},
            {"variants", report.variants},
            {"reference", report.reference},
            {"steps", steps},
            {"notes", report.notes}};
  json["verdict"] = report.verdict.has_value() ? JsonOf(*report.verdict) : Json();
  return json;
}

void PrintTraceOverlaps(const TraceReport& report, bool uses_colour, std::ostream& out) {
  if (report.overlaps.empty()) return;
  out << "\nCommunication beside GEMMs\n";
  std::vector<std::string> head = {"step", "<variant", "rank", "<stage"};
  const std::vector<std::string> figures = OverlapHead();
  head.insert(head.end(), figures.begin(), figures.end());
  TextTable table(head);
  for (const TraceOverlap& overlap : report.overlaps) {
    std::vector<std::string> row = {StepText(report, overlap.step),
                                    LabelAt(report, overlap.step, overlap.variant),
                                    absl::StrCat(overlap.rank), overlap.report.stage()};
    const std::vector<std::string> values = OverlapRow(overlap.report);
    row.insert(row.end(), values.begin(), values.end());
    table.AddRow(row);
  }
  table.Print(out, uses_colour);
}

/// Prints what each variant saved after every step that has changed it.
void PrintTraceMemories(const TraceReport& report, bool uses_colour, std::ostream& out) {
  if (!HasMemory(report)) return;
  out << "\nSaved for backward after each step; added: beyond what the session holds anyway; peak: "
         "the most of it so far\n";
  const bool gathers =
      std::any_of(report.memories.begin(), report.memories.end(),
                  [](const TraceMemory& one) { return one.memory.gathered_peak_bytes() > 0; });
  std::vector<std::string> head = MemoryHead();
  if (gathers) head.insert(head.end(), {"gathered", "kept"});
  head.insert(head.begin(), {"step", "<variant"});
  TextTable table(head);
  std::map<int, std::vector<std::string>> before;
  for (const TraceMemory& one : report.memories) {
    std::vector<std::string> row = MemoryRow(one.memory);
    if (gathers) {
      row.insert(row.end(), {Bytes(one.memory.gathered_peak_bytes()),
                             Bytes(one.memory.gathered_held_bytes())});
    }
    if (std::exchange(before[one.variant], row) == row) continue;
    row.insert(row.begin(), {StepText(report, one.step), LabelAt(report, one.step, one.variant)});
    table.AddRow(row);
  }
  table.Print(out, uses_colour);
}

/// Identifies the quantizations of one tensor over all steps.
std::string SeriesOf(const TraceQuantization& quantization) {
  return absl::StrCat(quantization.variant, " ", QuantizationName(quantization), " ",
                      quantization.record.quantizer());
}

std::optional<double> Log2Scale(const v1::QuantizationRecord& record) {
  if (record.has_scale()) return std::log2(double{record.scale()});
  if (record.has_scale_inv()) return -std::log2(double{record.scale_inv()});
  return std::nullopt;
}

std::optional<double> MeanCode(const v1::QuantizationRecord& record) {
  double sum = 0, count = 0;
  for (const auto& [code, blocks] : record.scale_codes()) {
    sum += static_cast<double>(code) * static_cast<double>(blocks);
    count += static_cast<double>(blocks);
  }
  if (count == 0) return std::nullopt;
  return sum / count;
}

}  // namespace

const std::string& LabelAt(const TraceReport& report, int step, int variant) {
  const std::string* label = &report.variants[variant];
  for (const TraceLabel& change : report.changes) {
    if (change.variant == variant && change.step <= step) label = &change.label;
  }
  return *label;
}

bool HasMemory(const TraceReport& report) {
  return std::any_of(report.memories.begin(), report.memories.end(),
                     [](const TraceMemory& one) { return one.memory.peak_bytes() > 0; });
}

double ShareOf(int64_t part, const v1::QuantizationCounts& counts) {
  const int64_t all = counts.normal() + counts.zero() + counts.subnormal() +
                      counts.flushed_to_zero() + counts.saturated() + counts.infinite() +
                      counts.nan();
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

std::string QuantizationName(const TraceQuantization& quantization) {
  const v1::QuantizationRecord& record = quantization.record;
  const char* usage = record.rowwise() && record.columnwise() ? "both"
                      : record.rowwise()                      ? "rowwise"
                      : record.columnwise()                   ? "columnwise"
                                                              : "no copy";
  const std::string rank =
      quantization.rank < 0 ? "" : absl::StrCat("rank ", quantization.rank, " ");
  return absl::StrCat(rank, record.tensor(), " (", record.role(), ", ", usage, ")");
}

std::vector<ScaleDrift> DriftsOf(const TraceReport& report) {
  std::map<std::string, ScaleDrift> first;
  std::vector<ScaleDrift> drifts;
  for (const TraceQuantization& quantization : report.quantizations) {
    ScaleDrift drift{Log2Scale(quantization.record), MeanCode(quantization.record), {}, {}};
    const ScaleDrift& start = first.try_emplace(SeriesOf(quantization), drift).first->second;
    if (drift.log2_scale && start.log2_scale) drift.scale = *drift.log2_scale - *start.log2_scale;
    if (drift.mean_code && start.mean_code) drift.code = *drift.mean_code - *start.mean_code;
    drifts.push_back(drift);
  }
  return drifts;
}

void PrintTrace(const TraceReport& report, bool uses_colour, std::ostream& out) {
  out << report.steps.size() << (report.steps.size() == 1 ? " step" : " steps")
      << " of each variant:\n";
  for (size_t i = 0; i < report.variants.size(); ++i) {
    out << i << "  " << report.variants[i] << "\n";
  }
  PrintTensors(report, uses_colour, out);
  PrintTraceQuantizations(report, uses_colour, out);
  PrintTraceMemories(report, uses_colour, out);
  PrintTraceOverlaps(report, uses_colour, out);
  for (const std::string& note : report.notes) out << "note: " << note << "\n";
  if (report.verdict.has_value()) PrintVerdict(*report.verdict, uses_colour, out);
}

Json JsonOf(const TraceReport& report) {
  Json json = JsonHead("trace");
  json.update(OfFrame(report));
  const auto list = [&](const auto& items, auto function) {
    Json of = Json::array();
    for (const auto& item : items) of.push_back(function(report, item));
    return of;
  };
  json["tensors"] = list(report.tensors, OfTensor);
  json["subjects"] = list(report.subjects, OfTensor);
  json["diagnoses"] = list(report.diagnoses, OfDiagnosis);
  json["quantizations"] = Json::array();
  const std::vector<ScaleDrift> drifts = DriftsOf(report);
  for (size_t i = 0; i < drifts.size(); ++i) {
    json["quantizations"].push_back(OfQuantization(report, report.quantizations[i], drifts[i]));
  }
  json["overlaps"] = list(report.overlaps, OfOverlap);
  json["memories"] = list(report.memories, OfMemory);
  return json;
}

std::string TraceJson(const TraceReport& report) { return JsonText(JsonOf(report), 2) + "\n"; }

std::string TraceJsonLines(const TraceReport& report) {
  std::string lines;
  const Json whole = JsonOf(report);
  for (const Json& one : whole["tensors"]) lines += JsonLine("trace_tensor", one);
  for (const Json& one : whole["subjects"]) lines += JsonLine("trace_subject", one);
  for (const Json& one : whole["diagnoses"]) lines += JsonLine("trace_diagnosis", one);
  for (const Json& one : whole["quantizations"]) lines += JsonLine("trace_quantization", one);
  for (const Json& one : whole["overlaps"]) lines += JsonLine("trace_overlap", one);
  for (const Json& one : whole["memories"]) lines += JsonLine("trace_memory", one);
  return lines + JsonLine("trace", OfFrame(report));
}

}  // namespace quantgate
