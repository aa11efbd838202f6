// Which format, block shape, scale rule and rounding made these codes? Every candidate rule is
// applied to the source, and its scales and codes are counted against the given ones. A candidate
// that matches everything is consistent with the bytes, never proven: several may be. It is
// established where enough cases stand behind each of its rules (docs/quantizers.md section 1.6).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/quantize/scale_grid.h"
#include "kernels/tensor/tensor.h"
#include "kernels/validate/explain/stochastic_spread.h"

namespace quantgate {

struct ExplainCodesRequest {
  Tensor source;  ///< f32, bf16 or f16; taken as [M][K], M the product of its leading dims.
  /// FP8 or FP6 codes, or packed FP4 (f4_e2m1x2): [M][K] or its transpose [K][M]; FP4 with the last
  /// dim halved. u8 is tried as every element type that fits.
  Tensor codes;
  /// f32, f8_e8m0 or f8_e4m3 (u8 is tried as both of them): one, or one per block of the codes as
  /// they are stored, [ceil(rows / block rows)][ceil(columns / block columns)].
  Tensor scale_inv;
  /// Of scale_inv: padded and swizzled arrays are those of ScaleArrayTypeOf for mxfp8, nvfp4 and
  /// (padded) fp8_block, of whose type and shape it must be.
  ScaleLayout scale_layout = ScaleLayout::kLogical;
  /// f32 [1]: the global amax of a two-level format, after the Hadamard transform where there was
  /// one; f32 [rows of the codes]: of each row, under row_scaled_activation. Absent: both of the
  /// source, transformed or not.
  Tensor amax;
};

struct ElementAt {
  int64_t row = 0, column = 0;  ///< Of the source as [M][K].
  uint32_t given = 0, expected = 0;
};

/// What stands behind a candidate: how many cases its rules were held to, and what they leave.
struct CodesEvidence {
  int64_t scale_distinct = 0;  ///< Distinct stored scales.
  /// Distinct amaxes of blocks whose scale no bound of the rule decides: the cases of the scale
  /// rule; and the others.
  int64_t amax_distinct = 0, amax_bound_count = 0;
  int64_t between_count = 0;  ///< Values between two codes: the cases of the rounding.
  int64_t tie_count = 0;      ///< Of these, exactly halfway between two codes.
  int64_t telling_count = 0;  ///< Values of which nearest_even makes another code.
  /// Of nearest_even: the other roundings to nearest that make the same codes of all these values.
  std::vector<std::string> untold_roundings;
  int64_t overflow_count = 0;      ///< Values whose code tells saturation from overflow.
  int64_t zero_telling_count = 0;  ///< Zeros whose sign the candidate does not keep.
  /// Codes that it does not give, but the value's other neighbour: of larger and of smaller
  /// magnitude, and how far from a tie those values lie, as a part of the codes' distance.
  int64_t step_up_count = 0, step_down_count = 0;
  double off_tie_max = 0;
  std::optional<SpreadResult> spread;  ///< Of a stochastic candidate.
};

/// One way in which the bytes may have been made, and how much of them it gives. Where several
/// descriptions make the same scales and scale every element of this source alike, it has the names
/// of all: blocks and ways to scale joined by " or ", scale rules by "; also ", the first of them
/// with its formula.
struct CodesCandidate {
  std::string element;  ///< "f8_e4m3", "f4_e2m1".
  /// "1x128", "128x128", "tensor", "16x16 replicated", "1x16 of the transpose, Hadamard-transformed
  /// (disable_rht=false)".
  std::string block;
  /// "divide: scale = f32(max / amax)"; "two_level, nvfp4_4over6_err_mode=mae,
  /// nvfp4_4over6_e4m3_max=256".
  std::string scale_rule;
  /// The library that computes so: only where the candidate is established and no other that fits
  /// is another library's.
  std::string scale_origin;
  std::set<std::string> libraries;  ///< All that compute so, whatever the evidence.
  bool has_other_names = false;     ///< Of several descriptions.
  std::string element_rule;         ///< "x * scale, nearest_even, saturate".
  bool is_deterministic = true;     ///< False: stochastic, where both neighbours of a value match.
  int64_t scale_matches = 0, scale_count = 0;
  int64_t code_matches = 0, code_count = 0;
  std::optional<ElementAt> first_difference;  ///< Of the codes.
  CodesEvidence evidence;
  /// It gives everything, and enough cases stand behind both its rules (docs/quantizers.md section
  /// 1.6).
  bool is_established = false;

  bool is_entire() const { return scale_matches == scale_count && code_matches == code_count; }
};

struct CodesExplanation {
  /// Best first: by codes and scales matched; at most kCandidatesKept. A stochastic one is there
  /// only where no other gives everything and its codes pass StochasticSpread.
  std::vector<CodesCandidate> candidates;
  int64_t tried = 0;
  /// What is certain, and what stands behind it, in sentences.
  std::vector<std::string> conclusion;
  bool is_established = false;  ///< Of any candidate.
};

inline constexpr int kCandidatesKept = 24;

/// INVALID_ARGUMENT naming the field of a tensor that no candidate takes, by its dtype and shape
/// alone: of outlines too.
absl::Status CheckExplainCodes(const ExplainCodesRequest& request);

/// Errors as CheckExplainCodes; INVALID_ARGUMENT of scale_inv where it fits no candidate's blocks.
/// Codes are compared by value class: every NaN code of a format is the same.
absl::StatusOr<CodesExplanation> ExplainCodes(const ExplainCodesRequest& request,
                                              const ExecutionContext& context);

}  // namespace quantgate
