// Which arithmetic gives the bits of one of cuBLASLt's algorithms, by the inventory of a survey
// (docs/tensor-cores.md section 3.6).
#pragma once

#include <optional>
#include <string>

#include "kernels/gemm/cublaslt/algorithm_inventory.h"
#include "kernels/gemm/cublaslt/cublaslt_algorithm.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

/// The inventory's name of a GEMM's operands: "bf16", "FP8, split".
std::string InventoryOperands(const GemmDesc& desc);

/// The row of the inventory that an algorithm for a GEMM belongs to; null where the survey never
/// saw its like.
const AlgorithmClass* InventoryRow(const GemmDesc& desc, const CublasLtAlgorithm& algorithm);

/// The arithmetic that an algorithm is to be held against, with the slices that the algorithm says;
/// none where the survey found that no arithmetic gives its bits. sm90 for what it never saw.
std::optional<Arithmetic> ModelOf(const GemmDesc& desc, const CublasLtAlgorithm& algorithm);

}  // namespace quantgate
