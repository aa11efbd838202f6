// What codes and scales must be: element by element with the scalar functions of kernels/numerics,
// no engine involved, so that nothing a fault does to an engine can reach it
// (docs/quantizers.md sections 3 to 6).
#pragma once

#include <span>

#include "absl/status/statusor.h"
#include "kernels/quantize/quantizer.h"

namespace quantgate {

/// One direction of a 2-D host tensor (f32, bf16 or f16) under a rule; codes of 8 or 4 bits. The
/// source of a columnwise copy with spec.hadamard is bf16.
absl::StatusOr<QuantizedCopy> ExpectedCopy(const Tensor& source, const QuantizerSpec& spec,
                                           Usage usage, const QuantizeArguments& arguments = {});

/// As Engine::Quantize: both directions, the columnwise one perhaps from the rowwise codes.
absl::StatusOr<QuantizedTensor> ExpectedQuantization(const Tensor& source,
                                                     const Quantizer& quantizer, Usages usages,
                                                     const QuantizeArguments& arguments = {});

/// The values of a copy of an [rows][columns] tensor, host, in that shape. Of nvfp4 both
/// directions.
absl::StatusOr<Tensor> ExpectedValues(const QuantizedCopy& copy, Usage usage, int64_t rows,
                                      int64_t columns, DType out);

/// The random Hadamard transform of every 16 elements of each column of a bf16 tensor.
absl::StatusOr<Tensor> ExpectedHadamard(const Tensor& source);

/// max |x|, NaN ignored; 0 of nothing.
float ExpectedAmax(const Tensor& source);
/// Puts the maxima over these tensors into `arguments`, as a group's: of all elements, and where
/// the quantizer transforms columns of those too.
absl::Status ExpectedGroupAmaxes(std::span<const Tensor> tensors, const Quantizer& quantizer,
                                 QuantizeArguments& arguments);

/// One element of a floating-point host tensor, exact; and one rounded to nearest even into it.
float ValueAt(const Tensor& tensor, int64_t index);
void SetValue(Tensor& tensor, int64_t index, float value);

/// [rows][columns] to [columns][rows] of a 2-D host tensor of elements of one byte or more.
absl::StatusOr<Tensor> Transposed(const Tensor& tensor);

/// `rows` rows of a 2-D host tensor.
absl::StatusOr<Tensor> TakeRows(const Tensor& tensor, int64_t begin, int64_t rows);

}  // namespace quantgate
