#include "server/report/render_html.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "server/report/device_text.h"
#include "server/report/html_charts.h"
#include "server/report/html_lines.h"
#include "server/report/number_text.h"
#include "server/report/page_template.h"
#include "server/report/report_json.h"
#include "server/report/verdict_text.h"

namespace quantgate {

extern const char kReportPage[];  // page.html.

namespace {

using Json = nlohmann::ordered_json;
using Arguments = std::vector<PageValue>;

/// The member of that path ("error.sqnr_db"); null where there is none.
Json At(const Json& json, const std::string& path) {
  const Json* at = &json;
  for (const absl::string_view name : absl::StrSplit(path, '.')) {
    if (!at->is_object() || !at->contains(std::string(name))) return nullptr;
    at = &(*at)[std::string(name)];
  }
  return *at;
}

/// One step per decade of relative difference: 1 up to 1e-8, 9 from 1 on.
int DecadeLevel(double relative) {
  if (!(relative > 0)) return 1;
  if (!std::isfinite(relative)) return 9;
  return static_cast<int>(std::clamp(std::floor(std::log10(relative)) + 9, 1.0, 9.0));
}

/// Two variants against each other: the largest relative difference of any tensor, and of each.
Json PairOf(const Json& pairs, const Json& subject, const Json& reference) {
  bool is_equal = true;
  double worst = 0;
  std::string detail;
  for (const Json& pair : pairs) {
    if (pair["subject"] != subject || pair["reference"] != reference) continue;
    const bool is_comparable = pair["comparable"];
    is_equal &= is_comparable && pair["mismatch_count"] == 0;
    absl::StrAppend(&detail, pair["tensor"].get<std::string>(), ": ");
    if (!is_comparable) {
      absl::StrAppend(&detail, "not comparable\n");
      continue;
    }
    const double relative = RealIn(pair["relative_frobenius"]);
    if (!(relative <= worst)) worst = relative;
    absl::StrAppend(&detail, Count(pair["mismatch_count"]), " of ", Count(pair["element_count"]),
                    " differ, relative ", ShortReal(relative), "\n");
  }
  return Json{
      {"equal", is_equal}, {"level", DecadeLevel(worst)}, {"detail", detail}, {"worst", worst}};
}

/// Name, count and class of each part of a bar, and what they add up to.
Json PartsOf(const Arguments& arguments) {
  Json parts = Json::array();
  int64_t total = 0;
  for (size_t i = 0; i + 2 < arguments.size(); i += 3) {
    parts.push_back({{"name", arguments[i].json()},
                     {"count", arguments[i + 1].json()},
                     {"class", arguments[i + 2].json()}});
    total += arguments[i + 1].json().get<int64_t>();
  }
  return Json{{"total", total}, {"parts", parts}};
}

/// Of one overlapped stage, a line for each resource of each rank that did something.
Json TaskLinesOf(const Json& ranks, size_t stage) {
  Json lines = Json::array();
  double end = 0;
  for (const Json& rank : ranks) {
    if (stage >= rank["overlaps"].size()) continue;
    int kind = 0;
    for (const char* resource : {"compute", "send", "receive", "reduce"}) {
      Json tasks = Json::array();
      for (const Json& task : rank["overlaps"][stage]["tasks"]) {
        if (task["resource"] != resource) continue;
        tasks.push_back(task);
        end = std::max(end, RealIn(task["end_seconds"]));
      }
      if (!tasks.empty()) {
        lines.push_back(
            {{"rank", rank["rank"]}, {"resource", resource}, {"kind", kind}, {"tasks", tasks}});
      }
      ++kind;
    }
  }
  return Json{{"lines", lines}, {"end", end}, {"scale", end > 0 ? end : 1}};
}

/// Rows of each name, names in the order in which they first appear.
Json GroupsOf(const Json& rows, const std::string& key) {
  Json groups = Json::array();
  std::map<std::string, size_t> places;
  for (const Json& row : rows) {
    const auto [place, is_new] = places.try_emplace(row[key].get<std::string>(), groups.size());
    if (is_new) groups.push_back({{"name", row[key]}, {"rows", Json::array()}});
    groups[place->second]["rows"].push_back(row);
  }
  return groups;
}

/// A quantity of rows over the steps, a line for each variant that has any.
LineChart ChartOf(const Arguments& arguments) {
  LineChart chart{arguments[0].json(), 1, static_cast<double>(arguments[2].json().size()), {}};
  const Json &variants = arguments[1].json(), &rows = arguments[3].json();
  for (int variant = 0; variant < static_cast<int>(variants.size()); ++variant) {
    ChartLine line{variants[variant], variant, {}};
    for (const Json& row : rows) {
      if (row["variant"] != variant) continue;
      line.points.push_back({row["step"], RealIn(At(row, arguments[4].json()))});
    }
    if (!line.points.empty()) chart.lines.push_back(line);
  }
  return chart;
}

std::vector<ChartLine> LegendOf(const Json& variants, const Json& rows) {
  std::vector<ChartLine> lines;
  for (int variant = 0; variant < static_cast<int>(variants.size()); ++variant) {
    const bool has_any = std::any_of(rows.begin(), rows.end(),
                                     [&](const Json& row) { return row["variant"] == variant; });
    if (has_any) lines.push_back({variants[variant], variant, {}});
  }
  return lines;
}

/// One option a line, as a shell takes it; left alone where a quoted string could hold what looks
/// like an option.
std::string CommandLines(const std::string& command) {
  if (command.find_first_of("'\"") != std::string::npos) return command;
  return absl::StrReplaceAll(command, {{" --", " \\\n    --"}, {" && ", " && \\\n"}});
}

/// A function of one number, of one value, of two, and one that gives markup.
PageFunction OfReal(std::string (*text)(double)) {
  return [text](const Arguments& a) { return PageValue{text(RealIn(a[0].json()))}; };
}
PageFunction OfCount(std::string (*text)(int64_t)) {
  return [text](const Arguments& a) {
    const Json& number = a[0].json();
    return PageValue{number.is_number() ? Json(text(number.get<int64_t>())) : Json()};
  };
}
template <typename Function>
PageFunction Of(Function function) {
  return [function](const Arguments& a) { return PageValue{Json(function(a))}; };
}
PageFunction Drawn(std::string (*markup)(const Json&)) {
  return [markup](const Arguments& a) { return PageValue{markup(a[0].json()), nullptr, true}; };
}

double MostOf(const Arguments& a) {
  double most = 0;
  for (const Json& item : a[0].json())
    most = std::max(most, std::fabs(RealIn(At(item, a[1].json()))));
  return most;
}

double TotalOf(const Arguments& a) {
  double total = 0;
  for (const Json& item : a[0].json()) total += RealIn(At(item, a[1].json()));
  return total;
}

Json FindIn(const Arguments& a) {
  for (const Json& item : a[0].json()) {
    if (At(item, a[1].json()) == a[2].json()) return item;
  }
  return nullptr;
}

bool HasAmaxGroup(const Arguments& a) {
  for (const Json& rank : a[0].json()) {
    for (const Json& record : rank["quantizations"]) {
      if (record["amax_group"] != "") return true;
    }
  }
  return false;
}

std::string TypeOf(const Arguments& a) {
  v1::TensorDescriptor type;
  if (a[0].json().is_object()) {
    type.set_dtype(a[0].json()["dtype"].get<std::string>());
    for (const Json& size : a[0].json()["shape"]) type.add_shape(size);
  }
  return TypeText(type);
}

const PageFunctions& Functions() {
  static const PageFunctions kFunctions = {
      {"short", OfReal(ShortReal)},
      {"exact", OfReal(ExactReal)},
      {"decibels", OfReal(Decibels)},
      {"share", OfReal(BoundShare)},
      {"seconds", OfReal(Seconds)},
      {"rounded", OfReal([](double x) { return ExactReal(std::round(x * 1e9) / 1e9); })},
      {"count", OfCount(Count)},
      {"bytes", OfCount(Bytes)},
      {"ulp", OfCount([](int64_t ulp) { return ulp == INT64_MAX ? "NaN" : Count(ulp); })},
      {"fixed", Of([](const Arguments& a) {
         return absl::StrFormat("%.*f", static_cast<int>(RealIn(a[1].json())), RealIn(a[0].json()));
       })},
      {"percent", Of([](const Arguments& a) { return Percent(a[0].json(), a[1].json()); })},
      {"type", Of(TypeOf)},
      {"coordinate", Of([](const Arguments& a) { return CoordinateText(a[0].json()); })},
      {"sqnr_level", Of([](const Arguments& a) { return SqnrLevel(RealIn(a[0].json())); })},
      {"length", Of([](const Arguments& a) { return a[0].json().size(); })},
      {"most", Of(MostOf)},
      {"total", Of(TotalOf)},
      {"find", Of(FindIn)},
      {"has_amax_group", Of(HasAmaxGroup)},
      {"parts", Of(PartsOf)},
      {"pair",
       Of([](const Arguments& a) { return PairOf(a[0].json(), a[1].json(), a[2].json()); })},
      {"task_lines", Of([](const Arguments& a) {
         return TaskLinesOf(a[0].json(), static_cast<size_t>(RealIn(a[1].json())));
       })},
      {"groups", Of([](const Arguments& a) { return GroupsOf(a[0].json(), a[1].json()); })},
      {"command_lines", Of([](const Arguments& a) { return CommandLines(a[0].json()); })},
      {"ulp_histogram", Drawn(UlpHistogramSvg)},
      {"heat_map", Drawn(HeatMapSvg)},
      {"confusion", Drawn(ConfusionTable)},
      {"line_chart",
       [](const Arguments& a) {
         return PageValue{LineChartSvg(ChartOf(a)), nullptr, true};
       }},
      {"legend", [](const Arguments& a) {
         return PageValue{LineLegend(LegendOf(a[0].json(), a[1].json())), nullptr, true};
       }}};
  return kFunctions;
}

std::string Shown(const Json& root) { return RenderPage(kReportPage, Functions(), root); }

void AddRunTexts(const v1::RunReport& run, Json& json) {
  const v1::Environment& environment = run.environment();
  json["environment"]["clock"] = StageClockText(environment);
  for (int i = 0; i < environment.devices_size(); ++i) {
    json["environment"]["devices"][i]["text"] = DeviceText(environment.devices(i), environment);
  }
  for (int i = 0; i < run.variants_size(); ++i) {
    json["variants"][i]["what_ran"] = WhatRanText(run.variants(i));
  }
}

/// Every variant's overlapped stages as they ran last.
Json LastOverlaps(const TraceReport& report) {
  Json all = Json::array();
  for (int variant = 0; variant < static_cast<int>(report.variants.size()); ++variant) {
    std::map<std::string, int> last_steps;
    for (const TraceOverlap& overlap : report.overlaps) {
      if (overlap.variant == variant) last_steps[overlap.report.stage()] = overlap.step;
    }
    Json ranks = Json::array();
    for (const TraceOverlap& overlap : report.overlaps) {
      const std::string& stage = overlap.report.stage();
      if (overlap.variant != variant || last_steps[stage] != overlap.step) continue;
      while (static_cast<int>(ranks.size()) <= overlap.rank) {
        ranks.push_back({{"rank", ranks.size()}, {"overlaps", Json::array()}});
      }
      Json shown = JsonOf(overlap.report);
      shown["stage"] = absl::StrCat(stage, ", step ", overlap.step + 1);
      ranks[overlap.rank]["overlaps"].push_back(std::move(shown));
    }
    if (!ranks.empty()) all.push_back({{"label", report.variants[variant]}, {"ranks", ranks}});
  }
  return all;
}

}  // namespace

std::string RenderHtml(const ReportDocument& document) {
  Json page = JsonOf(document);
  Json& verdict = page["verdict"];
  verdict["word"] = VerdictWord(document.verdict);
  verdict["class"] = VerdictLine(document.verdict).empty()
                         ? "inform"
                         : absl::AsciiStrToLower(VerdictWord(document.verdict));
  verdict["details"] = VerdictDetails(document.verdict);
  page["outputs"] = OutputNames(document.run);
  page["levels"] = {"under 10 dB", "10\u201320", "20\u201330",
                    "30\u201340",  "40\u201350", "50 dB and more"};
  if (document.has_run) AddRunTexts(document.run, page["run"]);
  return Shown(page);
}

std::string RenderHtml(const TraceReport& report) {
  Json page = JsonOf(report);
  page["title"] = absl::StrCat(report.steps.size(), " steps, ", report.variants.size(),
                               report.variants.size() == 1 ? " variant" : " variants");
  page["remarks"] = report.notes;
  for (Json& row : page["tensors"]) {
    const Json &parity = row["parity"], &error = row["error"];
    const int64_t count = parity.is_null() ? 0 : parity["element_count"].get<int64_t>();
    row["differing"] =
        parity.is_null() ? Json()
        : count == 0
            ? Json(0)
            : Json(100.0 * parity["mismatch_count"].get<double>() / static_cast<double>(count));
    // Of equal tensors the quotient that the cosine is may be a rounding below 1.
    const bool is_equal = !parity.is_null() && parity["equal"].get<bool>();
    if (!error.is_null()) row["turned"] = is_equal ? 0 : 1 - RealIn(error["cosine"]);
  }
  for (Json& row : page["quantizations"]) {
    row["underflow"] = 100 * RealIn(row["underflow_rate"]);
    row["saturated"] = 100 * RealIn(row["saturation_rate"]);
  }
  page["last_overlaps"] = LastOverlaps(report);
  return Shown(page);
}

}  // namespace quantgate
