// The algorithms that cuBLASLt's heuristic returned in one survey on a device, and which of them an
// arithmetic of this build reproduces, so that a reader knows what is not modelled.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/gemm/cublaslt/cublaslt_algorithm.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

/// The runs of one algorithm on one class of operands, with all outputs and epilogues of the
/// survey.
struct AlgorithmClass {
  std::string operands;    ///< "bf16", "FP8, fast".
  int algorithm_id = 0;    ///< CUBLASLT_ALGO_CONFIG_ID.
  std::string slices;      ///< How K is cut: "none", "split-K", "none or the kernel's own".
  std::string request;     ///< What the heuristic was asked for when it returned the algorithm:
                           ///< "any" reduction scheme, "split-K forbidden", "either".
  std::string arithmetic;  ///< Name of the arithmetic that models the class; empty: none does.
  int first_choices = 0;   ///< Requests for which the heuristic ranked the algorithm first.
  int returned = 0;        ///< All runs: equal + differing + not_run.
  int equal = 0;           ///< Runs in which every output has the model's bits.
  int differing = 0;       ///< Runs in which some output has other bits.
  int not_run = 0;         ///< Runs that were left out, since there is no model to compare with.
};

/// One survey: where it was made, and its results.
struct AlgorithmInventory {
  std::string device, driver, cublaslt, date;
  std::string program;  ///< The program that was run (tests/hardware/README.md).
  std::vector<AlgorithmClass> classes;
};

/// The survey of this build.
const AlgorithmInventory& CublasLtInventory();

/// AlgorithmClass::operands for a GEMM: "bf16", "FP8, split".
std::string InventoryOperands(const GemmDesc& desc);

/// The class of the inventory that an algorithm for a GEMM belongs to; null where the survey never
/// saw one.
const AlgorithmClass* InventoryRow(const GemmDesc& desc, const CublasLtAlgorithm& algorithm);

/// The arithmetic whose bits an algorithm is to have, with the number of slices that the algorithm
/// states (docs/tensor-cores.md section 3.6): none where the survey found that no arithmetic gives
/// its bits, and sm90 where the survey never saw its class.
std::optional<Arithmetic> ModelOf(const GemmDesc& desc, const CublasLtAlgorithm& algorithm);

}  // namespace quantgate
