// NaN and infinity in GEMM operands. An output with one of them among its products is NaN or
// infinite whatever the finite products are. Which of the two follows from sets of k, so the fast
// kernels need not handle NaN and infinity.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/gemm/operand_view.h"

namespace quantgate {

/// For each row of an operand the sets of k, a bit each, that are NaN (or under a NaN scale),
/// infinite, zero and negative.
class ClassSets {
 public:
  /// Finds the rows with a NaN or an infinity among their first `k_end` elements, which are those
  /// that are summed. With `tf32`, f32 operands are classified after rounding to tf32.
  ClassSets(const OperandView& view, int64_t k_end, bool tf32);

  bool any_special() const { return any_special_; }
  bool is_special(int64_t row) const { return any_special_ && special_rows_[row]; }
  /// Builds the sets of every row. Needed for both operands as soon as either has a NaN or an
  /// infinity.
  void BuildSets();

  int64_t words() const { return words_; }
  const uint64_t* nan(int64_t row) const { return set(row, 0); }
  const uint64_t* infinite(int64_t row) const { return set(row, 1); }
  const uint64_t* zero(int64_t row) const { return set(row, 2); }
  const uint64_t* negative(int64_t row) const { return set(row, 3); }

 private:
  const uint64_t* set(int64_t row, int which) const { return &sets_[(row * 4 + which) * words_]; }

  void FindSpecialElements();
  void FindNanScales();
  bool IsNanScale(int64_t row, int64_t k) const;

  const OperandView view_;
  const int64_t k_end_;
  const bool tf32_;
  const int64_t words_;
  bool any_special_ = false;
  std::vector<bool> special_rows_;
  std::vector<uint64_t> sets_;  // [rows][4][words]
};

/// The NaN and infinities among the products of one output.
struct SpecialProducts {
  bool nan = false;  ///< A NaN operand, or infinity times zero.
  bool positive_infinity = false;
  bool negative_infinity = false;
};

SpecialProducts FindSpecialProducts(const ClassSets& a, int64_t m, const ClassSets& b, int64_t n);

}  // namespace quantgate
