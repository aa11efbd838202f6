// What became of scales: whether given ones are those that they should be, changed in one of the
// ways in which scales go wrong.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/tensor/dtype.h"

namespace quantgate {

/// The scales that there should be, row by row.
struct OwnScaleArray {
  DType dtype;       ///< kF32, kF8E8M0 or kF8E4M3.
  bool keeps_scale;  ///< Whether they multiply elements.
  int64_t rows, columns;
  std::vector<uint32_t> bits;
};

struct GivenScaleArray {
  int64_t rows, columns;
  const std::vector<uint32_t>* bits;  ///< Not owned.
};

struct ChangedScales {
  std::string what;  ///< "scales lie K-major".
  std::string how;   ///< "the given ones are these rounded to bf16".
};

/// The change that makes all of the given scales of the own ones; absent if they are equal or none
/// does.
std::optional<ChangedScales> ChangeOfScales(const OwnScaleArray& own, const GivenScaleArray& given);

/// Says that the given scales are another tensor's; absent if they have another shape, or agree
/// with the own ones more often than those of another tensor would, by four standard deviations, or
/// are the same in another order.
std::optional<ChangedScales> ScalesOfAnother(const OwnScaleArray& own,
                                             const GivenScaleArray& given);

}  // namespace quantgate
