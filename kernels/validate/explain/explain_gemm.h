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
  /// Operands and epilogue of the GEMM; its arithmetic and out_dtype are ignored.
  GemmDesc desc;
  Tensor d;  ///< The result to be explained: [m][n] of f32, bf16, f16 or FP8.
};

struct OutputAt {
  int64_t row = 0, column = 0;
  uint32_t given = 0, expected = 0;  ///< Bits in d's dtype.
};

struct GemmCandidate {
  std::string arithmetic;  ///< "sm90:split"; several names for one rule; empty if it has none.
  std::string rule;        ///< "L=32 F=13 out=13, promoted every 128 of k".
  int64_t match_count = 0;
  int64_t output_count = 0;   ///< Outputs compared: all, some thousands, or a part of the sample.
  bool gives_sample = false;  ///< Whether it gives every output of the sample.
  /// The first output that differs from d, which tells it from candidates that give all outputs.
  std::optional<OutputAt> first_difference;

  bool is_entire() const { return match_count == output_count; }
};

struct GemmExplanation {
  /// Best first, named before unnamed; at most kGemmCandidatesKept.
  std::vector<GemmCandidate> candidates;
  int64_t tried = 0;
  int64_t sample_count = 0;  ///< Outputs that every candidate was evaluated on.
  /// Some candidate gives all outputs that it was compared on, and a named arithmetic does not give
  /// all of its: where every named one does, as of zeros, NaN or small integers, d tells nothing.
  bool is_established = false;
};

inline constexpr int kGemmCandidatesKept = 24;

/// Checks dtypes and shapes, and gives the GEMM's shape; tensors may be outlines. INVALID_ARGUMENT
/// as CheckGemm, or if d does not have that shape.
absl::StatusOr<GemmShape> CheckExplainGemm(const ExplainGemmRequest& request);

/// Tries every candidate. Errors as CheckExplainGemm. All NaN outputs count as equal.
absl::StatusOr<GemmExplanation> ExplainGemm(const ExplainGemmRequest& request,
                                            const ExecutionContext& context);

}  // namespace quantgate
