// Operands that a linear unit is given as codes: x, the weight of a request and grad_output. They
// are read as they are where the recipe of their role has the same format, and refused elsewhere
// (docs/quantizers.md section 8.1).
#pragma once

#include <string>

#include "kernels/layer/linear/linear_unit.h"

namespace quantgate {

/// Why several ranks take no operand that is given as codes.
inline constexpr char kRanksQuantize[] =
    "ranks quantize their own parts of it; give it in high precision";

/// "mxfp8 (f8_e4m3, block_dim 1)" of one direction; "rowwise ..., columnwise ..." where they
/// differ.
std::string CodesText(const QuantizedTensor& codes);

/// Checks that the codes, perhaps outlines, are what `unit` reads of its operand of this role, or
/// that what it reads can be derived from them. INVALID_ARGUMENT naming `field`, the format given
/// and the format wanted, or the direction that is missing and why it cannot be derived.
absl::Status CheckGivenCodes(const std::string& field, TensorRole role,
                             const QuantizedTensor& codes, const LinearUnit& unit);

/// The same of a tensor whose role alone is known: that the codes are what `recipe` makes of it in
/// the directions `reads`, or that these can be derived.
absl::Status CheckCodesOfRole(const std::string& field, TensorRole role,
                              const QuantizedTensor& codes, const Recipe& recipe, Usages reads);

/// What is said of an operand that has codes in one direction, `held`, and is read in the other.
std::string DerivedNote(const std::string& name, Usages held);

/// The codes in exactly `usages`, which CheckGivenCodes found them to have or to give. `state` is
/// where a seeded bug remembers codes.
absl::StatusOr<QuantizedTensor> GivenInUsages(StepRecorder& recorder, const LinearUnit& unit,
                                              TensorRole role, QuantizedTensor codes, Usages usages,
                                              LayerState& state);

}  // namespace quantgate
