#include "server/report/render_table.h"

#include <algorithm>
#include <map>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/report/device_text.h"
#include "server/report/number_text.h"
#include "server/report/render_capture.h"
#include "server/report/render_ranks.h"
#include "server/report/text_table.h"
#include "server/report/verdict_text.h"

namespace quantgate {
namespace {

constexpr size_t kCellColumns = 9;

/// What one cell of the matrix says about one output of one variant.
struct Cell {
  std::string text;
  Tone tone = Tone::kPlain;
};
using CellFunction = Cell (*)(const v1::VariantReport& variant, const v1::OutputReport& output);

Cell SqnrCell(const v1::VariantReport&, const v1::OutputReport& output) {
  return {Decibels(output.against_unquantized().sqnr_db())};
}

Cell ParityCell(const v1::ParityReport& parity) {
  if (parity.equal()) return {"=", Tone::kGood};
  return {Percent(parity.mismatch_count(), parity.element_count()), Tone::kPlain};
}

Cell ExactCell(const v1::VariantReport&, const v1::OutputReport& output) {
  if (!output.against_exact().has_parity()) return {"-", Tone::kDim};
  return ParityCell(output.against_exact().parity());
}

Cell BoundCell(const v1::VariantReport&, const v1::OutputReport& output) {
  if (!output.has_bound()) return {"-", Tone::kDim};
  return {BoundShare(output.bound().worst_ratio()),
          output.bound().pass() ? Tone::kGood : Tone::kBad};
}

Cell ReferenceCell(const v1::VariantReport& variant, const v1::OutputReport& output) {
  const v1::TensorComparison* comparison = FindAgainstReference(variant, output.tensor().name());
  if (comparison == nullptr) return {"-", Tone::kDim};
  if (!comparison->has_parity()) return {"dtype", Tone::kBad};
  return ParityCell(comparison->parity());
}

size_t LabelColumns(size_t tensors) {
  const size_t taken = 4 + tensors * (kCellColumns + 2);
  return taken + 16 < kTableColumns ? kTableColumns - taken : 16;
}

/// Outputs side by side in one table; a layer with more of them gets several tables.
constexpr size_t kMatrixTensors = 6;

/// The columns of labels beside which the bytes saved stand too.
size_t LabelColumnsBesideSaved(size_t tensors) { return LabelColumns(tensors + 1) - 1; }

bool SavesAnything(const v1::RunReport& run) {
  return std::any_of(run.variants().begin(), run.variants().end(),
                     [](const auto& variant) { return variant.saved_bytes().bytes() > 0; });
}

std::string SavedText(const v1::VariantReport& variant) {
  return variant.saved_bytes().bytes() == 0 ? "-" : Bytes(variant.saved_bytes().bytes());
}

/// One table: every variant, some of the outputs, and if `tells_saved` the bytes saved for
/// backward.
void PrintMatrixPart(const v1::RunReport& run, std::span<const std::string> tensors,
                     CellFunction cell_of, bool tells_saved, bool uses_colour, std::ostream& out) {
  std::vector<std::string> header = {"#", "<variant"};
  for (const std::string& tensor : tensors) header.push_back(Cut(tensor, kCellColumns));
  if (tells_saved) header.push_back("saved");
  const size_t label_columns =
      tells_saved ? LabelColumnsBesideSaved(tensors.size()) : LabelColumns(tensors.size());
  TextTable table(header);
  for (int i = 0; i < run.variants_size(); ++i) {
    const v1::VariantReport& variant = run.variants(i);
    std::vector<std::string> row = {absl::StrCat(i), Cut(variant.label(), label_columns)};
    std::vector<Tone> tones(2, Tone::kPlain);
    for (const std::string& tensor : tensors) {
      const v1::OutputReport* output = FindOutput(variant, tensor);
      const Cell cell = output == nullptr ? Cell{"", Tone::kDim} : cell_of(variant, *output);
      row.push_back(cell.text);
      tones.push_back(cell.tone);
    }
    if (tells_saved) row.push_back(SavedText(variant));
    table.AddRow(row);
    for (size_t column = 0; column < tones.size(); ++column) table.SetTone(column, tones[column]);
  }
  table.Print(out, uses_colour);
  out << "\n";
}

void PrintMatrix(const v1::RunReport& run, const std::string& caption, CellFunction cell_of,
                 bool uses_colour, std::ostream& out) {
  out << Toned(caption, Tone::kBold, uses_colour) << "\n";
  const std::vector<std::string> tensors = OutputNames(run);
  const std::span<const std::string> all(tensors);
  size_t begin = 0;
  do {
    const size_t count = std::min(kMatrixTensors, all.size() - begin);
    const bool tells_saved = cell_of == SqnrCell && SavesAnything(run);
    PrintMatrixPart(run, all.subspan(begin, count), cell_of, tells_saved, uses_colour, out);
    begin += count;
  } while (begin < all.size());
}

/// What each backward mode saves: the columns of the bytes.
void PrintSavedMatrix(const v1::RunReport& run, bool uses_colour, std::ostream& out) {
  if (!SavesAnything(run)) return;
  out << Toned(
             "Saved for backward, each tensor once (held: by parameters and cached weights anyway)",
             Tone::kBold, uses_colour)
      << "\n";
  TextTable table({"#", "<variant", "saved", "codes, values", "scales", "held"});
  for (int i = 0; i < run.variants_size(); ++i) {
    const v1::VariantReport& variant = run.variants(i);
    const v1::SavedBytes& saved = variant.saved_bytes();
    table.AddRow({absl::StrCat(i), Cut(variant.label(), LabelColumns(5)), Bytes(saved.bytes()),
                  Bytes(saved.data_bytes()), Bytes(saved.scale_bytes()),
                  Bytes(saved.held_bytes())});
  }
  table.Print(out, uses_colour);
  out << "\n";
}

/// Labels that the matrix had to cut, in full.
void PrintCutLabels(const v1::RunReport& run, std::ostream& out) {
  const size_t tensors = std::min(OutputNames(run).size(), kMatrixTensors);
  const size_t columns =
      SavesAnything(run) ? LabelColumnsBesideSaved(tensors) : LabelColumns(tensors);
  bool any = false;
  for (int i = 0; i < run.variants_size(); ++i) {
    if (run.variants(i).label().size() <= columns) continue;
    out << "#" << i << "  " << run.variants(i).label() << "\n";
    any = true;
  }
  if (any) out << "\n";
}

/// Every variant against every earlier one: "=" where all tensors are equal, otherwise the largest
/// relative difference.
std::string PairText(const v1::RunReport& run, int subject, int reference) {
  double worst = 0;
  bool any = false, all_equal = true, all_comparable = true;
  for (const v1::PairSummary& pair : run.pairs()) {
    if (pair.subject() != subject || pair.reference() != reference) continue;
    any = true;
    all_comparable &= pair.comparable();
    all_equal &= pair.comparable() && pair.mismatch_count() == 0;
    if (!(pair.relative_frobenius() <= worst)) worst = pair.relative_frobenius();
  }
  if (!any) return "-";
  if (all_equal) return "=";
  return all_comparable ? ShortReal(worst) : "dtype";
}

void PrintPairs(const v1::RunReport& run, bool uses_colour, std::ostream& out) {
  if (run.variants_size() < 2) return;
  constexpr int kPairColumns = 8;
  out << Toned(
             "Variants against each other: largest relative difference of any tensor (= where all "
             "bits are equal)",
             Tone::kBold, uses_colour)
      << "\n";
  for (int begin = 0; begin + 1 < run.variants_size(); begin += kPairColumns) {
    const int end = std::min(begin + kPairColumns, run.variants_size() - 1);
    std::vector<std::string> header = {"#"};
    for (int reference = begin; reference < end; ++reference) {
      header.push_back(absl::StrCat("#", reference));
    }
    TextTable table(header);
    for (int subject = begin + 1; subject < run.variants_size(); ++subject) {
      std::vector<std::string> row = {absl::StrCat(subject)};
      for (int reference = begin; reference < std::min(end, subject); ++reference) {
        row.push_back(PairText(run, subject, reference));
      }
      const size_t columns = row.size();
      table.AddRow(row);
      for (size_t i = 1; i < columns; ++i) {
        table.SetTone(i, row[i] == "=" ? Tone::kGood : Tone::kPlain);
      }
    }
    table.Print(out, uses_colour);
    out << "\n";
  }
}

std::string WorstUlpText(const v1::ParityReport& parity) {
  return parity.worst_ulp() == INT64_MAX ? "nan" : UlpText(parity.worst_ulp());
}

/// Prints how many elements a tensor's errors leave out. With them the errors would be NaN, and
/// hide those of the others.
void PrintNonFinite(const std::string& tensor, const v1::ErrorReport& error, std::ostream& out) {
  if (error.non_finite_count() == 0) return;
  out << tensor << ": SQNR and errors leave out " << Count(error.non_finite_count()) << " of "
      << Count(error.element_count()) << " elements, not finite on a side\n";
}

void PrintOutputs(const v1::VariantReport& variant, bool uses_colour, std::ostream& out) {
  TextTable table({"output", "<type", "SQNR dB", "rel. error", "max |error|", "differs", "max ulp",
                   "of bound"});
  std::vector<std::string> arithmetics;
  bool has_intermediates = false;
  for (const v1::OutputReport& output : variant.outputs()) {
    has_intermediates |= output.intermediate();
    const v1::ErrorReport& error = output.against_unquantized();
    const bool has_exact = output.against_exact().has_parity();
    const v1::ParityReport& exact = output.against_exact().parity();
    table.AddRow({absl::StrCat(output.tensor().name(), output.intermediate() ? " *" : ""),
                  TypeText(output.tensor().type()), Decibels(error.sqnr_db()),
                  ShortReal(error.relative_frobenius()), ShortReal(error.max_abs()),
                  has_exact ? ParityCell(exact).text : "-", has_exact ? WorstUlpText(exact) : "-",
                  output.has_bound() ? BoundShare(output.bound().worst_ratio()) : "-"});
    if (output.has_bound()) table.SetTone(7, output.bound().pass() ? Tone::kGood : Tone::kBad);
    arithmetics.push_back(absl::StrCat(output.tensor().name(), " ", output.arithmetic()));
  }
  table.Print(out, uses_colour);
  out << "SQNR and errors: against the unquantized operands. differs, max ulp, of bound: against "
         "the\n"
         "exact result of the same quantized operands and its derived error bound (1 is the "
         "limit).\n";
  for (const v1::OutputReport& output : variant.outputs()) {
    PrintNonFinite(output.tensor().name(), output.against_unquantized(), out);
  }
  out << (has_intermediates ? "* no output: what one operation of the layer gave the next.\n" : "")
      << Wrapped("arithmetic:", arithmetics) << "\n\n";
}

void PrintQuantizations(const v1::VariantReport& variant, bool uses_colour, std::ostream& out) {
  if (variant.quantizations().empty()) return;
  TextTable table(
      {"quantized", "<usage", "amax", "scale", "saturated", "subnormal", "to zero", "nan", "inf"});
  // Any record with a seed, since all have the same one.
  const v1::QuantizationRecord* drawn = nullptr;
  for (const v1::QuantizationRecord& record : variant.quantizations()) {
    const v1::QuantizationCounts& counts = record.counts();
    const std::string usage = record.rowwise() && record.columnwise() ? "both"
                              : record.rowwise()                      ? "row"
                                                                      : "column";
    table.AddRow({record.tensor().empty() ? record.role() : record.tensor(), usage,
                  record.has_amax() ? ShortReal(record.amax()) : "-",
                  record.has_scale() ? ShortReal(record.scale()) : "-", Count(counts.saturated()),
                  Count(counts.subnormal()), Count(counts.flushed_to_zero()), Count(counts.nan()),
                  Count(counts.infinite())});
    if (record.has_seed()) drawn = &record;
  }
  table.Print(out, uses_colour);
  if (drawn != nullptr) out << "Stochastic rounding by seed " << drawn->seed() << ".\n";
  out << "\n";
}

void PrintSaved(const v1::VariantReport& variant, bool uses_colour, std::ostream& out) {
  if (variant.saved().empty() || !variant.has_saved_bytes()) return;
  constexpr size_t kContentColumns = 36;
  TextTable table({"saved", "<format", "<kept as", "bytes", "scales", "held"});
  bool has_shared = false;
  for (const v1::SavedOperand& saved : variant.saved()) {
    const bool is_shared = saved.counted_bytes() < saved.data_bytes() + saved.scale_bytes();
    has_shared |= is_shared;
    table.AddRow({absl::StrCat(saved.name(), is_shared ? " *" : ""), saved.format(),
                  Cut(saved.content(), kContentColumns), Bytes(saved.counted_bytes()),
                  Bytes(saved.scale_bytes()), Bytes(saved.held_bytes())});
  }
  const v1::SavedBytes& sum = variant.saved_bytes();
  table.AddRow(
      {"together", "", "", Bytes(sum.bytes()), Bytes(sum.scale_bytes()), Bytes(sum.held_bytes())});
  table.Print(out, uses_colour);
  out << "Saved for backward, each tensor once; held: by parameters and cached weights anyway.\n"
      << (has_shared ? "* without what an operand before it has too.\n" : "") << "\n";
}

/// Prints how much of each output's error every stage makes.
void PrintErrorBudgets(const v1::VariantReport& variant, bool uses_colour, std::ostream& out) {
  if (variant.error_budgets().empty()) return;
  TextTable table({"output", "<error made by", "share", "rms", "mean", "largest"});
  for (const v1::ErrorBudget& budget : variant.error_budgets()) {
    const auto add = [&](const std::string& tensor, const v1::BudgetTerm& term) {
      table.AddRow({tensor, term.stage(), absl::StrFormat("%.2f %%", 100 * term.share()),
                    ShortReal(term.rms()), ShortReal(term.mean()), ShortReal(term.max_abs())});
    };
    add(budget.tensor(), budget.total());
    for (const v1::BudgetTerm& term : budget.terms()) add("", term);
  }
  table.Print(out, uses_colour);
  out << "\n";
}

void PrintVariant(const v1::VariantReport& variant, bool uses_colour, std::ostream& out) {
  out << Toned(variant.label(), Tone::kBold, uses_colour) << "  (" << WhatRanText(variant)
      << ")\n\n";
  PrintOutputs(variant, uses_colour, out);
  PrintQuantizations(variant, uses_colour, out);
  PrintSaved(variant, uses_colour, out);
  PrintErrorBudgets(variant, uses_colour, out);
  for (const v1::GemmLine& gemm : variant.gemms()) {
    out << gemm.role() << (gemm.output().empty() ? "" : " " + gemm.output()) << ": " << gemm.text()
        << "\n    a: " << gemm.a_source() << "; b: " << gemm.b_source() << "\n";
    if (!gemm.note().empty()) out << "    " << gemm.note() << "\n";
    if (!gemm.algorithm().empty()) {
      out << "    ran: " << gemm.arithmetic() << ", " << gemm.algorithm() << "\n";
    }
  }
  std::vector<std::string> times;
  for (const v1::StageTime& stage : variant.stages()) {
    times.push_back(absl::StrCat(stage.stage(), " ", Seconds(stage.seconds())));
  }
  if (!times.empty()) out << "\n" << Wrapped("time:", times) << "\n\n";
}

/// Prints what each rank did, for the variants on several ranks.
void PrintRanks(const v1::RunReport& run, bool uses_colour, std::ostream& out) {
  for (const v1::VariantReport& variant : run.variants()) {
    if (variant.ranks().empty()) continue;
    out << Toned(absl::StrCat("Ranks of ", variant.label()), Tone::kBold, uses_colour) << "\n";
    PrintRankReports(variant.ranks(), uses_colour, out);
    out << "\n";
  }
}

/// Prints which variants ran on hardware and which on models.
void PrintWhatRan(const v1::RunReport& run, std::ostream& out) {
  std::map<std::string, std::vector<std::string>> variants;
  for (int i = 0; i < run.variants_size(); ++i) {
    variants[WhatRanText(run.variants(i))].push_back(absl::StrCat("#", i));
  }
  for (const auto& [what, indices] : variants) out << Wrapped(what + ":", indices) << "\n";
  if (!variants.empty()) out << "\n";
}

void PrintDevices(const v1::Environment& environment, std::ostream& out) {
  for (const v1::DeviceDescription& device : environment.devices()) {
    out << DeviceText(device, environment) << "\n";
  }
  const std::string clock = StageClockText(environment);
  if (!clock.empty()) out << clock << "\n";
  if (environment.devices_size() > 0) out << "\n";
}

void PrintComparisons(const ReportDocument& document, bool uses_colour, std::ostream& out) {
  TextTable table(
      {"tensor", "<type", "<result", "differs", "max ulp", "SQNR dB", "rel. error", "of bound"});
  for (const SubjectComparison& comparison : document.comparisons) {
    const v1::CompareResponse& result = comparison.result;
    const v1::ParityReport& parity = result.parity();
    const bool is_equal = result.has_parity() && parity.equal();
    table.AddRow({comparison.tensor, comparison.dtype, is_equal ? "equal" : "differs",
                  result.has_parity() ? Count(parity.mismatch_count()) : "-",
                  result.has_parity() ? WorstUlpText(parity) : "-",
                  result.has_error() ? Decibels(result.error().sqnr_db()) : "-",
                  result.has_error() ? ShortReal(result.error().relative_frobenius()) : "-",
                  comparison.bound ? BoundShare(comparison.bound->worst_ratio()) : "-"});
    if (comparison.bound) {
      table.SetTone(7, comparison.bound->pass() ? Tone::kGood : Tone::kBad);
    }
    table.SetTone(2, is_equal ? Tone::kGood : Tone::kBad);
  }
  table.Print(out, uses_colour);
  for (const SubjectComparison& comparison : document.comparisons) {
    if (comparison.result.has_error()) {
      PrintNonFinite(comparison.tensor, comparison.result.error(), out);
    }
  }
  out << "\n";
  for (const SubjectComparison& comparison : document.comparisons) {
    if (!comparison.difference.empty()) {
      out << comparison.tensor << ": " << comparison.difference << "\n";
      continue;
    }
    const v1::ParityReport& parity = comparison.result.parity();
    if (parity.mismatch_count() == 0) continue;
    out << comparison.tensor << ": first " << ElementText(parity.first()) << "\n"
        << std::string(comparison.tensor.size(), ' ') << "  worst " << ElementText(parity.worst())
        << "\n";
  }
}

void PrintNotes(const ReportDocument& document, std::ostream& out) {
  for (const v1::VariantReport& variant : document.run.variants()) {
    for (const std::string& note : variant.notes()) {
      out << "note: " << variant.label() << ": " << note << "\n";
    }
  }
  for (const std::string& remark : document.remarks) out << "note: " << remark << "\n";
}

}  // namespace

void PrintVerdict(const v1::Verdict& verdict, bool uses_colour, std::ostream& out) {
  const std::string line = VerdictLine(verdict);
  if (!line.empty()) {
    out << Toned(VerdictWord(verdict), verdict.pass() ? Tone::kGood : Tone::kBad, uses_colour)
        << "  " << line << "\n";
  }
  for (const std::string& detail : VerdictDetails(verdict)) {
    out << (line.empty() ? "" : "      ") << detail << "\n";
  }
}

void PrintDiagnosis(const v1::Diagnosis& diagnosis, bool lists_tried, std::ostream& out) {
  out << diagnosis.sentence() << "\n";
  for (const std::string& figure : diagnosis.figures()) out << "  " << figure << "\n";
  if (lists_tried) {
    for (const std::string& tried : diagnosis.tried()) out << "  does not fit: " << tried << "\n";
    for (const std::string& one : diagnosis.not_tried()) out << "  not tried: " << one << "\n";
  } else if (diagnosis.tried_size() + diagnosis.not_tried_size() > 0) {
    out << "  " << Count(diagnosis.tried_size()) << " more tried, "
        << Count(diagnosis.not_tried_size()) << " not tried; --tried lists them\n";
  }
  out << "\n";
}

void PrintReport(const ReportDocument& document, bool uses_colour, std::ostream& out) {
  const v1::RunReport& run = document.run;
  if (!document.first_divergence.empty()) out << document.first_divergence << "\n\n";
  if (document.diagnosis) PrintDiagnosis(*document.diagnosis, document.lists_tried, out);
  if (document.kind == "run" && run.variants_size() == 1) {
    PrintVariant(run.variants(0), uses_colour, out);
  } else if (document.has_run && document.comparisons.empty()) {
    PrintMatrix(run, "SQNR in dB against the unquantized operands (higher is nearer)", SqnrCell,
                uses_colour, out);
    PrintSavedMatrix(run, uses_colour, out);
    PrintMatrix(run, "Elements that differ from the exact result of the variant's own operands",
                ExactCell, uses_colour, out);
    PrintMatrix(run, "Largest error as a part of its derived bound (1 is the limit)", BoundCell,
                uses_colour, out);
    if (run.has_reference()) {
      PrintMatrix(run, absl::StrCat("Elements that differ from variant #", run.reference()),
                  ReferenceCell, uses_colour, out);
    }
    PrintPairs(run, uses_colour, out);
    PrintCutLabels(run, out);
    PrintRanks(run, uses_colour, out);
    PrintWhatRan(run, out);
  }
  if (document.has_run) PrintDevices(run.environment(), out);
  if (!document.layers.empty()) {
    PrintCapturedLayers(document, uses_colour, out);
  } else if (!document.comparisons.empty()) {
    PrintComparisons(document, uses_colour, out);
  }
  PrintNotes(document, out);
  PrintVerdict(document.verdict, uses_colour, out);
}

}  // namespace quantgate
