// The vector loops of the exact GEMM, compiled once per instruction set. This header and the bodies
// include nothing that defines inline functions, so that no code for a newer instruction set can
// leak into shared symbols.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/float_format.h"

namespace quantgate {

/// How the elements of an operand are decoded to fp64.
enum class ExactElement { kF32, kBF16, kF16, kTable };
inline constexpr int kExactElementCount = 4;

/// A rows x k matrix in memory: element (row, k) lies at row * row_stride + k * k_stride, in
/// elements; one of the strides is 1.
struct ExactSource {
  const void* elements = nullptr;
  ExactElement element = ExactElement::kF32;
  const double* table = nullptr;  ///< kTable: the 256 values of an 8-bit format.
  int64_t rows = 0;
  int64_t k = 0;
  int64_t row_stride = 0;
  int64_t k_stride = 1;
  bool absolute = false;  ///< Decodes x to |x| + floor, and zero to zero.
  double floor = 0;

  /// Block scales; null: none. Element (row, k) is multiplied by
  ///   scales[row / row_block * scale_row_stride + k / k_block * scale_block_stride],
  /// or, where `absolute`, by the magnitude of that plus scale_floor, and product_floor is added to
  /// a nonzero product.
  const double* scales = nullptr;
  int row_block = 1;
  int k_block = 1;
  int64_t scale_row_stride = 0;
  int64_t scale_block_stride = 0;
  double scale_floor = 0;
  double product_floor = 0;
};

/// What bounds dot products, for each row of a panel. Not meaningful for rows with NaN or Inf.
struct ExactRowStatistics {
  double* sum_squares;  ///< Sum of x^2 in fp64, in any order.
  double* lowest_bit;  ///< Value of the lowest bit that is set in any element; +Inf for a zero row.
};

/// One row of outputs to certify:
///   v[j] = ((coefficient * scale_b[j]) * s[j] + addend[j] + bias[j]) * d_scale.
/// Arrays, also those of results, reach to the next multiple of b_panel_rows; what lies past
/// `count` is ignored.
struct ExactRow {
  int64_t count;
  const double* s;      ///< The fp64 dot products.
  double norm_a;        ///< Upper bound of ||a||_2.
  double lowest_bit_a;  ///< As in ExactRowStatistics, times 2^53.
  const double* norm_b;
  const double* lowest_bit_b;
  double relative_error;     ///< |fl(s) - s| <= relative_error * norm_a * norm_b[j].
  double coefficient;        ///< alpha * scale_a, exact.
  double coefficient_error;  ///< Relative error of coefficient * scale_b[j] itself.
  const double* scale_b;
  const double* addend;  ///< beta * c, exact.
  const double* bias;
  double d_scale;
};

/// Formats that Certify rounds to.
enum class ExactOutput { kF32, kBF16, kF16, kE4M3, kE5M2 };
inline constexpr int kExactOutputCount = 5;

/// The kernels of one instruction set.
struct ExactKernels {
  int a_panel_rows;
  int b_panel_rows;
  /// Decodes `count` columns from k_begin of rows [row, row + panel_rows) to panel[k][panel_rows];
  /// rows past the end of the source are zero.
  void (*pack[kExactElementCount])(const ExactSource& source, int64_t row, int panel_rows,
                                   int64_t k_begin, int64_t count, double* panel);
  /// Folds a packed panel into the statistics of its rows.
  void (*accumulate_statistics)(const double* panel, int panel_rows, int64_t count,
                                const ExactRowStatistics& rows);
  /// s[i][j] += sum over k of a[k][i] * b[k][j] for one panel pair, s with row stride `stride`.
  void (*multiply)(const double* a, const double* b, int64_t count, double* s, int64_t stride);
  /// Rounds a row to the format, as codes. doubt[j] != 0 means that output j is not certain or not
  /// finite. For 8-bit formats amax[j] gets the bits of f32(|v|) before d_scale.
  void (*certify[kExactOutputCount])(const ExactRow& row, uint32_t* codes, uint32_t* amax,
                                     uint8_t* doubt);
};

const ExactKernels& ExactKernelsScalar();
const ExactKernels& ExactKernelsAvx2();
const ExactKernels& ExactKernelsAvx512();

}  // namespace quantgate
