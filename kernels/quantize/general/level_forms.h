// The forms of codes of levels that each library's rule has: its elements and zero points. Private
// to kernels/quantize.
#pragma once

#include <optional>
#include <span>

#include "absl/status/status.h"
#include "kernels/quantize/quantizer.h"

namespace quantgate {

/// One form in which a library writes codes.
struct LevelForm {
  QuantizerFormat format;
  ScaleRule rule;
  DType element;
  ZeroPoint zero_point;
};
/// All forms, those of one format and rule together, the usual one first.
std::span<const LevelForm> AllLevelForms();

/// The first form with this rule and, where it is given, this zero point; else one with the
/// format's first element and that zero point, which CheckLevelForm refuses.
LevelForm FirstForm(QuantizerFormat format, ScaleRule rule, std::optional<ZeroPoint> zero_point);

/// What codes of this element number; of a format of levels.
Levels LevelsOf(DType element);

/// INVALID_ARGUMENT unless group, element, zero point and operation_dtype go with the format and
/// the rule; `spec` is of a format of levels.
absl::Status CheckLevelForm(const QuantizerSpec& spec);
/// The same of a tensor of [rows][columns] in one direction.
absl::Status CheckLevelSource(const QuantizerSpec& spec, Usage usage, int64_t rows,
                              int64_t columns);

}  // namespace quantgate
