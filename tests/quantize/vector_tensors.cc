#include "tests/quantize/vector_tensors.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <span>
#include <sstream>

#include "kernels/base/crc32c.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/files/tensor_file.h"
#include "kernels/tensor/fingerprint.h"
#include "tests/base/exhaustive.h"
#include "tests/gemm/operand_pattern.h"

namespace quantgate::testing {
namespace {

const std::string kRoot = QUANTGATE_SOURCE_DIR;

Shape ParseShape(const std::string& text) {
  Shape shape;
  std::stringstream dims(text);
  for (std::string dim; std::getline(dims, dim, 'x');) shape.push_back(std::stoll(dim));
  return shape;
}

std::vector<std::byte> FromHex(const std::string& hex) {
  std::vector<std::byte> bytes(hex.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return bytes;
}

/// A tensor filled by code(index).
template <class Code>
Tensor Filled(DType dtype, const Shape& shape, const Code& code) {
  Tensor tensor = *Tensor::Allocate(dtype, shape);
  const size_t width = DTypeBytes(dtype);
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    const uint64_t value = code(i);
    std::memcpy(tensor.data() + static_cast<size_t>(i) * width, &value, width);
  }
  return tensor;
}

Tensor RealTensor(DType dtype, const Shape& shape, std::istream& words) {
  static const TensorFile file = *ReadSafetensors(kRoot + "/data/bytegpt_block1.safetensors");
  std::string name;
  int64_t row = 0, column = 0;
  words >> name >> row >> column;
  const Tensor whole = *CastTensor(*file.Find(name), dtype, {});
  Tensor window = *Tensor::Allocate(dtype, shape);
  const size_t width = DTypeBytes(dtype);
  for (int64_t r = 0; r < shape[0]; ++r) {
    std::memcpy(window.data() + static_cast<size_t>(r * shape[1]) * width,
                whole.data() + static_cast<size_t>((row + r) * whole.shape()[1] + column) * width,
                static_cast<size_t>(shape[1]) * width);
  }
  return window;
}

Tensor MixTensor(DType dtype, const CodeFormat& format, const Shape& shape, std::istream& words) {
  uint64_t seed = 0, low = 0, span = 0, specials = 0;
  words >> seed >> low >> span >> specials;
  const uint64_t infinity = format.infinity;
  const uint64_t kinds[] = {0, infinity, infinity | uint64_t{1} << (format.mantissa_bits - 1), 0};
  return Filled(dtype, shape, [&](int64_t index) {
    const uint64_t h = Mix(seed, static_cast<uint64_t>(index));
    const uint64_t mantissa = (h >> 32) & ((uint64_t{1} << format.mantissa_bits) - 1);
    uint64_t code = (low + (h >> 8) % span) << format.mantissa_bits | mantissa;
    if (specials != 0 && (h >> 20) % specials == 0) code = kinds[(h >> 1) % 4];
    return code | (h & 1) << (format.mantissa_bits + format.exponent_bits);
  });
}

Tensor LadderTensor(DType dtype, const CodeFormat& format, const Shape& shape,
                    std::istream& words) {
  uint64_t seed = 0;
  int64_t tall = 1, wide = 1, low = 0, span = 1;
  words >> seed >> tall >> wide >> low >> span;
  const int64_t columns = shape[1], seven = int64_t{3} << (format.mantissa_bits - 2);
  const int64_t offsets[] = {0, 1, -1, seven, seven + 1, seven - 1};
  return Filled(dtype, shape, [&](int64_t index) {
    const int64_t row = index / columns, column = index % columns;
    const int64_t tile = row / tall * ((columns + wide - 1) / wide) + column / wide;
    const int64_t base = (low + tile / 6 % span) << format.mantissa_bits;
    const auto amax = static_cast<uint64_t>(std::max<int64_t>(base + offsets[tile % 6], 0));
    const auto position = static_cast<uint64_t>(row % tall * wide + column % wide);
    const uint64_t top =
        Mix(seed + 1, static_cast<uint64_t>(tile)) % static_cast<uint64_t>(tall * wide);
    const uint64_t h = Mix(seed, static_cast<uint64_t>(index));
    const uint64_t code = position == top ? amax : (h >> 8) % (amax + 1);
    return code | (h & 1) << (format.mantissa_bits + format.exponent_bits);
  });
}

Tensor TensorOf(const std::string& kind, const std::string& source, const Shape& shape,
                std::istream& words) {
  const DType dtype = *ParseDType(source);
  if (kind == "real") return RealTensor(dtype, shape, words);
  if (kind == "mix") return MixTensor(dtype, CodeFormatOf(source), shape, words);
  if (kind == "ladder") return LadderTensor(dtype, CodeFormatOf(source), shape, words);
  std::string hex;
  words >> hex;
  return *Tensor::FromBytes(dtype, shape, FromHex(hex));
}

template <class Value>
Value Named(const std::string& name, std::initializer_list<std::pair<const char*, Value>> values) {
  for (const auto& [known, value] : values) {
    if (name == known) return value;
  }
  std::fprintf(stderr, "unknown name in a vector file: %s\n", name.c_str());
  std::abort();
}

ScaleRule ScaleRuleOf(const std::string& name) {
  return Named<ScaleRule>(name, {{"divide", ScaleRule::kDivide},
                                 {"reciprocal", ScaleRule::kReciprocal},
                                 {"round_up", ScaleRule::kRoundUp},
                                 {"floor", ScaleRule::kFloor},
                                 {"ceil", ScaleRule::kCeil},
                                 {"even", ScaleRule::kEven},
                                 {"nearest", ScaleRule::kNearest},
                                 {"two_level", ScaleRule::kTwoLevel},
                                 {"two_level_clamped", ScaleRule::kTwoLevelClamped},
                                 {"single_level", ScaleRule::kSingleLevel}});
}

ElementRounding RoundingOf(const std::string& name) {
  return Named<ElementRounding>(name, {{"nearest_even", ElementRounding::kNearestEven},
                                       {"nearest_away", ElementRounding::kNearestAway},
                                       {"stochastic", ElementRounding::kStochastic}});
}

Overflow OverflowOf(const std::string& name) {
  return Named<Overflow>(name, {{"saturate", Overflow::kSaturate}, {"nan", Overflow::kNan}});
}

}  // namespace

VectorFile ReadVectors(const std::string& name) {
  VectorFile vectors;
  std::ifstream file(kRoot + "/tests/data/" + name);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    std::stringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "case") {
      std::vector<std::string>& one = vectors.cases.emplace_back();
      for (std::string word; words >> word;) one.push_back(word);
      continue;
    }
    std::string tensor, source, shape;
    words >> tensor >> source >> shape;
    vectors.tensors[tensor + " " + source] = TensorOf(kind, source, ParseShape(shape), words);
    if (words.fail()) {
      std::fprintf(stderr, "%s: cannot read: %.120s\n", name.c_str(), line.c_str());
      std::abort();
    }
  }
  return vectors;
}

std::string Digest64(std::initializer_list<Tensor> tensors) {
  Sha256Stream stream;
  for (const Tensor& tensor : tensors) stream.Update(tensor.bytes());
  return stream.Finish().Hex().substr(0, 16);
}

std::string HexBytes(const Tensor& tensor) {
  std::string hex;
  for (const std::byte byte : tensor.bytes()) {
    char text[3];
    std::snprintf(text, sizeof(text), "%02x", static_cast<unsigned>(byte));
    hex += text;
  }
  return hex;
}

float FloatFromHexBytes(const std::string& hex) {
  const std::vector<std::byte> bytes = FromHex(hex);
  float value = 0;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

Quantizer Fp8BlockQuantizer(const std::vector<std::string>& words) {
  QuantizerSpec spec;
  spec.format = QuantizerFormat::kFp8Block;
  spec.element = *ParseDType(words[2]);
  spec.block_dim = std::stoi(words[3]);
  spec.power_2_scale = words[4] == "1";
  spec.amax_epsilon = FloatFromHexBytes(words[5]);
  spec.scale_rule = ScaleRuleOf(words[6]);
  spec.element_rounding = RoundingOf(words[7]);
  spec.overflow = OverflowOf(words[8]);
  return spec;
}

Quantizer Fp8RowwiseQuantizer(const std::vector<std::string>& words) {
  QuantizerSpec spec = Fp8BlockQuantizer(words).rowwise;
  spec.format = QuantizerFormat::kFp8Rowwise;
  return spec;
}

Quantizer Mxfp8Quantizer(const std::vector<std::string>& words) {
  QuantizerSpec spec;
  spec.format = QuantizerFormat::kMxfp8;
  spec.element = *ParseDType(words[2] == "f4_e2m1" ? "f4_e2m1x2" : words[2]);
  spec.block_dim = std::stoi(words[3]);
  spec.scale_rule = ScaleRuleOf(words[4]);
  spec.element_rounding = RoundingOf(words[5]);
  spec.overflow = OverflowOf(words[6]);
  return spec;
}

Quantizer Nvfp4Quantizer(const std::vector<std::string>& words) {
  QuantizerSpec spec;
  spec.format = QuantizerFormat::kNvfp4;
  spec.element = DType::kF4E2M1x2;
  spec.block_dim = std::stoi(words[2]);
  spec.scale_rule = ScaleRuleOf(words[3]);
  spec.element_rounding = RoundingOf(words[4]);
  spec.row_scaled = words[5] == "1";
  spec.four_over_six = words[6] == "mae"   ? FourOverSix::kMae
                       : words[6] == "mse" ? FourOverSix::kMse
                                           : FourOverSix::kNone;
  spec.e4m3_max = std::stoi(words[7]);
  Quantizer quantizer(spec);
  quantizer.columnwise.hadamard = words[8] == "1";
  return quantizer;
}

QuantizeArguments Nvfp4Arguments(const std::vector<std::string>& words) {
  QuantizeArguments arguments;
  arguments.seed = std::stoull(words[9]);
  arguments.call_id = static_cast<uint32_t>(std::stoul(words[10]));
  return arguments;
}

std::string ValuesDigest(const QuantizedTensor& quantized, Usage usage,
                         const ExecutionContext& context) {
  return Digest64({*DequantizeCpu(quantized, usage, DType::kBF16, context),
                   *DequantizeCpu(quantized, usage, DType::kF16, context),
                   *DequantizeCpu(quantized, usage, DType::kF32, context)});
}

std::vector<ExecutionContext> EveryPath() {
  std::vector<ExecutionContext> paths;
  for (const Isa isa : RunnableIsas()) {
    ExecutionContext& context = paths.emplace_back();
    context.isa = isa;
    context.threads = 1;
  }
  paths.emplace_back().threads = 2;
  return paths;
}

std::string PathName(const ExecutionContext& context) {
  return std::string(IsaName(context.isa)) + "_" + std::to_string(context.threads);
}

bool RunsCase(const ExecutionContext& path, const std::string& text) {
  if (IsExhaustive()) return true;
  const std::vector<ExecutionContext> paths = EveryPath();
  const uint32_t drawn = ExtendCrc32c(0, std::as_bytes(std::span(text)));
  return PathName(paths[drawn % paths.size()]) == PathName(path);
}

}  // namespace quantgate::testing
