#include "client/cli/html_sections.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "client/cli/device_text.h"
#include "client/cli/html_charts.h"
#include "client/cli/html_text.h"
#include "client/cli/number_text.h"
#include "client/cli/render_ranks.h"

namespace quantgate {
namespace {

std::string UlpText(int64_t ulp) { return ulp == INT64_MAX ? "NaN" : Count(ulp); }

std::string ValueText(double value, uint64_t bits, const std::string& dtype) {
  return absl::StrCat("<span class=\"value\">", Escaped(ExactReal(value)), "</span>",
                      Code(HexBits(bits, dtype)));
}

/// "first", "worst", ...: one element of both sides as a table row.
std::vector<std::string> ElementRow(const std::string& what, const v1::ElementPair& pair,
                                    const std::string& dtype, const std::string& reference_dtype) {
  return {Escaped(what), Code(CoordinateText(pair.coordinate())),
          ValueText(pair.subject(), pair.subject_bits(), dtype),
          ValueText(pair.reference(), pair.reference_bits(), reference_dtype)};
}

std::string ElementTable(const v1::ParityReport* parity, const v1::ErrorReport* error,
                         const std::string& dtype, const std::string& reference_dtype) {
  std::vector<std::vector<std::string>> rows;
  if (parity != nullptr && parity->mismatch_count() > 0) {
    rows.push_back(ElementRow("first that differs", parity->first(), dtype, dtype));
    rows.push_back(ElementRow(absl::StrCat("furthest, ", UlpText(parity->worst_ulp()), " ulp"),
                              parity->worst(), dtype, dtype));
  }
  if (error != nullptr && error->has_max_abs_at() && error->max_abs() > 0) {
    rows.push_back(ElementRow("largest error", error->max_abs_at(), dtype, reference_dtype));
  }
  if (error != nullptr && error->has_max_rel_at() && error->max_rel() > 0) {
    rows.push_back(
        ElementRow("largest relative error", error->max_rel_at(), dtype, reference_dtype));
  }
  if (rows.empty()) return "";
  return HtmlTable({"element", "at", "subject", "reference"}, rows, "elements");
}

std::string ErrorFacts(const v1::ErrorReport& error) {
  std::vector<std::pair<std::string, std::string>> facts = {
      {"SQNR", Escaped(Decibels(error.sqnr_db())) + " dB"},
      {"relative error", ShortReal(error.relative_frobenius())},
      {"cosine", ExactReal(std::round(error.cosine() * 1e9) / 1e9)},
      {"max |error|", ShortReal(error.max_abs())},
      {"mean |error|", ShortReal(error.mean_abs())},
      {"RMS error", ShortReal(error.rms())},
      {"max relative", ShortReal(error.max_rel())},
      {"mean relative", ShortReal(error.mean_rel())},
      {"bias", ShortReal(error.bias())}};
  const std::pair<const char*, int64_t> counts[] = {
      {"saturated", error.saturated_count()},
      {"flushed to zero", error.flushed_to_zero_count()},
      {"subnormal", error.subnormal_count()},
      {"not finite", error.non_finite_count()}};
  for (const auto& [name, count] : counts) {
    if (count > 0) facts.push_back({name, Count(count)});
  }
  return FactGrid(facts);
}

std::string WorstBlocks(const v1::ErrorReport& error) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::HeatMapCell& cell : error.worst_blocks()) {
    if (!(cell.rms_error() > 0)) continue;
    rows.push_back({absl::StrCat(cell.row_begin(), "\u2013", cell.row_end() - 1),
                    absl::StrCat(cell.column_begin(), "\u2013", cell.column_end() - 1),
                    ShortReal(cell.rms_error()), ShortReal(cell.max_abs_error())});
  }
  if (rows.empty()) return "";
  return absl::StrCat("<h4>Worst blocks</h4>",
                      HtmlTable({"rows", "columns", ">RMS error", ">max |error|"}, rows));
}

/// Subject classes down, reference classes across; only classes that occur.
std::string Confusion(const v1::ParityReport& parity) {
  std::vector<std::string> order = {"-inf", "negative", "-0", "+0", "positive", "+inf", "nan"};
  std::map<std::pair<std::string, std::string>, int64_t> counts;
  std::set<std::string> subjects, references;
  bool agrees = true;
  for (const v1::ClassConfusion& cell : parity.class_confusion()) {
    counts[{cell.subject_class(), cell.reference_class()}] = cell.count();
    subjects.insert(cell.subject_class());
    references.insert(cell.reference_class());
    agrees &= cell.subject_class() == cell.reference_class();
    for (const std::string& name : {cell.subject_class(), cell.reference_class()}) {
      if (std::find(order.begin(), order.end(), name) == order.end()) order.push_back(name);
    }
  }
  if (agrees) {
    return "<p class=\"dim\">Classes agree: no NaN, infinity, zero or sign on one side only.</p>";
  }
  std::vector<std::string> header = {"subject \\ reference"};
  for (const std::string& name : order) {
    if (references.contains(name)) header.push_back(absl::StrCat(">", name));
  }
  std::vector<std::vector<std::string>> rows;
  for (const std::string& subject : order) {
    if (!subjects.contains(subject)) continue;
    std::vector<std::string> row = {Escaped(subject)};
    for (const std::string& reference : order) {
      if (!references.contains(reference)) continue;
      const int64_t count = counts[{subject, reference}];
      row.push_back(count == 0             ? Span("dim", "0")
                    : subject != reference ? Span("bad", Count(count))
                                           : Count(count));
    }
    rows.push_back(row);
  }
  return absl::StrCat("<h4>Class confusion</h4>", HtmlTable(header, rows));
}

std::string ParityChip(const v1::ParityReport& parity, const std::string& reference) {
  if (parity.equal()) return Span("chip good", absl::StrCat("= ", reference, ", bit for bit"));
  return Span("chip", absl::StrCat("\u2260 ", reference, " in ",
                                   Percent(parity.mismatch_count(), parity.element_count())));
}

std::string BoundLine(const v1::BoundCheck& bound) {
  // Of operations that are no GEMM the derivation says all.
  const std::string allowed = bound.factor() == 0
                                  ? "its own fp32 roundings"
                                  : absl::StrCat(ShortReal(bound.factor()), " \u03a3|a||b|");
  return absl::StrCat(
      "<p>",
      Span(bound.pass() ? "chip good" : "chip bad",
           absl::StrCat(bound.pass() ? "within its bound: " : "beyond its bound: ",
                        BoundShare(bound.worst_ratio()), " of it")),
      bound.pass() ? "" : absl::StrCat(" in ", Count(bound.violation_count()), " elements"), " ",
      Span("dim", absl::StrCat("|error| \u2264 ", allowed, " + half ulp; ", bound.derivation())),
      "</p>");
}

std::string NearerLine(const v1::NearerReport& nearer, const std::string& reference) {
  return absl::StrCat("<h4>Nearer to exact</h4>",
                      StackedBar({{"this variant", nearer.subject_nearer(), "c0"},
                                  {"tied", nearer.tied(), "c1"},
                                  {reference, nearer.reference_nearer(), "c4"}}));
}

std::string OutputCard(const v1::VariantReport& variant, const v1::OutputReport& output) {
  const std::string& name = output.tensor().name();
  const std::string& dtype = output.tensor().type().dtype();
  const v1::ErrorReport& error = output.against_unquantized();
  const v1::ParityReport& exact = output.against_exact().parity();
  const bool has_exact = output.against_exact().has_parity();
  std::string html = absl::StrCat(
      "<div class=\"card\"><div class=\"head\"><h3>", Escaped(name), "</h3><span>",
      Code(TypeText(output.tensor().type())), " ", Span("chip", output.arithmetic()),
      output.intermediate() ? absl::StrCat(" ", Span("chip", "between operations")) : "", " ",
      has_exact ? ParityChip(exact, "exact") : "", "</span></div>");
  absl::StrAppend(&html, "<h4>Against the unquantized operands</h4>", ErrorFacts(error));
  absl::StrAppend(&html,
                  "<div class=\"pictures\"><div><h4>ULP from exact, same operands; log scale</h4>",
                  has_exact ? UlpHistogramSvg(exact) : "<p class=\"dim\">not compared</p>",
                  "</div><div><h4>Error by block</h4>", HeatMapSvg(error), "</div></div>");
  if (output.has_bound()) absl::StrAppend(&html, BoundLine(output.bound()));
  if (has_exact) absl::StrAppend(&html, Confusion(exact));
  absl::StrAppend(&html, "<h4>Elements against exact</h4>",
                  has_exact && exact.mismatch_count() > 0
                      ? ElementTable(&exact, nullptr, dtype, dtype)
                      : "<p class=\"dim\">none differs</p>",
                  "<h4>Elements against unquantized</h4>",
                  ElementTable(nullptr, &error, dtype, "f32"), WorstBlocks(error));
  if (const v1::TensorComparison* reference = FindAgainstReference(variant, name)) {
    absl::StrAppend(&html, "<h4>Against ", Escaped(reference->reference()), "</h4>");
    if (reference->has_parity()) {
      absl::StrAppend(&html, "<p>", ParityChip(reference->parity(), "reference"), "</p>",
                      UlpHistogramSvg(reference->parity()), Confusion(reference->parity()));
    }
    absl::StrAppend(
        &html, ElementTable(reference->has_parity() ? &reference->parity() : nullptr,
                            reference->has_error() ? &reference->error() : nullptr, dtype, dtype));
    if (reference->has_nearer()) {
      absl::StrAppend(&html, NearerLine(reference->nearer(), reference->reference()));
    }
  }
  absl::StrAppend(
      &html, "<p class=\"dim\">fingerprint ", Code(FingerprintText(output.tensor().fingerprint())),
      output.exact_note().empty() ? "" : absl::StrCat("<br>", Escaped(output.exact_note())),
      "</p></div>");
  return html;
}

/// What of amaxes and scales the format has, and the range of its block scales.
std::vector<std::pair<std::string, std::string>> Scalars(const v1::QuantizationRecord& record) {
  std::vector<std::pair<std::string, std::string>> facts;
  const auto add = [&](const char* name, bool has, float value) {
    if (has) facts.push_back({name, Escaped(ExactReal(value))});
  };
  add("amax", record.has_amax(), record.amax());
  if (!record.amax_group().empty()) facts.push_back({"amax over", Escaped(record.amax_group())});
  add("columnwise amax", record.has_amax_columnwise(), record.amax_columnwise());
  add("scale", record.has_scale(), record.scale());
  add("scale_inv", record.has_scale_inv(), record.scale_inv());
  const std::map<int32_t, int64_t> codes(record.scale_codes().begin(), record.scale_codes().end());
  if (!codes.empty()) {
    facts.push_back({"codes of block scales",
                     absl::StrCat(codes.begin()->first, " to ", codes.rbegin()->first)});
  }
  return facts;
}

std::string Quantizations(const v1::VariantReport& variant) {
  if (variant.quantizations().empty()) return "";
  std::string html = "<h4>Quantizations</h4><div class=\"cards small\">";
  for (const v1::QuantizationRecord& record : variant.quantizations()) {
    const v1::QuantizationCounts& counts = record.counts();
    const std::string usage = absl::StrCat(record.rowwise() ? "rowwise" : "",
                                           record.rowwise() && record.columnwise() ? ", " : "",
                                           record.columnwise() ? "columnwise" : "");
    absl::StrAppend(&html, "<div class=\"card\"><div class=\"head\"><h3>",
                    Escaped(record.tensor().empty() ? record.role() : record.tensor()), "</h3>",
                    Span("chip", usage), "</div><p class=\"dim\">", Escaped(record.quantizer()),
                    "</p>", FactGrid(Scalars(record)),
                    StackedBar({{"normal", counts.normal(), "c0"},
                                {"zero", counts.zero(), "c1"},
                                {"subnormal", counts.subnormal(), "c2"},
                                {"flushed to zero", counts.flushed_to_zero(), "c3"},
                                {"saturated", counts.saturated(), "c4"},
                                {"infinite", counts.infinite(), "c5"},
                                {"NaN", counts.nan(), "c6"}}),
                    "</div>");
  }
  return html + "</div>";
}

std::string ErrorBudgets(const v1::VariantReport& variant) {
  if (variant.error_budgets().empty()) return "";
  std::string html = "<h4>What makes the error</h4><div class=\"cards small\">";
  for (const v1::ErrorBudget& budget : variant.error_budgets()) {
    absl::StrAppend(&html, "<div class=\"card\"><div class=\"head\"><h3>", Escaped(budget.tensor()),
                    "</h3>", Span("chip", absl::StrCat("rms ", ShortReal(budget.total().rms()))),
                    "</div>", BudgetBars(budget), "</div>");
  }
  return html + "</div>";
}

std::string SavedOperands(const v1::VariantReport& variant) {
  if (variant.saved().empty()) return "";
  std::vector<std::vector<std::string>> rows;
  for (const v1::SavedOperand& saved : variant.saved()) {
    const bool is_same = saved.at_save().high() == saved.at_use().high() &&
                         saved.at_save().low() == saved.at_use().low();
    rows.push_back({Escaped(saved.name()), Escaped(saved.content()),
                    Code(FingerprintText(saved.at_save())),
                    !saved.used() ? Span("dim", "never read")
                    : is_same     ? Span("chip good", "unchanged at use")
                              : Span("chip bad", "changed: " + FingerprintText(saved.at_use()))});
  }
  return absl::StrCat("<h4>Saved for backward</h4>",
                      HtmlTable({"operand", "kept as", "fingerprint", "at use"}, rows));
}

std::string Gemms(const v1::VariantReport& variant) {
  if (variant.gemms().empty()) return "";
  std::vector<std::vector<std::string>> rows;
  for (const v1::GemmLine& gemm : variant.gemms()) {
    std::string ran = Span("chip", gemm.arithmetic());
    if (!gemm.algorithm().empty()) absl::StrAppend(&ran, " ", Code(gemm.algorithm()));
    rows.push_back({Escaped(absl::StrCat(gemm.role(), " ", gemm.output())), Code(gemm.text()), ran,
                    Escaped(gemm.a_source()), Escaped(gemm.b_source())});
  }
  return absl::StrCat("<h4>GEMMs</h4>", HtmlTable({"", "GEMM", "what ran", "a", "b"}, rows));
}

/// Each rank's parts, and its stages, collectives among them.
std::string Ranks(const v1::VariantReport& variant) {
  if (variant.ranks().empty()) return "";
  std::vector<std::vector<std::string>> rows;
  std::string times;
  for (const v1::RankReport& rank : variant.ranks()) {
    for (const v1::NamedTensor& output : rank.outputs()) {
      rows.push_back({absl::StrCat(rank.rank()), Escaped(rank.device()), Escaped(output.name()),
                      Code(TypeText(output.type())), Code(FingerprintText(output.fingerprint()))});
    }
    std::vector<std::pair<std::string, double>> stages;
    for (const v1::StageTime& stage : rank.stages()) {
      stages.emplace_back(stage.stage(), stage.seconds());
    }
    absl::StrAppend(&times, "<h4>Time by stage of rank ", rank.rank(), "</h4>", StageBars(stages));
  }
  std::vector<std::vector<std::string>> groups = AmaxGroupRows(variant.ranks());
  for (std::vector<std::string>& row : groups) {
    for (std::string& cell : row) cell = Escaped(cell);
  }
  const std::string amaxes = groups.empty() ? ""
                                            : absl::StrCat("<h4>Amaxes over groups</h4>",
                                                           HtmlTable(AmaxGroupHead(), groups));
  return absl::StrCat("<h4>Ranks</h4>",
                      HtmlTable({"rank", "device", "output", "its part", "fingerprint"}, rows),
                      amaxes, OverlapCharts(variant.ranks()), times);
}

}  // namespace

std::string OverlapCharts(const google::protobuf::RepeatedPtrField<v1::RankReport>& ranks) {
  std::string html;
  for (int stage = 0; stage < ranks[0].overlaps_size(); ++stage) {
    std::vector<std::vector<std::string>> rows;
    for (const v1::RankReport& rank : ranks) {
      if (stage >= rank.overlaps_size()) continue;
      std::vector<std::string>& row = rows.emplace_back();
      row.push_back(absl::StrCat(rank.rank()));
      for (std::string& figure : OverlapRow(rank.overlaps(stage))) row.push_back(std::move(figure));
    }
    std::vector<std::string> head = {"rank"};
    for (const std::string& name : OverlapHead()) head.push_back(absl::StrCat(">", name));
    absl::StrAppend(&html,
                    "<h4>Communication beside GEMMs: ", Escaped(ranks[0].overlaps(stage).stage()),
                    "</h4>", OverlapSvg(ranks, stage), HtmlTable(head, rows));
  }
  return html;
}

int SqnrLevel(double sqnr_db) {
  if (std::isnan(sqnr_db)) return 0;
  return std::clamp(static_cast<int>(std::floor(std::clamp(sqnr_db, 0.0, 60.0) / 10)), 0, 5);
}

std::string VariantSection(const v1::VariantReport& variant, int index, bool is_open) {
  std::string html = absl::StrCat(
      // The anchor lies inside, so that following a link to it opens the section.
      "<details", is_open ? " open" : "", "><summary><h3>", Escaped(variant.label()), "</h3>",
      Span("chip", WhatRanText(variant)), "</summary><div id=\"v", index, "\"><p class=\"dim\">",
      Code(variant.recipe()), "</p>");
  for (const std::string& note : variant.notes()) {
    absl::StrAppend(&html, "<p>", Span("chip", "note"), " ", Escaped(note), "</p>");
  }
  absl::StrAppend(&html, "<div class=\"cards\">");
  for (const v1::OutputReport& output : variant.outputs()) {
    absl::StrAppend(&html, OutputCard(variant, output));
  }
  absl::StrAppend(&html, "</div>", Quantizations(variant), ErrorBudgets(variant),
                  SavedOperands(variant), Gemms(variant), Ranks(variant));
  if (!variant.stages().empty()) {
    std::vector<std::pair<std::string, double>> stages;
    for (const v1::StageTime& stage : variant.stages()) {
      stages.emplace_back(stage.stage(), stage.seconds());
    }
    absl::StrAppend(&html, "<h4>Time by stage</h4>", StageBars(stages));
  }
  return html + "</div></details>\n";
}

std::string SubjectCard(const SubjectComparison& comparison) {
  const v1::CompareResponse& result = comparison.result;
  const bool is_equal = result.has_parity() && result.parity().equal();
  std::string html = absl::StrCat(
      "<div class=\"card\"><div class=\"head\"><h3>", Escaped(comparison.tensor), "</h3><span>",
      Code(comparison.dtype), " ",
      is_equal
          ? Span("chip good", "equal bit for bit")
          : Span("chip bad", result.has_parity()
                                 ? absl::StrCat(Count(result.parity().mismatch_count()), " of ",
                                                Count(result.parity().element_count()), " differ")
                                 : comparison.difference),
      "</span></div><p class=\"dim\">", Escaped(comparison.subject_name),
      comparison.reference_name.empty() ? "" : " against ", Escaped(comparison.reference_name),
      "</p>");
  if (comparison.bound) absl::StrAppend(&html, BoundLine(*comparison.bound));
  if (is_equal) return html + "</div>";
  if (result.has_error()) absl::StrAppend(&html, ErrorFacts(result.error()));
  absl::StrAppend(&html, "<div class=\"pictures\">");
  if (result.has_parity()) {
    absl::StrAppend(&html, "<div><h4>Signed ULP distance; log scale</h4>",
                    UlpHistogramSvg(result.parity()), "</div>");
  }
  if (result.has_error()) {
    absl::StrAppend(&html, "<div><h4>Error by block</h4>", HeatMapSvg(result.error()), "</div>");
  }
  absl::StrAppend(&html, "</div>");
  if (result.has_parity()) absl::StrAppend(&html, Confusion(result.parity()));
  absl::StrAppend(&html, ElementTable(result.has_parity() ? &result.parity() : nullptr,
                                      result.has_error() ? &result.error() : nullptr,
                                      comparison.dtype, comparison.reference_dtype));
  if (result.has_error()) absl::StrAppend(&html, WorstBlocks(result.error()));
  return html + "</div>";
}

}  // namespace quantgate
