// A quantization by the engine beside the one that must come out.
#pragma once

#include <string_view>

#include "kernels/quantize/recipe/recipe.h"
#include "kernels/validate/scenarios/scenario_context.h"

namespace quantgate {

/// Of a host tensor, by the engine.
absl::StatusOr<QuantizedTensor> QuantizeOn(ScenarioContext& context, const Tensor& source,
                                           const Quantizer& quantizer, Usages usages,
                                           const QuantizeArguments& arguments = {});

/// Shape and both copies; `expected` on the host.
absl::Status ExpectSameQuantization(ScenarioContext& context, std::string_view tensor,
                                    const QuantizedTensor& subject,
                                    const QuantizedTensor& expected);

/// QuantizeOn gives what ExpectedQuantization gives.
absl::Status ExpectQuantizesAsSpecified(ScenarioContext& context, std::string_view tensor,
                                        const Tensor& source, const Quantizer& quantizer,
                                        Usages usages, const QuantizeArguments& arguments = {});

/// Dequantizing a copy of `quantized` gives what its codes and scales say, in the source's shape.
absl::Status ExpectDequantizesAsSpecified(ScenarioContext& context, std::string_view tensor,
                                          const QuantizedTensor& quantized, Usage usage, DType out);

/// The copies, which are in the engine's memory, on the host.
absl::StatusOr<QuantizedTensor> CopiesOnHost(Engine& engine, const QuantizedTensor& quantized);

}  // namespace quantgate
