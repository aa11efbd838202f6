#include "kernels/validate/ranks/cut_gemms.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/gemm.h"
#include "kernels/validate/explain/explain_gemm.h"
#include "kernels/validate/run/run.h"

namespace quantgate {
namespace {

/// Of the arithmetics that give all of a result; several may.
constexpr size_t kNamesKept = 3;

/// What explain says of a result of this GEMM.
absl::StatusOr<std::string> Explained(Engine& engine, const GemmDesc& desc, const Tensor& d,
                                      const Cancellation* cancellation) {
  const auto to_host = [&](const Tensor& tensor) { return engine.ToHost(tensor, cancellation); };
  ExplainGemmRequest request;
  QG_ASSIGN_OR_RETURN(request.desc, WithTensors(desc, to_host));
  QG_ASSIGN_OR_RETURN(request.d, to_host(d));
  QG_ASSIGN_OR_RETURN(const GemmExplanation explanation,
                      ExplainGemm(request, {.cancellation = cancellation}));
  std::vector<std::string> names;
  for (const GemmCandidate& candidate : explanation.candidates) {
    if (!candidate.is_entire() || names.size() == kNamesKept) break;
    if (candidate.arithmetic.empty() && !names.empty()) break;  // Named ones come first.
    names.push_back(candidate.arithmetic.empty() ? candidate.rule : candidate.arithmetic);
  }
  if (names.empty()) return std::string("of no arithmetic that explain tries");
  return absl::StrCat("of ", absl::StrJoin(names, " or of "));
}

/// The same GEMM of every rank.
class CutGemm {
 public:
  explicit CutGemm(const GemmRecord& first) : first_(first) {}

  absl::Status Add(Engine& engine, const GemmRecord& cut, const Cancellation* cancellation) {
    QG_ASSIGN_OR_RETURN(const GemmResult whole, engine.Gemm(cut.desc, cancellation));
    QG_ASSIGN_OR_RETURN(const ParityReport parity,
                        engine.CompareBits(cut.result.d, whole.d, cancellation));
    elements_ += cut.result.d.element_count();
    differing_ += parity.mismatch_count;
    if (&cut == &first_) whole_ = TextOf(whole);
    if (parity.mismatch_count == 0 || !why_.empty()) return absl::OkStatus();
    QG_ASSIGN_OR_RETURN(const std::string in_one,
                        Explained(engine, cut.desc, whole.d, cancellation));
    QG_ASSIGN_OR_RETURN(const std::string in_pieces,
                        Explained(engine, cut.desc, cut.result.d, cancellation));
    why_ = absl::StrCat("; explain: in one the bits are ", in_one, ", cut they are ", in_pieces);
    return absl::OkStatus();
  }

  std::string Note() const {
    return absl::StrCat(first_.output, ": ", GemmText(first_.desc), " in ", first_.pieces,
                        " GEMMs has ", differing_ == 0 ? "the bits of" : "other bits than",
                        " the same in one", differing_ == 0 ? "" : CountText(),
                        "; cut: ", TextOf(first_.result), "; in one: ", whole_, why_);
  }

 private:
  static std::string TextOf(const GemmResult& result) {
    return absl::StrCat(result.arithmetic.ToString(), " (", result.note, ")");
  }
  std::string CountText() const {
    return absl::StrCat(" in ", differing_, " of ", elements_, " elements over all ranks");
  }

  const GemmRecord& first_;
  int64_t elements_ = 0, differing_ = 0;
  std::string whole_, why_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> CutGemmNotes(std::span<const RankStep> ranks,
                                                      const Cancellation* cancellation) {
  std::vector<std::string> notes;
  const std::vector<GemmRecord>& first = ranks[0].result.gemms;
  for (size_t i = 0; i < first.size(); ++i) {
    if (first[i].pieces == 1 || !GemmLineOf(first[i]).is_hardware) continue;
    CutGemm gemm(first[i]);
    for (const RankStep& rank : ranks) {
      QG_RETURN_IF_ERROR(gemm.Add(*rank.engine, rank.result.gemms[i], cancellation));
    }
    notes.push_back(gemm.Note());
  }
  return notes;
}

}  // namespace quantgate
