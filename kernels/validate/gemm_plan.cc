#include "kernels/validate/gemm_plan.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/cublaslt/cublaslt_algorithm.h"
#include "kernels/quantize/quantized_outline.h"
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
/// codes so. Beside zero points they are integers of eight bits, or of four.
absl::Status BytesNeedType(const GemmSide& side, bool has_zero_point) {
  if (has_zero_point) {
    return RefuseAbsent(
        side.name + ".group",
        absl::StrCat("codes ", TensorText(side.data),
                     " with zero points are int8 under a group, tensor or row, or "
                     "two codes of int4 a byte (append @u4x2 or @i4x2): say which"));
  }
  return Refuse(side.name + ".tensor", TensorText(side.data),
                "u8 is no operand dtype; if these are codes, say of which type (append @f8_e4m3)");
}

/// The scaling, if dtype and shape of scale_inv leave no doubt.
absl::StatusOr<ScaleMode> InferScaling(const GemmSide& side, bool has_zero_point) {
  const Tensor& scale = side.scale_inv;
  if (scale.dtype() == DType::kF8E8M0) return ScaleMode::kMx32;
  if (scale.dtype() == DType::kF8E4M3) return ScaleMode::kNv16;
  if (side.data.dtype() == DType::kU8) return BytesNeedType(side, has_zero_point);
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

/// Whether a format of levels has these codes. u8 are bytes whose type must be said, unless a
/// group, or a scaling that integers have, and a zero point say that they are int8's.
bool HasLevels(const GemmOperandRequest& request) {
  if (!request.data.has_value()) return false;
  if (request.data.dtype() == DType::kU8) {
    const bool is_scaling = request.scaling == ScaleMode::kTensor ||
                            request.scaling == ScaleMode::kOuter ||
                            request.scaling == ScaleMode::kGroup;
    const bool is_other = request.scaling.has_value() && !is_scaling;
    return request.zero_point.has_value() && !is_other && (is_scaling || request.group.has_value());
  }
  for (const ScalingTraits& traits : AllQuantizerFormats()) {
    const auto& elements = traits.elements;
    if (traits.has_levels() &&
        std::find(elements.begin(), elements.end(), request.data.dtype()) != elements.end()) {
      return true;
    }
  }
  return false;
}

/// An error about a part of a described copy as one about the operand's field.
absl::Status OfOperand(const std::string& name, const absl::Status& status) {
  const std::optional<Refusal> refusal = RefusalOf(status);
  if (!refusal.has_value()) return WithinField(name, status);
  for (const auto& [part, field] :
       {std::pair("data", ".tensor"), std::pair("scale_inv", ".scale_inv"),
        std::pair("zero_point", ".zero_point")}) {
    if (!refusal->field.starts_with(PartField(Usage::kRowwise, part))) continue;
    // What follows is the place of an element.
    const size_t end = PartField(Usage::kRowwise, part).size();
    const std::string of_operand = absl::StrCat(name, field, refusal->field.substr(end));
    if (refusal->value.empty()) return RefuseAbsent(of_operand, refusal->rule);
    return AsField(of_operand, status);
  }
  if (refusal->field == "description.rowwise") {
    return RefuseAbsent(name + ".group", refusal->rule);
  }
  return WithinField(name, status);
}

/// Codes of levels with their scales, as outlines.
absl::StatusOr<QuantizedTensor> LevelsFrom(GemmOperandRequest request, const std::string& name,
                                           bool k_contiguous) {
  if (!k_contiguous || request.data.rank() != 2) {
    return Refuse(name + ".tensor", TensorText(request.data),
                  "codes of levels are [rows][k] with k as the last dim: layout tn");
  }
  if (request.amax.has_value() || request.e4m3_max.has_value()) {
    return Refuse(name + (request.amax.has_value() ? ".amax" : ".e4m3_max"), "given",
                  "only nv16 operands have one");
  }
  std::optional<int> group = request.group;
  if (request.scaling.has_value() && *request.scaling != ScaleMode::kGroup) {
    if (*request.scaling != ScaleMode::kTensor && *request.scaling != ScaleMode::kOuter) {
      return Refuse(name + ".scaling", ScaleModeName(*request.scaling),
                    "codes of levels have scales of the tensor (tensor), of rows (outer) or of "
                    "groups (group)");
    }
    group = *request.scaling == ScaleMode::kTensor ? kTensorGroup : kLineGroup;
    if (request.group.has_value() && group != request.group) {
      return Refuse(name + ".group", GroupText(*request.group),
                    absl::StrCat("scaling is ", std::string(ScaleModeName(*request.scaling))));
    }
  }
  QuantizedDescription description;
  if (group.has_value()) {
    QuantizerSpec spec = {.element = request.data.dtype()};
    for (const ScalingTraits& traits : AllQuantizerFormats()) {
      const auto& elements = traits.elements;
      const bool has_element =
          std::find(elements.begin(), elements.end(), spec.element) != elements.end();
      if (traits.has_levels() && has_element) spec.format = traits.format;
    }
    spec.group = *group;
    if (const absl::Status status = CheckDescription(spec); !status.ok()) {
      return Refuse(name + ".group", GroupText(spec.group), std::string(status.message()));
    }
    description.spec = spec;
  }
  QuantizedCopy parts;
  parts.data = std::move(request.data);
  parts.scale_inv = std::move(request.scale_inv);
  parts.zero_point = std::move(request.zero_point);
  absl::StatusOr<DescribedCopy> described =
      DescribeCopy(description, Usage::kRowwise, std::move(parts));
  if (!described.ok()) return OfOperand(name, described.status());
  QuantizedTensor quantized;
  quantized.shape = described->shape;
  quantized.rowwise = std::move(described->copy);
  return quantized;
}

bool IsSumOfIntegers(const QuantizedTensor& levels) {
  const QuantizedCopy& copy = *levels.rowwise;
  return copy.format == QuantizerFormat::kInt8 && copy.group < 0;
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
    QG_ASSIGN_OR_RETURN(operand.scaling, InferScaling(side, request.zero_point.has_value()));
  }
  QG_RETURN_IF_ERROR(Retype(operand.scaling, side));
  QG_RETURN_IF_ERROR(Squeeze(operand.scaling, side));
  if (side.data.dtype() == DType::kU8) {
    return BytesNeedType(side, request.zero_point.has_value());
  }
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
  operand.zero_point = std::move(request.zero_point);
  if (request.group.has_value()) {
    return Refuse(name + ".group", GroupText(*request.group), "only codes of levels have one");
  }
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
  QG_RETURN_IF_ERROR(LoadSlot(name + ".zero_point", load, operand.zero_point));
  return LoadSlot(name + ".amax", load, operand.amax);
}

absl::Status LoadLevels(const std::string& name, SlotLoader load, QuantizedTensor& levels) {
  QuantizedCopy& copy = *levels.rowwise;
  QG_RETURN_IF_ERROR(LoadSlot(name + ".tensor", load, copy.data));
  QG_RETURN_IF_ERROR(LoadSlot(name + ".scale_inv", load, copy.scale_inv));
  QG_RETURN_IF_ERROR(LoadSlot(name + ".zero_point", load, copy.zero_point));
  return CheckZeroPointValues(name + ".zero_point", copy);
}

/// Puts operands of levels into `desc`: as they are where integers are added, else as the values
/// that they are to be dequantized to.
absl::Status SetLevels(std::optional<QuantizedTensor>& a, std::optional<QuantizedTensor>& b,
                       GemmDesc& desc) {
  if (a.has_value() && b.has_value()) {
    for (const auto& [name, levels] : {std::pair("a", &a), std::pair("b", &b)}) {
      if (IsSumOfIntegers(**levels)) continue;
      return Refuse(absl::StrCat(name, ".tensor"), TensorText((*levels)->rowwise->data),
                    "both operands are codes of levels, of which only int8 with scales of the "
                    "tensor or of rows is added; give one of them in f32, bf16 or f16");
    }
    desc.a = OperandOf(*a->rowwise);
    desc.b = OperandOf(*b->rowwise);
    a.reset();
    b.reset();
    desc.arithmetic = ResolvedFor(desc);
    return absl::OkStatus();
  }
  for (const auto& [name, levels, own, other] :
       {std::tuple("a", &a, &desc.a, &desc.b), std::tuple("b", &b, &desc.b, &desc.a)}) {
    if (!levels->has_value()) continue;
    if (!IsHighPrecision(other->data.dtype())) {
      return Refuse(absl::StrCat(name, ".tensor"), TensorText((*levels)->rowwise->data),
                    absl::StrCat("codes of levels are dequantized to the dtype of the other "
                                 "operand, which is f32, bf16 or f16 and not ",
                                 std::string(DTypeName(other->data.dtype()))));
    }
    QG_ASSIGN_OR_RETURN(own->data, OutlineTensor(other->data.dtype(), (*levels)->shape));
  }
  return absl::OkStatus();
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
  std::optional<QuantizedTensor> levels_a, levels_b;
  for (const auto& [name, given, operand, levels, k_contiguous] :
       {std::tuple("a", &request.a, &desc.a, &levels_a, desc.layout != GemmLayout::kNT),
        std::tuple("b", &request.b, &desc.b, &levels_b, desc.layout == GemmLayout::kTN)}) {
    if (HasLevels(*given)) {
      QG_ASSIGN_OR_RETURN(*levels, LevelsFrom(std::move(*given), name, k_contiguous));
    } else {
      QG_ASSIGN_OR_RETURN(*operand, OperandFrom(std::move(*given), name, k_contiguous));
    }
  }
  QG_RETURN_IF_ERROR(SetLevels(levels_a, levels_b, desc));
  const bool is_hardware = desc.arithmetic.family == ArithmeticFamily::kCublasLt;
  QG_ASSIGN_OR_RETURN(const GemmShape shape,
                      is_hardware ? CheckCublasLtGemm(desc) : CheckGemm(desc));
  GemmPlan plan(std::move(desc), shape, request.every_algorithm);
  plan.levels_a_ = std::move(levels_a);
  plan.levels_b_ = std::move(levels_b);
  return plan;
}

absl::StatusOr<GemmPlan> GemmPlan::WithTensors(SlotLoader load) const {
  GemmPlan plan = *this;
  QG_RETURN_IF_ERROR(plan.levels_a_.has_value() ? LoadLevels("a", load, *plan.levels_a_)
                                                : LoadOperand("a", load, plan.desc_.a));
  QG_RETURN_IF_ERROR(plan.levels_b_.has_value() ? LoadLevels("b", load, *plan.levels_b_)
                                                : LoadOperand("b", load, plan.desc_.b));
  QG_RETURN_IF_ERROR(LoadSlot("c", load, plan.desc_.c));
  QG_RETURN_IF_ERROR(LoadSlot("bias", load, plan.desc_.bias));
  QG_RETURN_IF_ERROR(LoadSlot("d_scale", load, plan.desc_.d_scale));
  return plan;
}

absl::StatusOr<GemmPlan> GemmPlan::Dequantized(Engine& engine,
                                               const Cancellation* cancellation) const {
  GemmPlan plan = *this;
  for (const auto& [levels, operand] :
       {std::pair(&plan.levels_a_, &plan.desc_.a), std::pair(&plan.levels_b_, &plan.desc_.b)}) {
    if (!levels->has_value()) continue;
    QG_ASSIGN_OR_RETURN(operand->data, engine.Dequantize(**levels, Usage::kRowwise,
                                                         operand->data.dtype(), cancellation));
    levels->reset();
  }
  return plan;
}

}  // namespace quantgate
