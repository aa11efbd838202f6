// Which arithmetic made this result? Every named arithmetic that takes the operands, and families
// of rules that no GPU may have (chunk length, fraction bits, promotion interval, split-K), are
// evaluated and their outputs counted against the given ones. A rule that reproduces everything is
// consistent with the result, never proven: several may be, and every one is listed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

struct ExplainGemmRequest {
  /// Operands and epilogue of the GEMM; its arithmetic and out_dtype are not looked at.
  GemmDesc desc;
  Tensor d;  ///< [m][n] of f32, bf16, f16 or FP8: what is to be explained.
};

struct OutputAt {
  int64_t row = 0, column = 0;
  uint32_t given = 0, expected = 0;  ///< Bits in d's type.
};

struct GemmCandidate {
  std::string arithmetic;  ///< "sm90:split"; several where their rules are one; empty: no name.
  std::string rule;        ///< "L=32 F=13 out=13, promoted every 128 of k".
  int64_t match_count = 0;
  int64_t output_count = 0;   ///< Outputs compared: all, some thousands, or a part of the sample.
  bool gives_sample = false;  ///< Every output of the sample.
  /// Where it differs from d. Beside a candidate that is entire, this output tells them apart.
  std::optional<OutputAt> first_difference;

  bool is_entire() const { return match_count == output_count; }
};

struct GemmExplanation {
  /// Best first, named before unnamed; at most kGemmCandidatesKept.
  std::vector<GemmCandidate> candidates;
  int64_t tried = 0;
  int64_t sample_count = 0;  ///< Outputs that every candidate was evaluated on.
};

inline constexpr int kGemmCandidatesKept = 24;

/// The GEMM's shape. INVALID_ARGUMENT as CheckGemm says, or where d is not of that shape: by dtypes
/// and shapes alone, of outlines too.
absl::StatusOr<GemmShape> CheckExplainGemm(const ExplainGemmRequest& request);

/// Errors as CheckExplainGemm. NaN outputs are equal to
/// each other.
absl::StatusOr<GemmExplanation> ExplainGemm(const ExplainGemmRequest& request,
                                            const ExecutionContext& context);

}  // namespace quantgate
