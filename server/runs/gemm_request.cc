#include "server/runs/gemm_request.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/cublaslt_algorithm.h"
#include "server/wire/parsed_name.h"
#include "server/wire/quantized_parts.h"

namespace quantgate {
namespace {

absl::StatusOr<GemmLayout> LayoutFromName(const std::string& name) {
  if (name.empty() || name == "tn") return GemmLayout::kTN;
  if (name == "nn") return GemmLayout::kNN;
  if (name == "nt") return GemmLayout::kNT;
  return Refuse("layout", Printable(name), "must be tn, nn or nt");
}

absl::StatusOr<DType> OutDTypeFromName(const std::string& name) {
  if (name.empty()) return DType::kF32;
  const auto dtype = ParseDType(name);
  if (dtype.ok() && (IsHighPrecision(*dtype) || IsFp8(*dtype))) return *dtype;
  return Refuse("out_dtype", Printable(name), "must be f32, bf16, f16, f8_e4m3 or f8_e5m2");
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// An operand in messages, and how it is stored.
struct Side {
  std::string name;  ///< "a" or "b".
  TensorReference& data;
  TensorReference& scale_inv;
  bool k_contiguous;  ///< Its last dim.

  int64_t DimOf(bool of_k) const {
    const Shape& shape = data.type->shape;
    const size_t index = of_k == k_contiguous ? 1 : 0;
    if (index >= shape.size()) return 0;
    // Two codes a byte, of FP4 and of what may turn out to be FP4.
    const bool is_packed = data.type->dtype == DType::kF4E2M1x2 || data.type->dtype == DType::kU8;
    return shape[index] * (is_packed && index == 1 ? 2 : 1);
  }
  /// Whether scale_inv has the shape of blocks of `row_block` x 128.
  bool FitsBlocks(int64_t row_block) const {
    const int64_t rows = CeilDiv(DimOf(false), row_block), blocks = CeilDiv(DimOf(true), 128);
    return scale_inv.type->shape == (k_contiguous ? Shape{rows, blocks} : Shape{blocks, rows});
  }
};

/// Of u8 that nothing says to be FP4 codes: files and tools without an FP8 type have its codes so.
absl::Status BytesNeedType(const Side& side) {
  return Refuse(side.name + ".tensor", TensorTypeText(*side.data.type),
                "bytes are no operand; if they are codes, say of what type (append @f8_e4m3)");
}

/// What the dtype and shape of scale_inv say, where they leave no doubt.
absl::StatusOr<ScaleMode> InferScaling(const Side& side) {
  const TensorType& scale = *side.scale_inv.type;
  if (scale.dtype == DType::kF8E8M0) return ScaleMode::kMx32;
  if (scale.dtype == DType::kF8E4M3) return ScaleMode::kNv16;
  if (side.data.type->dtype == DType::kU8) return BytesNeedType(side);
  const std::pair<ScaleMode, bool> candidates[] = {
      {ScaleMode::kTensor, scale.shape == Shape{1}},
      {ScaleMode::kOuter, scale.shape == Shape{side.DimOf(false)}},
      {ScaleMode::k1x128, side.FitsBlocks(1)},
      {ScaleMode::k128x128, side.FitsBlocks(128)},
  };
  std::vector<std::string> fitting;
  ScaleMode mode = ScaleMode::kNone;
  for (const auto& [candidate, fits] : candidates) {
    if (!fits || scale.dtype != DType::kF32) continue;
    mode = candidate;
    fitting.emplace_back(ScaleModeName(candidate));
  }
  if (fitting.size() == 1) return mode;
  return RefuseAbsent(
      side.name + ".scaling",
      absl::StrCat("scale_inv ", TensorTypeText(scale), " with ", side.DimOf(false), " rows fits ",
                   fitting.empty() ? "no scaling" : absl::StrJoin(fitting, " and "),
                   "; say which of tensor, outer, 1x128, 128x128, mx32, nv16"));
}

absl::StatusOr<ScaleMode> ScalingOf(const std::string& name, const Side& side) {
  if (name.empty()) {
    return side.scale_inv.has_value() ? InferScaling(side)
                                      : absl::StatusOr<ScaleMode>(ScaleMode::kNone);
  }
  const auto mode = ParseScaleMode(name);
  if (mode.ok()) return *mode;
  return Refuse(side.name + ".scaling", Printable(name),
                "must be none, tensor, outer, 1x128, 128x128, mx32 or nv16");
}

/// U8, which files have for FP4 codes and which tools have for scales, as what the scaling says.
void Retype(ScaleMode mode, Side& side) {
  const auto retype = [](TensorReference& reference, DType dtype) {
    const bool is_u8 = reference.has_value() && reference.type->dtype == DType::kU8;
    if (is_u8) reference.type->dtype = dtype;
  };
  if (mode == ScaleMode::kNv16) {
    retype(side.data, DType::kF4E2M1x2);
    retype(side.scale_inv, DType::kF8E4M3);
  }
  if (mode == ScaleMode::kMx32) retype(side.scale_inv, DType::kF8E8M0);
}

/// An operand [..., K] as [M][K], as layers take x.
void Flatten(Side& side) {
  TensorType& type = *side.data.type;
  if (!side.k_contiguous || type.shape.size() < 3) return;
  if (side.scale_inv.has_value()) {
    Shape& scales = side.scale_inv.type->shape;
    scales = FlattenScales(scales, type.shape);
    side.scale_inv.generator.shape = scales;
  }
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < type.shape.size(); ++i) rows *= type.shape[i];
  type.shape = {rows, type.shape.back()};
  side.data.generator.shape = type.shape;
}

absl::Status SetScaling(const v1::GemmOperandSpec& spec, Side side, GemmOperand& operand) {
  Flatten(side);
  QG_ASSIGN_OR_RETURN(operand.scaling, ScalingOf(spec.scaling(), side));
  Retype(operand.scaling, side);
  if (side.data.type->dtype == DType::kU8) return BytesNeedType(side);
  if (spec.e4m3_max() == 0) return absl::OkStatus();
  if (operand.scaling != ScaleMode::kNv16) {
    return Refuse(absl::StrCat(side.name, ".e4m3_max"), absl::StrCat(spec.e4m3_max()),
                  "only nv16 operands have one");
  }
  operand.e4m3_max = spec.e4m3_max();
  return absl::OkStatus();
}

absl::Status CheckEveryAlgorithm(const v1::GemmRequest& request, const Arithmetic& arithmetic) {
  if (!request.every_algorithm()) return absl::OkStatus();
  if (arithmetic.family != ArithmeticFamily::kCublasLt) {
    return Refuse("every_algorithm", "true",
                  absl::StrCat("arithmetic is ", arithmetic.ToString(),
                               ", and cublaslt alone has algorithms to choose from"));
  }
  if (arithmetic.algorithm == 0) return absl::OkStatus();
  return Refuse("every_algorithm", "true",
                absl::StrCat("arithmetic is ", arithmetic.ToString(), ", which names one of them"));
}

absl::Status SetTensors(ServiceContext& context, const v1::GemmRequest& request, GemmWork& work) {
  const int64_t bytes_max = context.options.tensor_bytes_max;
  QG_ASSIGN_OR_RETURN(work.a,
                      TensorReferenceFromProto(request.a().tensor(), "a.tensor", bytes_max));
  QG_ASSIGN_OR_RETURN(work.b,
                      TensorReferenceFromProto(request.b().tensor(), "b.tensor", bytes_max));
  QG_ASSIGN_OR_RETURN(work.a_scale_inv,
                      TensorReferenceFromProto(request.a().scale_inv(), "a.scale_inv", bytes_max));
  QG_ASSIGN_OR_RETURN(work.b_scale_inv,
                      TensorReferenceFromProto(request.b().scale_inv(), "b.scale_inv", bytes_max));
  QG_ASSIGN_OR_RETURN(work.a_amax,
                      TensorReferenceFromProto(request.a().amax(), "a.amax", bytes_max));
  QG_ASSIGN_OR_RETURN(work.b_amax,
                      TensorReferenceFromProto(request.b().amax(), "b.amax", bytes_max));
  QG_ASSIGN_OR_RETURN(work.c, TensorReferenceFromProto(request.c(), "c", bytes_max));
  QG_ASSIGN_OR_RETURN(work.bias, TensorReferenceFromProto(request.bias(), "bias", bytes_max));
  QG_ASSIGN_OR_RETURN(work.d_scale,
                      TensorReferenceFromProto(request.d_scale(), "d_scale", bytes_max));
  QG_RETURN_IF_ERROR(RequireTensor(work.a));
  QG_RETURN_IF_ERROR(RequireTensor(work.b));
  return context.loader.Resolve(work.references());
}

}  // namespace

absl::StatusOr<GemmWork> CheckGemmRequest(ServiceContext& context, const v1::GemmRequest& request) {
  GemmWork work;
  GemmDesc& desc = work.desc;
  QG_ASSIGN_OR_RETURN(desc.layout, LayoutFromName(request.layout()));
  if (!request.arithmetic().empty()) {
    QG_ASSIGN_OR_RETURN(desc.arithmetic, ParsedName(Arithmetic::Parse, request.arithmetic(),
                                                    "arithmetic", Arithmetic()));
  }
  QG_RETURN_IF_ERROR(CheckEveryAlgorithm(request, desc.arithmetic));
  work.every_algorithm = request.every_algorithm();
  desc.alpha = request.has_alpha() ? request.alpha() : 1.0f;
  desc.beta = request.beta();
  desc.in_place = request.in_place();
  QG_ASSIGN_OR_RETURN(desc.out_dtype, OutDTypeFromName(request.out_dtype()));
  QG_RETURN_IF_ERROR(SetTensors(context, request, work));
  QG_RETURN_IF_ERROR(SetScaling(
      request.a(), {"a", work.a, work.a_scale_inv, desc.layout != GemmLayout::kNT}, desc.a));
  QG_RETURN_IF_ERROR(SetScaling(
      request.b(), {"b", work.b, work.b_scale_inv, desc.layout == GemmLayout::kTN}, desc.b));
  // Every rule of shapes and types, on tensors without memory.
  GemmDesc outline = desc;
  const auto references = work.references();
  const auto tensors = work.tensors(outline);
  for (size_t i = 0; i < tensors.size(); ++i) *tensors[i] = TensorLoader::Outline(*references[i]);
  const bool is_hardware = desc.arithmetic.family == ArithmeticFamily::kCublasLt;
  const auto shape = is_hardware ? CheckCublasLtGemm(outline) : CheckGemm(outline);
  if (!shape.ok()) return WithinField("", shape.status());
  QG_RETURN_IF_ERROR(CheckResultBytes({desc.out_dtype, {shape->m, shape->n}}, "d",
                                      context.options.tensor_bytes_max));
  return work;
}

absl::Status LoadGemm(ServiceContext& context, Device& device, GemmWork& work,
                      const Cancellation& cancellation) {
  const auto references = work.references();
  const auto tensors = work.tensors(work.desc);
  for (size_t i = 0; i < tensors.size(); ++i) {
    QG_ASSIGN_OR_RETURN(*tensors[i], context.loader.Load(*references[i], device, &cancellation));
  }
  return absl::OkStatus();
}

absl::Status LoadGemmToHost(ServiceContext& context, Device& device, GemmWork& work,
                            const Cancellation& cancellation) {
  const auto references = work.references();
  const auto tensors = work.tensors(work.desc);
  for (size_t i = 0; i < tensors.size(); ++i) {
    QG_ASSIGN_OR_RETURN(*tensors[i],
                        context.loader.LoadToHost(*references[i], device, &cancellation));
  }
  return absl::OkStatus();
}

}  // namespace quantgate
