// Checks of the engine's quantizations against the expected ones (expected_copy.h).
#pragma once

#include <string_view>

#include "kernels/quantize/recipe/recipe.h"
#include "kernels/validate/scenarios/scenario_context.h"

namespace quantgate {

/// Quantizes a host tensor on the engine under test.
absl::StatusOr<QuantizedTensor> QuantizeOn(ScenarioContext& context, const Tensor& source,
                                           const Quantizer& quantizer, Usages usages,
                                           const QuantizeArguments& arguments = {});

/// Expects equal shapes and copies; `expected` is on the host.
absl::Status ExpectSameQuantization(ScenarioContext& context, std::string_view tensor,
                                    const QuantizedTensor& subject,
                                    const QuantizedTensor& expected);

/// Expects QuantizeOn to give what ExpectedQuantization gives.
absl::Status ExpectQuantizesAsSpecified(ScenarioContext& context, std::string_view tensor,
                                        const Tensor& source, const Quantizer& quantizer,
                                        Usages usages, const QuantizeArguments& arguments = {});

/// Expects dequantizing a copy of `quantized` to give the values of its codes and scales, in the
/// source's shape.
absl::Status ExpectDequantizesAsSpecified(ScenarioContext& context, std::string_view tensor,
                                          const QuantizedTensor& quantized, Usage usage, DType out);

/// `quantized`, whose copies are in the engine's memory, with its copies on the host.
absl::StatusOr<QuantizedTensor> CopiesOnHost(Engine& engine, const QuantizedTensor& quantized);

}  // namespace quantgate
