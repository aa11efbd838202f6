// Expected codes and scales, computed element by element with the scalar functions of
// kernels/numerics. No engine is involved, so a fault in an engine cannot change them
// (docs/quantizers.md sections 3 to 6).
#pragma once

#include <span>

#include "absl/status/statusor.h"
#include "kernels/quantize/quantizer.h"

namespace quantgate {

/// One direction of a 2-D host tensor (f32, bf16 or f16) quantized by a rule with codes of 8 or 4
/// bits. The source of a columnwise copy with spec.hadamard must be bf16.
absl::StatusOr<QuantizedCopy> ExpectedCopy(const Tensor& source, const QuantizerSpec& spec,
                                           Usage usage, const QuantizeArguments& arguments = {});

/// What Engine::Quantize must give. The columnwise direction is made from the rowwise codes if the
/// quantizer says so.
absl::StatusOr<QuantizedTensor> ExpectedQuantization(const Tensor& source,
                                                     const Quantizer& quantizer, Usages usages,
                                                     const QuantizeArguments& arguments = {});

/// The values of a copy of a [rows][columns] tensor, on the host, in that shape. Takes both
/// directions of nvfp4.
absl::StatusOr<Tensor> ExpectedValues(const QuantizedCopy& copy, Usage usage, int64_t rows,
                                      int64_t columns, DType out);

/// The random Hadamard transform of every 16 elements of each column of a bf16 tensor.
absl::StatusOr<Tensor> ExpectedHadamard(const Tensor& source);

/// max |x|, ignoring NaN; 0 for an empty tensor.
float ExpectedAmax(const Tensor& source);
/// Puts the maxima over these tensors into `arguments`, as the amaxes of a group: over all elements
/// and, if the quantizer transforms columns, over the transformed elements.
absl::Status ExpectedGroupAmaxes(std::span<const Tensor> tensors, const Quantizer& quantizer,
                                 QuantizeArguments& arguments);

/// Read an element of a floating-point host tensor, exactly, and write one, rounded to nearest
/// even.
float ValueAt(const Tensor& tensor, int64_t index);
void SetValue(Tensor& tensor, int64_t index, float value);

/// [rows][columns] to [columns][rows] of a 2-D host tensor of elements of one byte or more.
absl::StatusOr<Tensor> Transposed(const Tensor& tensor);

/// `rows` rows of a 2-D host tensor.
absl::StatusOr<Tensor> TakeRows(const Tensor& tensor, int64_t begin, int64_t rows);

}  // namespace quantgate
