#include "client/cli/render_html.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/cli/device_text.h"
#include "client/cli/html_charts.h"
#include "client/cli/html_sections.h"
#include "client/cli/html_style.h"
#include "client/cli/html_text.h"
#include "client/cli/number_text.h"
#include "client/cli/verdict_text.h"

namespace quantgate {
namespace {

/// What went in and what it ran on, in one line.
std::string Subtitle(const ReportDocument& document) {
  if (!document.has_run) return "";
  std::vector<std::string> parts;
  for (const v1::InputTensor& input : document.run.inputs()) {
    parts.push_back(absl::StrCat(Escaped(input.name()), " ", Code(TypeText(input.type()))));
  }
  for (const v1::DeviceDescription& device : document.run.environment().devices()) {
    parts.push_back(Escaped(DeviceText(device, document.run.environment())));
  }
  parts.push_back(Seconds(document.run.seconds()));
  return absl::StrCat("<p class=\"dim\">", absl::StrJoin(parts, " \u00b7 "), "</p>");
}

std::string Banner(const v1::Verdict& verdict) {
  const std::string word = VerdictWord(verdict), line = VerdictLine(verdict);
  std::string html = absl::StrCat(
      "<div class=\"banner ", line.empty() ? "inform" : absl::AsciiStrToLower(word), "\"><strong>",
      word, "</strong><div><p>",
      line.empty() ? "No criterion was stated: this report informs." : Escaped(line), "</p>");
  for (const std::string& detail : VerdictDetails(verdict)) {
    absl::StrAppend(&html, "<p>", Escaped(detail), "</p>");
  }
  return html + "</div></div>\n";
}

std::string LabelCell(const v1::VariantReport& variant, int index) {
  return absl::StrCat("<td class=\"label\"><a href=\"#v", index, "\">#", index, " ",
                      Escaped(variant.label()), "</a></td>");
}

std::string MatrixCell(const v1::VariantReport& variant, const v1::OutputReport& output) {
  const v1::ErrorReport& error = output.against_unquantized();
  const bool is_broken = output.has_bound() && !output.bound().pass();
  std::string html =
      absl::StrCat("<td class=\"q", SqnrLevel(error.sqnr_db()), is_broken ? " broken" : "",
                   "\"><b>", Escaped(Decibels(error.sqnr_db())), "</b> dB<small>relative error ",
                   Escaped(ShortReal(error.relative_frobenius())), "</small>");
  const auto parity_line = [&](const v1::ParityReport& parity, const std::string& name) {
    const std::string text =
        parity.equal() ? absl::StrCat("= ", name)
                       : absl::StrCat("\u2260 ", name, " in ",
                                      Percent(parity.mismatch_count(), parity.element_count()));
    absl::StrAppend(&html, "<small>", parity.equal() ? Span("good", text) : Escaped(text),
                    "</small>");
  };
  if (output.against_exact().has_parity()) parity_line(output.against_exact().parity(), "exact");
  const v1::TensorComparison* reference = FindAgainstReference(variant, output.tensor().name());
  if (reference != nullptr && reference->has_parity()) {
    parity_line(reference->parity(), "reference");
  }
  if (output.has_bound()) {
    absl::StrAppend(&html, "<small>", is_broken ? "<span class=\"bad\">" : "<span>",
                    Escaped(BoundShare(output.bound().worst_ratio())),
                    " of its bound</span></small>");
  }
  return html + "</td>";
}

std::string Matrix(const v1::RunReport& run, const std::string& title) {
  const std::vector<std::string> tensors = OutputNames(run);
  std::string html = absl::StrCat("<h2>", title,
                                  "</h2><div class=\"card\"><div class=\"scroll\"><table "
                                  "class=\"matrix\"><tr><th>variant</th>");
  for (const std::string& tensor : tensors)
    absl::StrAppend(&html, "<th>", Escaped(tensor), "</th>");
  absl::StrAppend(&html, "</tr>");
  for (int i = 0; i < run.variants_size(); ++i) {
    absl::StrAppend(&html, "<tr>", LabelCell(run.variants(i), i));
    for (const std::string& tensor : tensors) {
      const v1::OutputReport* output = FindOutput(run.variants(i), tensor);
      absl::StrAppend(&html, output == nullptr ? "<td class=\"q0 dim\">\u2013</td>"
                                               : MatrixCell(run.variants(i), *output));
    }
    absl::StrAppend(&html, "</tr>\n");
  }
  absl::StrAppend(&html,
                  "</table></div><div class=\"key\"><span>SQNR and relative error against the "
                  "unquantized operands:</span>");
  for (int level = 0; level < 6; ++level) {
    absl::StrAppend(&html, "<span><i class=\"q", level, "\"></i>",
                    level == 0   ? "under 10 dB"
                    : level == 5 ? "50 dB and more"
                                 : absl::StrCat(level * 10, "\u2013", level * 10 + 10),
                    "</span>");
  }
  return absl::StrCat(html,
                      "<span>exact: the same quantized operands, summed exactly and rounded once"
                      "</span></div></div>\n");
}

std::string SubjectCell(const SubjectComparison& comparison) {
  const v1::CompareResponse& result = comparison.result;
  if (!result.has_parity()) {
    return absl::StrCat("<td class=\"q0 broken\">", Escaped(comparison.difference), "</td>");
  }
  const v1::ErrorReport& error = result.error();
  const v1::ParityReport& parity = result.parity();
  const int level = parity.equal() ? 5 : result.has_error() ? SqnrLevel(error.sqnr_db()) : 0;
  std::string html = absl::StrCat(
      "<td class=\"q", level, comparison.passes ? "" : " broken", "\"><b>",
      parity.equal() ? "equal" : absl::StrCat(Count(parity.mismatch_count()), " differ"), "</b>");
  if (result.has_error()) {
    absl::StrAppend(&html, "<small>", Escaped(Decibels(error.sqnr_db())), " dB, relative error ",
                    Escaped(ShortReal(error.relative_frobenius())), "</small>");
  }
  if (comparison.bound) {
    absl::StrAppend(&html, "<small>", Escaped(BoundShare(comparison.bound->worst_ratio())),
                    " of its bound</small>");
  }
  return html + "</td>";
}

/// The subject against what it should be.
std::string SubjectMatrix(const ReportDocument& document) {
  std::string html =
      "<h2>Subject against the reference</h2><div class=\"card\"><div class=\"scroll\"><table "
      "class=\"matrix\"><tr><th></th>";
  for (const SubjectComparison& comparison : document.comparisons) {
    absl::StrAppend(&html, "<th>", Escaped(comparison.tensor), "</th>");
  }
  absl::StrAppend(&html, "</tr>\n<tr><td class=\"label\">", Escaped(document.title), "</td>");
  for (const SubjectComparison& comparison : document.comparisons) {
    absl::StrAppend(&html, SubjectCell(comparison));
  }
  return html + "</tr></table></div></div>\n";
}

/// The largest relative difference of any tensor between two variants; NaN: not comparable.
struct PairCell {
  bool is_present = false, is_equal = true;
  double worst = 0;
  std::string detail;
};

PairCell CellOf(const v1::RunReport& run, int subject, int reference) {
  PairCell cell;
  for (const v1::PairSummary& pair : run.pairs()) {
    if (pair.subject() != subject || pair.reference() != reference) continue;
    cell.is_present = true;
    cell.is_equal &= pair.comparable() && pair.mismatch_count() == 0;
    if (!pair.comparable()) {
      absl::StrAppend(&cell.detail, pair.tensor(), ": not comparable\n");
      continue;
    }
    if (!(pair.relative_frobenius() <= cell.worst)) cell.worst = pair.relative_frobenius();
    absl::StrAppend(&cell.detail, pair.tensor(), ": ", Count(pair.mismatch_count()), " of ",
                    Count(pair.element_count()), " differ, relative ",
                    ShortReal(pair.relative_frobenius()), "\n");
  }
  return cell;
}

/// One step per decade of relative difference: 1 up to 1e-8, 9 from 1 on.
int DecadeLevel(double relative) {
  if (!(relative > 0)) return 1;
  if (!std::isfinite(relative)) return 9;
  return static_cast<int>(std::clamp(std::floor(std::log10(relative)) + 9, 1.0, 9.0));
}

std::string Pairs(const v1::RunReport& run) {
  if (run.variants_size() < 2 || run.pairs().empty()) return "";
  std::string html =
      "<h2>Variants against each other</h2><div class=\"card\"><div class=\"scroll\"><table "
      "class=\"matrix pairs\"><tr><th></th>";
  for (int i = 0; i + 1 < run.variants_size(); ++i) absl::StrAppend(&html, "<th>#", i, "</th>");
  absl::StrAppend(&html, "</tr>");
  for (int subject = 1; subject < run.variants_size(); ++subject) {
    absl::StrAppend(&html, "<tr>", LabelCell(run.variants(subject), subject));
    for (int reference = 0; reference < subject; ++reference) {
      const PairCell cell = CellOf(run, subject, reference);
      if (!cell.is_present) {
        absl::StrAppend(&html, "<td></td>");
      } else if (cell.is_equal) {
        absl::StrAppend(&html, "<td class=\"b0 good\" title=\"", Escaped(cell.detail),
                        "\">equal</td>");
      } else {
        const int level = DecadeLevel(cell.worst);
        absl::StrAppend(&html, "<td class=\"b", level, level >= 5 ? " hot" : "", "\" title=\"",
                        Escaped(cell.detail), "\">", Escaped(ShortReal(cell.worst)), "</td>");
      }
    }
    absl::StrAppend(&html, "</tr>\n");
  }
  return absl::StrCat(html,
                      "</table></div><div class=\"key\"><span>Largest relative difference "
                      "(Frobenius) of any output; hover for each.</span></div></div>\n");
}

std::string Inputs(const v1::RunReport& run) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::InputTensor& input : run.inputs()) {
    rows.push_back({Escaped(input.name()), Code(TypeText(input.type())), Code(input.source()),
                    input.has_digest()
                        ? Code(absl::StrCat(absl::BytesToHexString(input.digest().sha256()), "/",
                                            input.digest().size()))
                        : Code(FingerprintText(input.fingerprint()))});
  }
  if (rows.empty()) return "";
  return absl::StrCat(
      "<h4>Inputs</h4>",
      HtmlTable({"tensor", "type", "source", "SHA-256/bytes or fingerprint"}, rows));
}

/// One option a line, as a shell takes it; left alone where a quoted string could hold what looks
/// like an option.
std::string CommandLines(const std::string& command) {
  if (command.find_first_of("'\"") != std::string::npos) return Escaped(command);
  return Escaped(absl::StrReplaceAll(command, {{" --", " \\\n    --"}, {" && ", " && \\\n"}}));
}

std::string EnvironmentSection(const ReportDocument& document) {
  const v1::RunReport& run = document.run;
  std::string html = "<h2>How to get this again</h2><div class=\"card\">";
  if (document.has_run && !run.reproduce().empty()) {
    absl::StrAppend(&html, "<h4>From the stored inputs</h4><pre>", CommandLines(run.reproduce()),
                    "</pre>");
  }
  absl::StrAppend(&html, "<h4>As typed</h4><pre>", CommandLines(document.command), "</pre>");
  if (!document.has_run) return html + "</div>\n";
  absl::StrAppend(&html, Inputs(run), "<h4>Environment</h4>");
  const v1::Environment& environment = run.environment();
  std::vector<std::pair<std::string, std::string>> facts = {
      {"QuantGate", Escaped(environment.version())}, {"build", Escaped(environment.build())}};
  for (const v1::DeviceDescription& device : environment.devices()) {
    facts.push_back({device.id(), Escaped(DeviceText(device, environment))});
    if (device.memory_bytes() == 0) continue;
    facts.push_back({absl::StrCat(device.id(), " memory"),
                     absl::StrCat(Bytes(device.memory_bytes()), ", ", device.memory_clock_mhz(),
                                  " MHz as read")});
  }
  if (const std::string clock = StageClockText(environment); !clock.empty()) {
    facts.push_back({"clock", Escaped(clock)});
  }
  facts.push_back(
      {"CUDA", environment.cuda().empty() ? "not in this build" : Escaped(environment.cuda())});
  if (!environment.cublaslt().empty())
    facts.push_back({"cuBLASLt", Escaped(environment.cublaslt())});
  if (!environment.nccl().empty()) facts.push_back({"NCCL", Escaped(environment.nccl())});
  facts.push_back({"run", Code(run.run_id())});
  facts.push_back({"took", Seconds(run.seconds())});
  return absl::StrCat(html, FactGrid(facts), "</div>\n");
}

}  // namespace

std::string RenderHtml(const ReportDocument& document) {
  std::string html = absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>QuantGate ",
      Escaped(document.kind), ": ", Escaped(document.title), "</title>\n<style>", kReportStyle,
      "</style></head>\n<body><header><div class=\"brand\">QuantGate ", Escaped(document.kind),
      "</div><h1>", Escaped(document.title), "</h1>", Subtitle(document), Banner(document.verdict));
  for (const std::string& remark : document.remarks) {
    absl::StrAppend(&html, "<p>", Span("chip", "note"), " ", Escaped(remark), "</p>");
  }
  absl::StrAppend(&html, "</header>\n<main>");
  if (!document.comparisons.empty()) {
    absl::StrAppend(&html, SubjectMatrix(document), "<h2>Tensors</h2><div class=\"cards\">");
    for (const SubjectComparison& comparison : document.comparisons) {
      absl::StrAppend(&html, SubjectCard(comparison), "\n");
    }
    absl::StrAppend(&html, "</div>");
  }
  if (document.has_run) {
    absl::StrAppend(&html,
                    Matrix(document.run, document.comparisons.empty()
                                             ? "Recipe matrix"
                                             : "The reference itself, not the subject"),
                    Pairs(document.run), "<h2>",
                    document.run.variants_size() == 1 ? "The run" : "Variants", "</h2>\n");
    for (int i = 0; i < document.run.variants_size(); ++i) {
      absl::StrAppend(
          &html, VariantSection(document.run.variants(i), i, document.run.variants_size() == 1));
    }
  }
  return absl::StrCat(
      html, EnvironmentSection(document),
      "</main>\n<footer>QuantGate: are these numbers the numbers they should be?</footer>"
      "</body></html>\n");
}

}  // namespace quantgate
