// Operands of a linear unit's GEMMs, and what records call them: what its forward and backward and
// the checks before them share.
#pragma once

#include <string>

#include "kernels/layer/linear/linear_unit.h"

namespace quantgate {

/// One side of a GEMM and where it comes from.
struct NamedOperand {
  GemmOperand operand;
  OperandOrigin origin;
};

GemmOperand PlainOperand(const Tensor& tensor);

/// cuBLASLt's FAST_ACCUM off for a GEMM whose M side is `a`.
bool UsesSplit(const Recipe& recipe, GemmRole role, const GemmOperand& a);

/// How a direction of a format is stored for dgrad and wgrad: transposed to TN where the format
/// turns columnwise codes, otherwise in the source's layout.
GemmLayout DgradLayout(const Quantizer& weight);
GemmLayout WgradLayout(const Quantizer& x);

/// One direction of an operand: its codes, or high precision where that is not quantized.
NamedOperand DirectionOf(const std::string& name, const KeptOperand& operand, Usage usage);

/// A GEMM of a unit, to be run; `arithmetic` is the step's.
GemmRecord LinearGemmRecord(GemmRole role, const Recipe& recipe, const Arithmetic& arithmetic,
                            const std::string& output, GemmDesc desc, const NamedOperand& a,
                            const NamedOperand& b);

inline bool IsAny(Usages usages) { return usages.rowwise || usages.columnwise; }
/// Without the directions that are not in `usages`.
QuantizedTensor OnlyUsages(QuantizedTensor codes, Usages usages);

/// The values of the rowwise codes, or of the columnwise ones where there are no others.
absl::StatusOr<Tensor> DequantizeAny(StepRecorder& recorder, const std::string& stage,
                                     const QuantizedTensor& codes, DType dtype);

/// Quantizes by the step's recipe, with the role's call id and, under delayed scaling, its state,
/// which notes the amax; under the amaxes of the group that the step names for the role.
/// `arguments`: the amaxes of a group where it names none, and row_offset where `source` are some
/// ranks' rows.
absl::StatusOr<QuantizedTensor> QuantizeOperand(StepRecorder& recorder, const LinearUnit& unit,
                                                TensorRole role, const char* stage,
                                                const std::string& tensor, const Tensor& source,
                                                Usages usages, const StepOptions& options,
                                                DelayedStates& states,
                                                QuantizeArguments arguments = {});

/// What quantizing the role's tensor of a unit takes of the amaxes of a layer's experts; nothing of
/// a unit that is none (null).
absl::StatusOr<QuantizeArguments> GroupAmaxesOf(StepRecorder& recorder, const LinearUnit& unit,
                                                TensorRole role, Usages usages,
                                                ExpertAmaxes* expert_amaxes);

// What is saved, in words: "bf16 as given", "f8_e4m3 rowwise and columnwise codes".
std::string PlainContent(DType given, DType kept);
std::string CodesContent(const QuantizedTensor& codes);
std::string ContentOf(const KeptOperand& kept, DType given);

/// An operand that is about to be kept: under which name, and as what.
struct OperandToKeep {
  std::string name;
  std::string content;
  KeptOperand* operand;
};
/// Saves and marks them.
absl::Status Keep(StepRecorder& recorder, std::span<const OperandToKeep> operands);

}  // namespace quantgate
