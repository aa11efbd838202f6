// Which format, block shape, scale rule and rounding made these codes? Every candidate rule is
// applied to the source, and its scales and codes are counted against the given ones. A candidate
// that matches everything is consistent with the bytes, never proven: several may be.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

struct ExplainCodesRequest {
  Tensor source;  ///< f32, bf16 or f16; taken as [M][K], M the product of its leading dims.
  /// FP8 or FP6 codes, or packed FP4 (f4_e2m1x2): [M][K] or its transpose [K][M]; FP4 with the last
  /// dim halved. u8 is tried as every element type that fits.
  Tensor codes;
  /// f32, f8_e8m0 or f8_e4m3 (u8 is tried as both of them): one, or one per block of the codes as
  /// they are stored, [ceil(rows / block rows)][ceil(columns / block columns)].
  Tensor scale_inv;
  /// f32 [1]: the global amax of a two-level format, after the Hadamard transform where there was
  /// one; absent: of the source, transformed or not.
  Tensor amax;
};

struct ElementAt {
  int64_t row = 0, column = 0;  ///< Of the source as [M][K].
  uint32_t given = 0, expected = 0;
};

/// One way in which the bytes may have been made, and how much of them it gives.
struct CodesCandidate {
  std::string element;  ///< "f8_e4m3", "f4_e2m1".
  /// "1x128", "128x128", "tensor", "16x16 replicated", "1x16 of the transpose, Hadamard-transformed
  /// (disable_rht=false)".
  std::string block;
  /// "divide: scale = f32(max / amax)"; "two_level, nvfp4_4over6_err_mode=mae,
  /// nvfp4_4over6_e4m3_max=256".
  std::string scale_rule;
  std::string scale_origin;      ///< Who computes scales so: "Transformer Engine current scaling".
  std::string element_rule;      ///< "x * scale, nearest_even, saturate".
  bool is_deterministic = true;  ///< False: stochastic, where both neighbours of a value match.
  int64_t scale_matches = 0, scale_count = 0;
  int64_t code_matches = 0, code_count = 0;
  std::optional<ElementAt> first_difference;  ///< Of the codes.

  bool is_entire() const { return scale_matches == scale_count && code_matches == code_count; }
};

struct CodesExplanation {
  /// Best first: by codes and scales matched; at most kCandidatesKept.
  std::vector<CodesCandidate> candidates;
  int64_t tried = 0;
};

inline constexpr int kCandidatesKept = 24;

/// INVALID_ARGUMENT naming the field where shapes do not fit together under any candidate.
/// Codes are compared by value class: every NaN code of a format is the same.
absl::StatusOr<CodesExplanation> ExplainCodes(const ExplainCodesRequest& request,
                                              const ExecutionContext& context);

}  // namespace quantgate
