#include "client/cli/render_trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/number_text.h"
#include "client/cli/render_json.h"
#include "client/cli/render_ranks.h"
#include "client/cli/render_table.h"
#include "client/cli/text_table.h"

namespace quantgate {
namespace {

using Json = nlohmann::ordered_json;

std::string StepText(const TraceReport& report, int index) {
  const TraceStep& step = report.steps[index];
  return absl::StrCat(index + 1, " ", step.kind,
                      step.microbatch.empty() ? "" : absl::StrCat(" ", step.microbatch));
}

void PrintTensors(const TraceReport& report, bool uses_colour, std::ostream& out) {
  if (report.tensors.empty()) return;
  out << "\nAgainst " << report.variants[report.reference] << "\n";
  TextTable table({"step", "<tensor", "<variant", "differ", "worst ulp", "SQNR dB",
                   "relative error", "cosine"});
  for (const TraceTensor& tensor : report.tensors) {
    const SubjectComparison& comparison = tensor.comparison;
    const v1::ParityReport& parity = comparison.result.parity();
    const v1::ErrorReport& error = comparison.result.error();
    std::vector<std::string> row = {StepText(report, tensor.step), comparison.tensor,
                                    report.variants[tensor.variant]};
    if (!comparison.result.has_parity()) {
      row.insert(row.end(), {comparison.difference, ""});
    } else if (parity.equal()) {
      row.insert(row.end(), {"=", "0"});
    } else {
      row.insert(row.end(), {Percent(parity.mismatch_count(), parity.element_count()),
                             parity.worst_ulp() == INT64_MAX ? "NaN" : Count(parity.worst_ulp())});
    }
    if (comparison.result.has_error()) {
      row.insert(row.end(), {Decibels(error.sqnr_db()), ShortReal(error.relative_frobenius()),
                             absl::StrCat(error.cosine())});
    } else {
      row.insert(row.end(), {"-", "-", "-"});
    }
    table.AddRow(row);
    if (parity.equal()) table.SetTone(3, Tone::kGood);
  }
  table.Print(out, uses_colour);
}

std::string RealOrDash(const std::optional<double>& value) {
  return value.has_value() ? ShortReal(*value) : "-";
}

void PrintTraceQuantizations(const TraceReport& report, bool uses_colour, std::ostream& out) {
  if (report.quantizations.empty()) return;
  out << "\nQuantizations; drift is log2 of the scale against the variant's first of that tensor, "
         "or the change of the blocks' mean scale code\n";
  const bool has_groups =
      std::any_of(report.quantizations.begin(), report.quantizations.end(),
                  [](const auto& one) { return !one.record.amax_group().empty(); });
  std::vector<std::string> head = {"step",  "<quantized", "<variant", "underflow", "saturated",
                                   "scale", "scale_inv",  "drift",    "mean code", "drift"};
  if (has_groups) head.push_back("<amax over");
  TextTable table(head);
  const std::vector<ScaleDrift> drifts = DriftsOf(report);
  for (size_t i = 0; i < report.quantizations.size(); ++i) {
    const TraceQuantization& quantization = report.quantizations[i];
    const v1::QuantizationRecord& record = quantization.record;
    std::vector<std::string> row = {
        StepText(report, quantization.step),
        QuantizationName(quantization),
        report.variants[quantization.variant],
        ShortReal(ShareOf(record.counts().flushed_to_zero(), record.counts())),
        ShortReal(ShareOf(record.counts().saturated(), record.counts())),
        record.has_scale() ? ShortReal(record.scale()) : "-",
        record.has_scale_inv() ? ShortReal(record.scale_inv()) : "-",
        RealOrDash(drifts[i].scale),
        RealOrDash(drifts[i].mean_code),
        RealOrDash(drifts[i].code)};
    if (has_groups) row.push_back(record.amax_group());
    table.AddRow(row);
  }
  table.Print(out, uses_colour);
}

Json OfTensor(const TraceReport& report, const TraceTensor& tensor) {
  const SubjectComparison& comparison = tensor.comparison;
  Json json{{"step", tensor.step + 1},
            {"variant", tensor.variant},
            {"label", report.variants[tensor.variant]},
            {"tensor", comparison.tensor},
            {"dtype", comparison.dtype},
            {"difference", comparison.difference},
            {"parity", nullptr},
            {"error", nullptr}};
  if (comparison.result.has_parity()) {
    const v1::ParityReport& parity = comparison.result.parity();
    const bool differs = parity.mismatch_count() > 0;
    json["parity"] = {
        {"equal", parity.equal()},
        {"element_count", parity.element_count()},
        {"mismatch_count", parity.mismatch_count()},
        {"worst_ulp", parity.worst_ulp()},
        {"first",
         differs ? JsonOf(parity.first(), comparison.dtype, comparison.reference_dtype) : Json()}};
  }
  if (comparison.result.has_error()) {
    const v1::ErrorReport& error = comparison.result.error();
    Json& fields = json["error"];
    fields = Json::object();
    SetReal(fields, "sqnr_db", error.sqnr_db());
    SetReal(fields, "relative_frobenius", error.relative_frobenius());
    SetReal(fields, "cosine", error.cosine());
    SetReal(fields, "max_abs", error.max_abs());
  }
  return json;
}

void SetRealOrNull(Json& json, const std::string& key, const std::optional<double>& value) {
  if (value.has_value()) {
    SetReal(json, key, *value);
  } else {
    json[key] = nullptr;
  }
}

Json OfQuantization(const TraceReport& report, const TraceQuantization& quantization,
                    const ScaleDrift& drift) {
  Json json{{"step", quantization.step + 1},
            {"variant", quantization.variant},
            {"label", report.variants[quantization.variant]}};
  if (quantization.rank >= 0) json["rank"] = quantization.rank;
  json.update(JsonOf(quantization.record));
  const v1::QuantizationCounts& counts = quantization.record.counts();
  SetReal(json, "underflow_rate", ShareOf(counts.flushed_to_zero(), counts));
  SetReal(json, "saturation_rate", ShareOf(counts.saturated(), counts));
  SetRealOrNull(json, "scale_drift_log2", drift.scale);
  SetRealOrNull(json, "mean_scale_code", drift.mean_code);
  SetRealOrNull(json, "scale_code_drift", drift.code);
  return json;
}

Json OfOverlap(const TraceReport& report, const TraceOverlap& overlap) {
  Json json{{"step", overlap.step + 1},
            {"variant", overlap.variant},
            {"label", report.variants[overlap.variant]},
            {"rank", overlap.rank}};
  json.update(JsonOf(overlap.report));
  return json;
}

/// All but the tensors, quantizations and overlaps.
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
  if (report.verdict.has_value()) json["verdict"] = JsonOf(*report.verdict);
  return json;
}

}  // namespace

namespace {

void PrintTraceOverlaps(const TraceReport& report, bool uses_colour, std::ostream& out) {
  if (report.overlaps.empty()) return;
  out << "\nCommunication beside GEMMs\n";
  std::vector<std::string> head = {"step", "<variant", "rank", "<stage"};
  const std::vector<std::string> figures = OverlapHead();
  head.insert(head.end(), figures.begin(), figures.end());
  TextTable table(head);
  for (const TraceOverlap& overlap : report.overlaps) {
    std::vector<std::string> row = {StepText(report, overlap.step),
                                    report.variants[overlap.variant], absl::StrCat(overlap.rank),
                                    overlap.report.stage()};
    const std::vector<std::string> values = OverlapRow(overlap.report);
    row.insert(row.end(), values.begin(), values.end());
    table.AddRow(row);
  }
  table.Print(out, uses_colour);
}

}  // namespace

void PrintTrace(const TraceReport& report, bool uses_colour, std::ostream& out) {
  out << report.steps.size() << " steps of each variant:\n";
  for (size_t i = 0; i < report.variants.size(); ++i) {
    out << i << "  " << report.variants[i] << "\n";
  }
  PrintTensors(report, uses_colour, out);
  PrintTraceQuantizations(report, uses_colour, out);
  PrintTraceOverlaps(report, uses_colour, out);
  for (const std::string& note : report.notes) out << "note: " << note << "\n";
  if (report.verdict.has_value()) PrintVerdict(*report.verdict, uses_colour, out);
}

std::string TraceJson(const TraceReport& report) {
  Json json = JsonHead("trace");
  json.update(OfFrame(report));
  json["tensors"] = Json::array();
  for (const TraceTensor& tensor : report.tensors) {
    json["tensors"].push_back(OfTensor(report, tensor));
  }
  json["quantizations"] = Json::array();
  const std::vector<ScaleDrift> drifts = DriftsOf(report);
  for (size_t i = 0; i < drifts.size(); ++i) {
    json["quantizations"].push_back(OfQuantization(report, report.quantizations[i], drifts[i]));
  }
  json["overlaps"] = Json::array();
  for (const TraceOverlap& overlap : report.overlaps) {
    json["overlaps"].push_back(OfOverlap(report, overlap));
  }
  return JsonText(json, 2) + "\n";
}

std::string TraceJsonLines(const TraceReport& report) {
  std::string lines;
  const auto add = [&](const std::string& kind, const Json& body) {
    Json line = JsonHead(kind);
    line.update(body);
    absl::StrAppend(&lines, JsonText(line, -1), "\n");
  };
  for (const TraceTensor& tensor : report.tensors) add("trace_tensor", OfTensor(report, tensor));
  const std::vector<ScaleDrift> drifts = DriftsOf(report);
  for (size_t i = 0; i < drifts.size(); ++i) {
    add("trace_quantization", OfQuantization(report, report.quantizations[i], drifts[i]));
  }
  for (const TraceOverlap& overlap : report.overlaps) {
    add("trace_overlap", OfOverlap(report, overlap));
  }
  add("trace", OfFrame(report));
  return lines;
}

}  // namespace quantgate
