// Calls of cuBLASLt that the engine does not make (kernels/gemm/cublaslt/gemm_cublaslt.h has those
// that it makes): other epilogues and compute types, batches, and dims and scalings that it
// refuses.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"

namespace quantgate::hardware {

/// Prints the failing call and ends the process: these are programs for a person at a GPU host.
void CheckCuda(cudaError_t status, const char* call);
void CheckCublas(cublasStatus_t status, const char* call);
#define QG_CUDA(call) ::quantgate::hardware::CheckCuda((call), #call)
#define QG_CUBLAS(call) ::quantgate::hardware::CheckCublas((call), #call)

struct Probe {
  GemmShape shape{};
  GemmLayout layout = GemmLayout::kTN;
  DType a_type = DType::kBF16, b_type = DType::kBF16, d_type = DType::kBF16;
  std::vector<uint8_t> a, b;
  bool fast_accumulation = true;  ///< FAST_ACCUM of FP8 operands.
  ScaleMode a_scaling = ScaleMode::kNone, b_scaling = ScaleMode::kNone;
  std::vector<float> a_scale, b_scale;  ///< In the logical order of ScaleMode.
  /// Rows between two columns of 1x128 scales are a multiple of this.
  int64_t scale_row_multiple = 4;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  std::vector<uint8_t> bias;  ///< Of the type of d; empty: none.
  DType gradient_type = DType::kBF16;
  int64_t gradient_length = 0;  ///< BGRAD epilogues: outputs of gradient_type.
  bool has_aux = false;         ///< Epilogues with an auxiliary input or output, of the type of d.
  std::vector<uint8_t> aux;     ///< The input.
  int batch = 1;                ///< Matrices follow each other without gaps.
};

/// Operands, scales, bias and accumulation of a GEMM in host memory; its sums are plain.
Probe ProbeOf(const GemmDesc& gemm);

struct ProbedAlgorithm {
  cublasLtMatmulAlgo_t algo;
  int id = 0;       ///< CUBLASLT_ALGO_CONFIG_ID: the family of kernels.
  int split_k = 1;  ///< Slices of K.
};

/// Handle and workspace of the process's device.
class ProbedDevice {
 public:
  ProbedDevice();
  ~ProbedDevice();
  ProbedDevice(const ProbedDevice&) = delete;
  ProbedDevice& operator=(const ProbedDevice&) = delete;

  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  static constexpr size_t kWorkspaceBytes = 64u << 20;
};

/// Operands on the device and the call's descriptors.
class ProbedGemm {
 public:
  ProbedGemm(ProbedDevice& device, const Probe& probe);
  ~ProbedGemm();
  ProbedGemm(const ProbedGemm&) = delete;
  ProbedGemm& operator=(const ProbedGemm&) = delete;

  /// What the heuristic offers, at most `count`; without split-K where the mask of reduction
  /// schemes is 0. An empty result leaves the status in heuristic_status().
  std::vector<ProbedAlgorithm> Algorithms(int count, uint32_t reduction_mask = 0);
  cublasStatus_t heuristic_status() const { return heuristic_status_; }

  /// Runs into poisoned memory. False where cuBLASLt refuses.
  bool Run(const ProbedAlgorithm& algorithm, std::vector<uint8_t>* d);
  /// The auxiliary output and the bias gradient of the last run.
  std::vector<uint8_t> Aux();
  std::vector<uint8_t> BiasGradient();

 private:
  void* Upload(const void* bytes, size_t size);
  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t attribute, const T& value);
  void SetScales(ScaleMode scaling, const std::vector<float>& values, int64_t rows,
                 cublasLtMatmulDescAttributes_t pointer, cublasLtMatmulDescAttributes_t mode);
  void SetEpilogue();

  ProbedDevice& device_;
  const Probe& probe_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  // cuBLASLt's names: its A is our b, its B our a.
  cublasLtMatrixLayout_t lt_a_ = nullptr, lt_b_ = nullptr, lt_c_ = nullptr, lt_d_ = nullptr;
  std::vector<void*> allocations_;
  void *lt_a_memory_ = nullptr, *lt_b_memory_ = nullptr, *d_memory_ = nullptr;
  void *aux_memory_ = nullptr, *gradient_memory_ = nullptr;
  size_t d_bytes_ = 0;
  cublasStatus_t heuristic_status_ = CUBLAS_STATUS_SUCCESS;
};

}  // namespace quantgate::hardware
