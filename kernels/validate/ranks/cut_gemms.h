// What cutting a GEMM into several, so that communication can run beside it, did to its bits
// (docs/ranks.md section 10.5). A model's bits do not depend on it; cuBLASLt may take another
// kernel for another shape.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/validate/ranks/parallel_run.h"

namespace quantgate {

/// Of every GEMM that hardware ran in several pieces, a line that says how many elements have other
/// bits than the same GEMM in one, over all ranks; which algorithms ran; and, where bits differ,
/// which arithmetics explain finds in either. Runs those GEMMs again, on the ranks' engines.
absl::StatusOr<std::vector<std::string>> CutGemmNotes(std::span<const RankStep> ranks,
                                                      const Cancellation* cancellation);

}  // namespace quantgate
