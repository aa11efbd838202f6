// The ways in which codes of levels, their scales and zero points may lie in the tensors of
// ExplainCodesRequest: spellings of codes, groups, and orders of scales.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/numerics/level_rule.h"
#include "kernels/tensor/quantized_tensor.h"
#include "kernels/validate/explain/explain_codes.h"

namespace quantgate {

/// How codes lie in bytes.
enum class LevelPacking {
  kOneToAByte,
  kLowFirst,   ///< Two to a byte, the even index in the low nibble; also eight to an i32.
  kHighFirst,  ///< Two to a byte, the even index in the high nibble.
  kHalves,     ///< The first half of all codes in the low nibbles, the second in the high ones.
};

/// The codes as those of an element, in one spelling.
struct LevelReading {
  DType element = DType::kI8;  ///< Of the formats of levels.
  LevelPacking packing = LevelPacking::kOneToAByte;
  bool transposed = false;
  bool is_i32 = false;
  int offset = 0;  ///< What is stored is the number of the level plus this.
  const uint8_t* bytes = nullptr;
  int64_t rows = 0, columns = 0;  ///< Of the source.
  int64_t stride = 0;             ///< Codes from one stored line to the next.

  /// The code of an element of the source, as CodeOfNumber has it.
  uint8_t CodeAt(int64_t row, int64_t column) const {
    const int64_t at = transposed ? column * stride + row : row * stride + column;
    if (packing == LevelPacking::kOneToAByte) {
      return static_cast<uint8_t>((bytes[at] - offset) & mask());
    }
    uint8_t nibble = 0;
    if (packing == LevelPacking::kHalves) {
      const int64_t half = (rows * columns + 1) / 2;
      nibble = at < half ? bytes[at] & 15 : bytes[at - half] >> 4;
    } else {
      const bool is_high = (at % 2 == 0) == (packing == LevelPacking::kHighFirst);
      nibble = is_high ? bytes[at / 2] >> 4 : bytes[at / 2] & 15;
    }
    return static_cast<uint8_t>((nibble - offset) & 15);
  }
  /// "i4x2, one to a byte, stored plus 8".
  std::string Text() const;

 private:
  int mask() const { return CodesPerElement(element) == 1 ? 255 : 15; }
};

/// Every spelling that dtype, size and values of the codes allow; the usual one first.
std::vector<LevelReading> LevelReadingsOf(const Tensor& codes, int64_t rows, int64_t columns);

/// Zero points in the order of groups.
struct LevelZeros {
  std::vector<float> values;
  bool are_nibbles = false;  ///< Numbers of four bits whose sign is not known.
};

/// Elements that share a scale, and the stored scales and zero points in the order of groups.
struct LevelGroups {
  Usage usage = Usage::kRowwise;  ///< Groups are of rows, or of columns.
  int group = kLineGroup;         ///< QuantizerSpec::group.
  bool is_flat = false;           ///< Of the tensor in row-major order: runs, or the whole.
  int64_t rows = 0, columns = 0;  ///< Of the source.
  int64_t lines = 0, length = 0;  ///< Of what is divided.
  int64_t unit = 0, across = 0;   ///< Elements of a whole group, and groups along a line.
  bool is_turned = false;         ///< Scales are stored group after group, not line after line.
  std::vector<float> scales;
  std::vector<LevelZeros> zeros;  ///< Each way to read them; empty: none are given.

  int64_t count() const { return lines * across; }
  bool has_runs() const { return is_flat && group != kTensorGroup; }
  int64_t GroupOf(int64_t row, int64_t column) const {
    if (is_flat) return (row * columns + column) / unit;
    return usage == Usage::kRowwise ? row * across + column / unit : column * across + row / unit;
  }
  /// "row", "32 elements of a column, scales column after column".
  std::string Text() const;
};

/// Every division into groups that has as many as there are scales. `with_runs`: also into runs,
/// which codes of tables alone have. INVALID_ARGUMENT naming zero_point if it fits none of them.
absl::StatusOr<std::vector<LevelGroups>> LevelGroupsOf(const ExplainCodesRequest& request,
                                                       bool with_runs);

/// What rules read of each group. `values`: the source in row-major order.
std::vector<GroupExtremes> ExtremesOf(const LevelGroups& groups, const std::vector<float>& values,
                                      const ExecutionContext& context);

}  // namespace quantgate
