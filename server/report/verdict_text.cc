#include "server/report/verdict_text.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/non_finite.h"

namespace quantgate {
namespace {

/// Whether some input has NaN or infinities. Quantization may saturate them, and no output shows
/// them then.
bool HaveInputsAny(const v1::Verdict& verdict) {
  return !verdict.non_finite_inputs().empty() && verdict.non_finite_inputs() != kNoInputHasAny;
}

}  // namespace

std::string VerdictWord(const v1::Verdict& verdict) {
  if (verdict.criterion() == v1::REQUIREMENT_UNSPECIFIED) return "REPORT";
  return verdict.pass() ? "PASS" : "FAIL";
}

std::string RequiredText(const v1::Verdict& verdict) {
  return verdict.source().empty() ? verdict.threshold()
                                  : absl::StrCat(verdict.threshold(), " (", verdict.source(), ")");
}

std::string VerdictLine(const v1::Verdict& verdict) {
  if (verdict.criterion() == v1::REQUIREMENT_UNSPECIFIED) return "";
  return absl::StrCat("required: ", RequiredText(verdict),
                      verdict.found().empty() ? "" : absl::StrCat("; found: ", verdict.found()),
                      HaveInputsAny(verdict) ? "; inputs: " : "",
                      HaveInputsAny(verdict) ? verdict.non_finite_inputs() : "");
}

std::vector<std::string> VerdictDetails(const v1::Verdict& verdict) {
  std::vector<std::string> details;
  if (!verdict.finding().empty()) details.push_back(verdict.finding());
  if (!verdict.non_finite().empty()) {
    details.push_back(absl::StrCat(
        "not finite: ", verdict.non_finite(),
        verdict.non_finite_inputs().empty() ? "" : "; inputs: ", verdict.non_finite_inputs()));
  } else if (HaveInputsAny(verdict) && verdict.criterion() == v1::REQUIREMENT_UNSPECIFIED) {
    // A verdict that required nothing has no line, so its inputs are listed here.
    details.push_back(absl::StrCat("inputs: ", verdict.non_finite_inputs()));
  }
  return details;
}

}  // namespace quantgate
