// `quantgate scenario agree`: whether runs of scenarios on several machines, engines or placements
// of ranks computed the same results, by their digests.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/options/invocation.h"

namespace quantgate {

/// v1.ScenarioResult.outcome of a scenario that was left out, which counts as neither good nor bad.
inline constexpr char kLeftOutOutcome[] = "left_out";

/// A scenario as one run has recorded it.
struct RecordedScenario {
  std::string name;
  std::string outcome;  ///< v1.ScenarioResult.outcome; empty: the run does not have it.
  std::string digest;   ///< 64 hex digits or empty.
};
struct RecordedRun {
  std::string name;  ///< The file's, without folder and extension.
  std::vector<RecordedScenario> scenarios;
};
/// Reads a file that `quantgate scenario run --format json` has written. NOT_FOUND or
/// INVALID_ARGUMENT naming the file.
absl::StatusOr<RecordedRun> ReadRecordedRun(const std::string& path);

enum class AgreementKind {
  kEqual,      ///< At least two runs have a digest, and all that have one have the same.
  kDiffers,    ///< Two digests are different.
  kNotPassed,  ///< It failed or erred in some run.
  kAbsent,     ///< Some run does not have it, or has no digest of it.
  kLeftOut,    ///< All runs but at most one have left it out: nothing to compare.
};
std::string AgreementName(AgreementKind kind);  ///< "equal", "differs", "not passed", ...

struct ScenarioAgreement {
  std::string scenario;
  AgreementKind kind = AgreementKind::kAbsent;
  std::vector<RecordedScenario> runs;  ///< One for each run.
};
/// Every scenario of any run, in the order in which they appear first.
std::vector<ScenarioAgreement> AgreementOf(const std::vector<RecordedRun>& runs);
/// Whether at least one scenario is equal, and all others are equal or left out.
bool IsAgreement(const std::vector<ScenarioAgreement>& scenarios);

/// Adds `agree` to the group of scenario commands; `examples` follow its help.
void AddScenarioAgreeCommand(CLI::App& group, Command& chosen, const char* examples);

}  // namespace quantgate
