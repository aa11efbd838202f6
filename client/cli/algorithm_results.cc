#include "client/cli/algorithm_results.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "server/report/number_text.h"
#include "server/report/text_table.h"

namespace quantgate {
namespace {

/// "=", or how many elements differ; "amax" where only the reported amax does.
std::string EqualText(bool is_equal, int64_t mismatch_count) {
  if (is_equal) return "=";
  return mismatch_count == 0 ? "amax" : Count(mismatch_count);
}

std::string AlgorithmsVerdict(const v1::GemmResponse& response) {
  int equal = 0, modelled = 0, equal_to_model = 0;
  for (const v1::AlgorithmResult& one : response.algorithms()) {
    equal += one.equal_to_first();
    modelled += !one.model().empty();
    equal_to_model += one.equal_to_model();
  }
  const int count = response.algorithms_size();
  return absl::StrCat(count, count == 1 ? " algorithm: " : " algorithms: ", equal,
                      " with the bits of #0; ", equal_to_model, " of ", modelled,
                      " that have a model with its bits");
}

void PrintDifferences(const v1::GemmResponse& response, std::ostream& out) {
  for (const v1::AlgorithmResult& one : response.algorithms()) {
    if (one.has_first_difference()) {
      out << "#" << one.index() << " against #0: first " << ElementText(one.first_difference())
          << "\n";
    }
    if (one.has_first_model_difference()) {
      out << "#" << one.index() << " against " << one.model() << ": first "
          << ElementText(one.first_model_difference()) << "\n";
    }
  }
}

}  // namespace

void PrintAlgorithms(const v1::GemmResponse& response, bool uses_colour, std::ostream& out) {
  TextTable table({"#", "like #0", "like model", "<model", "time", "<algorithm"});
  for (const v1::AlgorithmResult& one : response.algorithms()) {
    const bool has_model = !one.model().empty();
    table.AddRow({absl::StrCat(one.index()), EqualText(one.equal_to_first(), one.mismatch_count()),
                  has_model ? EqualText(one.equal_to_model(), one.model_mismatch_count()) : "-",
                  has_model ? one.model() : "none", Seconds(one.seconds()), one.description()});
    table.SetTone(1, one.equal_to_first() ? Tone::kGood : Tone::kPlain);
    if (has_model) table.SetTone(2, one.equal_to_model() ? Tone::kGood : Tone::kBad);
  }
  out << "\n";
  table.Print(out, uses_colour);
  out << "like: = where all bits are equal, otherwise how many elements differ\n\n";
  PrintDifferences(response, out);
  out << AlgorithmsVerdict(response) << "\n";
}

}  // namespace quantgate
