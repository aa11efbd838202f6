#include "kernels/validate/diagnosis/diagnosis.h"

namespace quantgate {

DiagnosisBudget DiagnosisBudget::Of(absl::Duration comparison, Clock clock) {
  const absl::Time end = clock() + comparison;
  return DiagnosisBudget(end, std::move(clock));
}

}  // namespace quantgate
