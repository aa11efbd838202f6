#include "kernels/ops/row_kernels.h"

namespace quantgate {

const RowKernels& RowKernelsOf(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return kAvx512RowKernels;
    case Isa::kAvx2:
      return kAvx2RowKernels;
    case Isa::kScalar:
      break;
  }
  return kScalarRowKernels;
}

}  // namespace quantgate
