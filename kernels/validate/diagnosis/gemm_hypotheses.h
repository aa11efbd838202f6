// Why is this no result of that GEMM? Mistakes in operands, scales, K, epilogue and rounding, each
// evaluated in binary64 and held against the result (docs/reports.md section 10.3).
#pragma once

#include "absl/status/statusor.h"
#include "kernels/gemm/gemm.h"
#include "kernels/validate/diagnosis/diagnosis.h"

namespace quantgate {

/// `desc`: operands and epilogue; its arithmetic and out_dtype are ignored. `d`: [m][n] of f32,
/// bf16 or f16. Both in host memory, and CheckGemm accepts the desc. Looks at every output, or of a
/// large GEMM at some rows and columns, spread evenly, as far as kGemmProductsMax products go. The
/// diagnosis says nothing of an arithmetic: one that is right but for its order of additions is
/// "within rounding" of the result.
absl::StatusOr<Diagnosis> DiagnoseGemm(const GemmDesc& desc, const Tensor& d,
                                       const DiagnosisBudget& budget);

/// Products of one evaluation of the sample.
inline constexpr int64_t kGemmProductsMax = int64_t{1} << 22;

}  // namespace quantgate
