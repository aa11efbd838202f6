#include "tests/hardware/cublaslt_gemm.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace quantgate::hardware {

void CheckCuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(status));
  std::exit(1);
}

void CheckCublas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::fprintf(stderr, "%s: cublasStatus_t %d\n", call, static_cast<int>(status));
  std::exit(1);
}

cudaDataType_t TypeOf(const std::string& name) {
  if (name == "f32") return CUDA_R_32F;
  if (name == "bf16") return CUDA_R_16BF;
  if (name == "f16") return CUDA_R_16F;
  if (name == "f8_e4m3") return CUDA_R_8F_E4M3;
  if (name == "f8_e5m2") return CUDA_R_8F_E5M2;
  std::fprintf(stderr, "unknown type %s\n", name.c_str());
  std::exit(1);
}

int64_t ScaleCount(Scaling scaling, int64_t rows, int64_t k) {
  const int64_t k_blocks = (k + 127) / 128;
  switch (scaling) {
    case Scaling::kNone:
      return 0;
    case Scaling::kTensor:
      return 1;
    case Scaling::kOuter:
      return rows;
    case Scaling::k1x128:
      return rows * k_blocks;
    case Scaling::k128x128:
      return (rows + 127) / 128 * k_blocks;
  }
  return 0;
}

int BytesOf(const std::string& name) { return name == "f32" ? 4 : name.starts_with("f8") ? 1 : 2; }

Device::Device() {
  QG_CUBLAS(cublasLtCreate(&handle));
  QG_CUDA(cudaStreamCreate(&stream));
  QG_CUDA(cudaMalloc(&workspace, kWorkspaceBytes));
}

Device::~Device() {
  cudaFree(workspace);
  cudaStreamDestroy(stream);
  cublasLtDestroy(handle);
}

std::string Device::Origin() const {
  cudaDeviceProp properties;
  QG_CUDA(cudaGetDeviceProperties(&properties, 0));
  int runtime = 0;
  QG_CUDA(cudaRuntimeGetVersion(&runtime));
  std::string driver = "unknown";
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    if (word.find('.') != std::string::npos) {
      driver = word;
      break;
    }
  }
  const size_t lt = cublasLtGetVersion();
  std::ostringstream text;
  text << properties.name << " (sm_" << properties.major << properties.minor << "), driver "
       << driver << ", CUDA runtime " << runtime / 1000 << "." << runtime % 1000 / 10
       << ", cuBLASLt " << lt / 10000 << "." << lt / 100 % 100 << "." << lt % 100;
  return text.str();
}

void* LoadedGemm::Upload(const void* bytes, size_t size) {
  void* memory = nullptr;
  QG_CUDA(cudaMalloc(&memory, std::max<size_t>(size, 256)));
  if (bytes != nullptr) QG_CUDA(cudaMemcpy(memory, bytes, size, cudaMemcpyHostToDevice));
  allocations_.push_back(memory);
  return memory;
}

template <typename T>
void LoadedGemm::Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
  QG_CUBLAS(cublasLtMatmulDescSetAttribute(desc_, attribute, &value, sizeof(value)));
}

LoadedGemm::LoadedGemm(Device& device, const GemmCase& gemm) : device_(device), gemm_(gemm) {
  const int64_t m = gemm.m, n = gemm.n, k = gemm.k;
  const bool is_tf32 = gemm.a_type == "f32" && !gemm.is_fp32_compute_given;
  const cublasComputeType_t compute = is_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : gemm.compute;
  QG_CUBLAS(cublasLtMatmulDescCreate(&desc_, compute,
                                     compute == CUBLAS_COMPUTE_16F ? CUDA_R_16F : CUDA_R_32F));
  // Row-major [rows][columns] is column-major [columns x rows] with leading dimension `columns`.
  const bool b_is_nk = gemm.layout == Layout::kTN;
  const bool a_is_mk = gemm.layout != Layout::kNT;
  Set(CUBLASLT_MATMUL_DESC_TRANSA, b_is_nk ? CUBLAS_OP_T : CUBLAS_OP_N);
  Set(CUBLASLT_MATMUL_DESC_TRANSB, a_is_mk ? CUBLAS_OP_N : CUBLAS_OP_T);
  const auto layout = [&](cublasLtMatrixLayout_t* out, const std::string& type, int64_t columns,
                          int64_t rows) {
    QG_CUBLAS(cublasLtMatrixLayoutCreate(out, TypeOf(type), columns, rows, columns));
    if (gemm.batch == 1) return;
    const int32_t batch = gemm.batch;
    const int64_t stride = columns * rows;
    QG_CUBLAS(cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                               sizeof(batch)));
    QG_CUBLAS(cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                               &stride, sizeof(stride)));
  };
  layout(&lt_a_, gemm.b_type, b_is_nk ? k : n, b_is_nk ? n : k);
  layout(&lt_b_, gemm.a_type, a_is_mk ? k : m, a_is_mk ? m : k);
  const bool d_is_fp8 = gemm.d_type.starts_with("f8");
  const std::string c_type = !gemm.c_type.empty() ? gemm.c_type : d_is_fp8 ? "bf16" : gemm.d_type;
  layout(&lt_c_, c_type, n, m);
  layout(&lt_d_, gemm.d_type, n, m);

  lt_a_memory_ = Upload(gemm.b.data(), gemm.b.size());
  lt_b_memory_ = Upload(gemm.a.data(), gemm.a.size());
  d_bytes_ = static_cast<size_t>(m * n * gemm.batch * BytesOf(gemm.d_type));
  d_memory_ = Upload(nullptr, d_bytes_);
  if (gemm.in_place || (gemm.c.empty() && !d_is_fp8)) {
    c_memory_ = d_memory_;  // With beta = 0, C is not read.
  } else {
    std::vector<uint8_t> zeros(static_cast<size_t>(m * n * gemm.batch * BytesOf(c_type)));
    const std::vector<uint8_t>& c = gemm.c.empty() ? zeros : gemm.c;
    c_memory_ = Upload(c.data(), c.size());
  }
  const bool is_fp8 = gemm.a_type.starts_with("f8");
  const bool is_fast =
      gemm.fast_accumulation < 0 ? !gemm.split_accumulator : gemm.fast_accumulation != 0;
  if (is_fp8) Set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(is_fast));
  SetScales(gemm.b_scaling, gemm.b_scale, n, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
            CUBLASLT_MATMUL_DESC_A_SCALE_MODE);
  SetScales(gemm.a_scaling, gemm.a_scale, m, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
            CUBLASLT_MATMUL_DESC_B_SCALE_MODE);
  if (gemm.has_d_scale) {
    Set(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, Upload(&gemm.d_scale, sizeof(float)));
  }
  if (gemm.has_amax) {
    amax_memory_ = Upload(nullptr, sizeof(float));
    Set(CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, amax_memory_);
  }
  SetEpilogue();
}

void LoadedGemm::SetScales(Scaling scaling, const std::vector<float>& values, int64_t rows,
                           cublasLtMatmulDescAttributes_t pointer,
                           cublasLtMatmulDescAttributes_t mode) {
  if (scaling == Scaling::kNone) return;
  static constexpr int32_t kModes[] = {
      0, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
      CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F};
  Set(mode, kModes[static_cast<int>(scaling)]);
  const int64_t k_blocks = (gemm_.k + 127) / 128, tiles = (rows + 127) / 128;
  std::vector<float> stored = values;
  if (scaling == Scaling::k1x128) {  // Rows are contiguous: [k block][row].
    const int64_t multiple = gemm_.scale_row_multiple;
    const int64_t stride = (rows + multiple - 1) / multiple * multiple;
    stored.assign(static_cast<size_t>(k_blocks * stride), 0.0f);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t block = 0; block < k_blocks; ++block) {
        stored[static_cast<size_t>(block * stride + row)] =
            values[static_cast<size_t>(row * k_blocks + block)];
      }
    }
  } else if (scaling == Scaling::k128x128) {  // [row tile][k block], k blocks padded to four.
    const int64_t stride = (k_blocks + 3) / 4 * 4;
    stored.assign(static_cast<size_t>(tiles * stride), 0.0f);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      std::copy_n(&values[static_cast<size_t>(tile * k_blocks)], k_blocks,
                  &stored[static_cast<size_t>(tile * stride)]);
    }
  }
  Set(pointer, Upload(stored.data(), stored.size() * sizeof(float)));
}

void LoadedGemm::SetEpilogue() {
  cublasLtEpilogue_t epilogue = gemm_.epilogue;
  if (!gemm_.bias_type.empty()) {
    if (epilogue == CUBLASLT_EPILOGUE_DEFAULT) epilogue = CUBLASLT_EPILOGUE_BIAS;
    Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, Upload(gemm_.bias.data(), gemm_.bias.size()));
    Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(TypeOf(gemm_.bias_type)));
  }
  if (!gemm_.bias_gradient_type.empty()) {
    gradient_memory_ = Upload(nullptr, static_cast<size_t>(gemm_.gradient_length) * 4);
    Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, gradient_memory_);
    Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
        static_cast<int32_t>(TypeOf(gemm_.bias_gradient_type)));
  }
  if (gemm_.has_aux) {
    aux_memory_ = Upload(gemm_.aux.empty() ? nullptr : gemm_.aux.data(), d_bytes_);
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux_memory_);
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, gemm_.n);
  }
  if (epilogue != CUBLASLT_EPILOGUE_DEFAULT) Set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
}

LoadedGemm::~LoadedGemm() {
  for (void* memory : allocations_) cudaFree(memory);
  for (cublasLtMatrixLayout_t layout : {lt_a_, lt_b_, lt_c_, lt_d_})
    cublasLtMatrixLayoutDestroy(layout);
  cublasLtMatmulDescDestroy(desc_);
}

namespace {

template <typename T>
T Config(const cublasLtMatmulAlgo_t& algo, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value{};
  size_t written = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algo, attribute, &value, sizeof(value), &written);
  return value;
}

Algorithm Described(const cublasLtMatmulAlgo_t& algo, size_t workspace_bytes) {
  Algorithm out{algo,
                workspace_bytes,
                "",
                Config<int32_t>(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
                Config<int32_t>(algo, CUBLASLT_ALGO_CONFIG_ID),
                Config<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)};
  std::ostringstream text;
  text << "id=" << out.id << " tile=" << Config<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_TILE_ID)
       << " stages=" << Config<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_STAGES_ID)
       << " splitk=" << out.split_k << " scheme=" << out.scheme
       << " swizzle=" << Config<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING)
       << " custom=" << Config<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION)
       << " inner=" << Config<uint16_t>(algo, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID)
       << " cluster=" << Config<uint16_t>(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID);
  out.text = text.str();
  return out;
}

}  // namespace

std::vector<Algorithm> LoadedGemm::Algorithms(int count, uint32_t reduction_mask) {
  cublasLtMatmulPreference_t preference;
  QG_CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
  const size_t workspace_bytes = Device::kWorkspaceBytes;
  QG_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference,
                                                 CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                 &workspace_bytes, sizeof(workspace_bytes)));
  QG_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference,
                                                 CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                 &reduction_mask, sizeof(reduction_mask)));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(count));
  int found = 0;
  heuristic_status_ = cublasLtMatmulAlgoGetHeuristic(
      device_.handle, desc_, lt_a_, lt_b_, lt_c_, lt_d_, preference, count, results.data(), &found);
  cublasLtMatmulPreferenceDestroy(preference);
  std::vector<Algorithm> algorithms;
  if (heuristic_status_ != CUBLAS_STATUS_SUCCESS) return algorithms;
  for (int i = 0; i < found; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS) {
      algorithms.push_back(Described(results[i].algo, results[i].workspaceSize));
    }
  }
  return algorithms;
}

std::vector<Algorithm> LoadedGemm::WithSplitK(const Algorithm& base, int32_t split_k,
                                              uint32_t scheme) {
  cublasLtMatmulAlgo_t algo = base.algo;
  QG_CUBLAS(cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split_k,
                                                 sizeof(split_k)));
  QG_CUBLAS(cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                 &scheme, sizeof(scheme)));
  cublasLtMatmulHeuristicResult_t result;
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(device_.handle, desc_, lt_a_, lt_b_, lt_c_, lt_d_, &algo, &result);
  if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > Device::kWorkspaceBytes) return {};
  return {Described(algo, result.workspaceSize)};
}

bool LoadedGemm::Launch(const Algorithm& algorithm) {
  if (gemm_.in_place) {
    QG_CUDA(cudaMemcpyAsync(d_memory_, gemm_.c.data(), d_bytes_, cudaMemcpyHostToDevice,
                            device_.stream));
  } else {
    QG_CUDA(cudaMemsetAsync(d_memory_, 0xA5, d_bytes_, device_.stream));
  }
  if (amax_memory_ != nullptr) {
    QG_CUDA(cudaMemsetAsync(amax_memory_, 0, sizeof(float), device_.stream));
  }
  // 16-bit accumulation takes 16-bit alpha and beta: 1 and 0 are all that is asked of it here.
  static constexpr uint16_t kHalfOne = 0x3C00, kHalfZero = 0;
  const bool is_half = gemm_.compute == CUBLAS_COMPUTE_16F;
  const void* alpha = is_half ? static_cast<const void*>(&kHalfOne) : &gemm_.alpha;
  const void* beta = is_half ? static_cast<const void*>(&kHalfZero) : &gemm_.beta;
  run_status_ = cublasLtMatmul(device_.handle, desc_, alpha, lt_a_memory_, lt_a_, lt_b_memory_,
                               lt_b_, beta, c_memory_, lt_c_, d_memory_, lt_d_, &algorithm.algo,
                               device_.workspace, Device::kWorkspaceBytes, device_.stream);
  return run_status_ == CUBLAS_STATUS_SUCCESS;
}

void LoadedGemm::Download(size_t begin, size_t count, uint8_t* bytes) {
  QG_CUDA(cudaMemcpyAsync(bytes, static_cast<const uint8_t*>(d_memory_) + begin, count,
                          cudaMemcpyDeviceToHost, device_.stream));
  QG_CUDA(cudaStreamSynchronize(device_.stream));
}

std::vector<uint8_t> LoadedGemm::Aux() {
  std::vector<uint8_t> bytes(d_bytes_);
  QG_CUDA(cudaMemcpy(bytes.data(), aux_memory_, bytes.size(), cudaMemcpyDeviceToHost));
  return bytes;
}

std::vector<uint8_t> LoadedGemm::BiasGradient() {
  std::vector<uint8_t> bytes(
      static_cast<size_t>(gemm_.gradient_length * BytesOf(gemm_.bias_gradient_type)));
  QG_CUDA(cudaMemcpy(bytes.data(), gradient_memory_, bytes.size(), cudaMemcpyDeviceToHost));
  return bytes;
}

bool LoadedGemm::Run(const Algorithm& algorithm, std::vector<uint8_t>* d, float* amax) {
  if (!Launch(algorithm)) return false;
  d->resize(d_bytes_);
  Download(0, d_bytes_, d->data());
  if (amax != nullptr && amax_memory_ != nullptr) {
    QG_CUDA(cudaMemcpy(amax, amax_memory_, sizeof(float), cudaMemcpyDeviceToHost));
  }
  return true;
}

}  // namespace quantgate::hardware
