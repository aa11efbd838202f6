#include "tests/hardware/golden_recorder.h"

#include <bit>
#include <cstdio>
#include <cstring>
#include <span>
#include <utility>

#include "kernels/gemm/scaling_check.h"
#include "kernels/tensor/fingerprint.h"

namespace quantgate::hardware {
namespace {

using testing::CodeFormatOf;
using testing::Pattern;
using testing::PatternMatrix;
using testing::PatternName;

constexpr size_t kAlgorithmsMax = 16;
constexpr size_t kVariantBytesMax = 64 << 10;

const char* LayoutName(GemmLayout layout) {
  return layout == GemmLayout::kTN ? "tn" : layout == GemmLayout::kNN ? "nn" : "nt";
}

std::vector<uint8_t> BytesOf(const Tensor& tensor) {
  const auto* first = reinterpret_cast<const uint8_t*>(tensor.data());
  return {first, first + tensor.byte_size()};
}

Tensor TensorOf(DType type, Shape shape, const std::vector<uint8_t>& bytes) {
  return Need(Tensor::FromBytes(type, std::move(shape), std::as_bytes(std::span(bytes))));
}

Tensor FloatTensor(const std::vector<float>& values) {
  return Need(Tensor::FromBytes(DType::kF32, {static_cast<int64_t>(values.size())},
                                std::as_bytes(std::span(values))));
}

GemmOperand WithFloatScales(GemmOperand operand, const std::vector<float>& values) {
  if (values.empty()) return operand;
  operand.scaling = values.size() == 1 ? ScaleMode::kTensor : ScaleMode::kOuter;
  operand.scale_inv = FloatTensor(values);
  return operand;
}

std::string CaseName(const CaseSpec& s) {
  std::string name = s.types.a + "x" + s.types.b + " " + std::string(PatternName(s.a_pattern)) +
                     "/" + std::string(PatternName(s.b_pattern)) + " m" + std::to_string(s.m) +
                     " n" + std::to_string(s.n) + " k" + std::to_string(s.k) + " " +
                     LayoutName(s.layout) + " -> " + s.d_type;
  if (s.types.is_fp8()) name += s.split_accumulator ? " split" : " fast";
  char text[64];
  std::snprintf(text, sizeof(text), " alpha %g beta %g", s.alpha, s.beta);
  if (s.alpha != 1.0f || s.beta != 0.0f) name += text;
  if (s.in_place) name += " in place";
  if (s.beta != 0.0f) name += " c " + std::string(PatternName(s.c_pattern));
  if (!s.bias_type.empty())
    name += " bias " + s.bias_type + "." + std::string(PatternName(s.bias_pattern));
  if (!s.a_scale.empty()) name += s.a_scale.size() == 1 ? " a_scale" : " a_outer";
  if (!s.b_scale.empty()) name += s.b_scale.size() == 1 ? " b_scale" : " b_outer";
  std::snprintf(text, sizeof(text), " %g %g", s.a_scale.empty() ? 0.0f : s.a_scale[0],
                s.b_scale.empty() ? 0.0f : s.b_scale[0]);
  if (!s.a_scale.empty() || !s.b_scale.empty()) name += text;
  std::snprintf(text, sizeof(text), " d_scale %g", s.d_scale);
  if (s.has_d_scale) name += text;
  if (IsFp8Block(s.a_block)) {
    name += " scales " + std::string(ScaleModeName(s.a_block)) + " x " +
            std::string(ScaleModeName(s.b_block)) + " " + std::string(PatternName(s.scale_pattern));
  }
  if (s.force_split_k > 1) {
    name += " splitk " + std::to_string(s.force_split_k) + " scheme 2";
  }
  return name;
}

}  // namespace

/// Draws an operand of `rows` x `columns` and names it in the case; `transposed` stores it
/// [columns][rows].
Tensor Recorder::AddOperand(GoldenFile& file, const CaseSpec& spec, const char* name, DType type,
                            Pattern pattern, uint64_t seed, int64_t rows, int64_t columns,
                            bool transposed, nlohmann::json& one) {
  const std::string type_name(DTypeName(type));
  std::vector<uint8_t> bytes =
      PatternMatrix(pattern, CodeFormatOf(type_name), spec.types.chunk, seed, rows, columns);
  std::vector<int64_t> shape{rows, columns};
  if (transposed) {
    const auto width = static_cast<size_t>(DTypeBytes(type));
    std::vector<uint8_t> out(bytes.size());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        std::memcpy(&out[(c * rows + r) * width], &bytes[(r * columns + c) * width], width);
      }
    }
    bytes = std::move(out);
    shape = {columns, rows};
  }
  if (std::string_view(name) == "bias") shape = {columns};
  std::string tensor = std::string(name) + "." + type_name + "." +
                       std::string(PatternName(pattern)) + "." + std::to_string(shape[0]) +
                       (shape.size() > 1 ? "x" + std::to_string(shape[1]) : "");
  if (transposed) tensor += ".t";
  if (spec.digest_only) {
    one[name] = {{"type", type_name},
                 {"pattern", PatternName(pattern)},
                 {"seed", seed},
                 {"rows", rows},
                 {"columns", columns},
                 {"chunk", spec.types.chunk},
                 {"transposed", transposed}};
  } else {
    file.AddTensor(tensor, type_name, shape, bytes);
    one[name] = tensor;
  }
  return TensorOf(type, shape, bytes);
}

Tensor Recorder::AddBlockScales(GoldenFile& file, const CaseSpec& spec, const char* name,
                                ScaleMode scaling, uint64_t seed, int64_t rows,
                                nlohmann::json& one) {
  const int64_t k_blocks = (spec.k + 127) / 128;
  const int64_t scale_rows = scaling == ScaleMode::k1x128 ? rows : (rows + 127) / 128;
  std::vector<uint8_t> bytes =
      PatternMatrix(spec.scale_pattern, testing::kFloat32Codes, 1, seed, scale_rows, k_blocks);
  const bool keeps_signs = spec.scale_pattern == Pattern::kSpecials;
  for (size_t i = 3; i < bytes.size() && !keeps_signs; i += 4) bytes[i] &= 0x7F;
  const std::string mode(ScaleModeName(scaling));
  const std::string tensor = std::string(name) + "." + mode + "." +
                             std::string(PatternName(spec.scale_pattern)) + "." +
                             std::to_string(scale_rows) + "x" + std::to_string(k_blocks);
  file.AddTensor(tensor, "f32", {scale_rows, k_blocks}, bytes);
  one[name] = tensor;
  one[std::string(name) + "_mode"] = mode;
  return TensorOf(DType::kF32, {scale_rows, k_blocks}, bytes);
}

GemmDesc Recorder::DescOf(GoldenFile& file, const CaseSpec& s, nlohmann::json& one) {
  GemmDesc gemm;
  gemm.layout = s.layout;
  gemm.out_dtype = Need(ParseDType(s.d_type));
  gemm.use_split_accumulator = s.split_accumulator;
  gemm.alpha = s.alpha, gemm.beta = s.beta, gemm.in_place = s.in_place;
  gemm.a.data = AddOperand(file, s, "a", Need(ParseDType(s.types.a)), s.a_pattern, 2, s.m, s.k,
                           s.layout == GemmLayout::kNT, one);
  gemm.b.data = AddOperand(file, s, "b", Need(ParseDType(s.types.b)), s.b_pattern, 3, s.n, s.k,
                           s.layout != GemmLayout::kTN, one);
  if (s.beta != 0.0f || s.in_place) {
    const DType c_type = IsFp8(gemm.out_dtype) ? DType::kBF16 : gemm.out_dtype;
    gemm.c = AddOperand(file, s, "c", c_type, s.c_pattern, 4, s.m, s.n, false, one);
  }
  if (!s.bias_type.empty()) {
    gemm.bias = AddOperand(file, s, "bias", Need(ParseDType(s.bias_type)), s.bias_pattern, 5, 1,
                           s.n, false, one);
  }
  // Floats are exact as JSON numbers: every float is a double, and doubles are printed to be read
  // back. What a case leaves out has its default: layout tn, alpha 1, beta 0, fast accumulation, no
  // split-K.
  one["d_type"] = s.d_type;
  if (s.layout != GemmLayout::kTN) one["layout"] = LayoutName(s.layout);
  if (s.alpha != 1.0f) one["alpha"] = s.alpha;
  if (s.beta != 0.0f) one["beta"] = s.beta;
  if (s.in_place) one["in_place"] = true;
  if (s.split_accumulator) one["split_accumulator"] = true;
  if (s.force_split_k != 1) one["split_k"] = s.force_split_k;
  if (!s.a_scale.empty()) one["a_scale"] = s.a_scale;
  if (!s.b_scale.empty()) one["b_scale"] = s.b_scale;
  if (s.has_d_scale) one["d_scale"] = s.d_scale;
  gemm.a = WithFloatScales(gemm.a, s.a_scale);
  gemm.b = WithFloatScales(gemm.b, s.b_scale);
  if (s.has_d_scale) gemm.d_scale = FloatTensor({s.d_scale});
  if (IsFp8Block(s.a_block)) {
    gemm.a.scaling = s.a_block, gemm.b.scaling = s.b_block;
    gemm.a.scale_inv = AddBlockScales(file, s, "a_scale", s.a_block, 6, s.m, one);
    gemm.b.scale_inv = AddBlockScales(file, s, "b_scale", s.b_block, 7, s.n, one);
  }
  return gemm;
}

Recorder::Seen Recorder::RunAlgorithms(const GemmDesc& gemm, const CaseSpec& s,
                                       const std::string& name) {
  Seen seen;
  GemmDesc placed = cublaslt_.Placed(gemm);
  placed.arithmetic.split_k = s.force_split_k;
  for (const CublasLtAlgorithm& algorithm : cublaslt_.Algorithms(placed, kAlgorithmsMax)) {
    const absl::StatusOr<GemmResult> result = cublaslt_.Run(placed, algorithm);
    const std::string text = algorithm.ToString();
    if (!result.ok()) {
      std::printf("RUN FAILED %s: %s\n", name.c_str(), result.status().ToString().c_str());
      continue;
    }
    const Tensor d = Need(cublaslt_.device().ToHost(result->d));
    if (seen.ran++ == 0) {
      seen.d = d, seen.algorithm = text;
      seen.amax = Need(cublaslt_.device().ToHost(result->amax));
    }
    if (std::memcmp(d.data(), seen.d.data(), d.byte_size()) == 0) {
      ++seen.agreeing;
      continue;
    }
    std::printf("DIFFERS %s: first {%s}, this {%s}\n", name.c_str(), seen.algorithm.c_str(),
                text.c_str());
    if (d.byte_size() <= kVariantBytesMax) {
      variants_.AddTensor(name + " | " + text, s.d_type, {s.m, s.n}, BytesOf(d));
    }
  }
  return seen;
}

void Recorder::Record(GoldenFile& file, const CaseSpec& s) {
  nlohmann::json one;
  const std::string name = CaseName(s);
  one["name"] = name;
  const Seen seen = RunAlgorithms(DescOf(file, s, one), s, name);
  if (seen.ran == 0) {
    ++refused_;
    std::printf("REFUSED %s: %s\n", name.c_str(), cublaslt_.refusal().c_str());
    return;
  }
  varied_ += seen.agreeing != seen.ran;
  one["algorithms"] = seen.ran, one["agreeing"] = seen.agreeing;
  if (seen.amax.has_value()) {
    one["amax_bits"] = std::bit_cast<uint32_t>(*seen.amax.as<float>());  // May be a NaN.
  }
  if (s.digest_only) {
    one["d_sha256"] = Sha256Of(seen.d.bytes()).Hex();
  } else {
    const std::string tensor = "d." + std::to_string(file.case_count());
    file.AddTensor(tensor, s.d_type, {s.m, s.n}, BytesOf(seen.d));
    one["d"] = tensor;
  }
  std::printf("ok %s: %d algorithms, %d agree {%s}\n", name.c_str(), seen.ran, seen.agreeing,
              seen.algorithm.c_str());
  file.AddCase(std::move(one));
  ++recorded_;
}

}  // namespace quantgate::hardware
