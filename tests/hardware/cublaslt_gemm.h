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
enum class Scaling { kNone, kTensor, kOuter, k1x128, k128x128 };
inline bool IsBlock(Scaling scaling) { return scaling >= Scaling::k1x128; }
/// Scales of an operand of [rows][k], in the logical order of ScaleMode in kernels/gemm/gemm.h.
int64_t ScaleCount(Scaling scaling, int64_t rows, int64_t k);

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
  /// Rows between two columns of 1x128 scales are a multiple of this.
  int64_t scale_row_multiple = 4;
  bool has_d_scale = false, has_amax = false;
  float d_scale = 1.0f;
  std::vector<uint8_t> a, b, c, bias;
  std::vector<float> a_scale, b_scale;  ///< ScaleCount of them.
  // What the sweeps leave at the default.
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;  ///< f32 operands: tf32 in its place.
  bool is_fp32_compute_given = false;                ///< f32 operands: `compute` as it stands.
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;  ///< BIAS follows from bias_type.
  std::string bias_gradient_type;  ///< BGRAD epilogues: `gradient_length` outputs of this type.
  int64_t gradient_length = 0;
  std::vector<uint8_t> aux;  ///< Epilogues with an auxiliary input or output, of the type of d.
  bool has_aux = false;
  int batch = 1;               ///< Matrices follow each other without gaps.
  int fast_accumulation = -1;  ///< FP8: FAST_ACCUM as given; -1: by split_accumulator.
};

struct Algorithm {
  cublasLtMatmulAlgo_t algo;
  size_t workspace_bytes = 0;
  std::string text;  ///< Id, tile, stages, split-K, ... in one line.
  int split_k = 1;
  int id = 0;           ///< Family of kernels: 66 is the one for Hopper's wgmma.
  uint32_t scheme = 0;  ///< Reduction of split-K: CUBLASLT_REDUCTION_SCHEME_*.
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
  /// The same without the copy back,
  bool Launch(const Algorithm& algorithm);
  /// and bytes [begin, begin + count) of the output of the last launch.
  void Download(size_t begin, size_t count, uint8_t* bytes);
  /// The auxiliary output and the bias gradient of the last launch.
  std::vector<uint8_t> Aux();
  std::vector<uint8_t> BiasGradient();
  cublasStatus_t run_status() const { return run_status_; }

 private:
  void* Upload(const void* bytes, size_t size);
  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t attribute, const T& value);
  void SetScales(Scaling scaling, const std::vector<float>& values, int64_t rows,
                 cublasLtMatmulDescAttributes_t pointer, cublasLtMatmulDescAttributes_t mode);
  void SetEpilogue();

  Device& device_;
  const GemmCase& gemm_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  // cuBLASLt's names: its A is our b, its B our a.
  cublasLtMatrixLayout_t lt_a_ = nullptr, lt_b_ = nullptr, lt_c_ = nullptr, lt_d_ = nullptr;
  std::vector<void*> allocations_;
  void *lt_a_memory_ = nullptr, *lt_b_memory_ = nullptr, *c_memory_ = nullptr, *d_memory_ = nullptr;
  void *amax_memory_ = nullptr, *aux_memory_ = nullptr, *gradient_memory_ = nullptr;
  size_t d_bytes_ = 0;
  cublasStatus_t heuristic_status_ = CUBLAS_STATUS_SUCCESS, run_status_ = CUBLAS_STATUS_SUCCESS;
};

}  // namespace quantgate::hardware
