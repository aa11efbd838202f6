// The reference of an output that operations gave, in the layout of the output.
#pragma once

#include "kernels/validate/run/output_source.h"

namespace quantgate {

/// EvaluateOperations of source.operations for `output`, which SourceOf gave `source` for: with
/// heads joined and dims swapped as the source says, in the shape of the output.
absl::StatusOr<OperationReference> EvaluateSource(Engine& engine, const OutputSource& source,
                                                  const Tensor& output,
                                                  const Cancellation* cancellation);

}  // namespace quantgate
