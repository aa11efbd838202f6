#include "kernels/compare/error_kernels.h"

namespace quantgate {
namespace {

constexpr int kLanes = 8;
#include "kernels/compare/error_kernels_body.h"

}  // namespace

void MeasureStretchAvx512(const double* subject, const double* reference, const SubjectRange& range,
                          StretchErrors& errors) {
  Measure(subject, reference, range, errors);
}

}  // namespace quantgate
