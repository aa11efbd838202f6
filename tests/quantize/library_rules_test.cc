// Quantizers by the rules of other libraries against tensors that those libraries made of the same
// sources: tests/data/libraries, tests/vectors/libraries. Every code and every scale, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/numerics/e8m0.h"
#include "kernels/quantize/recipe/recipe_json.h"
#include "kernels/tensor/convert.h"
#include "tests/quantize/library_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Case = testing::LibraryCase;
using Library = testing::LibraryFile;
using testing::IsSameFloat;
using testing::RoundedTo;
using testing::RowsOf;
using testing::StoredScales;

// ---- the table: which quantizer a rule is

/// How the stored scales of a case are read.
enum class Stored {
  kInverse,   ///< What divides: scale_inv.
  kScale,     ///< What multiplies; scale_inv is one over it in the scale's dtype.
  kExponent,  ///< E8M0, or a power of two in some dtype.
  kE4M3,      ///< E4M3, or its value in some dtype.
  kNothing,
};

/// One quantizer, of a rule with these arguments; others do not matter.
struct Row {
  const char* rule;
  const char* arguments;
  const char*
      quantizer;  ///< JSON without element and, of FP8 with fp32 scales, without the blocks.
  Stored stored;
};

constexpr char kInverseDivide[] =
    R"({"scale_rule": "inverse", "scale_dtype": "source", "element_operation": "divide",
        "operation_dtype": "source"})";

const Row kRows[] = {
    // FP8 under fp32 scales.
    {"torchao_float8", "{}",
     R"({"scale_rule": "inverse", "scale_dtype": "source", "element_operation": "divide"})",
     Stored::kInverse},
    {"torchao_training", R"({"power_of_two": false})", R"({"scale_rule": "float64"})",
     Stored::kScale},
    {"torchao_training", R"({"power_of_two": true})",
     R"({"scale_rule": "float64", "power_2_scale": true})", Stored::kScale},
    {"torchao_blockwise", "{}", R"({"scale_rule": "float64"})", Stored::kInverse},
    {"compressed_fp8", R"({"with_zero_point": false})",
     R"({"scale_rule": "inverse", "scale_dtype": "source", "element_operation": "divide",
         "operation_dtype": "source", "zero_scale": "dtype_epsilon"})",
     Stored::kInverse},
    {"compressed_fp8", R"({"with_zero_point": true})",
     R"({"scale_rule": "inverse", "scale_dtype": "source", "element_operation": "divide",
         "operation_dtype": "source", "zero_scale": "dtype_epsilon", "zero_sign": "drop"})",
     Stored::kInverse},
    {"modelopt_fp8", "{}", kInverseDivide, Stored::kInverse},
    {"quanto_eight_bits", "{}", kInverseDivide, Stored::kInverse},
    {"deepgemm_fp8", R"({"power_of_two": false})",
     R"({"scale_rule": "inverse", "amax_epsilon": 1e-4})", Stored::kInverse},
    {"deepgemm_fp8", R"({"power_of_two": true})",
     R"({"scale_rule": "divide", "power_2_scale": true, "amax_epsilon": 1e-4})", Stored::kInverse},
    {"transformers_fp8", R"({"power_of_two": false})", R"({"scale_rule": "reciprocal_product"})",
     Stored::kInverse},
    {"transformers_fp8", R"({"power_of_two": true})",
     R"({"scale_rule": "reciprocal_product", "power_2_scale": true})", Stored::kExponent},
    {"torch_number_over_amax", R"({"in_f32": true})", R"({"scale_rule": "reciprocal_product"})",
     Stored::kScale},
    {"torch_number_over_amax", R"({"in_f32": false})",
     R"({"scale_rule": "reciprocal_product", "scale_dtype": "source",
         "operation_dtype": "source"})",
     Stored::kScale},
    {"qwix", R"({"kind": "e4m3"})", R"({"scale_rule": "qwix"})", Stored::kInverse},
    {"qwix", R"({"kind": "e5m2"})", R"({"scale_rule": "qwix"})", Stored::kInverse},
    // Casts, under a scale of 1.
    {"torch_cast", "{}", R"({"recipe": "fp8_delayed:overflow=nan"})", Stored::kNothing},
    {"gfloat_cast", R"({"mode": "even"})", R"({"recipe": "fp8_delayed"})", Stored::kNothing},
    {"gfloat_cast", R"({"mode": "away"})",
     R"({"recipe": "fp8_delayed:element_rounding=nearest_away"})", Stored::kNothing},
    // MX.
    {"torchao_mx", R"({"mode": "rceil"})", R"({"format": "mxfp8", "scale_rule": "torchao_rceil"})",
     Stored::kExponent},
    {"torchao_mx", R"({"mode": "floor"})", R"({"format": "mxfp8", "scale_rule": "torchao_floor"})",
     Stored::kExponent},
    {"torchao_mx", R"({"mode": "ceil"})", R"({"format": "mxfp8", "scale_rule": "torchao_ceil"})",
     Stored::kExponent},
    {"torchao_mx", R"({"mode": "even"})", R"({"format": "mxfp8", "scale_rule": "torchao_even"})",
     Stored::kExponent},
    {"compressed_mx", R"({"element": "e2m1"})",
     R"({"format": "mxfp8", "scale_rule": "compressed_tensors", "zero_sign": "drop"})",
     Stored::kExponent},
    {"compressed_mx", "{}", R"({"format": "mxfp8", "scale_rule": "compressed_tensors"})",
     Stored::kExponent},
    {"modelopt_mxfp4", "{}",
     R"({"format": "mxfp8", "element": "f4_e2m1x2", "scale_rule": "modelopt",
         "element_rounding": "nearest_zero", "zero_sign": "negative"})",
     Stored::kExponent},
    {"modelopt_mxfp8", "{}", R"({"format": "mxfp8", "scale_rule": "modelopt"})", Stored::kExponent},
    {"gguf_mxfp4", "{}",
     R"({"format": "mxfp8", "element": "f4_e2m1x2", "scale_rule": "gguf",
         "element_rounding": "nearest_zero", "zero_sign": "drop_rounded"})",
     Stored::kExponent},
    {"gfloat_mx", R"({"mode": "even"})", R"({"format": "mxfp8", "scale_rule": "floor"})",
     Stored::kExponent},
    {"gfloat_mx", R"({"mode": "away"})",
     R"({"format": "mxfp8", "scale_rule": "floor", "element_rounding": "nearest_away"})",
     Stored::kExponent},
    {"qwix", R"({"kind": "mxfp8"})", R"({"format": "mxfp8", "scale_rule": "qwix"})",
     Stored::kExponent},
    {"qwix", R"({"kind": "mxfp4"})",
     R"({"format": "mxfp8", "element": "f4_e2m1x2", "scale_rule": "qwix"})", Stored::kExponent},
    // NVFP4.
    {"torchao_nvfp4", R"({"levels": 2})",
     R"({"format": "nvfp4", "scale_rule": "torchao_two_level"})", Stored::kE4M3},
    {"torchao_nvfp4", R"({"levels": 1})",
     R"({"format": "nvfp4", "scale_rule": "torchao_single_level"})", Stored::kE4M3},
    {"compressed_nvfp4", "{}",
     R"({"format": "nvfp4", "scale_rule": "compressed_tensors", "zero_sign": "drop"})",
     Stored::kE4M3},
    {"modelopt_nvfp4", "{}",
     R"({"format": "nvfp4", "scale_rule": "modelopt", "zero_sign": "drop"})", Stored::kE4M3},
    {"qwix", R"({"kind": "nvfp4"})", R"({"format": "nvfp4", "scale_rule": "qwix"})", Stored::kE4M3},
};

/// How many cases of each rule no quantizer is, whose codes, elements or blocks this build lacks:
/// casts without a scale to FNUZ, FP6 and FP4 or toward zero, MXINT8, and fp32 scales of 16
/// elements. Cases of levels are of level_rules_test.
const std::map<std::string, int> kNotCovered = {
    {"gfloat_cast", 14}, {"gfloat_mx", 2}, {"qwix", 4}, {"torch_cast", 8}, {"transformers_fp8", 4},
};

const Row* RowOf(const Case& of) {
  for (const Row& row : kRows) {
    if (of.rule != row.rule) continue;
    const Json wanted = Json::parse(row.arguments);
    const bool fits = std::all_of(wanted.items().begin(), wanted.items().end(), [&](const auto& a) {
      return of.arguments.contains(a.key()) && of.arguments[a.key()] == a.value();
    });
    if (fits) return &row;
  }
  return nullptr;
}

/// The element that a case names; e4m3 where its rule has no other.
std::string ElementOf(const Case& of) {
  for (const char* key : {"element", "kind"}) {
    const std::string name = of.Argument(key);
    if (!name.empty()) return name;
  }
  return "e4m3";
}

/// The dtype of our name, if this build has it.
std::optional<DType> DTypeOf(const std::string& element) {
  static const std::map<std::string, DType> kDTypes = {
      {"e4m3", DType::kF8E4M3},         {"e5m2", DType::kF8E5M2},
      {"e2m3", DType::kF6E2M3},         {"e3m2", DType::kF6E3M2},
      {"e2m1", DType::kF4E2M1x2},       {"mxfp8", DType::kF8E4M3},
      {"mxfp4", DType::kF4E2M1x2},      {"nvfp4", DType::kF4E2M1x2},
      {"e4m3fnuz", DType::kF8E4M3Fnuz}, {"e5m2fnuz", DType::kF8E5M2Fnuz}};
  const auto found = kDTypes.find(element);
  return found == kDTypes.end() ? std::nullopt : std::optional<DType>(found->second);
}

/// The format and the direction of fp32 scales of `block`, if this build has them.
std::optional<Usage> SetBlocks(const std::string& block, const Tensor& source, Json& quantizer) {
  const int64_t rows = source.rows(), columns = source.columns();
  if (block == "tensor") {
    quantizer["format"] = "fp8_tensor";
    return Usage::kRowwise;
  }
  for (const int length : {32, 64, 128, 256}) {
    quantizer["format"] = length == 128 ? "fp8_block" : absl::StrCat("fp8_block", length);
    if (block == absl::StrCat("1x", length) || (block == "row" && columns <= length)) {
      return Usage::kRowwise;
    }
    if (block == absl::StrCat(length, "x1") || (block == "column" && rows <= length)) {
      return Usage::kColumnwise;
    }
    if (block == absl::StrCat(length, "x", length)) {
      quantizer["block_dim"] = 2;
      return Usage::kRowwise;
    }
  }
  if (block != "row") return std::nullopt;
  quantizer["format"] = "fp8_rowwise";
  return Usage::kRowwise;
}

/// A quantizer of a case, and what it is asked for.
struct Asked {
  Quantizer quantizer;
  Usage usage = Usage::kRowwise;
  QuantizeArguments arguments = {};
  Json json = {};  ///< Of the quantizer.
};

/// Nothing if this build has no such quantizer.
std::optional<Asked> Ask(const Case& of, const Json& row_quantizer, const Tensor& source) {
  const std::optional<DType> element = DTypeOf(ElementOf(of));
  if (!element.has_value()) return std::nullopt;
  Asked asked;
  Json json = row_quantizer;
  if (json.contains("recipe")) {
    if (!IsFp8(*element)) return std::nullopt;
    const auto recipe = Recipe::Parse(json["recipe"].get<std::string>());
    EXPECT_TRUE(recipe.ok()) << recipe.status();
    const bool is_e5m2 = *element == DType::kF8E5M2;
    asked.quantizer = recipe->QuantizerFor(is_e5m2 ? TensorRole::kGradOutput : TensorRole::kInput);
    asked.arguments.scale = *Tensor::FromScalar(1.0f);
    asked.json = json;
    return asked;
  }
  if (!json.contains("format")) {
    const std::optional<Usage> usage = SetBlocks(of.block, source, json);
    if (!usage.has_value()) return std::nullopt;
    asked.usage = *usage;
  }
  if (!json.contains("element")) json["element"] = DTypeName(*element);
  const float floor = of.arguments.value("smallest_amax", 0.0f);
  if (floor > 0) json["amax_epsilon"] = floor;
  if (json["format"] == "nvfp4") json["element"] = "f4_e2m1x2";
  const auto rule = ParseQuantizerRuleText(json.dump());
  if (!rule.ok()) {
    EXPECT_EQ(json["format"], "fp8_rowwise") << of.name << ": " << rule.status();
    return std::nullopt;
  }
  asked.quantizer = rule->spec;
  asked.json = json;
  return asked;
}

// ---- what a library stored, in the order of the source

/// Codes one to a byte, [rows][columns].
std::vector<uint8_t> StoredCodes(const Case& of, const Tensor& stored, DType element, int64_t rows,
                                 int64_t columns) {
  const auto* bytes = stored.as<uint8_t>();
  const auto count = static_cast<size_t>(stored.byte_size());
  std::vector<uint8_t> codes;
  if (of.rule == "gguf_mxfp4") {
    // Of each 32 elements the scale, then i in the low and i + 16 in the high nibble.
    for (size_t block = 0; block < count; block += 17) {
      for (int high : {0, 4}) {
        for (size_t i = 1; i < 17; ++i) codes.push_back(bytes[block + i] >> high & 15);
      }
    }
    return codes;
  }
  const auto elements = static_cast<size_t>(rows * columns);
  if (count == elements) return {bytes, bytes + count};
  if (element == DType::kF6E2M3) {
    for (size_t i = 0; i + 2 < count; i += 3) {
      const uint32_t word = bytes[i] | bytes[i + 1] << 8 | bytes[i + 2] << 16;
      for (int bit = 0; bit < 24; bit += 6) codes.push_back(word >> bit & 63);
    }
    return codes;
  }
  // Two in a byte, rows filled up to whole blocks of 16.
  const size_t row_bytes = count / static_cast<size_t>(rows);
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    for (size_t i = 0; i < static_cast<size_t>(columns); ++i) {
      codes.push_back(bytes[row * row_bytes + i / 2] >> (i % 2 * 4) & 15);
    }
  }
  return codes;
}

/// Tiles of 128 rows by 4 bytes, in which 32 rows hold four pieces each, back in rows.
std::vector<float> Unswizzled(const std::vector<float>& stored, int64_t rows, int64_t blocks) {
  const int64_t across = (blocks + 3) / 4;
  std::vector<float> scales;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t tile = row / 128 * across + block / 4;
      const int64_t at = tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
      scales.push_back(stored[static_cast<size_t>(at)]);
    }
  }
  return scales;
}

float ValueOfE4M3(uint8_t code) { return DecodeFloat<E4M3>(code); }

/// What a library made: codes in the order of the source, scales row by row of blocks.
struct Expected {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

Expected ExpectedOf(const Library& library, const Case& of, const Row& row, const Asked& asked,
                    const Tensor& source) {
  const int64_t rows = RowsOf(of, source), columns = source.columns();
  const Tensor codes = *library.Find(of, "codes");
  Expected expected;
  expected.codes = StoredCodes(of, codes, asked.quantizer.rowwise.element, rows, columns);
  if (row.stored == Stored::kNothing) return expected;
  if (of.rule == "gguf_mxfp4") {
    for (int64_t i = 0; i < codes.element_count(); i += 17) {
      expected.scales.push_back(DecodeE8m0(codes.as<uint8_t>()[i]));
    }
    return expected;
  }
  const Tensor scale = *library.Find(of, "scale");
  expected.scales = StoredScales(scale, row.stored == Stored::kE4M3 ? &ValueOfE4M3 : &DecodeE8m0);
  if (row.stored == Stored::kScale) {
    for (float& value : expected.scales) value = RoundedTo(scale.dtype(), 1.0f / value);
  }
  if (of.IsTrue("swizzled")) {
    const int64_t length = BlockLength(asked.quantizer.rowwise.format);
    expected.scales = Unswizzled(expected.scales, rows, columns / length);
  }
  return expected;
}

// ---- what this build makes

/// The source, filled up with zeros to whole blocks of 32 rows and columns where the format wants
/// them: blocks of rows do not change, nor does the amax.
Tensor Filled(const Tensor& source, const QuantizerSpec& spec) {
  const int64_t side = BlockLength(spec.format), rows = source.rows(), columns = source.columns();
  const bool fits = rows % side == 0 && columns % side == 0;
  if (!spec.traits().is_micro || fits) return source;
  const int64_t wide = (columns + side - 1) / side * side;
  const Tensor filled = *Tensor::Allocate(source.dtype(), {(rows + side - 1) / side * side, wide});
  const auto bytes = static_cast<size_t>(DTypeBytes(source.dtype()));
  auto* to = const_cast<std::byte*>(filled.data());
  std::memset(to, 0, filled.byte_size());
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(to + static_cast<size_t>(row * wide) * bytes,
                source.data() + static_cast<size_t>(row * columns) * bytes,
                static_cast<size_t>(columns) * bytes);
  }
  return filled;
}

uint8_t CodeAt(const QuantizedCopy& copy, int64_t index) {
  const auto* bytes = copy.data.as<uint8_t>();
  if (copy.element != DType::kF4E2M1x2) return bytes[index];
  return bytes[index / 2] >> (index % 2 * 4) & 15;
}

float ScaleAt(const QuantizedCopy& copy, int64_t index) {
  if (copy.scale_inv.dtype() == DType::kF32) return copy.scale_inv.as<float>()[index];
  const uint8_t code = copy.scale_inv.as<uint8_t>()[index];
  return copy.scale_inv.dtype() == DType::kF8E8M0 ? DecodeE8m0(code) : DecodeFloat<E4M3>(code);
}

bool IsNanCode(DType element, uint8_t code) {
  if (IsFnuz(element)) return code == 0x80;
  if (element == DType::kF8E4M3) return (code & 0x7F) == 0x7F;
  return element == DType::kF8E5M2 && (code & 0x7F) > 0x7C;
}

/// What differs; empty for nothing. NaN codes of either sign are one: which a library has depends
/// on the processor.
std::string Difference(const Library& library, const Case& of, const Row& row, const Asked& asked,
                       const Tensor& source) {
  const Expected expected = ExpectedOf(library, of, row, asked, source);
  const QuantizerSpec& spec = asked.quantizer.spec(asked.usage);
  const Tensor filled = Filled(source, spec);
  const bool is_rowwise = asked.usage == Usage::kRowwise;
  const auto quantized =
      QuantizeCpu(filled, asked.quantizer, {is_rowwise, !is_rowwise}, asked.arguments, {});
  if (!quantized.ok()) return std::string(quantized.status().message());
  const QuantizedCopy& copy = *quantized->copy(asked.usage);
  const int64_t rows = RowsOf(of, source), columns = source.columns();
  if (expected.codes.size() != static_cast<size_t>(rows * columns)) {
    return absl::StrCat(expected.codes.size(), " codes are stored of ", rows * columns);
  }
  for (int64_t i = 0; i < rows * columns; ++i) {
    const int64_t r = i / columns, c = i % columns;
    const uint8_t code = CodeAt(copy, is_rowwise ? r * filled.columns() + c : c * rows + r);
    const uint8_t wanted = expected.codes[static_cast<size_t>(i)];
    if (code == wanted || (IsNanCode(spec.element, code) && IsNanCode(spec.element, wanted))) {
      continue;
    }
    return absl::StrCat("code ", i, " is ", code, ", not ", wanted);
  }
  if (row.stored == Stored::kNothing) return "";
  const int64_t across = copy.scale_inv.columns();
  const int64_t blocks = is_rowwise && spec.traits().has_blocks()
                             ? (columns + BlockLength(spec.format) - 1) / BlockLength(spec.format)
                             : across;
  const int64_t compared = static_cast<int64_t>(expected.scales.size());
  if (spec.traits().has_blocks() && !spec.traits().is_micro &&
      compared != copy.scale_inv.element_count()) {
    return absl::StrCat(compared, " scales of ", copy.scale_inv.element_count());
  }
  for (int64_t i = 0; i < compared; ++i) {
    // A library has the blocks of columns row after row of blocks.
    const int64_t at =
        is_rowwise ? i / blocks * across + i % blocks : i % columns * across + i / columns;
    const float scale = ScaleAt(copy, at);
    if (IsSameFloat(scale, expected.scales[static_cast<size_t>(i)])) continue;
    return absl::StrCat("scale ", i, " is ", scale, ", not ",
                        expected.scales[static_cast<size_t>(i)]);
  }
  const auto tensor_scale = library.Find(of, "tensor_scale");
  if (!tensor_scale.has_value()) return "";
  float made = *copy.amax.as<float>() / 2688.0f;
  if (of.rule == "compressed_nvfp4") {
    const DType t = source.dtype();
    made = RoundedTo(t, 2688.0f * RoundedTo(t, 1.0f / *copy.amax.as<float>()));
  }
  const float stored = *tensor_scale->as<float>();
  return IsSameFloat(made, stored) ? "" : absl::StrCat("tensor scale ", made, ", not ", stored);
}

TEST(LibraryRules, GiveEveryStoredCodeAndScale) {
  std::map<std::string, int> not_covered;
  testing::LibraryTable table;
  int covered = 0, all = 0, of_levels = 0;
  for (const Library& library : testing::LibraryFiles()) {
    int of_library = 0;
    for (const Case& of : library.cases) {
      if (of.HasLevels()) {
        ++of_levels;
        continue;
      }
      const Tensor source = *testing::LibrarySources().Find(of.source);
      const Row* const row = RowOf(of);
      const auto asked =
          row == nullptr ? std::nullopt : Ask(of, Json::parse(row->quantizer), source);
      if (!asked.has_value()) {
        ++not_covered[of.rule];
        continue;
      }
      const std::string difference = Difference(library, of, *row, *asked, source);
      EXPECT_EQ(difference, "") << library.name << " " << of.name << ": "
                                << QuantizerText(asked->quantizer);
      const Expected expected = ExpectedOf(library, of, *row, *asked, source);
      table.Add(library, of, asked->json,
                static_cast<int64_t>(expected.codes.size() + expected.scales.size()),
                !difference.empty());
      ++of_library;
    }
    std::printf("%-28s %3d of %3zu cases\n", library.name.c_str(), of_library,
                library.cases.size());
    covered += of_library;
    all += static_cast<int>(library.cases.size());
  }
  EXPECT_EQ(all, testing::kLibraryCases);
  EXPECT_EQ(
      covered, all - of_levels - [&] {
        int count = 0;
        for (const auto& [rule, cases] : kNotCovered) count += cases;
        return count;
      }());
  EXPECT_EQ(not_covered, kNotCovered);
  table.ExpectDocumented("Floating-point codes");
}

/// Calls body(library, case, row) for the cases of rows that fit.
template <class Fits>
int DifferingCases(const Fits& fits, const Json& change) {
  int differing = 0;
  for (const Library& library : testing::LibraryFiles()) {
    for (const Case& of : library.cases) {
      const Row* const row = of.HasLevels() ? nullptr : RowOf(of);
      if (row == nullptr) continue;
      Json json = Json::parse(row->quantizer);
      if (!fits(json)) continue;
      for (const auto& [key, value] : change.items()) {
        if (value.is_null()) {
          json.erase(key);
        } else {
          json[key] = value;
        }
      }
      const Tensor source = *testing::LibrarySources().Find(of.source);
      const auto asked = Ask(of, json, source);
      if (!asked.has_value() || !CheckQuantizer(asked->quantizer).ok()) continue;
      differing += !Difference(library, of, *row, *asked, source).empty();
    }
  }
  return differing;
}

// Every value of every field, broken once: what is left at its default, or a neighbour, makes other
// bits of some stored case.
TEST(LibraryRules, EveryStepIsSeenInAStoredCase) {
  std::set<std::pair<std::string, std::string>> values;
  for (const Row& row : kRows) {
    const Json quantizer = Json::parse(row.quantizer);
    for (const auto& [key, value] : quantizer.items()) {
      if (key != "format" && key != "element" && key != "recipe" && key != "scale_rule") {
        values.insert({key, value.dump()});
      }
    }
  }
  EXPECT_EQ(values.size(), 11u);
  for (const auto& [key, text] : values) {
    const Json value = Json::parse(text);
    const int differing =
        DifferingCases([&](const Json& json) { return json.contains(key) && json[key] == value; },
                       Json{{key, nullptr}});
    EXPECT_GT(differing, 0) << key << "=" << text;
  }
}

TEST(LibraryRules, EveryRuleDiffersFromItsNeighbours) {
  const std::tuple<const char*, const char*, const char*> neighbours[] = {
      {"", "reciprocal_product", "divide"},
      {"", "reciprocal_product", "float64"},
      {"", "inverse", "divide"},
      {"", "float64", "divide"},
      {"", "float64", "reciprocal_product"},
      {"", "qwix", "inverse"},
      {"mxfp8", "torchao_rceil", "round_up"},
      {"mxfp8", "torchao_rceil", "modelopt"},
      {"mxfp8", "torchao_floor", "floor"},
      {"mxfp8", "torchao_ceil", "ceil"},
      {"mxfp8", "torchao_even", "even"},
      {"mxfp8", "compressed_tensors", "even"},
      {"mxfp8", "compressed_tensors", "torchao_even"},
      {"mxfp8", "modelopt", "round_up"},
      {"mxfp8", "gguf", "modelopt"},
      {"mxfp8", "qwix", "modelopt"},
      {"nvfp4", "torchao_two_level", "two_level_clamped"},
      {"nvfp4", "torchao_two_level", "modelopt"},
      {"nvfp4", "torchao_single_level", "single_level"},
      {"nvfp4", "compressed_tensors", "two_level"},
      {"nvfp4", "compressed_tensors", "vllm"},
      {"nvfp4", "modelopt", "torchao_two_level"},
      {"nvfp4", "qwix", "torchao_single_level"},
  };
  for (const auto& [format, rule, neighbour] : neighbours) {
    const int differing = DifferingCases(
        [&](const Json& json) {
          return json.value("format", "") == format && json.value("scale_rule", "") == rule;
        },
        Json{{"scale_rule", neighbour}});
    EXPECT_GT(differing, 0) << format << " " << rule << " as " << neighbour;
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
