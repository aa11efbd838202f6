// Operands of a linear unit's GEMMs and their names in records, shared by the unit's forward,
// backward and checks. linear_unit.cc defines the functions.
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

/// Whether a GEMM whose M side is `a` runs with cuBLASLt's FAST_ACCUM off (split accumulator).
bool UsesSplit(const Recipe& recipe, GemmRole role, const GemmOperand& a);

/// The layout of a quantized dgrad or wgrad: TN if the format stores columnwise codes transposed,
/// else that of the sources.
GemmLayout DgradLayout(const Quantizer& weight);
GemmLayout WgradLayout(const Quantizer& x);

/// One direction of an operand: its codes, or the original if that direction is not quantized.
NamedOperand DirectionOf(const std::string& name, const KeptOperand& operand, Usage usage);

/// A record of a GEMM that is still to be run, under the step's `arithmetic`.
GemmRecord LinearGemmRecord(GemmRole role, const Recipe& recipe, const Arithmetic& arithmetic,
                            const std::string& output, GemmDesc desc, const NamedOperand& a,
                            const NamedOperand& b);

inline bool IsAny(Usages usages) { return usages.rowwise || usages.columnwise; }
inline bool Covers(Usages held, Usages needed) {
  return (held.rowwise || !needed.rowwise) && (held.columnwise || !needed.columnwise);
}
inline Usages Union(Usages a, Usages b) {
  return {a.rowwise || b.rowwise, a.columnwise || b.columnwise};
}
/// `codes` without the directions that are not in `usages`.
QuantizedTensor OnlyUsages(QuantizedTensor codes, Usages usages);

/// The values of the rowwise codes or, if there are none, of the columnwise ones.
absl::StatusOr<Tensor> DequantizeAny(StepRecorder& recorder, const std::string& stage,
                                     const QuantizedTensor& codes, DType dtype);

/// Quantizes `source` by the step's recipe, with the role's call id and the amaxes of the group
/// that the step names for the role. Takes delayed scales from their states and notes the amaxes
/// there. `arguments` give the amaxes if the step names no group, and row_offset if
/// `source` has the rows of some ranks only.
absl::StatusOr<QuantizedTensor> QuantizeOperand(StepRecorder& recorder, const LinearUnit& unit,
                                                TensorRole role, const char* stage,
                                                const std::string& tensor, const Tensor& source,
                                                Usages usages, const StepOptions& options,
                                                DelayedStates& states,
                                                QuantizeArguments arguments = {});

/// A result of the unit, y or dx as the matrix `result`, with the values of its rowwise codes under
/// the rule of `role`, in the same dtype. Puts the codes into the record of its GEMM.
absl::StatusOr<Tensor> QuantizeResult(StepRecorder& recorder, const LinearUnit& unit,
                                      TensorRole role, const std::string& name,
                                      const Tensor& result, const StepOptions& options);

/// Prepares the states of the role's delayed scales under the module's recipe.
absl::Status PrepareDelayedStates(StepRecorder& recorder, const LinearNames& names, TensorRole role,
                                  const Recipe& recipe, DelayedStates& states);
/// Notes the amax of `source` in these states; quantizes nothing.
absl::Status CalibrateOperand(StepRecorder& recorder, const LinearNames& names,
                              const std::string& stage, TensorRole role, const Tensor& source,
                              const Recipe& recipe, DelayedStates& states);

/// The arguments with the reduced amaxes of a unit that is an expert (ExpertAmaxes::ArgumentsFor).
/// Without amaxes if `expert_amaxes` is null: the unit is no expert.
absl::StatusOr<QuantizeArguments> GroupAmaxesOf(StepRecorder& recorder, const LinearUnit& unit,
                                                TensorRole role, Usages usages,
                                                ExpertAmaxes* expert_amaxes);

// SavedOperand::content: "bf16 as given", "f8_e4m3 rowwise and columnwise codes".
std::string PlainContent(DType given, DType kept);
std::string CodesContent(const QuantizedTensor& codes);
std::string ContentOf(const KeptOperand& kept, DType given);

/// The tensors that the state holds of a parameter between steps, cached ones among them. Absent
/// tensors are among them too.
std::vector<Tensor> TensorsOfParameter(const LayerState& state, const std::string& name);

/// An operand to be kept for backward, with its name and content in the report.
struct OperandToKeep {
  std::string name;
  std::string content;
  KeptOperand* operand;
  std::vector<Tensor> held = {};  ///< OperandToSave::held.
};
/// Saves the operands in the recorder and sets their marks.
absl::Status Keep(StepRecorder& recorder, std::span<const OperandToKeep> operands);

}  // namespace quantgate
