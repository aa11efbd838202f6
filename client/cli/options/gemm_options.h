// The options that say what a GEMM is, the same for `gemm` and `explain`.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/tensor_source.h"

namespace quantgate {

struct OperandOptions {
  std::string tensor, scale_inv, zero_point, group, scaling, amax;
  int e4m3_max = 0;
};

struct GemmOptions {
  OperandOptions a, b;
  std::string c, bias, layout = "tn";
  std::optional<float> alpha, d_scale;
  float beta = 0;
  bool in_place = false;
};

/// `are_operands_required`: --a and --b must be given.
void AddGemmOptions(CLI::App& command, GemmOptions& options, bool are_operands_required);

/// Operands and epilogue; arithmetic and out_dtype are left empty.
absl::StatusOr<v1::GemmRequest> MakeGemmRequest(const GemmOptions& options, TensorSources& sources);

}  // namespace quantgate
