// The kernels of formats of levels: the scales of all groups, then the codes; and back. Private to
// kernels/quantize. It includes no headers that nvcc is slow to compile.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/numerics/format_list.h"
#include "kernels/numerics/level_rule.h"
#include "kernels/quantize/general/general_grid.h"

namespace quantgate {

/// An element, and its place in the order of its group's elements; -1: there is none.
struct PlacedElement {
  float value = 0.0f;
  int64_t at = -1;
};
/// What is known of a part of a group: of equal elements the first, as the CPU engine has it, so
/// that zeros of both signs become the same zero point.
struct PartExtremes {
  PlacedElement least, most, largest;
};

/// One direction of a source, and where its results go.
struct LevelQuantization {
  LevelRule rule;
  GeneralGrid grid;
  FormatId source_format = kFormatId<BFloat16>;
  const void* source = nullptr;

  int64_t parts = 1;  ///< Of each group, measured one by one.
  PartExtremes* extremes =
      nullptr;                   ///< [grid.units][parts], between the kernels; of one part null.
  LevelScale* scales = nullptr;  ///< [grid.units], between the kernels.
  float* scale_inv = nullptr;    ///< [grid.units]
  void* zero_points = nullptr;   ///< [grid.units]: f32, or i8 or u8 as the codes are; or null.
  uint8_t* codes = nullptr;
  unsigned long long* counts = nullptr;  ///< [7], to which is added; null: nothing is counted.
};

/// Into how many parts groups are cut, so that few and long ones occupy a GPU.
int64_t LevelPartsOf(const GeneralGrid& grid);

cudaError_t LaunchLevelScales(const LevelQuantization& job, int multiprocessors,
                              cudaStream_t stream);
/// After LaunchLevelScales.
cudaError_t LaunchLevelCodes(const LevelQuantization& job, int multiprocessors,
                             cudaStream_t stream);

/// The values of one copy.
struct LevelDequantization {
  GeneralGrid grid;
  Levels levels = Levels::kI8;
  ZeroPoint zero_point = ZeroPoint::kNone;
  const uint8_t* codes = nullptr;
  const float* scale_inv = nullptr;
  const void* zero_points = nullptr;  ///< As in LevelQuantization.
  void* out = nullptr;
  FormatId out_format = kFormatId<BFloat16>;
};
cudaError_t LaunchDequantizeLevels(const LevelDequantization& job, int multiprocessors,
                                   cudaStream_t stream);

}  // namespace quantgate
