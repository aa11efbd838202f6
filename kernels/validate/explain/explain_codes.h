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
  /// dim halved. u8 is tried as every element type that fits, as FNUZ too, as FP4 one to a byte and
  /// as four FP6 codes in three bytes. Codes of levels (docs/quantizers.md section 11): i8, i4x2,
  /// u4x2, nf4x2, bnb_fp4x2, i32 of eight numbers of four bits, and u8, which is tried as each of
  /// them, too; one or two to a byte, in either order, also in the order of the source in another
  /// shape.
  Tensor codes;
  /// f32, bf16, f16, f8_e8m0 or f8_e4m3 (u8 is tried as both of these): one, or one per block of
  /// the codes as they are stored, [ceil(rows / block rows)][ceil(columns / block columns)]; of
  /// several dims the last are the columns. Also transposed, rows of at most 3 more than there are
  /// blocks (a multiple of 16 bytes, for TMA); i32: four E8M0 codes of blocks of 128 columns.
  /// Of levels f32, bf16 or f16, one per group; what libraries store in their place is tried, too.
  Tensor scale_inv;
  /// Of levels alone: one, or one per group, as numbers (f32, bf16, f16) or as the codes are (i8,
  /// u8, i32, also eight of four bits to an i32).
  Tensor zero_point;
  /// The layout of scale_inv, which must have the bytes of ScaleArrayTypeOf for some format that
  /// has it.
  ScaleLayout scale_layout = ScaleLayout::kLogical;
  /// f32 [1]: the global amax of a two-level format, after the Hadamard transform if there was one.
  /// f32 [rows of the codes]: the amax of each row, under row_scaled_activation. Absent: the amaxes
  /// of the source, transformed and not, are tried.
  Tensor amax;
};

struct ElementAt {
  int64_t row = 0, column = 0;  ///< In the source as [M][K].
  uint32_t given = 0, expected = 0;
};

struct ScaleAt {
  int64_t group = 0;  ///< Line after line.
  float given = 0, expected = 0;
};

/// The evidence for a candidate: how many cases tested its rules, and which codes it does not give.
struct CodesEvidence {
  int64_t scale_distinct = 0;  ///< Distinct stored scales.
  /// Distinct amaxes of blocks whose scale the rule computes from the amax, the cases of the scale
  /// rule; and those of blocks whose scale is at a bound of the rule.
  int64_t amax_distinct = 0, amax_bound_count = 0;
  int64_t between_count = 0;  ///< Values between two codes: the cases of the rounding.
  int64_t tie_count = 0;      ///< Values exactly halfway between two codes.
  int64_t telling_count = 0;  ///< Values for which nearest_even gives another code.
  /// For nearest_even: the other roundings to nearest that give the same codes for all these
  /// values.
  std::vector<std::string> untold_roundings;
  int64_t overflow_count = 0;      ///< Values whose code tells saturation from overflow.
  int64_t zero_telling_count = 0;  ///< Zeros whose sign the candidate does not keep.
  /// Codes that it does not give but that are the value's other neighbour, of larger and of smaller
  /// magnitude.
  int64_t step_up_count = 0, step_down_count = 0;
  double off_tie_max = 0;  ///< The farthest of these from a tie, in units of the codes' distance.
  std::optional<SpreadResult> spread;  ///< Only for a stochastic candidate.
};

/// One way in which the bytes may have been made, and how much of them it reproduces. If several
/// descriptions give the same scales and scale every element of this source alike, the candidate
/// has the names of all: blocks and ways to scale are joined by " or ", scale rules by "; also ";
/// the first scale rule has its formula.
struct CodesCandidate {
  std::string element;  ///< "f8_e4m3", "f4_e2m1".
  /// "1x128", "128x128", "tensor", "16x16 replicated", "1x16 of the transpose, Hadamard-transformed
  /// (disable_rht=false)".
  std::string block;
  /// "divide: scale = f32(max / amax)"; "two_level, nvfp4_4over6_err_mode=mae,
  /// nvfp4_4over6_e4m3_max=256".
  std::string scale_rule;
  /// The library that has this rule. Set only if the candidate is established and no other
  /// established candidate belongs to another library.
  std::string scale_origin;
  std::set<std::string> libraries;  ///< All libraries that have these rules, whatever the evidence.
  bool has_other_names = false;     ///< Whether it stands for several descriptions.
  std::string element_rule;         ///< "x * scale, nearest_even, saturate".
  bool is_own_rule = false;         ///< Whether quantizers of this build have the rule.
  bool is_deterministic = true;     ///< False: stochastic; both neighbours of a value match.
  int64_t scale_matches = 0, scale_count = 0;
  int64_t zero_matches = 0,
          zero_count = 0;  ///< Zero points; none are counted where none are given.
  int64_t code_matches = 0, code_count = 0;
  std::optional<ElementAt> first_difference;  ///< The first code that does not match.
  /// Of levels: the first scale that does not match.
  std::optional<ScaleAt> first_scale_difference;
  CodesEvidence evidence;
  /// Whether it reproduces everything and enough cases tested both of its rules
  /// (docs/quantizers.md section 1.6).
  bool is_established = false;

  bool is_entire() const {
    return scale_matches == scale_count && zero_matches == zero_count && code_matches == code_count;
  }
};

struct CodesExplanation {
  /// Best first, by the numbers of codes and scales that match; at most kCandidatesKept. Has a
  /// stochastic candidate only if no other reproduces everything and its codes pass
  /// StochasticSpread.
  std::vector<CodesCandidate> candidates;
  int64_t tried = 0;
  /// Sentences that say what is certain, and on what evidence.
  std::vector<std::string> conclusion;
  bool is_established = false;  ///< Whether any candidate is.
  /// What went wrong, where these are not codes of this build's quantizers, nor of a library that
  /// is established: one of the causes of docs/quantizers.md section 1.6, or "unknown" if nothing
  /// gives all codes and scales. Else empty.
  std::string cause;
};

inline constexpr int kCandidatesKept = 24;

/// Checks dtypes and shapes; the tensors may be outlines. INVALID_ARGUMENT naming the field of a
/// tensor that no candidate takes.
absl::Status CheckExplainCodes(const ExplainCodesRequest& request);

/// Tries every candidate. Errors as CheckExplainCodes, and INVALID_ARGUMENT if scale_inv fits no
/// candidate's blocks. All NaN codes of a format count as equal.
absl::StatusOr<CodesExplanation> ExplainCodes(const ExplainCodesRequest& request,
                                              const ExecutionContext& context);

}  // namespace quantgate
