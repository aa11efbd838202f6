#include "kernels/gemm/cublaslt/algorithm_model.h"

#include <algorithm>

namespace quantgate {

std::string InventoryOperands(const GemmDesc& desc) {
  switch (desc.a.data.dtype()) {
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "fp16";
    case DType::kF32:
      return "f32 (tf32)";
    default:
      break;
  }
  if (desc.a.scaling == ScaleMode::k128x128 || desc.b.scaling == ScaleMode::k128x128) {
    return "FP8, tiles of 128x128";
  }
  if (desc.a.scaling == ScaleMode::k1x128) return "FP8, both 1x128";
  return ResolvedFor(desc).accumulation == Accumulation::kSplit ? "FP8, split" : "FP8, fast";
}

const AlgorithmClass* InventoryRow(const GemmDesc& desc, const CublasLtAlgorithm& algorithm) {
  const std::string operands = InventoryOperands(desc);
  // Slices by number are those of reduction schemes that the survey's "any" includes.
  const bool may_split = desc.arithmetic.any_split_k || desc.arithmetic.split_k > 1;
  for (const AlgorithmClass& row : CublasLtInventory().classes) {
    if (row.operands != operands || row.algorithm_id != algorithm.id) continue;
    const bool is_split = row.slices == "split-K";
    const bool may_be_own = row.slices == "none or the kernel's own";
    if (is_split != (algorithm.split_k > 1) || (algorithm.split_k < 0 && !may_be_own)) continue;
    if (row.request == "any" && !may_split) continue;
    if (row.request == "split-K forbidden" && may_split) continue;
    return &row;
  }
  return nullptr;
}

std::optional<Arithmetic> ModelOf(const GemmDesc& desc, const CublasLtAlgorithm& algorithm) {
  const AlgorithmClass* row = InventoryRow(desc, algorithm);
  if (row != nullptr && row->arithmetic.empty()) return std::nullopt;
  Arithmetic model = desc.arithmetic.Model();
  if (row != nullptr && row->arithmetic != ArithmeticFamilyName(model.family)) {
    const auto named = Arithmetic::Parse(row->arithmetic);
    if (!named.ok()) return std::nullopt;
    model = *named;
  }
  if (IsTensorCore(model.family)) model.split_k = std::max(1, algorithm.split_k);
  return model;
}

}  // namespace quantgate
