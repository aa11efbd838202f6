#include "kernels/gemm/cublaslt/algorithm_inventory.h"

#include <algorithm>

namespace quantgate {

// The runs of `cublaslt_inventory` that tests/hardware/README.md lists, their FP8 pairs, outputs,
// layouts and epilogues added up. Split-K of f32 operands was not run: the model refuses it. Id 43
// of f32, asked for any reduction scheme, may cut K by itself (splitk -1).
const AlgorithmInventory& CublasLtInventory() {
  static const auto* const inventory = new AlgorithmInventory{
      "NVIDIA H200",
      "580.159.04",
      "13.1.0",
      "2026-11-20",
      "cublaslt_inventory, 11 457 shapes, seed 3",
      {
          // clang-format off
          {"bf16", 16, "none", "split-K forbidden", "", 0, 160, 1, 159, 0},
          {"bf16", 21, "none", "split-K forbidden", "", 0, 160, 150, 10, 0},
          {"bf16", 23, "none", "split-K forbidden", "", 0, 160, 134, 26, 0},
          {"bf16", 24, "none", "split-K forbidden", "", 0, 160, 134, 26, 0},
          {"bf16", 41, "none", "split-K forbidden", "", 160, 160, 150, 10, 0},
          {"bf16", 42, "none", "split-K forbidden", "", 0, 160, 150, 10, 0},
          {"bf16", 66, "none", "either", "sm90", 3080, 19874, 19874, 0, 0},
          {"bf16", 66, "split-K", "any", "sm90", 194, 1784, 1784, 0, 0},
          {"fp16", 16, "none", "split-K forbidden", "", 0, 161, 9, 152, 0},
          {"fp16", 21, "none", "split-K forbidden", "", 0, 161, 149, 12, 0},
          {"fp16", 23, "none", "split-K forbidden", "", 0, 161, 131, 30, 0},
          {"fp16", 24, "none", "split-K forbidden", "", 0, 161, 127, 34, 0},
          {"fp16", 35, "none", "split-K forbidden", "", 89, 89, 73, 16, 0},
          {"fp16", 41, "none", "split-K forbidden", "", 72, 161, 149, 12, 0},
          {"fp16", 42, "none", "split-K forbidden", "", 0, 161, 149, 12, 0},
          {"fp16", 56, "none", "split-K forbidden", "", 0, 89, 9, 80, 0},
          {"fp16", 66, "none", "either", "sm90", 3053, 19649, 19649, 0, 0},
          {"fp16", 66, "split-K", "any", "sm90", 198, 1807, 1807, 0, 0},
          {"f32 (tf32)", 11, "none", "either", "", 24, 59, 0, 59, 0},
          {"f32 (tf32)", 16, "none", "split-K forbidden", "", 0, 334, 0, 334, 0},
          {"f32 (tf32)", 20, "none", "either", "", 0, 490, 0, 490, 0},
          {"f32 (tf32)", 21, "none", "either", "sm90", 2369, 6716, 6716, 0, 0},
          {"f32 (tf32)", 21, "split-K", "any", "", 993, 6261, 0, 0, 6261},
          {"f32 (tf32)", 23, "none", "either", "sm90", 0, 1380, 1380, 0, 0},
          {"f32 (tf32)", 23, "split-K", "any", "", 0, 1099, 0, 0, 1099},
          {"f32 (tf32)", 43, "none", "split-K forbidden", "sm90", 756, 2733, 2733, 0, 0},
          {"f32 (tf32)", 43, "none or the kernel's own", "any", "", 458, 5706, 4795, 911, 0},
          {"f32 (tf32)", 55, "none", "either", "fp32", 20, 1212, 1212, 0, 0},
          {"FP8, fast", 62, "none", "split-K forbidden", "", 15, 15, 10, 5, 0},
          {"FP8, fast", 66, "none", "either", "sm90", 2976, 20574, 20574, 0, 0},
          {"FP8, fast", 66, "split-K", "any", "sm90", 97, 867, 867, 0, 0},
          {"FP8, split", 66, "none", "either", "sm90", 2489, 16898, 16898, 0, 0},
          {"FP8, split", 66, "split-K", "any", "sm90", 85, 743, 743, 0, 0},
          {"FP8, both 1x128", 66, "none", "either", "sm90", 1274, 6070, 6070, 0, 0},
          {"FP8, both 1x128", 66, "split-K", "any", "sm90", 46, 277, 277, 0, 0},
          {"FP8, tiles of 128x128", 66, "none", "either", "sm90", 3992, 3992, 3992, 0, 0},
          {"FP8, tiles of 128x128", 66, "split-K", "any", "sm90", 186, 186, 186, 0, 0},
          // clang-format on
      }};
  return *inventory;
}

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
