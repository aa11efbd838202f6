#include "tests/hardware/cublaslt_probe.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "kernels/gemm/cublaslt/gemm_cublaslt.h"
#include "kernels/gemm/scaling_check.h"

namespace quantgate::hardware {
namespace {

cublasLtMatmulMatrixScale_t LtScaling(ScaleMode scaling) {
  switch (scaling) {
    case ScaleMode::kOuter:
      return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    case ScaleMode::k1x128:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case ScaleMode::k128x128:
      return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    default:
      return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  }
}

std::vector<uint8_t> BytesOf(const Tensor& tensor) {
  if (!tensor.has_value()) return {};
  const auto* first = reinterpret_cast<const uint8_t*>(tensor.data());
  return {first, first + tensor.byte_size()};
}

std::vector<float> ScalesOf(const GemmOperand& operand) {
  if (operand.scaling == ScaleMode::kNone) return {};
  const float* first = operand.scale_inv.as<float>();
  return {first, first + operand.scale_inv.element_count()};
}

}  // namespace

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

Probe ProbeOf(const GemmDesc& gemm) {
  Probe probe;
  const Shape &a = gemm.a.data.shape(), &b = gemm.b.data.shape();
  const bool a_is_km = gemm.layout == GemmLayout::kNT, b_is_kn = gemm.layout != GemmLayout::kTN;
  probe.shape = {a[a_is_km ? 1 : 0], b[b_is_kn ? 1 : 0], a[a_is_km ? 0 : 1]};
  probe.layout = gemm.layout;
  probe.a_type = gemm.a.data.dtype(), probe.b_type = gemm.b.data.dtype();
  probe.d_type = gemm.out_dtype;
  probe.a = BytesOf(gemm.a.data), probe.b = BytesOf(gemm.b.data);
  probe.fast_accumulation = !gemm.use_split_accumulator;
  probe.a_scaling = gemm.a.scaling, probe.b_scaling = gemm.b.scaling;
  probe.a_scale = ScalesOf(gemm.a), probe.b_scale = ScalesOf(gemm.b);
  if (probe.a_type == DType::kF32) probe.compute = CUBLAS_COMPUTE_32F_FAST_TF32;
  probe.bias = BytesOf(gemm.bias);
  return probe;
}

ProbedDevice::ProbedDevice() {
  QG_CUBLAS(cublasLtCreate(&handle));
  QG_CUDA(cudaMalloc(&workspace, kWorkspaceBytes));
}

ProbedDevice::~ProbedDevice() {
  cudaFree(workspace);
  cublasLtDestroy(handle);
}

void* ProbedGemm::Upload(const void* bytes, size_t size) {
  void* memory = nullptr;
  QG_CUDA(cudaMalloc(&memory, std::max<size_t>(size, 256)));
  if (bytes != nullptr) QG_CUDA(cudaMemcpy(memory, bytes, size, cudaMemcpyHostToDevice));
  allocations_.push_back(memory);
  return memory;
}

template <typename T>
void ProbedGemm::Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
  QG_CUBLAS(cublasLtMatmulDescSetAttribute(desc_, attribute, &value, sizeof(value)));
}

ProbedGemm::ProbedGemm(ProbedDevice& device, const Probe& probe) : device_(device), probe_(probe) {
  const auto [m, n, k] = probe.shape;
  QG_CUBLAS(cublasLtMatmulDescCreate(
      &desc_, probe.compute, probe.compute == CUBLAS_COMPUTE_16F ? CUDA_R_16F : CUDA_R_32F));
  // Row-major [rows][columns] is column-major [columns x rows] with leading dimension `columns`.
  const bool b_is_nk = probe.layout == GemmLayout::kTN;
  const bool a_is_mk = probe.layout != GemmLayout::kNT;
  Set(CUBLASLT_MATMUL_DESC_TRANSA, b_is_nk ? CUBLAS_OP_T : CUBLAS_OP_N);
  Set(CUBLASLT_MATMUL_DESC_TRANSB, a_is_mk ? CUBLAS_OP_N : CUBLAS_OP_T);
  const auto layout = [&](cublasLtMatrixLayout_t* out, DType type, int64_t columns, int64_t rows) {
    QG_CUBLAS(cublasLtMatrixLayoutCreate(out, CudaDataTypeOf(type), static_cast<uint64_t>(columns),
                                         static_cast<uint64_t>(rows), columns));
    if (probe.batch == 1) return;
    const int32_t batch = probe.batch;
    const int64_t stride = columns * rows;
    QG_CUBLAS(cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                               sizeof(batch)));
    QG_CUBLAS(cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                               &stride, sizeof(stride)));
  };
  layout(&lt_a_, probe.b_type, b_is_nk ? k : n, b_is_nk ? n : k);
  layout(&lt_b_, probe.a_type, a_is_mk ? k : m, a_is_mk ? m : k);
  layout(&lt_c_, IsFp8(probe.d_type) ? DType::kBF16 : probe.d_type, n, m);
  layout(&lt_d_, probe.d_type, n, m);
  lt_a_memory_ = Upload(probe.b.data(), probe.b.size());
  lt_b_memory_ = Upload(probe.a.data(), probe.a.size());
  d_bytes_ = static_cast<size_t>(m * n * probe.batch * DTypeBytes(probe.d_type));
  d_memory_ = Upload(nullptr, d_bytes_);
  if (IsFp8(probe.a_type)) {
    Set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(probe.fast_accumulation));
  }
  SetScales(probe.b_scaling, probe.b_scale, n, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
            CUBLASLT_MATMUL_DESC_A_SCALE_MODE);
  SetScales(probe.a_scaling, probe.a_scale, m, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
            CUBLASLT_MATMUL_DESC_B_SCALE_MODE);
  SetEpilogue();
}

void ProbedGemm::SetScales(ScaleMode scaling, const std::vector<float>& values, int64_t rows,
                           cublasLtMatmulDescAttributes_t pointer,
                           cublasLtMatmulDescAttributes_t mode) {
  if (scaling == ScaleMode::kNone) return;
  Set(mode, static_cast<int32_t>(LtScaling(scaling)));
  std::vector<float> stored = values;
  if (IsFp8Block(scaling)) {
    // 1x128: rows are contiguous, [k block][row]. Tiles: [row tile][k block], k blocks padded to
    // four.
    const bool is_tile = scaling == ScaleMode::k128x128;
    const int64_t k_blocks = (probe_.shape.k + 127) / 128;
    const int64_t scale_rows = is_tile ? (rows + 127) / 128 : rows;
    const int64_t inner = is_tile ? k_blocks : scale_rows;
    const int64_t multiple = is_tile ? 4 : probe_.scale_row_multiple;
    const int64_t stride = (inner + multiple - 1) / multiple * multiple;
    stored.assign(static_cast<size_t>((is_tile ? scale_rows : k_blocks) * stride), 0.0f);
    for (int64_t row = 0; row < scale_rows; ++row) {
      for (int64_t block = 0; block < k_blocks; ++block) {
        const int64_t at = is_tile ? row * stride + block : block * stride + row;
        stored[static_cast<size_t>(at)] = values[static_cast<size_t>(row * k_blocks + block)];
      }
    }
  }
  Set(pointer, Upload(stored.data(), stored.size() * sizeof(float)));
}

void ProbedGemm::SetEpilogue() {
  if (!probe_.bias.empty()) {
    Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, Upload(probe_.bias.data(), probe_.bias.size()));
    Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(CudaDataTypeOf(probe_.d_type)));
  }
  if (probe_.gradient_length > 0) {
    gradient_memory_ = Upload(nullptr, static_cast<size_t>(probe_.gradient_length) * sizeof(float));
    Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, gradient_memory_);
    Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
        static_cast<int32_t>(CudaDataTypeOf(probe_.gradient_type)));
  }
  if (probe_.has_aux) {
    aux_memory_ = Upload(probe_.aux.empty() ? nullptr : probe_.aux.data(), d_bytes_);
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux_memory_);
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, probe_.shape.n);
  }
  Set(CUBLASLT_MATMUL_DESC_EPILOGUE, probe_.epilogue);
}

ProbedGemm::~ProbedGemm() {
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

ProbedAlgorithm Described(const cublasLtMatmulAlgo_t& algo) {
  return {algo, Config<int32_t>(algo, CUBLASLT_ALGO_CONFIG_ID),
          Config<int32_t>(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM)};
}

}  // namespace

std::vector<ProbedAlgorithm> ProbedGemm::Algorithms(int count, uint32_t reduction_mask) {
  cublasLtMatmulPreference_t preference;
  QG_CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
  const size_t workspace_bytes = ProbedDevice::kWorkspaceBytes;
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
  std::vector<ProbedAlgorithm> algorithms;
  if (heuristic_status_ != CUBLAS_STATUS_SUCCESS) return algorithms;
  for (int i = 0; i < found; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(Described(results[i].algo));
  }
  return algorithms;
}

bool ProbedGemm::Run(const ProbedAlgorithm& algorithm, std::vector<uint8_t>* d) {
  QG_CUDA(cudaMemset(d_memory_, 0xA5, d_bytes_));
  // 16-bit accumulation takes 16-bit factors.
  static constexpr uint16_t kHalfOne = 0x3C00, kHalfZero = 0;
  static constexpr float kOne = 1.0f, kZero = 0.0f;
  const bool is_half = probe_.compute == CUBLAS_COMPUTE_16F;
  const void* alpha = is_half ? static_cast<const void*>(&kHalfOne) : &kOne;
  const void* beta = is_half ? static_cast<const void*>(&kHalfZero) : &kZero;
  const cublasStatus_t status =
      cublasLtMatmul(device_.handle, desc_, alpha, lt_a_memory_, lt_a_, lt_b_memory_, lt_b_, beta,
                     d_memory_, lt_c_, d_memory_, lt_d_, &algorithm.algo, device_.workspace,
                     ProbedDevice::kWorkspaceBytes, nullptr);
  if (status != CUBLAS_STATUS_SUCCESS) return false;
  d->resize(d_bytes_);
  QG_CUDA(cudaMemcpy(d->data(), d_memory_, d_bytes_, cudaMemcpyDeviceToHost));
  return true;
}

std::vector<uint8_t> ProbedGemm::Aux() {
  std::vector<uint8_t> bytes(d_bytes_);
  QG_CUDA(cudaMemcpy(bytes.data(), aux_memory_, bytes.size(), cudaMemcpyDeviceToHost));
  return bytes;
}

std::vector<uint8_t> ProbedGemm::BiasGradient() {
  std::vector<uint8_t> bytes(
      static_cast<size_t>(probe_.gradient_length * DTypeBytes(probe_.gradient_type)));
  QG_CUDA(cudaMemcpy(bytes.data(), gradient_memory_, bytes.size(), cudaMemcpyDeviceToHost));
  return bytes;
}

}  // namespace quantgate::hardware
