// The sample of a GEMM's outputs on which mistakes are evaluated, in binary64.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/gemm/operand_view.h"
#include "kernels/validate/diagnosis/fit.h"

namespace quantgate {

/// One operand: its elements and their scales, as numbers.
class SampledOperand {
 public:
  /// `operand` must outlive this object. UNIMPLEMENTED for row-scaled nv16.
  static absl::StatusOr<SampledOperand> Create(const GemmOperand& operand, OperandView view);

  int64_t rows() const { return view_.rows; }
  int64_t k() const { return view_.k; }
  DType dtype() const { return view_.dtype; }
  bool has_scales() const { return operand_->scaling != ScaleMode::kNone; }
  bool has_block_scales() const { return view_.scales.has_value(); }
  /// The element as its code says, and as the same code says in another format of 8 bits, where NaN
  /// and infinities are 0.
  double Code(int64_t row, int64_t k) const;
  double CodeIn(const std::string& format, int64_t row, int64_t k) const;
  double Scale(int64_t row, int64_t k) const;
  /// The scale where the block scales, which lie row after row, are read as if they lay K-major.
  double ScaleOfKMajor(int64_t row, int64_t k) const;
  /// The scale where they lie K-major and are read row after row: what they should have been.
  double ScaleIfKMajor(int64_t row, int64_t k) const;
  double Value(int64_t row, int64_t k) const { return Code(row, k) * Scale(row, k); }

 private:
  SampledOperand(const GemmOperand& operand, OperandView view)
      : operand_(&operand), view_(std::move(view)) {}
  const GemmOperand* operand_;
  OperandView view_;
  std::vector<float> decoded_;  ///< By code, of formats of at most 8 bits.
};

/// Element (row, k) of an operand under some mistake.
using ElementRule = std::function<double(int64_t row, int64_t k)>;

struct GemmSample {
  std::vector<int64_t> rows, columns;
  int64_t k = 0;

  /// The sums over k in [begin, end) of a(row, k) * b(column, k), each rounded to f32.
  std::vector<float> Sums(const ElementRule& a, const ElementRule& b, int64_t begin,
                          int64_t end) const;
  std::vector<float> Sums(const ElementRule& a, const ElementRule& b) const {
    return Sums(a, b, 0, k);
  }
};

}  // namespace quantgate
