#include "kernels/gemm/scaling_check.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/block_scale.h"
#include "kernels/gemm/models/rules.h"

namespace quantgate {
namespace {

std::string NameOfMode(ScaleMode mode) { return std::string(ScaleModeName(mode)); }

/// One operand of a GEMM with its name in messages.
struct Side {
  std::string name;  ///< "a" or "b".
  const GemmOperand& operand;
  int64_t rows, k;
  bool k_contiguous;

  std::string Field(std::string_view field) const {
    return absl::StrCat(name, ".", std::string(field));
  }
};

/// What the elements of a scaled operand must be.
absl::Status CheckElements(const Side& side) {
  const DType dtype = side.operand.data.dtype();
  const ScaleMode mode = side.operand.scaling;
  const auto refuse = [&](std::string_view rule) {
    const bool has_scale = side.operand.scale_inv.has_value();
    return Refuse(side.Field(has_scale ? "scale_inv" : "scaling"),
                  has_scale ? "given" : NameOfMode(mode),
                  absl::StrCat(std::string(rule), ", and ", side.name, " is ",
                               std::string(DTypeName(dtype))));
  };
  if (mode == ScaleMode::kMx32) {
    return IsFp8(dtype) || IsFp6OrFp4(dtype)
               ? absl::OkStatus()
               : refuse("mx32 scales go with FP8, FP6 and FP4 operands");
  }
  if (mode == ScaleMode::kNv16) {
    return dtype == DType::kF4E2M1x2 ? absl::OkStatus()
                                     : refuse("nv16 scales go with f4_e2m1x2 operands");
  }
  return IsFp8(dtype) ? absl::OkStatus() : refuse("only FP8 operands have scales of this mode");
}

Shape ExpectedScaleShape(const Side& side) {
  if (side.operand.scaling == ScaleMode::kTensor) return {1};
  if (side.operand.scaling == ScaleMode::kOuter) return {side.rows};
  const ScaleBlock block = ScaleBlockOf(side.operand.scaling);
  const int64_t row_blocks = (side.rows + block.rows - 1) / block.rows;
  const int64_t k_blocks = (side.k + block.k - 1) / block.k;
  return side.k_contiguous ? Shape{row_blocks, k_blocks} : Shape{k_blocks, row_blocks};
}

absl::Status CheckAmax(const Side& side) {
  const GemmOperand& operand = side.operand;
  if (operand.scaling != ScaleMode::kNv16) {
    if (!operand.amax.has_value()) return absl::OkStatus();
    return Refuse(side.Field("amax"), TensorText(operand.amax), "only nv16 operands have one");
  }
  if (operand.e4m3_max != 448 && operand.e4m3_max != 256) {
    return Refuse(side.Field("e4m3_max"), absl::StrCat(operand.e4m3_max), "must be 448 or 256");
  }
  if (!operand.amax.has_value()) return absl::OkStatus();
  const Tensor& amax = operand.amax;
  if (amax.dtype() == DType::kF32 && (amax.shape() == Shape{1} || amax.shape() == Shape{side.rows}))
    return absl::OkStatus();
  return Refuse(side.Field("amax"), TensorText(amax),
                absl::StrCat("must be f32[1], or f32[", side.rows, "] where row-scaled"));
}

absl::Status CheckSide(const Side& side) {
  const GemmOperand& operand = side.operand;
  QG_RETURN_IF_ERROR(CheckAmax(side));
  if (operand.zero_point.has_value()) {
    return Refuse(side.Field("zero_point"), TensorText(operand.zero_point),
                  "only operands of integers have one");
  }
  if (operand.scaling == ScaleMode::kGroup) {
    return Refuse(side.Field("scaling"), "group",
                  "codes with scales of groups are dequantized before a GEMM: give them to gemm "
                  "beside an operand in high precision");
  }
  if (operand.scaling == ScaleMode::kNone) {
    if (!operand.scale_inv.has_value()) return absl::OkStatus();
    return Refuse(side.Field("scale_inv"), TensorText(operand.scale_inv),
                  "must be absent where scaling is none");
  }
  QG_RETURN_IF_ERROR(CheckElements(side));
  if (!operand.scale_inv.has_value()) {
    return RefuseAbsent(side.Field("scale_inv"), "scaling other than none needs it");
  }
  const ScaleBlock block = ScaleBlockOf(operand.scaling);
  const bool may_have_partial_blocks =
      operand.scaling != ScaleMode::kMx32 && operand.scaling != ScaleMode::kNv16;
  if (!may_have_partial_blocks && side.k % block.k != 0) {
    return Refuse("k", absl::StrCat(side.k),
                  absl::StrCat("must be a multiple of ", block.k, " under ",
                               NameOfMode(operand.scaling), " scales"));
  }
  const Shape expected = ExpectedScaleShape(side);
  const Tensor& scale = operand.scale_inv;
  if (scale.dtype() == block.dtype && scale.shape() == expected) return absl::OkStatus();
  std::string dims = absl::StrCat(expected[0]);
  if (expected.size() > 1) absl::StrAppend(&dims, "x", expected[1]);
  return Refuse(side.Field("scale_inv"), TensorText(scale),
                absl::StrCat("must be ", std::string(DTypeName(block.dtype)), "[", dims, "]"));
}

absl::Status CheckPair(ScaleMode a, ScaleMode b) {
  if ((a == ScaleMode::kOuter) != (b == ScaleMode::kOuter)) {
    return Refuse("b.scaling", NameOfMode(b),
                  absl::StrCat("outer-vector scales are given for both operands or for none, and "
                               "a.scaling is ",
                               NameOfMode(a)));
  }
  const ScaleBlock of_a = ScaleBlockOf(a), of_b = ScaleBlockOf(b);
  if (of_a.rows > 1 && of_b.rows > 1) {
    return Refuse("b.scaling", NameOfMode(b),
                  absl::StrCat("2-D by 2-D blocks: at most one operand may have ", NameOfMode(a),
                               " scales, the other 1x", of_a.k));
  }
  // Blocks of one kind have one length.
  const auto family = [](ScaleMode mode) {
    if (IsFp8Block(mode)) return ScaleBlockOf(mode).k;
    return mode == ScaleMode::kMx32 ? 2 : mode == ScaleMode::kNv16 ? 3 : 0;
  };
  if (family(a) == family(b)) return absl::OkStatus();
  return Refuse("b.scaling", NameOfMode(b),
                absl::StrCat("both operands must have block scales of one kind, and a.scaling is ",
                             NameOfMode(a)));
}

/// The index of the first scale that is not a number of E8M0; -1 where all are.
int64_t FirstScaleOffE8M0(const Tensor& scale) {
  for (int64_t i = 0; i < scale.element_count(); ++i) {
    if (!IsE8m0Number(scale.as<float>()[i])) return i;
  }
  return -1;
}

/// Transformer Engine's rule on Blackwell: fp32 scales of blocks become E8M0 by their exponent
/// bits, so they must be powers of two that E8M0 has.
absl::Status CheckPowersOfTwo(const Side& side) {
  const Tensor& scale = side.operand.scale_inv;
  if (scale.data() == nullptr) return absl::OkStatus();  // An outline, which has no values.
  if (scale.space() == MemorySpace::kDevice) return absl::OkStatus();  // GemmCuda looks at them.
  const int64_t off = FirstScaleOffE8M0(scale);
  return off < 0 ? absl::OkStatus() : ScaleNotE8M0Error(side.name, scale.as<float>()[off], off);
}

/// The GEMM of a row-scaled operand is a unit GEMM to fp32 whose rows are multiplied afterwards
/// (docs/tensor-cores.md section 3.5): the wrapper takes nothing else.
absl::Status CheckRowScaled(const GemmDesc& desc, ArithmeticFamily family) {
  const auto refuse = [](const char* field, const Tensor& amax, const char* rule) {
    return StatusOf({.code = absl::StatusCode::kUnimplemented,
                     .field = field,
                     .value = TensorText(amax),
                     .rule = rule});
  };
  if (family == ArithmeticFamily::kExact) return absl::OkStatus();
  if (IsRowScaled(desc.b)) {
    return refuse("b.amax", desc.b.amax, "only a may be row-scaled, as in Transformer Engine");
  }
  if (!IsRowScaled(desc.a)) return absl::OkStatus();
  if (desc.beta != 0) {
    return refuse("a.amax", desc.a.amax, "the GEMM of a row-scaled a does not accumulate into c");
  }
  if (IsFp8(desc.out_dtype)) {
    return refuse("a.amax", desc.a.amax, "the GEMM of a row-scaled a has no FP8 output");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ScaleNotE8M0Error(std::string_view operand, float scale, int64_t index) {
  return Refuse(
      absl::StrCat(std::string(operand), ".scale_inv[", index, "]"), absl::StrCat(scale),
      "Blackwell takes fp32 scales of blocks that are powers of two from 2^-127 to 2^127");
}

bool NeedsPowersOfTwo(const GemmDesc& desc) {
  const ArithmeticRow* arithmetic = FindArithmetic(ResolvedFor(desc).family);
  return arithmetic->takes_scales_as_exponents && IsFp8Block(desc.a.scaling);
}

absl::Status CheckScaling(const GemmDesc& desc, const GemmShape& shape) {
  const Side a{"a", desc.a, shape.m, shape.k, desc.layout != GemmLayout::kNT};
  const Side b{"b", desc.b, shape.n, shape.k, desc.layout == GemmLayout::kTN};
  QG_RETURN_IF_ERROR(CheckSide(a));
  QG_RETURN_IF_ERROR(CheckSide(b));
  QG_RETURN_IF_ERROR(CheckPair(desc.a.scaling, desc.b.scaling));
  QG_RETURN_IF_ERROR(CheckRowScaled(desc, ResolvedFor(desc).family));
  if (NeedsPowersOfTwo(desc)) {
    QG_RETURN_IF_ERROR(CheckPowersOfTwo(a));
    QG_RETURN_IF_ERROR(CheckPowersOfTwo(b));
  }
  return absl::OkStatus();
}

}  // namespace quantgate
