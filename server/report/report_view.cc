#include "server/report/report_view.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "server/report/device_text.h"
#include "server/report/number_text.h"
#include "server/report/render_ranks.h"
#include "server/report/report_json.h"
#include "server/report/verdict_text.h"

namespace quantgate {
namespace {

using Json = nlohmann::ordered_json;

/// The member at a place such as "/error/sqnr_db"; null where there is none.
Json At(const Json& json, const char* place) {
  return json.value(Json::json_pointer(place), Json());
}

/// The counts of a message that are not 0, with their shares of all.
Json PartsOf(const Json& counts) {
  int64_t total = 0;
  for (const Json& count : counts) total += count.is_number_integer() ? count.get<int64_t>() : 0;
  Json parts = Json::array();
  for (const auto& [name, count] : counts.items()) {
    if (!count.is_number_integer() || count == 0) continue;
    parts.push_back({{"name", absl::StrReplaceAll(name, {{"_", " "}})},
                     {"class", name},
                     {"count", count},
                     {"percent", Percent(count, total)}});
  }
  return parts;
}

/// The largest magnitude of a member, by which bars have their widths; 1 where all are 0.
double LargestOf(const Json& items, const char* member) {
  double largest = 0;
  for (const Json& item : items) largest = std::max(largest, std::fabs(RealIn(item[member])));
  return largest > 0 ? largest : 1;
}

/// The picture of an ErrorReport: its RMS error by block, in ten levels from zero to the largest
/// error, a block being 1 x 1. It has a path for each level through the middles of its blocks, and
/// the worst blocks. Null without blocks.
Json HeatMap(const Json& error) {
  const Json& map = error["heat_map"];
  if (!map.is_object()) return nullptr;
  const size_t rows = map["rows"], columns = map["columns"];
  const Json &row_edges = map["row_edges"], &column_edges = map["column_edges"];
  const Json& errors = map["rms_error"];
  if (errors.empty() || errors.size() != rows * columns || row_edges.size() != rows + 1 ||
      column_edges.size() != columns + 1) {
    return nullptr;
  }
  HeatRange range{INFINITY, 0};
  for (const Json& one : errors) {
    if (!std::isfinite(RealIn(one))) continue;
    range = {std::min(range.low, RealIn(one)), std::max(range.high, RealIn(one))};
  }
  std::map<int, std::string> paths;  // Adjacent blocks of a row with one level are one line.
  for (size_t row = 0; row < rows; ++row) {
    for (size_t begin = 0, end = 0; begin < columns; begin = end) {
      const auto level_at = [&](size_t column) {
        return HeatLevel(RealIn(errors[row * columns + column]), range);
      };
      while (end < columns && level_at(end) == level_at(begin)) ++end;
      absl::StrAppend(&paths[level_at(begin)], "M", begin, " ", row, "h", end - begin);
    }
  }
  Json levels = Json::array(), worst = Json::array();
  for (const auto& [level, path] : paths) levels.push_back({{"level", level}, {"path", path}});
  for (Json block : error["worst_blocks"]) {
    const auto place = [](const Json& edges, const Json& begin) {
      return std::find(edges.begin(), edges.end(), begin) - edges.begin();
    };
    block["x"] = place(column_edges, block["column_begin"]);
    block["y"] = static_cast<double>(place(row_edges, block["row_begin"])) - 0.5;
    worst.push_back(block);
  }
  return Json{{"rows", rows},   {"columns", columns}, {"is_strip", rows == 1}, {"levels", levels},
              {"worst", worst}, {"low", range.low},   {"high", range.high}};
}

/// Adds pictures to each message in `json` that has something to draw.
void AddPictures(Json& json) {
  if (!json.is_structured()) return;
  if (json.contains("ulp_histogram")) {
    json["most"] = LargestOf(json["ulp_histogram"], "count");
    for (Json& bucket : json["ulp_histogram"]) {
      bucket["is_range"] = bucket["lower"] != bucket["upper"];
      bucket["percent"] = Percent(bucket["count"], json["element_count"]);
    }
    bool is_off = false;
    for (Json& cell : json["class_confusion"]) {
      cell["is_off"] = cell["subject_class"] != cell["reference_class"];
      is_off |= cell["is_off"] == true;
    }
    json["is_confused"] = is_off;
  }
  if (json.contains("heat_map")) {
    json["heat"] = HeatMap(json);
    json.erase("heat_map");
  }
  if (json.contains("stages")) {
    json["longest"] = LargestOf(json["stages"], "seconds");
    double total = 0;
    for (const Json& stage : json["stages"]) total += RealIn(stage["seconds"]);
    json["stages_seconds"] = total;
  }
  if (json.contains("terms")) json["largest"] = LargestOf(json["terms"], "share");
  if (json.contains("at_use")) json["is_unchanged"] = json["at_save"] == json["at_use"];
  if (json.contains("subject_nearer") || json.contains("flushed_to_zero")) {
    json["parts"] = PartsOf(json);
  }
  if (json.contains("scale_codes")) {
    const Json& codes = json["scale_codes"];
    json["codes"] = codes.empty() ? Json() : Json{{"low", codes[0]}, {"high", codes.back()}};
  }
  for (Json& member : json) AddPictures(member);
}

/// What a cell of the recipe matrix says of an output.
Json CellOf(const Json& output) {
  return Json{{"level", SqnrLevel(RealIn(At(output, "/against_unquantized/sqnr_db")))},
              {"sqnr_db", At(output, "/against_unquantized/sqnr_db")},
              {"relative_frobenius", At(output, "/against_unquantized/relative_frobenius")},
              {"exact", At(output, "/against_exact/parity")},
              {"reference", At(output, "/to_reference/parity")},
              {"bound", output["bound"]},
              {"is_broken", At(output, "/bound/pass") == false}};
}

/// The stages that communicate beside their GEMMs, each as it ran last, with what every rank did.
Json OverlapCharts(const Json& overlaps) {
  Json charts = Json::array();
  std::map<std::pair<Json, Json>, size_t> places;
  for (const Json& one : overlaps) {
    const auto [place, is_new] =
        places.try_emplace({At(one, "/variant"), one["stage"]}, charts.size());
    if (is_new) charts.push_back({{"step", -1}});
    Json& chart = charts[place->second];
    if (chart["step"] != one["step"]) {
      chart = one;
      chart["end"] = 0.0;
    }
    for (const Json& task : one["tasks"]) {
      chart["end"] = std::max(chart["end"].get<double>(), RealIn(task["end_seconds"]));
    }
    chart["rows"].push_back(one);
  }
  return charts;
}

/// Numbers the variants, gives each output its comparison with the reference variant, and each
/// variant its row of the matrix.
void AddMatrix(const std::vector<std::string>& names, Json& run) {
  for (size_t place = 0; place < run["variants"].size(); ++place) {
    Json& variant = run["variants"][place];
    variant["place"] = place;
    variant["is_broken"] = false;
    std::map<Json, Json> cells;
    for (Json& output : variant["outputs"]) {
      const Json name = At(output, "/tensor/name");
      output["to_reference"] = nullptr;
      for (const Json& comparison : variant["against_reference"]) {
        if (comparison["tensor"] == name) output["to_reference"] = comparison;
      }
      cells[name] = CellOf(output);
      output["is_broken"] = cells[name]["is_broken"];
      if (output["is_broken"] == true) variant["is_broken"] = true;
    }
    variant.erase("against_reference");
    variant["cells"] = Json::array();
    for (const std::string& name : names) variant["cells"].push_back({{"cell", cells[name]}});
    variant["is_open"] = variant["is_broken"] == true || run["variants"].size() == 1;
    Json overlaps = Json::array();
    variant["has_amax_groups"] = variant["ranks_save"] = false;
    for (const Json& rank : variant["ranks"]) {
      if (!rank["saved"].empty()) variant["ranks_save"] = true;
      for (const Json& record : rank["quantizations"]) {
        if (record["amax_group"] != "") variant["has_amax_groups"] = true;
      }
      for (const Json& overlap : rank["overlaps"]) {
        overlaps.push_back(overlap);
        overlaps.back().update({{"rank", rank["rank"]}, {"step", nullptr}});
      }
    }
    variant["overlap_charts"] = OverlapCharts(overlaps);
  }
}

/// Marks the cell with the lowest SQNR, and sets "lowest" to its tensor, variant and SQNR.
void MarkLowest(const std::vector<std::string>& names, Json& run) {
  Json* lowest = nullptr;
  double least = INFINITY;
  run["lowest"] = nullptr;
  for (Json& variant : run["variants"]) {
    for (size_t i = 0; i < names.size(); ++i) {
      Json& cell = variant["cells"][i]["cell"];
      if (cell.is_null()) continue;
      cell["is_lowest"] = false;
      const double sqnr = RealIn(cell["sqnr_db"]);
      if (!(std::isnan(sqnr) ? least > -INFINITY : sqnr < least)) continue;
      least = std::isnan(sqnr) ? -INFINITY : sqnr;
      lowest = &cell;
      run["lowest"] = {
          {"tensor", names[i]}, {"label", variant["label"]}, {"sqnr_db", cell["sqnr_db"]}};
    }
  }
  if (lowest != nullptr) (*lowest)["is_lowest"] = true;
}

/// Rows of the lower triangle: each variant but the first against those before it, by the largest
/// relative difference of any tensor.
Json PairRows(const Json& run) {
  Json rows = Json::array();
  for (size_t subject = 1; subject < run["variants"].size() && !run["pairs"].empty(); ++subject) {
    rows.push_back({{"other", subject - 1}});
    for (const char* name : {"place", "label", "recipe", "backward_override", "arithmetic"}) {
      rows.back()[name] = run["variants"][subject][name];
    }
    const Json cell{{"is_equal", true}, {"level", 0}, {"worst", 0.0}, {"tensors", Json::array()}};
    rows.back()["cells"] = Json(subject, cell);
  }
  for (const Json& pair : run["pairs"]) {
    const size_t subject = pair["subject"], reference = pair["reference"];
    if (reference >= subject || subject > rows.size()) continue;
    Json& cell = rows[subject - 1]["cells"][reference];
    cell["tensors"].push_back(pair);
    const double relative = RealIn(pair["relative_frobenius"]);
    if (pair["comparable"] == true && !(relative <= RealIn(cell["worst"])))
      cell["worst"] = relative;
    if (pair["comparable"] == true && pair["mismatch_count"] == 0) continue;
    cell["is_equal"] = false;
    // One level per decade: 1 up to 1e-8, 9 from 1 on.
    const double decade = std::floor(std::log10(RealIn(cell["worst"])));
    cell["level"] = std::isnan(decade) ? 9 : static_cast<int>(std::clamp(9 + decade, 1.0, 9.0));
  }
  return rows;
}

/// The CSS class of a variant's colour: "k3". Beyond the palette the colours come again, dashed.
std::string ColourClass(int colour) {
  constexpr int kColours = 8;
  return absl::StrCat("k", colour % kColours, colour / kColours % 2 == 1 ? " again" : "");
}

/// A quantity that a chart shows: a member of a row, times a factor.
struct Quantity {
  const char* title;
  const char* place;
  double factor = 1;
};

/// Groups the rows by name, in the order in which names first appear. Each group has a chart of
/// every quantity over the steps, with a line for each variant that has values.
Json ChartedSeries(Json& page, Json rows, const char* key,
                   const std::vector<Quantity>& quantities) {
  Json groups = Json::array();
  std::map<Json, size_t> places;
  for (Json& row : rows) {
    const auto [place, is_new] = places.try_emplace(row[key], groups.size());
    if (is_new) groups.push_back({{"title", row[key]}, {"charts", Json::array()}});
    row["step_kind"] = page["steps"][row["step"].get<size_t>() - 1]["kind"];
    groups[place->second]["rows"].push_back(std::move(row));
  }
  for (Json& group : groups) {
    std::map<int, std::vector<const Json*>> variants;
    for (const Json& row : group["rows"]) variants[row["variant"]].push_back(&row);
    for (const auto& [variant, of] : variants) {
      group["legend"].push_back(
          {{"class", ColourClass(variant)}, {"label", page["variants"][variant]}});
    }
    for (const Quantity& quantity : quantities) {
      std::vector<ChartLine> lines;
      for (const auto& [variant, of] : variants) {
        lines.push_back({page["variants"][variant], ColourClass(variant), {}});
        for (const Json* row : of) {
          const double value = quantity.factor * RealIn(At(*row, quantity.place));
          lines.back().points.push_back({(*row)["step"], value});
        }
      }
      Json chart = LineChart(quantity.title, static_cast<double>(page["steps"].size()), lines);
      if (!chart.is_null()) group["charts"].push_back(std::move(chart));
    }
  }
  return groups;
}

constexpr double kMebibytes = 1.0 / (1 << 20);

/// One group of charts: what each variant saves over the steps, as far as there is any of it.
Json MemoryCharts(const TraceReport& report, Json& page) {
  if (!HasMemory(report)) return Json::array();
  std::vector<Quantity> quantities;
  for (const Quantity& quantity :
       {Quantity{"added on the device, MiB", "/added_bytes", kMebibytes},
        {"offloaded to the host, MiB", "/host_bytes", kMebibytes},
        {"left to recomputation, MiB", "/not_saved_bytes", kMebibytes}}) {
    const auto has_any = [&](const Json& row) { return At(row, quantity.place) > 0; };
    if (std::any_of(page["memories"].begin(), page["memories"].end(), has_any)) {
      quantities.push_back(quantity);
    }
  }
  for (Json& row : page["memories"]) {
    row["name"] = "bytes saved for backward";
    row.erase("operands");
  }
  return ChartedSeries(page, std::move(page["memories"]), "name", quantities);
}

Json VerdictOf(const v1::Verdict& verdict) {
  Json json = JsonOf(verdict);
  json["word"] = VerdictWord(verdict);
  json["details"] = VerdictDetails(verdict);
  return json;
}

}  // namespace

Json LineChart(const std::string& title, double last, const std::vector<ChartLine>& lines) {
  constexpr double kLeft = 46, kRight = 312, kTop = 10, kBottom = 130;
  double low = INFINITY, high = -INFINITY;
  bool has_infinity = false;
  for (const ChartLine& line : lines) {
    for (const auto& [x, y] : line.points) {
      has_infinity |= y == INFINITY;
      if (!std::isfinite(y)) continue;
      low = std::min(low, y);
      high = std::max(high, y);
    }
  }
  // Finite values leave room to infinite ones above them; a level line lies in the middle.
  const double top = has_infinity ? kTop + 20 : kTop;
  const double room = high > low ? 0 : low == 0 ? 1 : std::fabs(low) / 2;
  const auto y_at = [&](double y) {
    if (std::isinf(y)) return y > 0 ? kTop : kBottom;
    return kBottom - (kBottom - top) * (y - low + room) / (high - low + 2 * room);
  };
  Json drawn = Json::array(), labels = Json::array();
  for (const ChartLine& line : lines) {
    std::string path;
    Json marks = Json::array();
    const char* move = "M";
    for (const auto& [x, y] : line.points) {
      if (!std::isnan(y)) {
        const double along = last > 1 ? (x - 1) / (last - 1) : 0.5;
        const std::string at_x = absl::StrFormat("%.1f", kLeft + (kRight - kLeft) * along);
        const std::string at_y = absl::StrFormat("%.1f", y_at(y));
        absl::StrAppend(&path, move, at_x, " ", at_y);
        marks.push_back(
            {{"x", at_x},
             {"y", at_y},
             {"text", absl::StrCat(line.name, ", step ", ShortReal(x), ": ", ShortReal(y))}});
      }
      move = std::isnan(y) ? "M" : "L";
    }
    if (path.empty()) continue;
    drawn.push_back({{"class", line.colour}, {"path", path}});
    drawn.back()["marks"] = std::move(marks);
  }
  if (drawn.empty()) return nullptr;
  std::vector<double> labelled;
  if (has_infinity) labelled.push_back(INFINITY);
  if (low <= high) labelled.push_back(low);
  if (low < high) labelled.push_back(high);
  for (const double y : labelled) {
    labels.push_back({{"y", absl::StrFormat("%.1f", y_at(y) + 3)}, {"text", ShortReal(y)}});
  }
  Json chart{{"title", title}, {"last", static_cast<int64_t>(last)}, {"labels", labels}};
  chart["lines"] = std::move(drawn);
  return chart;
}

int SqnrLevel(double sqnr_db) {
  if (std::isnan(sqnr_db)) return 0;
  return static_cast<int>(std::clamp(sqnr_db, 0.0, 50.0) / 10);
}

int HeatLevel(double value, HeatRange range) {
  if (!(value > 0)) return 0;
  if (std::isinf(value)) return 9;
  if (!(range.high > range.low)) return 1;
  const double share = (value - range.low) / (range.high - range.low);
  return std::clamp(1 + static_cast<int>(share * 9), 1, 9);
}

Json ViewOf(const ReportDocument& document) {
  Json page = JsonOf(document);
  page["is_trace"] = false;
  // Above the remarks, where the header of a page ends.
  if (!document.first_divergence.empty()) {
    page["remarks"].insert(page["remarks"].begin(), document.first_divergence);
  }
  page["verdict"] = VerdictOf(document.verdict);
  page["asked"] = document.verdict.criterion() == v1::REQUIREMENT_BOUND
                      ? "whether outputs lie within their derived bounds"
                  : document.verdict.criterion() == v1::REQUIREMENT_BITWISE
                      ? "whether outputs have the bits of the reference"
                      : "how far outputs lie from those of unquantized operands";
  int failed_count = 0;
  page["first_failed"] = nullptr;
  for (const Json& one : page["comparisons"]) {
    if (one["passes"] == false && failed_count++ == 0) page["first_failed"] = one["tensor"];
  }
  page["failed_count"] = failed_count;
  page["comparison_count"] = document.comparisons.size();
  page["passed_count"] = document.comparisons.size() - failed_count;
  if (document.has_run) {
    Json& run = page["run"];
    const v1::Environment& environment = document.run.environment();
    run["environment"]["clock"] = StageClockText(environment);
    for (int i = 0; i < environment.devices_size(); ++i) {
      run["environment"]["devices"][i]["text"] = DeviceText(environment.devices(i), environment);
    }
    for (int i = 0; i < document.run.variants_size(); ++i) {
      run["variants"][i]["what_ran"] = WhatRanText(document.run.variants(i));
      run["variants"][i]["rank_gemm_notes"] = GemmNotes(document.run.variants(i).ranks());
    }
    run["output_names"] = OutputNames(document.run);
    run["is_single"] = document.run.variants_size() == 1;
    run["is_stored"] = run["reproduce"] != "" && run["reproduce"] != page["command"];
    run["is_wide"] = run["output_names"].size() > 1;
    run["tells_saved"] =
        std::any_of(run["variants"].begin(), run["variants"].end(), [](const Json& variant) {
          const Json bytes = At(variant, "/saved_bytes/bytes");
          return bytes.is_number_integer() && bytes > 0;
        });
    AddMatrix(OutputNames(document.run), run);
    MarkLowest(OutputNames(document.run), run);
    const auto is_within = [](const Json& variant) { return variant["is_broken"] == false; };
    run["within_count"] = std::count_if(run["variants"].begin(), run["variants"].end(), is_within);
    run["folds"] = run["within_count"] > 1 && document.verdict.criterion() == v1::REQUIREMENT_BOUND;
    run["pair_rows"] = PairRows(run);
    for (const char* unshown : {"pairs", "request"}) run.erase(unshown);
  }
  AddPictures(page);
  return page;
}

Json ViewOf(const TraceReport& report) {
  Json page = JsonOf(report);
  page["is_trace"] = true;
  const auto counted = [](size_t count, const char* what) {
    return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
  };
  page["title"] = absl::StrCat(counted(report.steps.size(), "step"), ", ",
                               counted(report.variants.size(), "variant"));
  page["remarks"] = report.notes;
  page["reference_label"] = page["variants"][report.reference];
  page["verdict"] = report.verdict ? VerdictOf(*report.verdict) : Json();
  page["compared_count"] = report.tensors.size();
  page["lowest"] = nullptr;
  int equal_count = 0;
  double least = INFINITY;
  for (Json& row : page["tensors"]) {
    equal_count += At(row, "/parity/equal") == true ? 1 : 0;
    const double sqnr = RealIn(At(row, "/error/sqnr_db"));
    if (sqnr < least) {
      least = sqnr;
      page["lowest"] = {{"tensor", row["tensor"]},
                        {"label", row["label"]},
                        {"step", row["step"]},
                        {"sqnr_db", sqnr}};
    }
    const double count = RealIn(At(row, "/parity/element_count"));
    row["differing"] = count == 0 ? 0 : RealIn(At(row, "/parity/mismatch_count")) / count;
    // For equal tensors, the computed cosine may be slightly below 1 by rounding.
    const double cosine = RealIn(At(row, "/error/cosine"));
    row["turned"] = At(row, "/parity/equal") == true ? 0 * cosine : 1 - cosine;
  }
  page["equal_count"] = equal_count;
  page["tensors"] = ChartedSeries(page, std::move(page["tensors"]), "tensor",
                                  {{"elements that differ, %", "/differing", 100},
                                   {"SQNR, dB", "/error/sqnr_db"},
                                   {"relative error (Frobenius)", "/error/relative_frobenius"},
                                   {"1 \u2212 cosine", "/turned"}});
  page["quantizations"] =
      ChartedSeries(page, std::move(page["quantizations"]), "name",
                    {{"underflow to zero, %", "/underflow_rate", 100},
                     {"saturated, %", "/saturation_rate", 100},
                     {"scale drift, log2", "/scale_drift_log2"},
                     {"drift of the blocks' mean scale code", "/scale_code_drift"}});
  page["memories"] = MemoryCharts(report, page);
  for (const char* const list : {"subjects", "diagnoses"}) {
    for (Json& row : page[list]) {
      row["step_kind"] = page["steps"][row["step"].get<size_t>() - 1]["kind"];
    }
  }
  page["overlap_charts"] = OverlapCharts(page["overlaps"]);
  return page;
}

}  // namespace quantgate
