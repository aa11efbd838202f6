#include "tests/hardware/gemm_family.h"

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>

#include "kernels/base/execution.h"

namespace quantgate::hardware {

using testing::CodeFormatOf;
using testing::Mix;
using testing::Pattern;

namespace {

std::string WithBlock(const std::string& type, ScaleMode block) {
  if (block == ScaleMode::kNone) return type;
  return type + "[" + std::string(ScaleModeName(block)) + "]";
}

/// FP8 pairs that cuBLASLt takes: not e5m2 x e5m2.
const std::pair<std::string, std::string> kFp8Pairs[] = {
    {"f8_e4m3", "f8_e4m3"}, {"f8_e5m2", "f8_e4m3"}, {"f8_e4m3", "f8_e5m2"}};

void AddBlockScaled(std::vector<Family>& families) {
  const std::pair<ScaleMode, ScaleMode> blocks[] = {{ScaleMode::k1x128, ScaleMode::k128x128},
                                                    {ScaleMode::k128x128, ScaleMode::k1x128},
                                                    {ScaleMode::k1x128, ScaleMode::k1x128}};
  for (const auto& [a_block, b_block] : blocks) {
    for (const auto& [a, b] : kFp8Pairs) {
      for (const std::string d_type : {"f32", "bf16", "f16"}) {
        Family family{a, b, d_type, GemmLayout::kTN, true, 8, 16};
        family.a_block = a_block, family.b_block = b_block;
        families.push_back(family);
      }
    }
  }
}

}  // namespace

std::string Family::Name() const {
  static const char* const kLayouts[] = {"TN", "NN", "NT"};
  std::string name = WithBlock(a_type, a_block) + " x " + WithBlock(b_type, b_block) + " -> " +
                     d_type + ", " + kLayouts[static_cast<int>(layout)];
  if (is_fp8() && !is_block_scaled()) name += split_accumulator ? ", split" : ", fast";
  return name;
}

std::vector<Family> AllFamilies() {
  std::vector<Family> families;
  for (const std::string type : {"bf16", "f16"}) {
    for (const GemmLayout layout : {GemmLayout::kTN, GemmLayout::kNN, GemmLayout::kNT}) {
      families.push_back({type, type, type, layout});
      families.push_back({type, type, "f32", layout});
    }
  }
  for (const GemmLayout layout : {GemmLayout::kTN, GemmLayout::kNN, GemmLayout::kNT}) {
    // The tf32 kernels that are not wgmma add C and a bias by other rules
    // (tests/hardware/README.md).
    families.push_back({"f32", "f32", "f32", layout, false, 8, 8, false, false});
  }
  for (const auto& [a, b] : kFp8Pairs) {
    for (const bool split : {false, true}) {
      for (const std::string d_type : {"f32", "bf16", "f16"}) {
        families.push_back({a, b, d_type, GemmLayout::kTN, split, 8, 16});
      }
    }
    families.push_back({a, b, "f8_e4m3", GemmLayout::kTN, false, 16, 16, false, true});
  }
  AddBlockScaled(families);
  return families;
}

DType DTypeOf(const std::string& name) { return *ParseDType(name); }
int BytesOf(const std::string& type) { return DTypeBytes(DTypeOf(type)); }

Tensor TensorOf(const std::string& type, Shape shape, const std::vector<uint8_t>& bytes) {
  absl::StatusOr<Tensor> tensor =
      Tensor::FromBytes(DTypeOf(type), std::move(shape), std::as_bytes(std::span(bytes)));
  if (!tensor.ok()) {
    std::fprintf(stderr, "%s\n", tensor.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(tensor);
}

std::vector<uint8_t> Draw(Pattern pattern, const std::string& type, int chunk, uint64_t seed,
                          int64_t rows, int64_t columns, bool transposed) {
  const auto& format = CodeFormatOf(type);
  const size_t width = static_cast<size_t>(format.bytes);
  std::vector<uint8_t> bytes(static_cast<size_t>(rows * columns) * width);
  ParallelFor(ExecutionContext{}, rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t k = 0; k < columns; ++k) {
        const uint32_t code = testing::PatternCode(pattern, format, chunk, seed, row, k, columns);
        const int64_t index = transposed ? k * rows + row : row * columns + k;
        std::memcpy(&bytes[static_cast<size_t>(index) * width], &code, width);
      }
    }
  });
  return bytes;
}

std::vector<float> DrawScales(ScaleValues values, uint64_t seed, int64_t count) {
  std::vector<float> scales(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t h = Mix(seed, static_cast<uint64_t>(i));
    uint32_t code = static_cast<uint32_t>(119 + (h >> 8) % 17) << 23;
    if (values != ScaleValues::kPowers) code |= static_cast<uint32_t>(h >> 32) & 0x7FFFFF;
    if (values == ScaleValues::kWide || values == ScaleValues::kSpecials) {
      code =
          testing::PatternCode(values == ScaleValues::kWide ? Pattern::kWide : Pattern::kSpecials,
                               testing::kFloat32Codes, 1, seed, 0, i, count);
    }
    scales[static_cast<size_t>(i)] = std::bit_cast<float>(code);
  }
  return scales;
}

int64_t ScaleCount(ScaleMode scaling, int64_t rows, int64_t k) {
  const int64_t k_blocks = (k + 127) / 128;
  switch (scaling) {
    case ScaleMode::kTensor:
      return 1;
    case ScaleMode::kOuter:
      return rows;
    case ScaleMode::k1x128:
      return rows * k_blocks;
    case ScaleMode::k128x128:
      return (rows + 127) / 128 * k_blocks;
    default:
      return 0;
  }
}

GemmOperand WithScales(GemmOperand operand, ScaleMode scaling, const std::vector<float>& values,
                       int64_t rows, int64_t k) {
  operand.scaling = scaling;
  const auto count = static_cast<int64_t>(values.size());
  const int64_t k_blocks = (k + 127) / 128;
  Shape shape{count};
  if (scaling == ScaleMode::k1x128) shape = {rows, k_blocks};
  if (scaling == ScaleMode::k128x128) shape = {(rows + 127) / 128, k_blocks};
  const auto* first = reinterpret_cast<const uint8_t*>(values.data());
  operand.scale_inv = TensorOf("f32", shape, {first, first + values.size() * sizeof(float)});
  return operand;
}

void SetOperands(Trial& trial, const Family& family, Pattern a_pattern, uint64_t a_seed,
                 Pattern b_pattern, uint64_t b_seed) {
  const auto [m, n, k] = trial.shape;
  GemmDesc& gemm = trial.gemm;
  gemm.layout = family.layout;
  const bool a_is_km = gemm.layout == GemmLayout::kNT, b_is_kn = gemm.layout != GemmLayout::kTN;
  gemm.a.data = TensorOf(family.a_type, a_is_km ? Shape{k, m} : Shape{m, k},
                         Draw(a_pattern, family.a_type, family.chunk(), a_seed, m, k, a_is_km));
  gemm.b.data = TensorOf(family.b_type, b_is_kn ? Shape{k, n} : Shape{n, k},
                         Draw(b_pattern, family.b_type, family.chunk(), b_seed, n, k, b_is_kn));
  gemm.arithmetic.family = ArithmeticFamily::kSm90;
  gemm.use_split_accumulator = family.split_accumulator;
  gemm.out_dtype = DTypeOf(family.d_type);
  const auto operand_text = [](Pattern pattern, uint64_t seed) {
    return " " + std::string(PatternName(pattern)) + ":" + std::to_string(seed);
  };
  trial.text = "m=" + std::to_string(m) + " n=" + std::to_string(n) + " k=" + std::to_string(k) +
               operand_text(a_pattern, a_seed) + operand_text(b_pattern, b_seed);
}

void SetBlockScales(Trial& trial, const Family& family, ScaleValues values, uint64_t seed) {
  if (!family.is_block_scaled()) return;
  const auto [m, n, k] = trial.shape;
  const auto scaled = [&](const GemmOperand& operand, ScaleMode mode, uint64_t one, int64_t rows) {
    return WithScales(operand, mode, DrawScales(values, one, ScaleCount(mode, rows, k)), rows, k);
  };
  trial.gemm.a = scaled(trial.gemm.a, family.a_block, seed, m);
  trial.gemm.b = scaled(trial.gemm.b, family.b_block, seed + 1, n);
  trial.text +=
      " block scales " + std::to_string(static_cast<int>(values)) + ":" + std::to_string(seed);
}

void SetC(Trial& trial, uint64_t seed) {
  const auto [m, n, k] = trial.shape;
  const DType out = trial.gemm.out_dtype;
  const std::string type = IsFp8(out) ? "bf16" : std::string(DTypeName(out));
  trial.gemm.c = TensorOf(type, {m, n}, Draw(Pattern::kModel, type, 1, seed, m, n, false));
}

void SetBias(Trial& trial, const Family& family, uint64_t seed) {
  const int64_t n = trial.shape.n;
  const std::string type = family.BiasType();
  trial.gemm.bias = TensorOf(type, {n}, Draw(Pattern::kModel, type, 1, seed, 1, n, false));
}

void SetSums(Trial& trial, float alpha, float beta, bool in_place) {
  trial.gemm.alpha = alpha;
  trial.gemm.beta = beta;
  trial.gemm.in_place = in_place;
}

}  // namespace quantgate::hardware
