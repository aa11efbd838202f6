// The kernels of the general path: the scales of all units, then the codes. Private to
// kernels/quantize. It includes no headers that nvcc is slow to compile.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/numerics/format_list.h"
#include "kernels/numerics/library_rule.h"
#include "kernels/quantize/general/general_grid.h"

namespace quantgate {

/// One direction of a source, and where its results go.
struct GeneralQuantization {
  LibraryRule rule;
  GeneralGrid grid;
  FormatId element = kFormatId<E4M3>;
  FormatId source_format = kFormatId<BFloat16>;
  const void* source = nullptr;

  UnitScale* units = nullptr;  ///< [grid.units], between the two kernels.
  void* scales = nullptr;      ///< float or uint8_t; of block formats.
  uint8_t* codes = nullptr;
  unsigned long long* counts = nullptr;  ///< [7], to which is added; null: nothing is counted.

  /// f32 [1]: of nvfp4 with a tensor scale, and of fp8_tensor, whose unit has this amax.
  const float* tensor_amax = nullptr;
  // fp8_tensor.
  const float* given_scale = nullptr;  ///< Of delayed scaling.
  bool is_empty = false;               ///< Nothing was measured: scale 1.
  float* tensor_scale = nullptr;
  float* tensor_scale_inv = nullptr;
};

cudaError_t LaunchGeneralScales(const GeneralQuantization& job, int multiprocessors,
                                cudaStream_t stream);
/// After LaunchGeneralScales.
cudaError_t LaunchGeneralCodes(const GeneralQuantization& job, int multiprocessors,
                               cudaStream_t stream);

}  // namespace quantgate
