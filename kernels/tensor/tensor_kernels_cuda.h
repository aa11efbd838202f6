// The kernels behind tensor_cuda.h. Launchers return what cudaGetLastError says of the launch;
// checks, allocations and errors with words are tensor_cuda.cc's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/numerics/format_list.h"
#include "kernels/tensor/files/number_source.h"
#include "kernels/tensor/generate/generated_value.h"

namespace quantgate {

/// Whether a kernel may restate steps in faster ones; the plain kernels give the same bytes.
enum class KernelPath { kTuned, kPlain };

struct CastParameters {
  NumberSource from;
  void* to = nullptr;
  FormatId format = kFormatId<Float32>;  ///< Of ElementFormats.
  int64_t count = 0;
};
cudaError_t LaunchCast(const CastParameters& parameters, KernelPath path, cudaStream_t stream);

struct GenerateParameters {
  GenerationRule rule;
  void* out = nullptr;                   ///< Aligned to 16 bytes.
  FormatId format = kFormatId<Float32>;  ///< Of ElementFormats.
  int64_t count = 0;
};
cudaError_t LaunchGenerate(const GenerateParameters& parameters, KernelPath path,
                           cudaStream_t stream);

struct TransposeParameters {
  const void* from = nullptr;
  void* to = nullptr;
  int element_bytes = 0;  ///< 1, 2 or 4.
  int64_t rows = 0, columns = 0;
};
cudaError_t LaunchTranspose(const TransposeParameters& parameters, KernelPath path,
                            cudaStream_t stream);

/// Rows that LaunchColumnSums adds to one: a power of two, so that each group of so many rows is a
/// whole subtree of the pairwise sum.
inline constexpr int kColumnSumRows = 256;

struct ColumnSumParameters {
  const void* from = nullptr;                      ///< [rows][columns].
  NumberEncoding encoding = NumberEncoding::kF32;  ///< kF32, kBF16 or kF16.
  int64_t rows = 0, columns = 0;
  float* sums = nullptr;   ///< [ceil(rows / kColumnSumRows)][columns].
  bool canonical = false;  ///< NaN becomes canonical: these sums are the last.
};
cudaError_t LaunchColumnSums(const ColumnSumParameters& parameters, KernelPath path,
                             cudaStream_t stream);

struct FingerprintJob {
  const std::byte* data = nullptr;
  int64_t bytes = 0;
  uint64_t high = 0, low = 0;  ///< What the words' mixes are added to.
};
/// `sums`: high and low of each job; zeros before, written.
cudaError_t LaunchFingerprints(std::span<const FingerprintJob> jobs, uint64_t* sums,
                               int multiprocessors, KernelPath path, cudaStream_t stream);

/// From device memory to pinned host memory, both aligned to 4 bytes.
cudaError_t LaunchCopyToHost(const void* from, void* to, int bytes, cudaStream_t stream);

}  // namespace quantgate
