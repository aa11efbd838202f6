#include "kernels/gemm/cublaslt/gemm_cublaslt.h"

#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/cuda_status.h"
#include "kernels/base/refusal.h"
#include "kernels/gemm/cublaslt/lru_cache.h"
#include "kernels/gemm/cublaslt/rearrange_scales.h"

namespace quantgate {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;
/// More algorithms than the heuristic was seen to return for any GEMM.
constexpr int kAlgorithmsMax = 64;
/// An entry takes some 10 KiB of host memory.
constexpr size_t kCachedGemmsMax = 1024;
/// The alignment that FP8 operands and scalars need, and TMA, by which the wgmma kernels load
/// others.
constexpr uintptr_t kAlignment = 16;
/// The alignment that the heuristic assumes by default.
constexpr uintptr_t kAlignmentMax = 256;

absl::StatusCode CodeOf(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_ALLOC_FAILED:
      return absl::StatusCode::kResourceExhausted;
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return absl::StatusCode::kUnimplemented;
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::StatusCode::kInternal;
  }
}

/// The error of a call of cuBLASLt, or the CUDA error behind it, which may be sticky.
absl::Status CublasStatus(cublasStatus_t status, const char* call, const char* file, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  QG_RETURN_IF_ERROR(CudaStatus(cudaGetLastError(), call, file, line));
  const char* slash = std::strrchr(file, '/');
  return absl::Status(CodeOf(status),
                      absl::StrCat("cuBLASLt: ", cublasLtGetStatusString(status), " (",
                                   cublasLtGetStatusName(status), ") from ", call, " at ",
                                   slash == nullptr ? file : slash + 1, ":", line));
}

#define QG_CUBLAS_STATUS(call) CublasStatus((call), #call, __FILE__, __LINE__)
#define QG_CUBLAS_RETURN_IF_ERROR(call) QG_RETURN_IF_ERROR(QG_CUBLAS_STATUS(call))

struct DestroyDesc {
  void operator()(cublasLtMatmulDesc_t desc) const { cublasLtMatmulDescDestroy(desc); }
};
struct DestroyLayout {
  void operator()(cublasLtMatrixLayout_t layout) const { cublasLtMatrixLayoutDestroy(layout); }
};
struct DestroyPreference {
  void operator()(cublasLtMatmulPreference_t preference) const {
    cublasLtMatmulPreferenceDestroy(preference);
  }
};
using MatmulDesc = std::unique_ptr<cublasLtMatmulDescOpaque_t, DestroyDesc>;
using MatrixLayout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, DestroyLayout>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, DestroyPreference>;

/// The type of C, also where there is none, since cuBLASLt wants its layout.
DType TypeOfC(const GemmDesc& desc) {
  return IsFp8(desc.out_dtype) ? DType::kBF16 : desc.out_dtype;
}

/// The device addresses that a GEMM reads and writes.
struct Addresses {
  const void *a = nullptr, *b = nullptr, *c = nullptr;
  void* d = nullptr;
  const void *a_scale = nullptr, *b_scale = nullptr, *d_scale = nullptr;
  const void* bias = nullptr;
  void* amax = nullptr;
};

uintptr_t AlignmentOf(const void* address) {
  const auto value = reinterpret_cast<uintptr_t>(address);
  return std::min(value & (~value + 1), kAlignmentMax);
}

/// The descriptors of one call. cuBLASLt is column-major: its A is our b, its B our a, and a
/// row-major [rows][columns] is its [columns x rows] with leading dimension `columns`.
class Call {
 public:
  absl::Status Describe(const GemmDesc& desc, const GemmShape& shape, const Addresses& addresses);

  /// The algorithms that the heuristic returns; may be empty.
  absl::StatusOr<std::vector<cublasLtMatmulHeuristicResult_t>> Ask(cublasLtHandle_t handle,
                                                                   uint32_t reduction_mask) const;
  /// Those of `bases` that can cut K into `slices` (added in fp32), configured to do so, without
  /// duplicates of `known`.
  absl::StatusOr<std::vector<cublasLtMatmulHeuristicResult_t>> WithSlices(
      cublasLtHandle_t handle, int32_t slices, std::vector<cublasLtMatmulHeuristicResult_t> bases,
      std::vector<cublasLtMatmulHeuristicResult_t> known) const;
  absl::Status Run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm, void* workspace,
                   cudaStream_t stream) const;

 private:
  template <typename T>
  absl::Status Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return QG_CUBLAS_STATUS(
        cublasLtMatmulDescSetAttribute(desc_.get(), attribute, &value, sizeof(value)));
  }
  absl::Status SetScale(ScaleMode mode, const void* scale,
                        cublasLtMatmulDescAttributes_t pointer_attribute,
                        cublasLtMatmulDescAttributes_t mode_attribute);
  absl::Status SetEpilogue(const GemmDesc& desc);

  Addresses addresses_;
  float alpha_ = 1, beta_ = 0;
  MatmulDesc desc_;
  MatrixLayout lt_a_, lt_b_, lt_c_, lt_d_;
};

absl::StatusOr<MatrixLayout> LayoutOf(DType dtype, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  QG_CUBLAS_RETURN_IF_ERROR(cublasLtMatrixLayoutCreate(&layout, CudaDataTypeOf(dtype),
                                                       static_cast<uint64_t>(columns),
                                                       static_cast<uint64_t>(rows), columns));
  return MatrixLayout(layout);
}

absl::Status Call::Describe(const GemmDesc& desc, const GemmShape& shape,
                            const Addresses& addresses) {
  addresses_ = addresses;
  alpha_ = desc.alpha;
  beta_ = desc.beta;
  const bool is_f32 = desc.a.data.dtype() == DType::kF32;
  cublasLtMatmulDesc_t matmul = nullptr;
  QG_CUBLAS_RETURN_IF_ERROR(cublasLtMatmulDescCreate(
      &matmul, is_f32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
  desc_.reset(matmul);
  const bool b_is_nk = desc.layout == GemmLayout::kTN;
  const bool a_is_mk = desc.layout != GemmLayout::kNT;
  QG_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSA, b_is_nk ? CUBLAS_OP_T : CUBLAS_OP_N));
  QG_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSB, a_is_mk ? CUBLAS_OP_N : CUBLAS_OP_T));
  const Shape& a = desc.a.data.shape();
  const Shape& b = desc.b.data.shape();
  QG_ASSIGN_OR_RETURN(lt_a_, LayoutOf(desc.b.data.dtype(), b[0], b[1]));
  QG_ASSIGN_OR_RETURN(lt_b_, LayoutOf(desc.a.data.dtype(), a[0], a[1]));
  QG_ASSIGN_OR_RETURN(lt_c_, LayoutOf(TypeOfC(desc), shape.m, shape.n));
  QG_ASSIGN_OR_RETURN(lt_d_, LayoutOf(desc.out_dtype, shape.m, shape.n));
  if (IsFp8(desc.a.data.dtype())) {
    const bool is_fast = ResolvedFor(desc).accumulation == Accumulation::kFast;
    QG_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(is_fast)));
  }
  QG_RETURN_IF_ERROR(SetScale(desc.b.scaling, addresses.b_scale,
                              CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                              CUBLASLT_MATMUL_DESC_A_SCALE_MODE));
  QG_RETURN_IF_ERROR(SetScale(desc.a.scaling, addresses.a_scale,
                              CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                              CUBLASLT_MATMUL_DESC_B_SCALE_MODE));
  return SetEpilogue(desc);
}

absl::Status Call::SetScale(ScaleMode mode, const void* scale,
                            cublasLtMatmulDescAttributes_t pointer_attribute,
                            cublasLtMatmulDescAttributes_t mode_attribute) {
  int32_t lt_mode = 0;
  switch (mode) {
    case ScaleMode::kTensor:
      lt_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
      break;
    case ScaleMode::kOuter:
      lt_mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
      break;
    case ScaleMode::k1x128:
      lt_mode = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
      break;
    case ScaleMode::k128x128:
      lt_mode = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
      break;
    default:
      return absl::OkStatus();
  }
  QG_RETURN_IF_ERROR(Set(mode_attribute, lt_mode));
  return Set(pointer_attribute, scale);
}

absl::Status Call::SetEpilogue(const GemmDesc& desc) {
  if (desc.bias.has_value()) {
    QG_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
    QG_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, addresses_.bias));
    QG_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                           static_cast<int32_t>(CudaDataTypeOf(desc.bias.dtype()))));
  }
  if (desc.d_scale.has_value()) {
    QG_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, addresses_.d_scale));
  }
  if (!IsFp8(desc.out_dtype)) return absl::OkStatus();
  return Set(CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, addresses_.amax);
}

absl::StatusOr<std::vector<cublasLtMatmulHeuristicResult_t>> Call::Ask(
    cublasLtHandle_t handle, uint32_t reduction_mask) const {
  cublasLtMatmulPreference_t created = nullptr;
  QG_CUBLAS_RETURN_IF_ERROR(cublasLtMatmulPreferenceCreate(&created));
  const Preference preference(created);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return QG_CUBLAS_STATUS(
        cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
  };
  QG_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes}));
  QG_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction_mask));
  const std::pair<cublasLtMatmulPreferenceAttributes_t, const void*> alignments[] = {
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, addresses_.b},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, addresses_.a},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, addresses_.c},
      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, addresses_.d}};
  for (const auto& [attribute, address] : alignments) {
    QG_RETURN_IF_ERROR(set(attribute, static_cast<uint32_t>(AlignmentOf(address))));
  }
  std::vector<cublasLtMatmulHeuristicResult_t> results(kAlgorithmsMax);
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, desc_.get(), lt_a_.get(), lt_b_.get(), lt_c_.get(), lt_d_.get(), preference.get(),
      kAlgorithmsMax, results.data(), &found);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) QG_RETURN_IF_ERROR(QG_CUBLAS_STATUS(status));
  results.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(found) : 0);
  std::erase_if(results, [](const auto& one) { return one.state != CUBLAS_STATUS_SUCCESS; });
  return results;
}

absl::Status Call::Run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                       void* workspace, cudaStream_t stream) const {
  return QG_CUBLAS_STATUS(cublasLtMatmul(handle, desc_.get(), &alpha_, addresses_.b, lt_a_.get(),
                                         addresses_.a, lt_b_.get(), &beta_, addresses_.c,
                                         lt_c_.get(), addresses_.d, lt_d_.get(), &algorithm,
                                         workspace, kWorkspaceBytes, stream));
}

template <typename T>
T Config(const cublasLtMatmulAlgo_t& algo, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value{};  // Stays 0 where an algorithm does not have the attribute.
  size_t written = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algo, attribute, &value, sizeof(value), &written);
  return value;
}

CublasLtAlgorithm Described(const cublasLtMatmulHeuristicResult_t& result) {
  const cublasLtMatmulAlgo_t& algo = result.algo;
  const auto word = [&](cublasLtMatmulAlgoConfigAttributes_t attribute) {
    return static_cast<int>(Config<uint32_t>(algo, attribute));
  };
  CublasLtAlgorithm out;
  out.id = Config<int32_t>(algo, CUBLASLT_ALGO_CONFIG_ID);
  out.tile = word(CUBLASLT_ALGO_CONFIG_TILE_ID);
  out.stages = word(CUBLASLT_ALGO_CONFIG_STAGES_ID);
  out.split_k = Config<int32_t>(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
  out.reduction_scheme = word(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
  out.swizzle = word(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING);
  out.custom_option = word(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION);
  out.inner_shape = Config<uint16_t>(algo, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID);
  out.cluster_shape = Config<uint16_t>(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID);
  out.workspace_bytes = result.workspaceSize;
  return out;
}

absl::StatusOr<std::vector<cublasLtMatmulHeuristicResult_t>> Call::WithSlices(
    cublasLtHandle_t handle, int32_t slices, std::vector<cublasLtMatmulHeuristicResult_t> bases,
    std::vector<cublasLtMatmulHeuristicResult_t> known) const {
  const uint32_t scheme =
      slices > 1 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
  for (cublasLtMatmulHeuristicResult_t& base : bases) {
    QG_CUBLAS_RETURN_IF_ERROR(cublasLtMatmulAlgoConfigSetAttribute(
        &base.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &slices, sizeof(slices)));
    QG_CUBLAS_RETURN_IF_ERROR(cublasLtMatmulAlgoConfigSetAttribute(
        &base.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof(scheme)));
    cublasLtMatmulHeuristicResult_t checked = {};
    const cublasStatus_t status =
        cublasLtMatmulAlgoCheck(handle, desc_.get(), lt_a_.get(), lt_b_.get(), lt_c_.get(),
                                lt_d_.get(), &base.algo, &checked);
    if (status != CUBLAS_STATUS_SUCCESS || checked.workspaceSize > kWorkspaceBytes) continue;
    base.workspaceSize = checked.workspaceSize;
    const std::string text = Described(base).ToString();
    const bool is_new = std::none_of(known.begin(), known.end(), [&](const auto& one) {
      return Described(one).ToString() == text;
    });
    if (is_new) known.push_back(base);
  }
  return known;
}

struct Choice {
  cublasLtMatmulAlgo_t algo;
  CublasLtAlgorithm description;
};

std::vector<Choice> Numbered(const std::vector<cublasLtMatmulHeuristicResult_t>& results) {
  std::vector<Choice> choices;
  for (const cublasLtMatmulHeuristicResult_t& result : results) {
    choices.push_back({result.algo, Described(result)});
    choices.back().description.index = static_cast<int>(choices.size()) - 1;
  }
  return choices;
}

/// A key with everything that the heuristic reads; of addresses it is only the alignment.
std::string CacheKey(const GemmDesc& desc, const GemmShape& shape, const Addresses& addresses) {
  const Arithmetic arithmetic = ResolvedFor(desc);
  std::string key = absl::StrCat(shape.m, ",", shape.n, ",", shape.k);
  for (const int part :
       {static_cast<int>(desc.layout), static_cast<int>(desc.a.data.dtype()),
        static_cast<int>(desc.b.data.dtype()), static_cast<int>(desc.out_dtype),
        static_cast<int>(desc.a.scaling), static_cast<int>(desc.b.scaling),
        static_cast<int>(arithmetic.accumulation), arithmetic.split_k,
        static_cast<int>(arithmetic.any_split_k), static_cast<int>(desc.bias.has_value()),
        static_cast<int>(desc.d_scale.has_value()), static_cast<int>(AlignmentOf(addresses.a)),
        static_cast<int>(AlignmentOf(addresses.b)), static_cast<int>(AlignmentOf(addresses.c)),
        static_cast<int>(AlignmentOf(addresses.d))}) {
    absl::StrAppend(&key, ",", part);
  }
  return key;
}

absl::Status CheckSpace(const GemmDesc& desc) {
  const std::pair<const char*, const Tensor&> tensors[] = {{"a", desc.a.data},
                                                           {"a.scale_inv", desc.a.scale_inv},
                                                           {"b", desc.b.data},
                                                           {"b.scale_inv", desc.b.scale_inv},
                                                           {"c", desc.c},
                                                           {"bias", desc.bias},
                                                           {"d_scale", desc.d_scale}};
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.has_value() || tensor.space() == MemorySpace::kDevice) continue;
    return Refuse(name, TensorText(tensor) + " in host memory", "cuBLASLt reads device memory");
  }
  return absl::OkStatus();
}

/// The tensors of one call, placed where cuBLASLt can read them. They live until the call's work is
/// on the stream.
class Operands {
 public:
  /// `unread` is the address of C where there is none, since cuBLASLt wants one.
  Operands(CudaDevice& device, const void* unread) : device_(device) { addresses_.c = unread; }

  absl::Status Place(const GemmDesc& desc, const GemmShape& shape) {
    QG_ASSIGN_OR_RETURN(addresses_.a, Aligned(desc.a.data, kAlignment));
    QG_ASSIGN_OR_RETURN(addresses_.b, Aligned(desc.b.data, kAlignment));
    QG_ASSIGN_OR_RETURN(addresses_.a_scale, Scales(desc.a, shape.m, shape.k));
    QG_ASSIGN_OR_RETURN(addresses_.b_scale, Scales(desc.b, shape.n, shape.k));
    QG_ASSIGN_OR_RETURN(addresses_.bias, Aligned(desc.bias, kAlignmentMax));
    QG_ASSIGN_OR_RETURN(addresses_.d_scale, Aligned(desc.d_scale, kAlignment));
    return absl::OkStatus();
  }

  /// d, with c in its place where they share memory.
  absl::Status PlaceOutputs(const GemmDesc& desc, Tensor& d, Tensor& amax) {
    addresses_.d = d.data();
    if (amax.has_value()) addresses_.amax = amax.data();
    if (desc.in_place) {
      addresses_.c = d.data();
      return QG_CUDA_STATUS(cudaMemcpyAsync(d.data(), desc.c.data(), d.byte_size(),
                                            cudaMemcpyDeviceToDevice, device_.stream()));
    }
    if (!desc.c.has_value()) {
      // C is of another type than an FP8 d, which cuBLASLt then refuses in its place.
      if (!IsFp8(desc.out_dtype)) addresses_.c = d.data();
      return absl::OkStatus();
    }
    QG_ASSIGN_OR_RETURN(addresses_.c, Aligned(desc.c, kAlignment));
    return absl::OkStatus();
  }

  const Addresses& addresses() const { return addresses_; }

 private:
  /// The heuristic is told the alignment of matrices but not of vectors, although kernels differ in
  /// the alignment of vectors that they need too.
  absl::StatusOr<const void*> Aligned(const Tensor& tensor, uintptr_t alignment) {
    if (!tensor.has_value()) return nullptr;
    if (AlignmentOf(tensor.data()) >= alignment) return tensor.data();
    QG_ASSIGN_OR_RETURN(Tensor copy, device_.Allocate(tensor.dtype(), tensor.shape()));
    QG_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(copy.data(), tensor.data(), tensor.byte_size(),
                                            cudaMemcpyDeviceToDevice, device_.stream()));
    kept_.push_back(copy);
    return copy.data();
  }

  /// 1x128 scales go to [k block][row], tiles to [row tile][k block] with k blocks padded to four
  /// (cuBLASLt's documentation of its scaling modes).
  absl::StatusOr<const void*> Scales(const GemmOperand& operand, int64_t rows, int64_t k) {
    if (operand.scaling == ScaleMode::kTensor) return Aligned(operand.scale_inv, kAlignment);
    const bool is_tile = operand.scaling == ScaleMode::k128x128;
    if (!is_tile && operand.scaling != ScaleMode::k1x128) {
      return Aligned(operand.scale_inv, kAlignmentMax);
    }
    const int64_t k_blocks = (k + 127) / 128;
    RearrangeParameters p = {};
    p.outer = is_tile ? (rows + 127) / 128 : k_blocks;
    p.inner = is_tile ? k_blocks : rows;
    p.in_outer_stride = is_tile ? k_blocks : 1;
    p.in_inner_stride = is_tile ? 1 : k_blocks;
    p.out_stride = (p.inner + 3) / 4 * 4;
    QG_ASSIGN_OR_RETURN(Tensor copy, device_.Allocate(DType::kF32, {p.outer, p.out_stride}));
    p.in = operand.scale_inv.as<float>();
    p.out = copy.as<float>();
    QG_CUDA_RETURN_IF_ERROR(LaunchRearrange(p, device_.stream()));
    kept_.push_back(copy);
    return copy.data();
  }

  CudaDevice& device_;
  Addresses addresses_;
  std::vector<Tensor> kept_;
};

}  // namespace

struct CublasLt::State {
  cublasLtHandle_t handle = nullptr;
  std::shared_ptr<Buffer> workspace;
  LruCache<std::vector<Choice>> cache{kCachedGemmsMax};

  ~State() {
    if (handle != nullptr) cublasLtDestroy(handle);
  }

  /// The result is valid until the next call.
  absl::StatusOr<const std::vector<Choice>*> Choices(const GemmDesc& desc, const GemmShape& shape,
                                                     const Addresses& addresses, const Call& call);
  absl::StatusOr<std::vector<cublasLtMatmulHeuristicResult_t>> Find(
      const Call& call, const Arithmetic& arithmetic) const;
  /// Addresses in place of those of Operands: aligned as well, and never read.
  Addresses StandIns(const GemmDesc& desc) const;
};

absl::StatusOr<std::vector<cublasLtMatmulHeuristicResult_t>> CublasLt::State::Find(
    const Call& call, const Arithmetic& arithmetic) const {
  if (arithmetic.any_split_k) return call.Ask(handle, CUBLASLT_REDUCTION_SCHEME_MASK);
  QG_ASSIGN_OR_RETURN(std::vector<cublasLtMatmulHeuristicResult_t> whole,
                      call.Ask(handle, CUBLASLT_REDUCTION_SCHEME_NONE));
  if (arithmetic.split_k == 1) {
    if (!whole.empty()) return whole;
    // For few outputs with a long k the heuristic returns only algorithms that split K, but their
    // kernels can run without splitting.
    QG_ASSIGN_OR_RETURN(std::vector<cublasLtMatmulHeuristicResult_t> split,
                        call.Ask(handle, CUBLASLT_REDUCTION_SCHEME_MASK));
    return call.WithSlices(handle, 1, std::move(split), {});
  }
  QG_ASSIGN_OR_RETURN(std::vector<cublasLtMatmulHeuristicResult_t> split,
                      call.Ask(handle, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  whole.insert(whole.end(), split.begin(), split.end());
  std::erase_if(split,
                [&](const auto& one) { return Described(one).split_k != arithmetic.split_k; });
  return call.WithSlices(handle, arithmetic.split_k, std::move(whole), std::move(split));
}

absl::StatusOr<const std::vector<Choice>*> CublasLt::State::Choices(const GemmDesc& desc,
                                                                    const GemmShape& shape,
                                                                    const Addresses& addresses,
                                                                    const Call& call) {
  std::string key = CacheKey(desc, shape, addresses);
  const std::vector<Choice>* known = cache.Find(key);
  if (known == nullptr) {
    QG_ASSIGN_OR_RETURN(const std::vector<cublasLtMatmulHeuristicResult_t> results,
                        Find(call, desc.arithmetic));
    known = &cache.Insert(std::move(key), Numbered(results));
  }
  if (!known->empty()) return known;
  return StatusOf(
      {.code = absl::StatusCode::kUnimplemented,
       .field = "arithmetic",
       .value = desc.arithmetic.ToString(),
       .rule = absl::StrCat("cuBLASLt has no algorithm on this device for ", GemmText(desc))});
}

Addresses CublasLt::State::StandIns(const GemmDesc& desc) const {
  void* const any = workspace->data();
  const auto of = [&](const Tensor& tensor) -> const void* {
    if (!tensor.has_value()) return any;
    return AlignmentOf(tensor.data()) >= kAlignment ? tensor.data() : any;
  };
  return {of(desc.a.data),
          of(desc.b.data),
          desc.in_place ? any : of(desc.c),
          any,
          any,
          any,
          any,
          any,
          any};
}

CublasLt::CublasLt(CudaDevice& device) : device_(device), state_(std::make_unique<State>()) {}
CublasLt::~CublasLt() = default;

absl::StatusOr<std::unique_ptr<CublasLt>> CublasLt::Create(CudaDevice& device) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  std::unique_ptr<CublasLt> lt(new CublasLt(device));
  QG_CUBLAS_RETURN_IF_ERROR(cublasLtCreate(&lt->state_->handle));
  QG_ASSIGN_OR_RETURN(lt->state_->workspace, device.AllocateBytes(kWorkspaceBytes));
  const size_t version = cublasLtGetVersion();
  lt->version_ = absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
  return lt;
}

absl::StatusOr<GemmShape> CublasLt::Check(const GemmDesc& desc) const {
  QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckCublasLtGemm(desc));
  QG_RETURN_IF_ERROR(CheckSpace(desc));
  return shape;
}

absl::StatusOr<std::vector<CublasLtAlgorithm>> CublasLt::Algorithms(const GemmDesc& desc) {
  QG_RETURN_IF_ERROR(device_.MakeCurrent());
  QG_ASSIGN_OR_RETURN(const GemmShape shape, Check(desc));
  std::vector<CublasLtAlgorithm> algorithms;
  if (shape.m == 0) return algorithms;
  const Addresses addresses = state_->StandIns(desc);
  Call call;
  QG_RETURN_IF_ERROR(call.Describe(desc, shape, addresses));
  QG_ASSIGN_OR_RETURN(const std::vector<Choice>* choices,
                      state_->Choices(desc, shape, addresses, call));
  for (const Choice& choice : *choices) algorithms.push_back(choice.description);
  return algorithms;
}

absl::StatusOr<GemmResult> CublasLt::Gemm(const GemmDesc& desc, const Cancellation* cancellation) {
  QG_RETURN_IF_ERROR(device_.MakeCurrent());
  QG_ASSIGN_OR_RETURN(const GemmShape shape, Check(desc));
  if (cancellation != nullptr) QG_RETURN_IF_ERROR(cancellation->Check());
  GemmResult result;
  Arithmetic ran;
  ran.family = ArithmeticFamily::kCublasLt;
  ran.accumulation = ResolvedFor(desc).accumulation;
  result.arithmetic = ran;
  QG_ASSIGN_OR_RETURN(result.d, OutputOf(desc, shape, [&](DType dtype, Shape dims) {
                        return device_.Allocate(dtype, std::move(dims));
                      }));
  if (IsFp8(desc.out_dtype)) {
    QG_ASSIGN_OR_RETURN(result.amax, device_.AllocateZeroed(DType::kF32, {1}));
  }
  if (shape.m == 0) return result;

  Operands operands(device_, state_->workspace->data());
  QG_RETURN_IF_ERROR(operands.Place(desc, shape));
  QG_RETURN_IF_ERROR(operands.PlaceOutputs(desc, result.d, result.amax));
  Call call;
  QG_RETURN_IF_ERROR(call.Describe(desc, shape, operands.addresses()));
  QG_ASSIGN_OR_RETURN(const std::vector<Choice>* choices,
                      state_->Choices(desc, shape, operands.addresses(), call));
  const auto index = static_cast<size_t>(desc.arithmetic.algorithm);
  if (index >= choices->size()) {
    return Refuse("arithmetic.algorithm", absl::StrCat(index),
                  absl::StrCat("cuBLASLt's heuristic returns ", choices->size(), " algorithms for ",
                               GemmText(desc)));
  }
  const Choice& choice = (*choices)[index];
  const absl::Status status =
      call.Run(state_->handle, choice.algo, state_->workspace->data(), device_.stream());
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat(std::string(status.message()), "; ", GemmText(desc), "; ",
                                     choice.description.ToString()));
  }
  ran.split_k = std::max(1, choice.description.split_k);
  result.arithmetic = ran;
  result.note = choice.description.ToString();
  return result;
}

}  // namespace quantgate
