#include "kernels/validate/scenarios/oracles/quantize_checks.h"

#include <string>

#include "kernels/base/status_macros.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"

namespace quantgate {

absl::StatusOr<QuantizedTensor> QuantizeOn(ScenarioContext& context, const Tensor& source,
                                           const Quantizer& quantizer, Usages usages,
                                           const QuantizeArguments& arguments) {
  QG_ASSIGN_OR_RETURN(const Tensor on_engine, context.ToEngine(source));
  return context.engine().Quantize(on_engine, quantizer, usages, arguments, context.cancellation());
}

absl::Status ExpectSameQuantization(ScenarioContext& context, std::string_view tensor,
                                    const QuantizedTensor& subject,
                                    const QuantizedTensor& expected) {
  const std::string name(tensor);
  context.ExpectShape(name, subject.shape, expected.shape);
  QG_RETURN_IF_ERROR(context.ExpectSameCopy(name + " rowwise", subject.rowwise, expected.rowwise));
  return context.ExpectSameCopy(name + " columnwise", subject.columnwise, expected.columnwise);
}

absl::Status ExpectQuantizesAsSpecified(ScenarioContext& context, std::string_view tensor,
                                        const Tensor& source, const Quantizer& quantizer,
                                        Usages usages, const QuantizeArguments& arguments) {
  QG_ASSIGN_OR_RETURN(const QuantizedTensor subject,
                      QuantizeOn(context, source, quantizer, usages, arguments));
  QG_ASSIGN_OR_RETURN(const QuantizedTensor expected,
                      ExpectedQuantization(source, quantizer, usages, arguments));
  return ExpectSameQuantization(context, tensor, subject, expected);
}

absl::Status ExpectDequantizesAsSpecified(ScenarioContext& context, std::string_view tensor,
                                          const QuantizedTensor& quantized, Usage usage,
                                          DType out) {
  QG_ASSIGN_OR_RETURN(const Tensor subject,
                      context.engine().Dequantize(quantized, usage, out, context.cancellation()));
  QG_ASSIGN_OR_RETURN(const QuantizedTensor on_host, CopiesOnHost(context.engine(), quantized));
  const int64_t columns = quantized.shape.back();
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < quantized.shape.size(); ++i) rows *= quantized.shape[i];
  QG_ASSIGN_OR_RETURN(const Tensor values,
                      ExpectedValues(*on_host.copy(usage), usage, rows, columns, out));
  QG_ASSIGN_OR_RETURN(const Tensor shaped, values.Reinterpret(out, quantized.shape));
  return context.ExpectSameBits(std::string(tensor) + " dequantized", subject, shaped);
}

absl::StatusOr<QuantizedTensor> CopiesOnHost(Engine& engine, const QuantizedTensor& quantized) {
  QuantizedTensor on_host = quantized;
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    if (!on_host.copy(usage).has_value()) continue;
    QuantizedCopy& copy = *on_host.copy(usage);
    for (Tensor* part : {&copy.data, &copy.scale_inv, &copy.amax}) {
      QG_ASSIGN_OR_RETURN(*part, engine.ToHost(*part, nullptr));
    }
  }
  return on_host;
}

}  // namespace quantgate
