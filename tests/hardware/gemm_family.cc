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

std::string WithBlock(const std::string& type, Scaling block) {
  if (block == Scaling::kNone) return type;
  return type + (block == Scaling::k1x128 ? "[1x128]" : "[128x128]");
}

/// FP8 pairs that cuBLASLt takes: not e5m2 x e5m2.
const std::pair<std::string, std::string> kFp8Pairs[] = {
    {"f8_e4m3", "f8_e4m3"}, {"f8_e5m2", "f8_e4m3"}, {"f8_e4m3", "f8_e5m2"}};

void AddBlockScaled(std::vector<Family>& families) {
  const std::pair<Scaling, Scaling> blocks[] = {{Scaling::k1x128, Scaling::k128x128},
                                                {Scaling::k128x128, Scaling::k1x128},
                                                {Scaling::k1x128, Scaling::k1x128}};
  for (const auto& [a_block, b_block] : blocks) {
    for (const auto& [a, b] : kFp8Pairs) {
      for (const std::string d_type : {"f32", "bf16", "f16"}) {
        Family family{a, b, d_type, Layout::kTN, true, 8, 16};
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
    for (const Layout layout : {Layout::kTN, Layout::kNN, Layout::kNT}) {
      families.push_back({type, type, type, layout});
      families.push_back({type, type, "f32", layout});
    }
  }
  for (const Layout layout : {Layout::kTN, Layout::kNN, Layout::kNT}) {
    // The tf32 kernels that are not wgmma add C and a bias by other rules
    // (tests/hardware/README.md).
    families.push_back({"f32", "f32", "f32", layout, false, 8, 8, false, false});
  }
  for (const auto& [a, b] : kFp8Pairs) {
    for (const bool split : {false, true}) {
      for (const std::string d_type : {"f32", "bf16", "f16"}) {
        families.push_back({a, b, d_type, Layout::kTN, split, 8, 16});
      }
    }
    families.push_back({a, b, "f8_e4m3", Layout::kTN, false, 16, 16, false, true});
  }
  AddBlockScaled(families);
  return families;
}

DType DTypeOf(const std::string& name) { return *ParseDType(name); }

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

GemmOperand WithScales(GemmOperand operand, Scaling scaling, const std::vector<float>& values,
                       int64_t rows, int64_t k) {
  static constexpr ScaleMode kModes[] = {ScaleMode::kNone, ScaleMode::kTensor, ScaleMode::kOuter,
                                         ScaleMode::k1x128, ScaleMode::k128x128};
  operand.scaling = kModes[static_cast<int>(scaling)];
  const auto count = static_cast<int64_t>(values.size());
  const int64_t k_blocks = (k + 127) / 128;
  Shape shape{count};
  if (scaling == Scaling::k1x128) shape = {rows, k_blocks};
  if (scaling == Scaling::k128x128) shape = {(rows + 127) / 128, k_blocks};
  const auto* first = reinterpret_cast<const uint8_t*>(values.data());
  operand.scale_inv = TensorOf("f32", shape, {first, first + values.size() * sizeof(float)});
  return operand;
}

void SetOperands(Trial& trial, const Family& family, Pattern a_pattern, uint64_t a_seed,
                 Pattern b_pattern, uint64_t b_seed) {
  GemmCase& h = trial.hardware;
  GemmDesc& model = trial.model;
  h.layout = family.layout;
  h.a_type = family.a_type, h.b_type = family.b_type, h.d_type = family.d_type;
  h.split_accumulator = family.split_accumulator;
  h.a = Draw(a_pattern, h.a_type, family.chunk(), a_seed, h.m, h.k, h.layout == Layout::kNT);
  h.b = Draw(b_pattern, h.b_type, family.chunk(), b_seed, h.n, h.k, h.layout != Layout::kTN);
  model.a.data =
      TensorOf(h.a_type, h.layout == Layout::kNT ? Shape{h.k, h.m} : Shape{h.m, h.k}, h.a);
  model.b.data =
      TensorOf(h.b_type, h.layout == Layout::kTN ? Shape{h.n, h.k} : Shape{h.k, h.n}, h.b);
  model.layout = static_cast<GemmLayout>(h.layout);
  model.arithmetic.family = ArithmeticFamily::kSm90;
  model.use_split_accumulator = h.split_accumulator;
  model.out_dtype = DTypeOf(h.d_type);
  const auto operand_text = [](Pattern pattern, uint64_t seed) {
    return " " + std::string(PatternName(pattern)) + ":" + std::to_string(seed);
  };
  trial.text = "m=" + std::to_string(h.m) + " n=" + std::to_string(h.n) +
               " k=" + std::to_string(h.k) + operand_text(a_pattern, a_seed) +
               operand_text(b_pattern, b_seed);
}

void SetBlockScales(Trial& trial, const Family& family, ScaleValues values, uint64_t seed) {
  if (!family.is_block_scaled()) return;
  GemmCase& h = trial.hardware;
  h.a_scaling = family.a_block, h.b_scaling = family.b_block;
  h.a_scale = DrawScales(values, seed, ScaleCount(h.a_scaling, h.m, h.k));
  h.b_scale = DrawScales(values, seed + 1, ScaleCount(h.b_scaling, h.n, h.k));
  trial.model.a = WithScales(trial.model.a, h.a_scaling, h.a_scale, h.m, h.k);
  trial.model.b = WithScales(trial.model.b, h.b_scaling, h.b_scale, h.n, h.k);
  trial.text +=
      " block scales " + std::to_string(static_cast<int>(values)) + ":" + std::to_string(seed);
}

void SetC(Trial& trial, uint64_t seed) {
  GemmCase& h = trial.hardware;
  const std::string type = h.d_type.starts_with("f8") ? "bf16" : h.d_type;
  h.c = Draw(Pattern::kModel, type, 1, seed, h.m, h.n, false);
  trial.model.c = TensorOf(type, {h.m, h.n}, h.c);
}

void SetBias(Trial& trial, const Family& family, uint64_t seed) {
  GemmCase& h = trial.hardware;
  h.bias_type = family.BiasType();
  h.bias = Draw(Pattern::kModel, h.bias_type, 1, seed, 1, h.n, false);
  trial.model.bias = TensorOf(h.bias_type, {h.n}, h.bias);
}

void SetSums(Trial& trial, float alpha, float beta, bool in_place) {
  trial.hardware.alpha = trial.model.alpha = alpha;
  trial.hardware.beta = trial.model.beta = beta;
  trial.hardware.in_place = trial.model.in_place = in_place;
}

}  // namespace quantgate::hardware
