// Kernels for layouts of scales, histograms of scales, states of delayed scaling, and the
// transposition of packed codes. Private to kernels/quantize. It includes no headers that nvcc is
// slow to compile.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/numerics/delayed_scaling.h"
#include "kernels/quantize/scale_grid.h"

namespace quantgate {

/// Moves scales from one layout to another; does not write padding.
struct ScaleMove {
  ScaleGrid grid;
  ScaleLayout from_layout, to_layout;
  bool is_from_f32 = false, is_to_f32 = false;  ///< Otherwise bytes.
  const void* from = nullptr;
  void* to = nullptr;
  /// The greatest ~(2 * (line * blocks + block) + differ) over the scales that cannot be moved,
  /// `differ` 1 where the copies of one differ: the first such scale. Must be 0 before; null where
  /// every scale can be moved.
  unsigned long long* failure = nullptr;
};
cudaError_t LaunchMoveScales(const ScaleMove& move, cudaStream_t stream);

inline constexpr int kScaleCodes = 256;

/// What SummarizeCuda reads, in device memory.
struct SummaryRecord {
  int64_t counts[7];
  unsigned long long scale_codes[kScaleCodes];
  float amax, amax_columnwise, scale, scale_inv;
};
/// Adds to record.scale_codes the codes of `count` scales: bytes, or the biased exponents of fp32.
cudaError_t LaunchCountScales(const void* scales, bool is_fp32, int64_t count,
                              SummaryRecord* record, cudaStream_t stream);
/// Scalars that are copied into the record; null ones are left out.
struct SummaryScalars {
  const int64_t* counts = nullptr;
  const float* amax = nullptr;
  const float* amax_columnwise = nullptr;
  const float* scale = nullptr;
  const float* scale_inv = nullptr;
};
cudaError_t LaunchGatherSummary(const SummaryScalars& scalars, SummaryRecord* record,
                                cudaStream_t stream);

/// Makes one new state of delayed_scaling.h.
struct DelayedStateJob {
  enum class Event { kCast, kCalibration, kUpdate };
  Event event = Event::kCast;
  const float* old_scale = nullptr;
  const float* old_history = nullptr;
  int64_t length = 0;           ///< At least 1.
  const float* amax = nullptr;  ///< kCast, kCalibration.
  // kUpdate:
  ScaleUpdate update = ScaleUpdate::kFused;
  AmaxAlgorithm algorithm = AmaxAlgorithm::kMax;
  float max_finite = 448.0f;
  int margin = 0;
  float* scale = nullptr;
  float* history = nullptr;  ///< Must not be old_history.
};
cudaError_t LaunchDelayedState(const DelayedStateJob& job, cudaStream_t stream);

/// Turns E2M1 codes of rows x columns from two per byte along a row to two per byte along a column.
cudaError_t LaunchTransposeNibbles(const uint8_t* from, uint8_t* to, int64_t rows, int64_t columns,
                                   cudaStream_t stream);
/// Turns the scales of side x side tiles from one per row of a tile, [rows][tiles], to one per
/// column, [side * tiles][rows / side].
cudaError_t LaunchTransposeReplicated(const uint8_t* from, uint8_t* to, int64_t rows, int64_t tiles,
                                      int side, cudaStream_t stream);

}  // namespace quantgate
