// From a TargetFormat to the format's record.
#pragma once

#include "kernels/numerics/float_format.h"
#include "kernels/tensor/tensor_kernels_cuda.h"

namespace quantgate {

/// Calls visit.template operator()<F>() for the format.
template <class Visit>
void VisitTarget(TargetFormat format, Visit&& visit) {
  switch (format) {
    case TargetFormat::kF32:
      return visit.template operator()<Float32>();
    case TargetFormat::kBF16:
      return visit.template operator()<BFloat16>();
    case TargetFormat::kF16:
      return visit.template operator()<Float16>();
    case TargetFormat::kE4M3:
      return visit.template operator()<E4M3>();
    case TargetFormat::kE5M2:
      return visit.template operator()<E5M2>();
    case TargetFormat::kE2M3:
      return visit.template operator()<E2M3>();
    case TargetFormat::kE3M2:
      return visit.template operator()<E3M2>();
  }
}

}  // namespace quantgate
