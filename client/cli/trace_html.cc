// The HTML of render_trace.h: a card with line charts for each tensor.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "absl/strings/str_cat.h"
#include "client/cli/html_lines.h"
#include "client/cli/html_sections.h"
#include "client/cli/html_style.h"
#include "client/cli/html_text.h"
#include "client/cli/number_text.h"
#include "client/cli/render_trace.h"

namespace quantgate {
namespace {

/// A quantity of rows over the steps, a line for each variant that has any.
template <typename Row>
LineChart ChartOf(const TraceReport& report, const std::string& title,
                  const std::vector<const Row*>& rows,
                  const std::function<double(const Row&)>& value) {
  LineChart chart{title, 1, static_cast<double>(report.steps.size()), {}};
  for (int variant = 0; variant < static_cast<int>(report.variants.size()); ++variant) {
    ChartLine line{report.variants[variant], variant, {}};
    for (const Row* row : rows) {
      if (row->variant == variant) line.points.push_back({row->step + 1, value(*row)});
    }
    if (!line.points.empty()) chart.lines.push_back(line);
  }
  return chart;
}

using TensorRows = std::vector<const TraceTensor*>;

std::string TensorTable(const TraceReport& report, const TensorRows& rows) {
  std::vector<std::vector<std::string>> cells;
  for (const TraceTensor* row : rows) {
    const v1::CompareResponse& result = row->comparison.result;
    const v1::ParityReport& parity = result.parity();
    const std::string difference =
        !result.has_parity() ? Escaped(row->comparison.difference)
        : parity.equal()
            ? Span("good", "equal")
            : absl::StrCat(Count(parity.mismatch_count()), " of ", Count(parity.element_count()));
    const std::string ulp = parity.worst_ulp() == INT64_MAX ? "NaN" : Count(parity.worst_ulp());
    cells.push_back({absl::StrCat(row->step + 1, " ", Escaped(report.steps[row->step].kind)),
                     Escaped(report.variants[row->variant]), difference, ulp,
                     Escaped(Decibels(result.error().sqnr_db())),
                     ShortReal(result.error().relative_frobenius()),
                     absl::StrCat(result.error().cosine())});
  }
  return HtmlTable(
      {"step", "variant", ">differ", ">worst ulp", ">SQNR dB", ">relative error", ">cosine"},
      cells);
}

std::string TensorCard(const TraceReport& report, const std::string& name, const TensorRows& rows) {
  using Value = std::function<double(const TraceTensor&)>;
  const auto error = [](const TraceTensor& row) { return row.comparison.result.error(); };
  const auto finite = [](const TraceTensor& row, double value) {
    return row.comparison.result.has_error() ? value : NAN;
  };
  const Value differing = [](const TraceTensor& row) {
    const v1::ParityReport& parity = row.comparison.result.parity();
    if (!row.comparison.result.has_parity()) return static_cast<double>(NAN);
    if (parity.element_count() == 0) return 0.0;
    return 100.0 * static_cast<double>(parity.mismatch_count()) /
           static_cast<double>(parity.element_count());
  };
  const Value sqnr = [&](const TraceTensor& row) { return finite(row, error(row).sqnr_db()); };
  const Value relative = [&](const TraceTensor& row) {
    return finite(row, error(row).relative_frobenius());
  };
  // Of equal tensors the quotient that the cosine is may be a rounding below 1.
  const Value turned = [&](const TraceTensor& row) {
    const bool is_equal = row.comparison.result.parity().equal();
    return finite(row, is_equal ? 0 : 1 - error(row).cosine());
  };
  const LineChart first = ChartOf(report, "elements that differ, %", rows, differing);
  return absl::StrCat("<div class=\"card\"><h3>", Escaped(name), "</h3>", LineLegend(first.lines),
                      "<div class=\"charts\">", LineChartSvg(first),
                      LineChartSvg(ChartOf(report, "SQNR, dB", rows, sqnr)),
                      LineChartSvg(ChartOf(report, "relative error (Frobenius)", rows, relative)),
                      LineChartSvg(ChartOf(report, "1 \u2212 cosine", rows, turned)),
                      "</div><details><summary>Figures</summary><div>", TensorTable(report, rows),
                      "</div></details></div>\n");
}

/// A quantization beside its drift.
struct CastRow {
  int step = 0, variant = 0;
  std::string name;
  const v1::QuantizationRecord* record = nullptr;
  ScaleDrift drift;
};
using CastRows = std::vector<const CastRow*>;

std::string CastTable(const TraceReport& report, const CastRows& rows) {
  std::vector<std::vector<std::string>> cells;
  const auto text = [](const std::optional<double>& value) {
    return value.has_value() ? ShortReal(*value) : "\u2013";
  };
  for (const CastRow* row : rows) {
    const v1::QuantizationRecord& record = *row->record;
    cells.push_back({absl::StrCat(row->step + 1, " ", Escaped(report.steps[row->step].kind)),
                     Escaped(report.variants[row->variant]), Code(record.quantizer()),
                     record.amax_group().empty() ? "\u2013" : Escaped(record.amax_group()),
                     Count(record.counts().flushed_to_zero()), Count(record.counts().saturated()),
                     record.has_scale() ? ExactReal(record.scale()) : "\u2013",
                     record.has_scale_inv() ? ExactReal(record.scale_inv()) : "\u2013",
                     text(row->drift.scale), text(row->drift.mean_code), text(row->drift.code)});
  }
  return HtmlTable({"step", "variant", "quantizer", "amax over", ">underflow", ">saturated",
                    ">scale", ">scale_inv", ">drift, log2", ">mean code", ">drift"},
                   cells);
}

std::string CastCard(const TraceReport& report, const std::string& name, const CastRows& rows) {
  using Value = std::function<double(const CastRow&)>;
  const Value underflow = [](const CastRow& row) {
    return 100 * ShareOf(row.record->counts().flushed_to_zero(), row.record->counts());
  };
  const Value saturated = [](const CastRow& row) {
    return 100 * ShareOf(row.record->counts().saturated(), row.record->counts());
  };
  const Value scale = [](const CastRow& row) { return row.drift.scale.value_or(NAN); };
  const Value code = [](const CastRow& row) { return row.drift.code.value_or(NAN); };
  const LineChart first = ChartOf(report, "underflow to zero, %", rows, underflow);
  return absl::StrCat(
      "<div class=\"card\"><h3>", Escaped(name), "</h3>", LineLegend(first.lines),
      "<div class=\"charts\">", LineChartSvg(first),
      LineChartSvg(ChartOf(report, "saturated, %", rows, saturated)),
      LineChartSvg(ChartOf(report, "scale drift, log2", rows, scale)),
      LineChartSvg(ChartOf(report, "drift of the blocks' mean scale code", rows, code)),
      "</div><details><summary>Figures</summary><div>", CastTable(report, rows),
      "</div></details></div>\n");
}

/// Names in the order in which they first appear, and the rows of each.
template <typename Row>
std::vector<std::pair<std::string, std::vector<const Row*>>> Grouped(
    const std::vector<Row>& rows, const std::function<std::string(const Row&)>& name) {
  std::vector<std::pair<std::string, std::vector<const Row*>>> groups;
  std::map<std::string, size_t> places;
  for (const Row& row : rows) {
    const auto [place, is_new] = places.try_emplace(name(row), groups.size());
    if (is_new) groups.push_back({place->first, {}});
    groups[place->second].second.push_back(&row);
  }
  return groups;
}

std::string TensorCards(const TraceReport& report) {
  if (report.tensors.empty()) return "";
  std::string html = absl::StrCat("<h2>Against ", Escaped(report.variants[report.reference]),
                                  "</h2>\n<div class=\"trace\">");
  const auto groups = Grouped<TraceTensor>(
      report.tensors, [](const TraceTensor& row) { return row.comparison.tensor; });
  for (const auto& [name, rows] : groups) absl::StrAppend(&html, TensorCard(report, name, rows));
  return html + "</div>\n";
}

std::string CastCards(const TraceReport& report) {
  if (report.quantizations.empty()) return "";
  std::vector<CastRow> casts;
  const std::vector<ScaleDrift> drifts = DriftsOf(report);
  for (size_t i = 0; i < drifts.size(); ++i) {
    const TraceQuantization& quantization = report.quantizations[i];
    casts.push_back({quantization.step, quantization.variant, QuantizationName(quantization),
                     &quantization.record, drifts[i]});
  }
  std::string html = "<h2>Quantizations</h2>\n<div class=\"trace\">";
  const auto groups = Grouped<CastRow>(casts, [](const CastRow& row) { return row.name; });
  for (const auto& [name, rows] : groups) absl::StrAppend(&html, CastCard(report, name, rows));
  return html + "</div>\n";
}

/// Every variant's overlapped stages as they ran last.
std::string OverlapCards(const TraceReport& report) {
  std::string html;
  for (int variant = 0; variant < static_cast<int>(report.variants.size()); ++variant) {
    std::map<std::string, int> last_steps;
    int rank_count = 0;
    for (const TraceOverlap& overlap : report.overlaps) {
      if (overlap.variant != variant) continue;
      last_steps[overlap.report.stage()] = overlap.step;
      rank_count = std::max(rank_count, overlap.rank + 1);
    }
    if (rank_count == 0) continue;
    google::protobuf::RepeatedPtrField<v1::RankReport> ranks;
    for (int rank = 0; rank < rank_count; ++rank) ranks.Add()->set_rank(rank);
    for (const TraceOverlap& overlap : report.overlaps) {
      const std::string& stage = overlap.report.stage();
      if (overlap.variant != variant || last_steps[stage] != overlap.step) continue;
      v1::OverlapReport& shown = *ranks[overlap.rank].add_overlaps() = overlap.report;
      shown.set_stage(absl::StrCat(stage, ", step ", overlap.step + 1));
    }
    absl::StrAppend(&html, "<div class=\"card\"><h3>", Escaped(report.variants[variant]), "</h3>",
                    OverlapCharts(ranks), "</div>\n");
  }
  return html.empty() ? "" : absl::StrCat("<h2>Communication beside GEMMs</h2>\n", html);
}

}  // namespace

std::string TraceHtml(const TraceReport& report) {
  const std::string title = absl::StrCat(report.steps.size(), " steps, ", report.variants.size(),
                                         report.variants.size() == 1 ? " variant" : " variants");
  std::string html = absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>QuantGate trace: ",
      title, "</title>\n<style>", kReportStyle, kLineStyle,
      "</style></head>\n<body><header><div class=\"brand\">QuantGate trace</div><h1>", title,
      "</h1><p class=\"dim\">Drift: log2 of a scale against the first that the variant had for "
      "that tensor, or the change of the blocks' mean scale code.</p>");
  for (const std::string& note : report.notes) {
    absl::StrAppend(&html, "<p>", Span("chip", "note"), " ", Escaped(note), "</p>");
  }
  return absl::StrCat(
      html, "</header>\n<main>", TensorCards(report), CastCards(report), OverlapCards(report),
      "<h2>How to get this again</h2><div class=\"card\"><pre>", Escaped(report.command),
      "</pre></div></main>\n<footer>QuantGate: are these numbers the numbers they "
      "should be?</footer></body></html>\n");
}

}  // namespace quantgate
