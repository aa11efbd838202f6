// Kernels of what is small: layouts of scales, histograms of scales, delayed scaling's states, and
// the turning of packed codes. Private to kernels/quantize; free of the headers that nvcc is slow
// on.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/numerics/delayed_scaling.h"
#include "kernels/quantize/scale_grid.h"

namespace quantgate {

/// Scales of `scale_bytes` (1 or 4) each, from one layout to another; padding is left alone.
struct ScaleMove {
  ScaleGrid grid;
  ScaleLayout from_layout, to_layout;
  int scale_bytes = 1;
  const void* from = nullptr;
  void* to = nullptr;
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
/// Copies what is not null into the record.
struct SummaryScalars {
  const int64_t* counts = nullptr;
  const float* amax = nullptr;
  const float* amax_columnwise = nullptr;
  const float* scale = nullptr;
  const float* scale_inv = nullptr;
};
cudaError_t LaunchGatherSummary(const SummaryScalars& scalars, SummaryRecord* record,
                                cudaStream_t stream);

/// One new state of delayed_scaling.h.
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
  float* history = nullptr;  ///< Not old_history.
};
cudaError_t LaunchDelayedState(const DelayedStateJob& job, cudaStream_t stream);

/// E2M1 codes of rows x columns, two to a byte along columns, to two to a byte along rows.
cudaError_t LaunchTransposeNibbles(const uint8_t* from, uint8_t* to, int64_t rows, int64_t columns,
                                   cudaStream_t stream);
/// Scales of side x side tiles, replicated to each row of a tile [rows][tiles], to those replicated
/// to each column [side * tiles][rows / side].
cudaError_t LaunchTransposeReplicated(const uint8_t* from, uint8_t* to, int64_t rows, int64_t tiles,
                                      int side, cudaStream_t stream);

}  // namespace quantgate
