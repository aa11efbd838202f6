// Exit codes of the command line, documented and stable (docs/definitions.md section 10).
#pragma once

#include "absl/status/status.h"

namespace quantgate {

enum ExitCode : int {
  kExitOk = 0,
  kExitCriterionFailed = 1,  ///< A stated criterion failed: bits differ, a bound is exceeded.
  kExitUsage = 2,            ///< The request is wrong, or names something that does not exist.
  kExitService = 4,          ///< The service is unavailable or failed.
  kExitPermission = 6,
  kExitExhausted = 7,    ///< A limit, a quota, the disk, memory.
  kExitDeadline = 124,   ///< As timeout(1).
  kExitCancelled = 130,  ///< As a shell after Ctrl-C.
};

ExitCode ExitCodeOf(const absl::Status& status);

}  // namespace quantgate
