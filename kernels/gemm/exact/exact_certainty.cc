#include "kernels/gemm/exact/exact_certainty.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "kernels/gemm/exact/exact_tile.h"

namespace quantgate {

// Error analysis of recursive summation (Higham, "Accuracy and Stability of Numerical Algorithms",
// 3.1): fused multiply-adds round sums only, so |fl(s) - s| <= gamma_d sum |a b| <= gamma_d ||a||
// ||b||, gamma_d = d u / (1 - d u), u = 2^-53. The addition to zero that opens a sum rounds too
// where fp32 block scales make products of up to 56 bits: one more. The last factor covers the
// rounding of the bound itself.
double ExactRelativeError(int64_t k) {
  const double du = static_cast<double>(ExactRoundingDepth(k) + 1) * 0x1p-53;
  return du / (1 - du) * (1 + 0x1p-40);
}

// Each square and each addition loses at most 2^-53 of the sum so far: k of each, some slack on
// top.
double ExactNormInflation(int64_t k) { return 1 + static_cast<double>(k + 16) * 0x1p-52; }

std::string ExactNote(const ExactWays& ways) {
  const double ratio = ways.largest_ratio;
  const int bits = ratio == 0 ? 0 : std::max(0, std::ilogb(ratio) + 1);
  std::string note =
      bits <= kExactFastBits
          ? absl::StrFormat("fp64 exact: needs %d of %d bits", bits, kExactFastBits)
          : absl::StrFormat("certified fp64: needs up to %d bits of %d", bits, kExactFastBits);
  if (ways.wide_dots > 0) {
    absl::StrAppendFormat(&note, ", %d of %d outputs by 704-bit integers", ways.wide_dots,
                          ways.outputs);
  }
  if (ways.wide_epilogues > 0) {
    absl::StrAppendFormat(&note, ", %d of %d epilogues by wide integers", ways.wide_epilogues,
                          ways.outputs);
  }
  return note;
}

}  // namespace quantgate
