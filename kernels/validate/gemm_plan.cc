#include "kernels/validate/gemm_plan.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/cublaslt/cublaslt_algorithm.h"
#include "kernels/validate/run/described_copy.h"

namespace quantgate {
namespace {

/// An operand: its name in messages, and how it is stored.
struct GemmSide {
  std::string name;  ///< "a" or "b".
  Tensor& data;
  Tensor& scale_inv;
  bool k_contiguous;  ///< Whether K is its last dim.

  int64_t DimOf(bool of_k) const {
    const Shape& shape = data.shape();
    const size_t index = of_k == k_contiguous ? 1 : 0;
    if (index >= shape.size()) return 0;
    // A byte holds two codes of FP4; U8 may turn out to be FP4.
    const bool is_packed = data.dtype() == DType::kF4E2M1x2 || data.dtype() == DType::kU8;
    return shape[index] * (is_packed && index == 1 ? 2 : 1);
  }
  /// Whether scale_inv has the shape of blocks of `row_block` x 128.
  bool FitsBlocks(int64_t row_block) const {
    const int64_t rows = (DimOf(false) + row_block - 1) / row_block;
    const int64_t blocks = (DimOf(true) + 127) / 128;
    return scale_inv.shape() == (k_contiguous ? Shape{rows, blocks} : Shape{blocks, rows});
  }
  /// Whether scale_inv is [], [1] or [1][1], as `amax / max` of arrays leaves it.
  bool IsOneNumber() const { return scale_inv.rank() <= 2 && scale_inv.element_count() == 1; }
  /// Whether scale_inv is [rows][1], or [1][rows] beside data that has its rows in that dim.
  bool IsLine() const {
    const int64_t rows = DimOf(false);
    return scale_inv.shape() == (k_contiguous ? Shape{rows, 1} : Shape{1, rows});
  }
};

/// Refuses U8 that nothing says to be FP4 codes: files and tools without an FP8 dtype store FP8
/// codes so.
absl::Status BytesNeedType(const GemmSide& side) {
  return Refuse(side.name + ".tensor", TensorText(side.data),
                "u8 is no operand dtype; if these are codes, say of which type (append @f8_e4m3)");
}

/// The scaling, if dtype and shape of scale_inv leave no doubt.
absl::StatusOr<ScaleMode> InferScaling(const GemmSide& side) {
  const Tensor& scale = side.scale_inv;
  if (scale.dtype() == DType::kF8E8M0) return ScaleMode::kMx32;
  if (scale.dtype() == DType::kF8E4M3) return ScaleMode::kNv16;
  if (side.data.dtype() == DType::kU8) return BytesNeedType(side);
  // Scales that fit whole blocks are taken for block scales.
  const bool fits_blocks =
      side.DimOf(true) % 128 == 0 && (side.FitsBlocks(1) || side.FitsBlocks(128));
  const bool is_squeezed = !fits_blocks && (side.IsOneNumber() || side.IsLine());
  const std::pair<ScaleMode, bool> candidates[] = {
      {ScaleMode::kTensor, scale.shape() == Shape{1} || (is_squeezed && side.IsOneNumber())},
      {ScaleMode::kOuter,
       scale.shape() == Shape{side.DimOf(false)} || (is_squeezed && !side.IsOneNumber())},
      {ScaleMode::k1x128, !is_squeezed && side.FitsBlocks(1)},
      {ScaleMode::k128x128, !is_squeezed && side.FitsBlocks(128)},
  };
  std::vector<std::string> fitting;
  ScaleMode mode = ScaleMode::kNone;
  for (const auto& [candidate, fits] : candidates) {
    if (!fits || scale.dtype() != DType::kF32) continue;
    mode = candidate;
    fitting.emplace_back(ScaleModeName(candidate));
  }
  if (fitting.size() == 1) return mode;
  return RefuseAbsent(
      side.name + ".scaling",
      absl::StrCat("scale_inv ", TensorText(scale), " with ", side.DimOf(false), " rows fits ",
                   fitting.empty() ? "no scaling" : absl::StrJoin(fitting, " and "),
                   "; say which of tensor, outer, 1x128, 128x128, mx32, nv16, 1x32, 32x32, 1x64, "
                   "64x64, 1x256, 256x256"));
}

absl::Status ReadAs(DType dtype, Shape shape, Tensor& tensor) {
  QG_ASSIGN_OR_RETURN(tensor, tensor.Reinterpret(dtype, std::move(shape)));
  return absl::OkStatus();
}

/// Gives U8 the dtype that the scaling implies: files have it for FP4 codes, tools for scales.
absl::Status Retype(ScaleMode mode, GemmSide& side) {
  const auto retype = [](Tensor& tensor, DType dtype) -> absl::Status {
    const bool is_u8 = tensor.has_value() && tensor.dtype() == DType::kU8;
    return is_u8 ? ReadAs(dtype, tensor.shape(), tensor) : absl::OkStatus();
  };
  if (mode == ScaleMode::kNv16) {
    QG_RETURN_IF_ERROR(retype(side.data, DType::kF4E2M1x2));
    return retype(side.scale_inv, DType::kF8E4M3);
  }
  if (mode == ScaleMode::kMx32) return retype(side.scale_inv, DType::kF8E8M0);
  return absl::OkStatus();
}

/// Reshapes the scales of a tensor and of rows to [1] and [rows] from the shapes that reductions
/// with kept dims give.
absl::Status Squeeze(ScaleMode mode, GemmSide& side) {
  Tensor& scale = side.scale_inv;
  const bool is_tensor = mode == ScaleMode::kTensor && side.IsOneNumber();
  const bool is_outer = mode == ScaleMode::kOuter && side.IsLine();
  if (!scale.has_value() || (!is_tensor && !is_outer)) return absl::OkStatus();
  return ReadAs(scale.dtype(), {scale.element_count()}, scale);
}

/// An operand [..., K] as [M][K], as layers take x.
absl::Status Flatten(GemmSide& side) {
  if (!side.k_contiguous || side.data.rank() < 3) return absl::OkStatus();
  if (side.scale_inv.has_value()) {
    QG_RETURN_IF_ERROR(ReadAs(side.scale_inv.dtype(),
                              FlattenScales(side.scale_inv.shape(), side.data.shape()),
                              side.scale_inv));
  }
  return ReadAs(side.data.dtype(), {side.data.rows(), side.data.columns()}, side.data);
}

absl::StatusOr<GemmOperand> OperandFrom(GemmOperandRequest request, const std::string& name,
                                        bool k_contiguous) {
  if (!request.data.has_value()) return RefuseAbsent(name + ".tensor", "it must be given");
  GemmSide side{name, request.data, request.scale_inv, k_contiguous};
  QG_RETURN_IF_ERROR(Flatten(side));
  GemmOperand operand;
  if (request.scaling.has_value()) {
    operand.scaling = *request.scaling;
  } else if (request.scale_inv.has_value()) {
    QG_ASSIGN_OR_RETURN(operand.scaling, InferScaling(side));
  }
  QG_RETURN_IF_ERROR(Retype(operand.scaling, side));
  QG_RETURN_IF_ERROR(Squeeze(operand.scaling, side));
  if (side.data.dtype() == DType::kU8) return BytesNeedType(side);
  if (request.e4m3_max.has_value()) {
    if (operand.scaling != ScaleMode::kNv16) {
      return Refuse(name + ".e4m3_max", absl::StrCat(*request.e4m3_max),
                    "only nv16 operands have one");
    }
    operand.e4m3_max = *request.e4m3_max;
  }
  operand.data = std::move(request.data);
  operand.scale_inv = std::move(request.scale_inv);
  operand.amax = std::move(request.amax);
  return operand;
}

absl::Status CheckEveryAlgorithm(const GemmRequest& request) {
  if (!request.every_algorithm) return absl::OkStatus();
  const Arithmetic& arithmetic = request.arithmetic;
  if (arithmetic.family != ArithmeticFamily::kCublasLt) {
    return Refuse("every_algorithm", "true",
                  absl::StrCat("arithmetic is ", arithmetic.ToString(),
                               ", and cublaslt alone has algorithms to choose from"));
  }
  if (arithmetic.algorithm == 0) return absl::OkStatus();
  return Refuse("every_algorithm", "true",
                absl::StrCat("arithmetic is ", arithmetic.ToString(), ", which names one of them"));
}

absl::Status LoadOperand(const std::string& name, SlotLoader load, GemmOperand& operand) {
  QG_RETURN_IF_ERROR(LoadSlot(name + ".tensor", load, operand.data));
  QG_RETURN_IF_ERROR(LoadSlot(name + ".scale_inv", load, operand.scale_inv));
  return LoadSlot(name + ".amax", load, operand.amax);
}

}  // namespace

absl::StatusOr<GemmPlan> GemmPlan::Create(GemmRequest request) {
  QG_RETURN_IF_ERROR(CheckEveryAlgorithm(request));
  if (!IsHighPrecision(request.out_dtype) && !IsFp8(request.out_dtype)) {
    return Refuse("out_dtype", DTypeName(request.out_dtype),
                  "must be f32, bf16, f16, f8_e4m3 or f8_e5m2");
  }
  GemmDesc desc;
  desc.layout = request.layout;
  desc.arithmetic = request.arithmetic;
  desc.alpha = request.alpha;
  desc.beta = request.beta;
  desc.c = std::move(request.c);
  desc.bias = std::move(request.bias);
  desc.d_scale = std::move(request.d_scale);
  desc.in_place = request.in_place;
  desc.out_dtype = request.out_dtype;
  QG_ASSIGN_OR_RETURN(desc.a,
                      OperandFrom(std::move(request.a), "a", desc.layout != GemmLayout::kNT));
  QG_ASSIGN_OR_RETURN(desc.b,
                      OperandFrom(std::move(request.b), "b", desc.layout == GemmLayout::kTN));
  const bool is_hardware = desc.arithmetic.family == ArithmeticFamily::kCublasLt;
  QG_ASSIGN_OR_RETURN(const GemmShape shape,
                      is_hardware ? CheckCublasLtGemm(desc) : CheckGemm(desc));
  return GemmPlan(std::move(desc), shape, request.every_algorithm);
}

absl::StatusOr<GemmPlan> GemmPlan::WithTensors(SlotLoader load) const {
  GemmPlan plan = *this;
  QG_RETURN_IF_ERROR(LoadOperand("a", load, plan.desc_.a));
  QG_RETURN_IF_ERROR(LoadOperand("b", load, plan.desc_.b));
  QG_RETURN_IF_ERROR(LoadSlot("c", load, plan.desc_.c));
  QG_RETURN_IF_ERROR(LoadSlot("bias", load, plan.desc_.bias));
  QG_RETURN_IF_ERROR(LoadSlot("d_scale", load, plan.desc_.d_scale));
  return plan;
}

}  // namespace quantgate
