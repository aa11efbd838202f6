// Codes and scales written out by hand, with their values: small integers and scales of 1 and 2,
// by the encodings and layouts of docs/quantizers.md and docs/file-formats.md. Nothing here is
// computed by a quantizer, and the two directions of a tensor have different values, so that a test
// sees which one was read.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/tensor/quantized_tensor.h"

namespace quantgate {

/// What hand-made codes are of.
struct HandRule {
  QuantizerFormat format = QuantizerFormat::kMxfp8;
  DType element = DType::kF8E4M3;
  int block_dim = 1;
};

/// One direction of a tensor: its codes, and their values in row-major order of the tensor.
struct HandDirection {
  QuantizedCopy copy;
  std::vector<float> values;
};

/// The magnitudes 0 to 4 in each element format.
inline uint8_t HandCode(DType element, int value) {
  constexpr uint8_t kE4M3[] = {0x00, 0x38, 0x40, 0x44, 0x48};
  constexpr uint8_t kE5M2[] = {0x00, 0x3C, 0x40, 0x42, 0x44};
  constexpr uint8_t kE2M1[] = {0x0, 0x2, 0x4, 0x5, 0x6};
  const int magnitude = std::abs(value);
  if (element == DType::kF4E2M1x2) {
    return static_cast<uint8_t>(kE2M1[magnitude] | (value < 0 ? 0x8 : 0));
  }
  const uint8_t code = element == DType::kF8E4M3 ? kE4M3[magnitude] : kE5M2[magnitude];
  return static_cast<uint8_t>(code | (value < 0 ? 0x80 : 0));
}

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Makes one direction of a rows x columns tensor from integers that `seed` chooses.
class HandMaker {
 public:
  HandMaker(const HandRule& rule, Usage usage, int64_t rows, int64_t columns, int seed)
      : rule_(rule), usage_(usage), rows_(rows), columns_(columns), seed_(seed) {}

  HandDirection Make() const {
    HandDirection made;
    made.copy.format = rule_.format;
    made.copy.element = rule_.element;
    made.copy.block_dim = rule_.block_dim;
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t column = 0; column < columns_; ++column) {
        made.values.push_back(
            std::ldexp(static_cast<float>(Integer(row, column)), Exponent(row, column)));
      }
    }
    made.copy.data = Data();
    made.copy.scale_inv = Scales();
    return made;
  }

 private:
  bool is_rowwise() const { return usage_ == Usage::kRowwise; }
  bool is_turned() const { return !is_rowwise() && rule_.format != QuantizerFormat::kMxfp8; }
  int64_t block() const {
    return rule_.format == QuantizerFormat::kMxfp8   ? 32
           : rule_.format == QuantizerFormat::kNvfp4 ? 16
                                                     : 128;
  }
  int Integer(int64_t row, int64_t column) const {
    return static_cast<int>((row * 7 + column * 3 + row * column + seed_ * 5) % 5) - 2;
  }
  /// The scale of the element's block is 2 to this power.
  int Exponent(int64_t row, int64_t column) const {
    if (rule_.format == QuantizerFormat::kFp8Tensor) return 1;
    const int64_t along_rows = rule_.block_dim == 2 || !is_rowwise() ? row / block() : row;
    const int64_t along_columns = rule_.block_dim == 2 || is_rowwise() ? column / block() : column;
    return static_cast<int>((along_rows + along_columns + seed_) % 2);
  }

  Tensor Data() const {
    const bool is_packed = rule_.element == DType::kF4E2M1x2;
    const int64_t lines = is_turned() ? columns_ : rows_;
    const int64_t length = is_turned() ? rows_ : columns_;
    Tensor data = *Tensor::Allocate(rule_.element, {lines, is_packed ? length / 2 : length});
    const auto code = [&](int64_t line, int64_t at) {
      return HandCode(rule_.element, is_turned() ? Integer(at, line) : Integer(line, at));
    };
    uint8_t* to = data.as<uint8_t>();
    for (int64_t line = 0; line < lines; ++line) {
      for (int64_t at = 0; at < length; at += is_packed ? 2 : 1) {
        const int high = is_packed ? code(line, at + 1) << 4 : 0;
        *to++ = static_cast<uint8_t>(code(line, at) | high);
      }
    }
    return data;
  }

  Tensor Scales() const {
    if (rule_.format == QuantizerFormat::kFp8Tensor) return *Tensor::FromScalar(2.0f);
    const bool is_grid = rule_.block_dim == 2 && rule_.format == QuantizerFormat::kFp8Block;
    // Sides of the array along the tensor's rows and columns.
    const int64_t rows = is_grid || !is_rowwise() ? CeilDiv(rows_, block()) : rows_;
    const int64_t columns = is_grid || is_rowwise() ? CeilDiv(columns_, block()) : columns_;
    const int64_t row_step = is_grid || !is_rowwise() ? block() : 1;
    const int64_t column_step = is_grid || is_rowwise() ? block() : 1;
    const int64_t lines = is_turned() ? columns : rows;
    const int64_t length = is_turned() ? rows : columns;
    const DType dtype = rule_.format == QuantizerFormat::kFp8Block ? DType::kF32
                        : rule_.format == QuantizerFormat::kMxfp8  ? DType::kF8E8M0
                                                                   : DType::kF8E4M3;
    Tensor scales = *Tensor::Allocate(dtype, {lines, length});
    for (int64_t line = 0; line < lines; ++line) {
      for (int64_t at = 0; at < length; ++at) {
        const int64_t row = (is_turned() ? at : line) * row_step;
        const int64_t column = (is_turned() ? line : at) * column_step;
        const int exponent = Exponent(row, column);
        const int64_t index = line * length + at;
        if (dtype == DType::kF32) {
          scales.as<float>()[index] = exponent == 0 ? 1.0f : 2.0f;
        } else if (dtype == DType::kF8E8M0) {
          scales.as<uint8_t>()[index] = exponent == 0 ? 127 : 128;
        } else {
          scales.as<uint8_t>()[index] = exponent == 0 ? 0x38 : 0x40;
        }
      }
    }
    return scales;
  }

  const HandRule rule_;
  const Usage usage_;
  const int64_t rows_, columns_;
  const int seed_;
};

/// A tensor with both directions, of different values.
struct HandTensor {
  QuantizedTensor codes;
  std::vector<float> rowwise, columnwise;

  HandTensor(const HandRule& rule, int64_t rows, int64_t columns, int seed) {
    HandDirection of_rows = HandMaker(rule, Usage::kRowwise, rows, columns, seed).Make();
    HandDirection of_columns = HandMaker(rule, Usage::kColumnwise, rows, columns, seed + 1).Make();
    codes.source_dtype = DType::kF32;
    codes.shape = {rows, columns};
    codes.rowwise = std::move(of_rows.copy);
    codes.columnwise = std::move(of_columns.copy);
    rowwise = std::move(of_rows.values);
    columnwise = std::move(of_columns.values);
  }
};

/// sum over k of a(i, k) b(k, j) for `rows` x `columns` results, by indices into `a` and `b`.
template <typename A, typename B>
std::vector<float> SumsOf(int64_t rows, int64_t columns, int64_t depth, A a, B b) {
  std::vector<float> sums(rows * columns);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t k = 0; k < depth; ++k) sums[i * columns + j] += a(i, k) * b(k, j);
    }
  }
  return sums;
}

}  // namespace quantgate
