// Outputs of a tensor-core GEMM by the scalar rule alone, for tests of every faster path.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/epilogue.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/models/rules.h"
#include "kernels/gemm/models/scalar_dot.h"

namespace quantgate {

struct OutputCoordinate {
  int64_t m = 0, n = 0;
};

/// The codes, in desc.out_dtype, of `outputs`, which must lie within the GEMM's shape. Takes some 5
/// ns a product.
inline absl::StatusOr<std::vector<uint32_t>> ScalarOutputs(
    const GemmDesc& desc, const std::vector<OutputCoordinate>& outputs) {
  QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(desc));
  QG_ASSIGN_OR_RETURN(const FusedRule rule, RuleFor(desc));
  QG_ASSIGN_OR_RETURN(const OperandView a, ViewOfA(desc, shape));
  QG_ASSIGN_OR_RETURN(const OperandView b, ViewOfB(desc, shape));
  std::map<int64_t, DecodedRow> a_rows, b_rows;
  const ScopedIeeeEnvironment ieee;
  Tensor no_output;
  const Epilogue epilogue(desc, shape, no_output);
  std::vector<uint32_t> codes;
  for (const auto& [m, n] : outputs) {
    const DecodedRow& row = a_rows.try_emplace(m, a, m, ScalesSums(rule)).first->second;
    const DecodedRow& column = b_rows.try_emplace(n, b, n, ScalesSums(rule)).first->second;
    const float accumulator = DotUnder(rule, row.row(), column.row(), shape.k);
    std::byte code[4] = {};
    epilogue.ApplyTo(m, n, 1, &accumulator, code);
    std::memcpy(&codes.emplace_back(), code, sizeof(code));
  }
  return codes;
}

}  // namespace quantgate
