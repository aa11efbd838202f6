#include "kernels/validate/diagnosis/diagnosis.h"

#include "kernels/base/steady_time.h"

namespace quantgate {

DiagnosisBudget DiagnosisBudget::Of(absl::Duration comparison) {
  return DiagnosisBudget(SteadyNow() + comparison);
}

bool DiagnosisBudget::IsSpent() const {
  return end_ != absl::InfiniteFuture() && SteadyNow() > end_;
}

}  // namespace quantgate
