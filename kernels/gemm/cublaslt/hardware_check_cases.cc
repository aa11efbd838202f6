// The list of GEMMs that CheckHardware runs, and their data.
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/gemm/cublaslt/hardware_check.h"
#include "kernels/numerics/mix.h"

namespace quantgate {
namespace {

/// Operands that go together, and the outputs that they can have.
struct OperandKind {
  DType a, b;
  std::vector<DType> outputs;
  bool use_split_accumulator = false;
  ScaleMode a_scaling = ScaleMode::kNone, b_scaling = ScaleMode::kNone;
};

/// A shape and the data that it is used with.
struct DataShape {
  GemmShape shape;
  Distribution distribution;
};

constexpr DType kE4 = DType::kF8E4M3, kE5 = DType::kF8E5M2;

/// What cuBLASLt has on Hopper (docs/tensor-cores.md section 4). Outer-vector scales with each
/// accumulation; every pair of block scales.
std::vector<OperandKind> OperandKinds() {
  const std::vector<DType> kWide = {DType::kBF16, DType::kF32, DType::kF16};
  std::vector<OperandKind> kinds = {
      {DType::kBF16, DType::kBF16, {DType::kBF16, DType::kF32}},
      {DType::kF16, DType::kF16, {DType::kF16, DType::kF32}},
      {DType::kF32, DType::kF32, {DType::kF32}},
  };
  const std::pair<DType, DType> pairs[] = {{kE4, kE4}, {kE5, kE4}, {kE4, kE5}};
  const std::pair<ScaleMode, ScaleMode> blocks[] = {{ScaleMode::k1x128, ScaleMode::k128x128},
                                                    {ScaleMode::k128x128, ScaleMode::k1x128},
                                                    {ScaleMode::k1x128, ScaleMode::k1x128}};
  for (const auto& [a, b] : pairs) {
    for (const bool split : {false, true}) {
      kinds.push_back({a, b, kWide, split, ScaleMode::kTensor, ScaleMode::kTensor});
    }
    kinds.push_back({a, b, {kE4}, false, ScaleMode::kTensor, ScaleMode::kTensor});
    for (const auto& [a_block, b_block] : blocks) {
      kinds.push_back({a, b, kWide, true, a_block, b_block});
    }
  }
  for (const bool split : {false, true}) {
    kinds.push_back({kE4, kE4, kWide, split, ScaleMode::kOuter, ScaleMode::kOuter});
  }
  return kinds;
}

/// Shapes with whole and with partial blocks of every kind; few outputs with a long k, where the
/// heuristic splits K; rows so short that a NaN or an infinity in 21 elements leaves some sums
/// finite.
std::vector<DataShape> DataShapes(HardwareCheckSize size) {
  std::vector<DataShape> shapes = {
      {{200, 192, 656}, Distribution::kNormal},
      {{64, 64, 4608}, Distribution::kLogNormalOutliers},
      {{48, 48, 32}, Distribution::kSpecialsLaced},
  };
  if (size == HardwareCheckSize::kQuick) return shapes;
  shapes.insert(shapes.end(), {{{16, 16, 16}, Distribution::kSubnormalHeavy},
                               {{1024, 768, 512}, Distribution::kNormal},
                               {{256, 1536, 3072}, Distribution::kLogNormalOutliers},
                               {{2048, 2048, 2048}, Distribution::kNormal},
                               {{136, 8192, 144}, Distribution::kUniform},
                               {{32, 48, 16384}, Distribution::kOneHuge}});
  return shapes;
}

/// Positive scales within 2^-8 ... 2^8, with any fraction.
absl::StatusOr<Tensor> RandomScales(uint64_t seed, Shape shape) {
  QG_ASSIGN_OR_RETURN(Tensor scales, Tensor::Allocate(DType::kF32, std::move(shape)));
  for (int64_t i = 0; i < scales.element_count(); ++i) {
    const uint64_t word = MixWord(static_cast<uint64_t>(i), seed).low;
    const auto exponent = static_cast<uint32_t>(119 + (word >> 40) % 17);
    scales.as<uint32_t>()[i] = exponent << 23 | (static_cast<uint32_t>(word) & 0x7FFFFF);
  }
  return scales;
}

absl::StatusOr<GemmOperand> OperandOf(const HardwareCase& one, bool is_a) {
  const int64_t rows = is_a ? one.shape.m : one.shape.n, k = one.shape.k;
  const bool is_transposed =
      one.layout == GemmLayout::kNT || (!is_a && one.layout == GemmLayout::kNN);
  GeneratorSpec spec;
  spec.distribution = one.distribution;
  spec.seed = one.seed + (is_a ? 0 : 1);
  spec.dtype = is_a ? one.a : one.b;
  spec.shape = is_transposed ? Shape{k, rows} : Shape{rows, k};
  GemmOperand operand;
  QG_ASSIGN_OR_RETURN(operand.data, Generate(spec, {}));
  operand.scaling = is_a ? one.a_scaling : one.b_scaling;
  const int64_t k_blocks = (k + 127) / 128;
  Shape shape;
  switch (operand.scaling) {
    case ScaleMode::kTensor:
      shape = {1};
      break;
    case ScaleMode::kOuter:
      shape = {rows};
      break;
    case ScaleMode::k1x128:
      shape = {rows, k_blocks};
      break;
    case ScaleMode::k128x128:
      shape = {(rows + 127) / 128, k_blocks};
      break;
    default:
      return operand;
  }
  QG_ASSIGN_OR_RETURN(operand.scale_inv, RandomScales(spec.seed, std::move(shape)));
  return operand;
}

}  // namespace

std::vector<HardwareCase> HardwareCases(HardwareCheckSize size) {
  const bool is_full = size == HardwareCheckSize::kFull;
  std::vector<HardwareCase> cases;
  for (const OperandKind& kind : OperandKinds()) {
    std::vector<GemmLayout> layouts = {GemmLayout::kTN};
    if (!IsFp8(kind.a)) layouts = {GemmLayout::kTN, GemmLayout::kNN, GemmLayout::kNT};
    for (const GemmLayout layout : layouts) {
      for (size_t o = 0; o < (is_full ? kind.outputs.size() : 1); ++o) {
        for (const DataShape& data : DataShapes(size)) {
          HardwareCase one;
          one.seed = cases.size() * 8;
          // A quick check cycles through outputs and epilogues, a full one through epilogues.
          const size_t turn = cases.size() + cases.size() / 4;
          one.shape = data.shape, one.distribution = data.distribution;
          one.a = kind.a, one.b = kind.b, one.layout = layout;
          one.a_scaling = kind.a_scaling, one.b_scaling = kind.b_scaling;
          one.use_split_accumulator = kind.use_split_accumulator;
          one.out = kind.outputs[is_full ? o : turn % kind.outputs.size()];
          if (!IsFp8(one.out)) one.epilogue = static_cast<CaseEpilogue>(turn % 4);
          cases.push_back(one);
        }
      }
    }
  }
  return cases;
}

absl::StatusOr<GemmDesc> DescOf(const HardwareCase& one) {
  GemmDesc desc;
  QG_ASSIGN_OR_RETURN(desc.a, OperandOf(one, true));
  QG_ASSIGN_OR_RETURN(desc.b, OperandOf(one, false));
  desc.layout = one.layout;
  desc.arithmetic.family = ArithmeticFamily::kCublasLt;
  desc.use_split_accumulator = one.use_split_accumulator;
  desc.out_dtype = one.out;
  if (IsFp8(one.out)) {
    QG_ASSIGN_OR_RETURN(desc.d_scale, Tensor::FromScalar(0.37f));
  }
  GeneratorSpec spec;
  switch (one.epilogue) {
    case CaseEpilogue::kPlain:
      break;
    case CaseEpilogue::kSum:
    case CaseEpilogue::kInPlace: {
      const bool is_unit = one.epilogue == CaseEpilogue::kInPlace || one.a == DType::kF32;
      desc.alpha = is_unit ? 1.0f : 0.7f;
      desc.beta = is_unit ? 1.0f : 0.3f;
      desc.in_place = one.epilogue == CaseEpilogue::kInPlace;
      spec.seed = one.seed + 2, spec.dtype = one.out, spec.shape = {one.shape.m, one.shape.n};
      QG_ASSIGN_OR_RETURN(desc.c, Generate(spec, {}));
      break;
    }
    case CaseEpilogue::kBias:
      spec.seed = one.seed + 3, spec.dtype = CublasLtBiasType(one.a, one.out),
      spec.shape = {one.shape.n};
      QG_ASSIGN_OR_RETURN(desc.bias, Generate(spec, {}));
      break;
  }
  return desc;
}

}  // namespace quantgate
