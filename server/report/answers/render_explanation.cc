#include "server/report/answers/render_explanation.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "server/report/text_table.h"

namespace quantgate {
namespace {

using Response = v1::ExplainResponse;

bool IsEntire(const Response::GemmCandidate& candidate) {
  return candidate.match_count() == candidate.output_count();
}
template <typename Candidate>
std::string FirstDifferenceText(const Candidate& candidate) {
  if (!candidate.has_first_difference()) return "";
  const Response::Difference& at = candidate.first_difference();
  return absl::StrFormat("(%d, %d): 0x%x, not 0x%x", at.row(), at.column(), at.given(),
                         at.expected());
}

std::string MatchText(int64_t matches, int64_t count) {
  return absl::StrCat(matches, " of ", count);
}

int CountEntire(const Response& response) {
  int entire = 0;
  for (const auto& candidate : response.gemm()) entire += IsEntire(candidate) ? 1 : 0;
  return entire;
}

std::string GemmConclusion(int entire, bool is_established) {
  if (entire == 0) return "nothing tried gives all of what was compared";
  if (!is_established) {
    return "no rule is established: every named arithmetic gives all of what was compared, so that "
           "this data tells none from another";
  }
  if (entire == 1) return "one candidate gives all of what was compared";
  return absl::StrCat(entire,
                      " candidates give all of what was compared; this data does not tell "
                      "them apart");
}

/// Whether two rules without a name agree with d in as many outputs and leave it in the same place.
bool IsEqual(const Response::GemmCandidate& one, const Response::GemmCandidate& other) {
  return one.arithmetic().empty() && other.arithmetic().empty() &&
         one.match_count() == other.match_count() && one.output_count() == other.output_count() &&
         FirstDifferenceText(one) == FirstDifferenceText(other);
}

/// Equal candidates are one row. 100 columns: 16 of matches, 22 of names, 33 of the rule, and a
/// difference of at most 29.
void PrintGemmCandidates(const Response& response, bool uses_colour, std::ostream& out) {
  if (response.has_diagnosis()) out << response.diagnosis().sentence() << "\n\n";
  TextTable table({"matches", "<arithmetic", "<rule", "<first difference"});
  for (int i = 0; i < response.gemm_size(); ++i) {
    const Response::GemmCandidate& candidate = response.gemm(i);
    int equal = 0;
    while (i + 1 < response.gemm_size() && IsEqual(candidate, response.gemm(i + 1))) {
      ++equal;
      ++i;
    }
    const std::string more = equal == 0 ? "" : absl::StrCat(", and ", equal, " equal");
    table.AddRow({MatchText(candidate.match_count(), candidate.output_count()),
                  candidate.arithmetic().empty() ? "-" : Cut(candidate.arithmetic(), 22),
                  absl::StrCat(Cut(candidate.rule(), 33 - more.size()), more),
                  FirstDifferenceText(candidate)});
    if (IsEntire(candidate) && response.is_established()) table.SetTone(0, Tone::kGood);
  }
  table.Print(out, uses_colour);
  out << response.tried() << " rules on a sample of " << response.sample_count()
      << " outputs; the best named ones on all.\n"
      << GemmConclusion(CountEntire(response), response.is_established()) << "\n";
}

/// Words on lines of at most kTableColumns, the second and later ones behind `indent` spaces.
void PrintWords(std::ostream& out, const std::string& text, size_t indent) {
  std::string line;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (!line.empty() && line.size() + 1 + word.size() > kTableColumns) {
      out << line << "\n";
      line = std::string(indent, ' ') + std::string(word);
    } else {
      absl::StrAppend(&line, line.empty() ? "" : " ", word);
    }
  }
  out << line << "\n";
}

/// The table, and below it what is too long for it, row by row.
void PrintCodesCandidates(const Response& response, bool uses_colour, std::ostream& out) {
  TextTable table({"row", "codes", "scales", "ties", "<element", "<block", "<library"});
  int shown = 0;
  for (const Response::CodesCandidate& candidate : response.codes()) {
    table.AddRow({absl::StrCat(++shown),
                  MatchText(candidate.code_match_count(), candidate.code_count()),
                  MatchText(candidate.scale_match_count(), candidate.scale_count()),
                  absl::StrCat(candidate.tie_count()), Cut(candidate.element(), 10),
                  Cut(candidate.block(), 14), Cut(candidate.scale_origin(), 17)});
    if (candidate.is_established()) table.SetTone(1, Tone::kGood);
  }
  if (response.codes_size() > 0) table.Print(out, uses_colour);
  int row = 0;
  for (const Response::CodesCandidate& candidate : response.codes()) {
    std::vector<std::string> parts = {candidate.block(), candidate.scale_rule(),
                                      candidate.element_rule()};
    if (!candidate.scale_origin().empty()) parts.push_back(candidate.scale_origin());
    const std::string difference = FirstDifferenceText(candidate);
    if (!difference.empty()) parts.push_back(absl::StrCat("first difference ", difference));
    PrintWords(out, absl::StrCat("  ", ++row, ": ", absl::StrJoin(parts, " | ")), 5);
  }
  out << response.tried() << " candidates tried.\n";
  for (const std::string& line : response.conclusion()) PrintWords(out, line, 2);
}

}  // namespace

void PrintExplanation(const v1::ExplainResponse& response, bool uses_colour, std::ostream& out) {
  if (response.gemm_size() > 0) {
    PrintGemmCandidates(response, uses_colour, out);
  } else {
    PrintCodesCandidates(response, uses_colour, out);
  }
}

}  // namespace quantgate
