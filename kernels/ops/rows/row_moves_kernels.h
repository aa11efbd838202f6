// The kernels behind row_moves_cuda.h. Launchers return what cudaGetLastError says of the launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ops/float_lanes_cuda.h"

namespace quantgate {

struct RowGatherParameters {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  const int64_t* rows = nullptr;  ///< kNoRow: zeros.
  int64_t count = 0;              ///< Of rows.
  int64_t row_bytes = 0;
};
cudaError_t LaunchGatherRows(const RowGatherParameters& parameters, cudaStream_t stream);

struct RowSumParameters {
  FloatsIn rows;
  const int64_t* positions = nullptr;  ///< Null: row i is row i.
  const float* weights = nullptr;      ///< Null: none.
  FloatsOut to;
  int64_t count = 0;  ///< Rows of the result.
  int64_t columns = 0;
  int64_t choices = 1;
  bool rounds_terms = false;  ///< To the dtype of `rows`.
};
cudaError_t LaunchSumRows(const RowSumParameters& parameters, cudaStream_t stream);

}  // namespace quantgate
