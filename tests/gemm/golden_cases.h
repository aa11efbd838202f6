// The golden files tests/data/golden_gemm_*.safetensors: what cuBLASLt computed on an H200
// (tests/hardware/cublaslt_record.cc), as GEMM descriptions and results.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "kernels/gemm/gemm.h"
#include "kernels/tensor/files/tensor_file.h"

namespace quantgate {

struct GoldenFile {
  TensorFile tensors;
  nlohmann::json cases;  ///< The cases, each with the parameters of its GEMM.
};

/// Reads tests/data/golden_gemm_NAME.safetensors. Fails the test and returns an empty file where it
/// cannot be read.
GoldenFile ReadGolden(const std::string& name);

/// The GEMM of a case under sm90.
GemmDesc DescOf(const GoldenFile& golden, const nlohmann::json& one);

}  // namespace quantgate
