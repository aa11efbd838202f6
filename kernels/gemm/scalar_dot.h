// One output of an sm90 GEMM straight from the scalar fused step, operand by operand: slow, and
// plainly the definition.
#pragma once

#include <cstdint>

#include "kernels/gemm/accumulate.h"
#include "kernels/gemm/operand_view.h"

namespace quantgate {

/// The fp32 accumulator of output (m, n).
float ScalarDotSm90(const OperandView& a, const OperandView& b, const AccumulationRule& rule,
                    int64_t m, int64_t n);

}  // namespace quantgate
