#include "tests/hardware/golden_recorder.h"

#include <openssl/sha.h>

#include <bit>
#include <cstdio>
#include <cstring>
#include <utility>

namespace quantgate::hardware {
namespace {

using testing::CodeFormatOf;
using testing::Pattern;
using testing::PatternMatrix;
using testing::PatternName;

constexpr int kAlgorithmsMax = 16;
constexpr size_t kVariantBytesMax = 64 << 10;

const char* LayoutName(Layout layout) {
  return layout == Layout::kTN ? "tn" : layout == Layout::kNN ? "nn" : "nt";
}

std::string BlockName(Scaling scaling) { return scaling == Scaling::k1x128 ? "1x128" : "128x128"; }

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
  if (IsBlock(s.a_block)) {
    name += " scales " + BlockName(s.a_block) + " x " + BlockName(s.b_block) + " " +
            std::string(PatternName(s.scale_pattern));
  }
  if (s.force_split_k > 1) {
    name += " splitk " + std::to_string(s.force_split_k) + " scheme " +
            std::to_string(s.split_k_scheme);
  }
  return name;
}

}  // namespace

/// Draws an operand of `rows` x `columns` and names it in the case; `transposed` stores it
/// [columns][rows].
std::string Recorder::AddOperand(GoldenFile& file, const CaseSpec& spec, const char* name,
                                 const std::string& type, Pattern pattern, uint64_t seed,
                                 int64_t rows, int64_t columns, bool transposed,
                                 std::vector<uint8_t>* bytes, nlohmann::json& one) {
  *bytes = PatternMatrix(pattern, CodeFormatOf(type), spec.types.chunk, seed, rows, columns);
  std::vector<int64_t> shape{rows, columns};
  if (transposed) {
    const size_t width = static_cast<size_t>(BytesOf(type));
    std::vector<uint8_t> out(bytes->size());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        std::memcpy(&out[(c * rows + r) * width], &(*bytes)[(r * columns + c) * width], width);
      }
    }
    *bytes = std::move(out);
    shape = {columns, rows};
  }
  if (std::string_view(name) == "bias") shape = {columns};
  std::string tensor = std::string(name) + "." + type + "." + std::string(PatternName(pattern)) +
                       "." + std::to_string(shape[0]) +
                       (shape.size() > 1 ? "x" + std::to_string(shape[1]) : "");
  if (transposed) tensor += ".t";
  if (spec.digest_only) {
    one[name] = {{"type", type},
                 {"pattern", PatternName(pattern)},
                 {"seed", seed},
                 {"rows", rows},
                 {"columns", columns},
                 {"chunk", spec.types.chunk},
                 {"transposed", transposed}};
  } else {
    file.AddTensor(tensor, type, shape, *bytes);
    one[name] = tensor;
  }
  return tensor;
}

std::vector<float> Recorder::AddBlockScales(GoldenFile& file, const CaseSpec& spec,
                                            const char* name, Scaling scaling, uint64_t seed,
                                            int64_t rows, nlohmann::json& one) {
  const int64_t k_blocks = (spec.k + 127) / 128;
  const int64_t scale_rows = scaling == Scaling::k1x128 ? rows : (rows + 127) / 128;
  std::vector<uint8_t> bytes =
      PatternMatrix(spec.scale_pattern, testing::kFloat32Codes, 1, seed, scale_rows, k_blocks);
  const bool keeps_signs = spec.scale_pattern == Pattern::kSpecials;
  for (size_t i = 3; i < bytes.size() && !keeps_signs; i += 4) bytes[i] &= 0x7F;
  const std::string mode = BlockName(scaling);
  const std::string tensor = std::string(name) + "." + mode + "." +
                             std::string(PatternName(spec.scale_pattern)) + "." +
                             std::to_string(scale_rows) + "x" + std::to_string(k_blocks);
  file.AddTensor(tensor, "f32", {scale_rows, k_blocks}, bytes);
  one[name] = tensor;
  one[std::string(name) + "_mode"] = mode;
  std::vector<float> scales(bytes.size() / sizeof(float));
  std::memcpy(scales.data(), bytes.data(), bytes.size());
  return scales;
}

std::vector<Algorithm> Recorder::AlgorithmsFor(LoadedGemm& loaded, const CaseSpec& spec) {
  std::vector<Algorithm> algorithms =
      loaded.Algorithms(kAlgorithmsMax, CUBLASLT_REDUCTION_SCHEME_NONE);
  if (spec.force_split_k == 1) return algorithms;
  std::vector<Algorithm> forced;
  for (const Algorithm& base : algorithms) {
    for (Algorithm& algorithm : loaded.WithSplitK(base, spec.force_split_k, spec.split_k_scheme)) {
      forced.push_back(std::move(algorithm));
    }
  }
  return forced;
}

void Recorder::Record(GoldenFile& file, const CaseSpec& s) {
  GemmCase gemm;
  gemm.m = s.m, gemm.n = s.n, gemm.k = s.k, gemm.layout = s.layout;
  gemm.a_type = s.types.a, gemm.b_type = s.types.b, gemm.d_type = s.d_type;
  gemm.c_type = s.c_type, gemm.bias_type = s.bias_type;
  gemm.split_accumulator = s.split_accumulator;
  gemm.alpha = s.alpha, gemm.beta = s.beta, gemm.in_place = s.in_place;
  gemm.a_scale = s.a_scale, gemm.b_scale = s.b_scale;
  const auto scaling = [](const std::vector<float>& v) {
    return v.empty() ? Scaling::kNone : v.size() == 1 ? Scaling::kTensor : Scaling::kOuter;
  };
  gemm.a_scaling = scaling(s.a_scale), gemm.b_scaling = scaling(s.b_scale);
  const bool d_is_fp8 = s.d_type.starts_with("f8");
  gemm.has_d_scale = s.has_d_scale, gemm.d_scale = s.d_scale, gemm.has_amax = d_is_fp8;

  nlohmann::json one;
  const std::string name = CaseName(s);
  one["name"] = name;
  AddOperand(file, s, "a", s.types.a, s.a_pattern, 2, s.m, s.k, s.layout == Layout::kNT, &gemm.a,
             one);
  AddOperand(file, s, "b", s.types.b, s.b_pattern, 3, s.n, s.k, s.layout != Layout::kTN, &gemm.b,
             one);
  if (s.beta != 0.0f || s.in_place) {
    const std::string c_type = !s.c_type.empty() ? s.c_type : d_is_fp8 ? "bf16" : s.d_type;
    AddOperand(file, s, "c", c_type, s.c_pattern, 4, s.m, s.n, false, &gemm.c, one);
  }
  if (!s.bias_type.empty()) {
    AddOperand(file, s, "bias", s.bias_type, s.bias_pattern, 5, 1, s.n, false, &gemm.bias, one);
  }
  // Floats are exact as JSON numbers: every float is a double, and doubles are printed to be read
  // back. What a case leaves out has its default: layout tn, alpha 1, beta 0, fast accumulation, no
  // split-K.
  one["d_type"] = s.d_type;
  if (s.layout != Layout::kTN) one["layout"] = LayoutName(s.layout);
  if (s.alpha != 1.0f) one["alpha"] = s.alpha;
  if (s.beta != 0.0f) one["beta"] = s.beta;
  if (s.in_place) one["in_place"] = true;
  if (s.split_accumulator) one["split_accumulator"] = true;
  if (s.force_split_k != 1) one["split_k"] = s.force_split_k;
  if (!s.a_scale.empty()) one["a_scale"] = s.a_scale;
  if (!s.b_scale.empty()) one["b_scale"] = s.b_scale;
  if (s.has_d_scale) one["d_scale"] = s.d_scale;

  if (IsBlock(s.a_block)) {
    gemm.a_scaling = s.a_block, gemm.b_scaling = s.b_block;
    gemm.a_scale = AddBlockScales(file, s, "a_scale", s.a_block, 6, s.m, one);
    gemm.b_scale = AddBlockScales(file, s, "b_scale", s.b_block, 7, s.n, one);
  }

  LoadedGemm loaded(device_, gemm);
  std::vector<uint8_t> first, d;
  float amax = 0;
  int ran = 0, agreeing = 0;
  std::string algorithm_text;
  for (const Algorithm& algorithm : AlgorithmsFor(loaded, s)) {
    if (!loaded.Run(algorithm, &d, &amax)) {
      std::printf("RUN FAILED %s: %s: cublasStatus_t %d\n", name.c_str(), algorithm.text.c_str(),
                  static_cast<int>(loaded.run_status()));
      continue;
    }
    if (ran++ == 0) {
      first = d, algorithm_text = algorithm.text;
      if (d_is_fp8) one["amax_bits"] = std::bit_cast<uint32_t>(amax);  // May be a NaN.
    }
    if (d == first) {
      ++agreeing;
    } else {
      std::printf("DIFFERS %s: first {%s}, this {%s}\n", name.c_str(), algorithm_text.c_str(),
                  algorithm.text.c_str());
      if (d.size() <= kVariantBytesMax) {
        variants_.AddTensor(name + " | " + algorithm.text, s.d_type, {s.m, s.n}, d);
      }
    }
  }
  if (ran == 0) {
    ++refused_;
    std::printf("REFUSED %s: heuristic status %d\n", name.c_str(), loaded.heuristic_status());
    return;
  }
  varied_ += agreeing != ran;
  one["algorithms"] = ran, one["agreeing"] = agreeing;
  if (s.digest_only) {
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256(first.data(), first.size(), digest);
    std::string hex;
    char two[3];
    for (unsigned char byte : digest) std::snprintf(two, sizeof(two), "%02x", byte), hex += two;
    one["d_sha256"] = hex;
  } else {
    const std::string tensor = "d." + std::to_string(file.case_count());
    file.AddTensor(tensor, s.d_type, {s.m, s.n}, first);
    one["d"] = tensor;
  }
  std::printf("ok %s: %d algorithms, %d agree {%s}\n", name.c_str(), ran, agreeing,
              algorithm_text.c_str());
  file.AddCase(std::move(one));
  ++recorded_;
}

}  // namespace quantgate::hardware
