// One GEMM on the device through cuBLASLt, described in row-major terms: d[m][n] = sum over k of
// a(m, k) * b(n, k). cuBLASLt is column-major, so its A is our b. Independent of the engine: this
// is the subject it is compared with.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <vector>

namespace quantgate::hardware {

/// Prints the failing call and ends the process: these are programs for a person at a GPU host.
void CheckCuda(cudaError_t status, const char* call);
void CheckCublas(cublasStatus_t status, const char* call);
#define QG_CUDA(call) ::quantgate::hardware::CheckCuda((call), #call)
#define QG_CUBLAS(call) ::quantgate::hardware::CheckCublas((call), #call)

enum class Layout { kTN, kNN, kNT };  ///< As GemmLayout in kernels/gemm/gemm.h.
enum class Scaling { kNone, kTensor, kOuter };

/// "f32", "bf16", "f16", "f8_e4m3", "f8_e5m2".
cudaDataType_t TypeOf(const std::string& name);
int BytesOf(const std::string& name);

struct GemmCase {
  int64_t m = 0, n = 0, k = 0;
  Layout layout = Layout::kTN;
  std::string a_type, b_type, d_type;
  std::string c_type;              ///< Empty: d_type, or bf16 where d is FP8.
  std::string bias_type;           ///< Empty: no bias.
  bool split_accumulator = false;  ///< FP8: FAST_ACCUM = 0.
  float alpha = 1.0f, beta = 0.0f;
  bool in_place = false;
  Scaling a_scaling = Scaling::kNone, b_scaling = Scaling::kNone;
  bool has_d_scale = false, has_amax = false;
  float d_scale = 1.0f;
  std::vector<uint8_t> a, b, c, bias;
  std::vector<float> a_scale, b_scale;
};

struct Algorithm {
  cublasLtMatmulAlgo_t algo;
  size_t workspace_bytes = 0;
  std::string text;  ///< Id, tile, stages, split-K, ... in one line.
  int split_k = 1;
  int id = 0;  ///< Family of kernels: 66 is the one for Hopper's wgmma.
};

/// Handle, stream and workspace of the process's device.
class Device {
 public:
  Device();
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  /// "NVIDIA H200, driver 580..., CUDA runtime 13.0, cuBLASLt 13.1.0".
  std::string Origin() const;

  cublasLtHandle_t handle = nullptr;
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;
  static constexpr size_t kWorkspaceBytes = 64u << 20;
};

/// Operands on the device and the call's descriptors.
class LoadedGemm {
 public:
  LoadedGemm(Device& device, const GemmCase& gemm);
  ~LoadedGemm();
  LoadedGemm(const LoadedGemm&) = delete;
  LoadedGemm& operator=(const LoadedGemm&) = delete;

  /// What the heuristic offers for this call, at most `count`. `reduction_mask` 0: no split-K. An
  /// empty result leaves the status in heuristic_status().
  std::vector<Algorithm> Algorithms(int count, uint32_t reduction_mask);
  cublasStatus_t heuristic_status() const { return heuristic_status_; }
  /// `base` with forced split-K; empty when cuBLASLt refuses the configuration.
  std::vector<Algorithm> WithSplitK(const Algorithm& base, int32_t split_k, uint32_t scheme);

  /// Runs into poisoned (or, in place, freshly loaded) output memory. False with the status in
  /// run_status().
  bool Run(const Algorithm& algorithm, std::vector<uint8_t>* d, float* amax = nullptr);
  cublasStatus_t run_status() const { return run_status_; }

 private:
  void* Upload(const void* bytes, size_t size);
  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t attribute, const T& value);

  Device& device_;
  const GemmCase& gemm_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  // cuBLASLt's names: its A is our b, its B our a.
  cublasLtMatrixLayout_t lt_a_ = nullptr, lt_b_ = nullptr, lt_c_ = nullptr, lt_d_ = nullptr;
  std::vector<void*> allocations_;
  void *lt_a_memory_ = nullptr, *lt_b_memory_ = nullptr, *c_memory_ = nullptr, *d_memory_ = nullptr;
  void* amax_memory_ = nullptr;
  size_t d_bytes_ = 0;
  cublasStatus_t heuristic_status_ = CUBLAS_STATUS_SUCCESS, run_status_ = CUBLAS_STATUS_SUCCESS;
};

}  // namespace quantgate::hardware
