// Launchers of the NVFP4 kernels (docs/quantizers.md section 6): plain types only. Private to
// kernels/quantize.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/numerics/scale_rule.h"
#include "kernels/numerics/stochastic_rounding.h"

namespace quantgate {

/// Element types of sources and of dequantized values.
enum class Nvfp4Float { kF32, kBF16, kF16 };

/// One direction of one quantization; all addresses are of device memory.
struct Nvfp4Parameters {
  const void* source = nullptr;  ///< [rows][columns].
  Nvfp4Float source_type = Nvfp4Float::kBF16;
  int64_t rows = 0, columns = 0;  ///< Multiples of 16.
  bool is_rowwise = true;
  bool has_tiles = false;  ///< block_dim 2.
  bool hadamard = false;   ///< bf16, columnwise, without tiles.
  bool row_scaled = false;
  bool picks = false, squares = false;  ///< 4over6, and by the squares of errors.
  ScaleRule scale_rule = ScaleRule::kTwoLevel;
  ElementRounding rounding = ElementRounding::kNearestEven;
  int e4m3_max = 448;
  StochasticStream stream = {};
  int64_t line_offset = 0, block_offset = 0;  ///< Of this tensor in the whole one.
  float* amax = nullptr;  ///< [1], or [lines] where row-scaled; null for single_level.
  uint8_t* codes = nullptr;
  uint8_t* scales = nullptr;
  unsigned long long* counts = nullptr;  ///< By ElementKind, added to; or null.

  QG_HOST_DEVICE int64_t lines() const { return is_rowwise ? rows : columns; }
  QG_HOST_DEVICE int64_t length() const { return is_rowwise ? columns : rows; }
};

// ---- Plain kernels: any source, any rule, through the scalar functions of kernels/numerics.

/// Writes the amaxes of the source, or of its Hadamard transform, to `amax`.
cudaError_t LaunchNvfp4Amax(const Nvfp4Parameters& parameters, cudaStream_t stream);

/// Codes, scales and counts, from finished amaxes.
cudaError_t LaunchNvfp4Quantize(const Nvfp4Parameters& parameters, cudaStream_t stream);

struct Nvfp4DequantizeParameters {
  int64_t rows = 0, columns = 0;
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  const float* amax = nullptr;  ///< [1], [rows] where row-scaled, or null.
  bool row_scaled = false;
  int e4m3_max = 448;
  void* out = nullptr;
  Nvfp4Float out_type = Nvfp4Float::kBF16;
};

/// The values of a rowwise copy.
cudaError_t LaunchNvfp4Dequantize(const Nvfp4DequantizeParameters& parameters, cudaStream_t stream);

}  // namespace quantgate
