// Integers and places in tables by the rules of other libraries, against tensors that those
// libraries made of the same sources: tests/data/libraries, tests/vectors/libraries. Every code,
// scale and zero point, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/quantize/recipe/recipe_json.h"
#include "tests/quantize/library_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Case = testing::LibraryCase;
using Library = testing::LibraryFile;
using testing::IsSameFloat;
using testing::RoundedTo;

/// How many cases of each rule no quantizer is: ggml's Q5_0, Q5_1 and TQ2_0, optimum-quanto's two
/// bits, and bitsandbytes' int8 with columns of outliers.
const std::map<std::string, int> kNotCovered = {{"bitsandbytes_int8", 1},
                                                {"gguf_q5_0", 4},
                                                {"gguf_q5_1", 4},
                                                {"gguf_tq2_0", 1},
                                                {"quanto_few_bits", 1}};

/// What is asked of a quantizer for a case.
struct Asked {
  Quantizer quantizer;
  Usage usage = Usage::kRowwise;

  const QuantizerSpec& spec() const { return quantizer.spec(usage); }
};

Json GroupOf(const Case& of) {
  if (of.arguments.contains("size")) return of.arguments["size"];
  if (of.block == "tensor") return "tensor";
  if (of.block == "row" || of.block == "column") return "row";
  return std::stoi(of.block.substr(of.block.find('x') + 1));
}

/// The quantizer of a case as JSON; null where there is none.
Json QuantizerOf(const Case& of) {
  Json json = {{"group", GroupOf(of)}};
  const auto set = [&](const char* format, const char* element, const char* rule,
                       const char* zero_point) {
    json.update({{"format", format}, {"scale_rule", rule}, {"zero_point", zero_point}});
    json["element"] = element;
    return json;
  };
  const std::string& rule = of.rule;
  const auto element = [&](bool is_8_bits) { return is_8_bits ? "i8" : "i4x2"; };
  const auto format = [&](bool is_8_bits) { return is_8_bits ? "int8" : "int4"; };
  if (rule == "torchao_int") {
    const bool is_8_bits = of.arguments["low"] == -128;
    if (!of.IsTrue("scale_in_f32")) json["operation_dtype"] = "source";
    return set(format(is_8_bits), element(is_8_bits), "torchao",
               of.Argument("mapping") == "SYMMETRIC" ? "none" : "integer");
  }
  if (rule == "torch_affine") {
    return of.arguments["low"] == 0 ? set("int8", "u8", "torchao", "integer")
                                    : set("int8", "i8", "torchao", "none");
  }
  if (rule == "torchao_tinygemm") return set("int4", "i4x2", "tinygemm", "float");
  if (rule == "nf4_of_rounded_quotient") {
    return set("nf4", "nf4x2", of.library.c_str(), "none");
  }
  if (rule == "compressed_int") {
    const bool is_8_bits = of.arguments["bits"] == 8;
    return set(format(is_8_bits), element(is_8_bits), "compressed_tensors",
               of.IsTrue("symmetric") ? "none" : "integer");
  }
  if (rule == "modelopt_int8") return set("int8", "i8", "modelopt", "none");
  if (rule == "modelopt_int4") return set("int4", "i4x2", "modelopt", "none");
  if (rule == "quanto_eight_bits") return set("int8", "i8", "quanto", "none");
  if (rule == "quanto_few_bits" && of.arguments["bits"] == 4) {
    return set("int4", "u4x2", "quanto", of.IsTrue("integer_shift") ? "integer" : "float");
  }
  if (rule == "bitsandbytes_four_bits") {
    const bool is_nf4 = of.Argument("kind") == "nf4";
    return set(is_nf4 ? "nf4" : "bnb_fp4", is_nf4 ? "nf4x2" : "bnb_fp4x2", "bitsandbytes", "none");
  }
  if (rule == "bitsandbytes_int8" && of.arguments["threshold"] == 0.0) {
    return set("int8", "i8", "bitsandbytes", "none");
  }
  if (rule == "transformers_bitnet") return set("int8", "i8", "bitnet", "none");
  if (rule == "gguf_q8_0") return set("int8", "i8", "gguf", "none");
  if (rule == "gguf_q4_0") return set("int4", "i4x2", "gguf", "none");
  if (rule == "gguf_q4_1") return set("int4", "u4x2", "gguf", "float");
  if (rule == "qwix") {
    const std::string kind = of.Argument("kind");
    if (kind == "nf4") return set("nf4", "nf4x2", "qwix", "none");
    return set(format(kind == "int8"), element(kind == "int8"), "qwix",
               of.Argument("method") == "minmax" ? "integer" : "none");
  }
  return nullptr;
}

std::optional<Asked> Ask(const Case& of, const Json& json) {
  if (json.is_null()) return std::nullopt;
  const auto rule = ParseQuantizerRuleText(json.dump());
  EXPECT_TRUE(rule.ok()) << of.name << ": " << rule.status();
  if (!rule.ok()) return std::nullopt;
  return Asked{rule->spec, of.block == "column" ? Usage::kColumnwise : Usage::kRowwise};
}

/// Numbers of levels in the order of the source, scales and zero points in the order of groups.
struct Coded {
  std::vector<int> numbers;
  std::vector<float> scales, zeros;
};

// ---- what a library stored

float F16At(const uint8_t* bytes) {
  return DecodeFloat<Float16>(static_cast<uint16_t>(bytes[0] | bytes[1] << 8));
}

/// ggml's blocks: a scale, for Q4_1 the least value, then codes, of four bits i in the low and i +
/// 16 in the high nibble.
Coded OfGguf(const Case& of, const Tensor& stored) {
  const bool is_8_bits = of.rule == "gguf_q8_0", has_min = of.rule == "gguf_q4_1";
  const int64_t header = has_min ? 4 : 2, length = header + (is_8_bits ? 32 : 16);
  Coded coded;
  for (int64_t block = 0; block < stored.element_count(); block += length) {
    const uint8_t* bytes = stored.as<uint8_t>() + block;
    coded.scales.push_back(F16At(bytes));
    if (has_min) coded.zeros.push_back(F16At(bytes + 2));
    for (int i = 0; i < 32; ++i) {
      const uint8_t byte = bytes[header + (is_8_bits ? i : i % 16)];
      const int nibble = byte >> (i / 16 * 4) & 15;
      coded.numbers.push_back(is_8_bits ? static_cast<int8_t>(byte)
                              : has_min ? nibble
                                        : nibble - 8);
    }
  }
  return coded;
}

std::vector<int> NumbersOf(const Case& of, const Tensor& stored, DType element) {
  const auto* bytes = stored.as<uint8_t>();
  const int64_t count = stored.element_count();
  std::vector<int> numbers;
  const auto high_first = [&](int offset) {
    for (int64_t i = 0; i < count; ++i) {
      numbers.push_back((bytes[i] >> 4) - offset);
      numbers.push_back((bytes[i] & 15) - offset);
    }
  };
  if (of.rule == "bitsandbytes_four_bits" || of.rule == "nf4_of_rounded_quotient") {
    high_first(0);
  } else if (of.rule == "modelopt_int4") {
    high_first(8);
  } else if (of.IsTrue("packed")) {
    for (int64_t i = 0; i < count; ++i) {
      for (int bit = 0; bit < 32; bit += 4) {
        numbers.push_back(static_cast<int>(stored.as<uint32_t>()[i] >> bit & 15) - 8);
      }
    }
  } else if (of.rule == "quanto_few_bits") {
    // A byte has the codes of groups r and r + n.
    for (const int bit : {0, 4}) {
      for (int64_t i = 0; i < count; ++i) numbers.push_back(bytes[i] >> bit & 15);
    }
  } else {
    const int offset = of.rule == "torchao_tinygemm" ? 8 : 0;
    for (int64_t i = 0; i < count; ++i) {
      numbers.push_back((stored.dtype() == DType::kI8 ? stored.as<int8_t>()[i] : bytes[i]) -
                        offset);
    }
  }
  EXPECT_TRUE(element == DType::kU8 || stored.dtype() != DType::kU8 ||
              CodesPerElement(element) == 2);
  return numbers;
}

std::vector<float> ZerosOf(const Case& of, const Tensor& stored) {
  std::vector<float> zeros;
  if (stored.dtype() == DType::kI8 || stored.dtype() == DType::kU8) {
    for (int64_t i = 0; i < stored.element_count(); ++i) {
      zeros.push_back(stored.dtype() == DType::kI8 ? static_cast<float>(stored.as<int8_t>()[i])
                                                   : static_cast<float>(stored.as<uint8_t>()[i]));
    }
  } else if (stored.dtype() == DType::kI32) {
    for (int64_t i = 0; i < stored.element_count(); ++i) {
      zeros.push_back(static_cast<float>(stored.as<int32_t>()[i]));
    }
  } else {
    zeros = testing::StoredScales(stored, nullptr);
    // optimum-quanto keeps -min.
    if (of.rule == "quanto_few_bits") {
      for (float& zero : zeros) zero = -zero;
    }
  }
  return zeros;
}

Coded ExpectedOf(const Library& library, const Case& of, const Asked& asked) {
  const Tensor codes = *library.Find(of, "codes");
  if (absl::StartsWith(of.rule, "gguf")) return OfGguf(of, codes);
  Coded coded;
  coded.numbers = NumbersOf(of, codes, asked.spec().element);
  const Tensor scale = *library.Find(of, "scale");
  coded.scales = testing::StoredScales(scale, nullptr);
  for (float& value : coded.scales) {
    if (of.rule == "modelopt_int4" || of.rule == "transformers_bitnet") {
      value = RoundedTo(scale.dtype(), 1.0f / value);  // What multiplies is stored.
    }
    if (of.rule == "bitsandbytes_int8") value = value * 0.007874015718698502f;  // An amax is.
  }
  const auto zeros = library.Find(of, "zero_point");
  if (zeros.has_value() && asked.spec().zero_point != ZeroPoint::kNone) {
    coded.zeros = ZerosOf(of, *zeros);
  }
  return coded;
}

// ---- what this build makes

int NumberAt(const QuantizedCopy& copy, int64_t index) {
  const auto* bytes = copy.data.as<uint8_t>();
  switch (copy.element) {
    case DType::kI8:
      return copy.data.as<int8_t>()[index];
    case DType::kU8:
      return bytes[index];
    default: {
      const int nibble = bytes[index / 2] >> (index % 2 * 4) & 15;
      return copy.element == DType::kI4x2 ? (nibble ^ 8) - 8 : nibble;
    }
  }
}

Coded MadeOf(const QuantizedCopy& copy, Usage usage, int64_t rows, int64_t columns) {
  Coded made;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      made.numbers.push_back(
          NumberAt(copy, usage == Usage::kRowwise ? r * columns + c : c * rows + r));
    }
  }
  const int64_t count = copy.scale_inv.element_count();
  made.scales.assign(copy.scale_inv.as<float>(), copy.scale_inv.as<float>() + count);
  if (copy.zero_point.has_value()) made.zeros = ZerosOf({}, copy.zero_point);
  return made;
}

template <class Value, class Same>
std::string DifferenceOf(const char* what, const std::vector<Value>& made,
                         const std::vector<Value>& wanted, const Same& same) {
  if (made.size() != wanted.size()) {
    return absl::StrCat(made.size(), " ", what, ", not ", wanted.size());
  }
  for (size_t i = 0; i < made.size(); ++i) {
    if (!same(made[i], wanted[i])) {
      return absl::StrCat(what, " ", i, " is ", made[i], ", not ", wanted[i]);
    }
  }
  return "";
}

/// What differs; empty for nothing.
std::string Difference(const TensorFile& sources, const Library& library, const Case& of,
                       const Asked& asked) {
  const Tensor source = *sources.Find(of.source);
  const bool is_rowwise = asked.usage == Usage::kRowwise;
  const auto quantized = QuantizeCpu(source, asked.quantizer, {is_rowwise, !is_rowwise}, {}, {});
  if (!quantized.ok()) return std::string(quantized.status().message());
  const Coded made =
      MadeOf(*quantized->copy(asked.usage), asked.usage, source.rows(), source.columns());
  const Coded wanted = ExpectedOf(library, of, asked);
  std::string difference = DifferenceOf("scale", made.scales, wanted.scales,
                                        [](float a, float b) { return IsSameFloat(a, b); });
  if (difference.empty()) {
    difference = DifferenceOf("zero point", made.zeros, wanted.zeros,
                              [](float a, float b) { return IsSameFloat(a, b); });
  }
  if (!difference.empty()) return difference;
  return DifferenceOf("code", made.numbers, wanted.numbers, [](int a, int b) { return a == b; });
}

TEST(LevelRules, GiveEveryStoredCodeScaleAndZeroPoint) {
  std::map<std::string, int> not_covered;
  testing::LibraryTable table;
  int covered = 0, all = 0;
  for (const Library& library : testing::LibraryFiles()) {
    int of_library = 0, cases = 0;
    for (const Case& of : library.cases) {
      if (!of.HasLevels()) continue;
      ++cases;
      const Json json = QuantizerOf(of);
      const auto asked = Ask(of, json);
      if (!asked.has_value()) {
        ++not_covered[of.rule];
        continue;
      }
      const std::string difference = Difference(testing::LibrarySources(), library, of, *asked);
      EXPECT_EQ(difference, "") << library.name << " " << of.name << ": "
                                << QuantizerText(asked->quantizer);
      const Coded expected = ExpectedOf(library, of, *asked);
      table.Add(library, of, json,
                static_cast<int64_t>(expected.numbers.size() + expected.scales.size() +
                                     expected.zeros.size()),
                !difference.empty());
      ++of_library;
    }
    std::printf("%-28s %3d of %3d cases\n", library.name.c_str(), of_library, cases);
    covered += of_library;
    all += cases;
  }
  EXPECT_EQ(not_covered, kNotCovered);
  EXPECT_EQ(all, 175);
  EXPECT_EQ(covered, 164);
  table.ExpectDocumented("Integers and tables of levels");
}

/// Holds quantizers to the cases of a file that has their sources too; how many there were.
int CompareAll(const std::string& name) {
  Library file;
  file.file = *ReadSafetensors(
      absl::StrCat(std::string(QUANTGATE_SOURCE_DIR), "/tests/data/", name, ".safetensors"));
  int compared = 0;
  for (const Json& json : Json::parse(file.file.metadata.at("cases"))) {
    const Case of = {json["library"], json["name"],  json["source"],
                     json["rule"],    json["block"], json["arguments"]};
    const auto asked = Ask(of, QuantizerOf(of));
    EXPECT_TRUE(asked.has_value()) << of.name;
    if (!asked.has_value()) continue;
    EXPECT_EQ(Difference(file.file, file, of, *asked), "")
        << of.rule << " " << of.arguments << " " << of.block << " " << of.source << ": "
        << QuantizerText(asked->quantizer);
    ++compared;
  }
  return compared;
}

// What rules.py, which those libraries hold, makes of hostile values: ragged tails, zeros of both
// signs, subnormals, the largest values, ties at every code, infinities.
TEST(LevelRules, GiveTheCodesOfAnotherImplementationForHostileValues) {
  EXPECT_EQ(CompareAll("level_vectors"), 304);
}

// What the libraries themselves make of scales that round to 0, of zeros, of infinities, and of
// elements around bitsandbytes' two zeros.
TEST(LevelRules, GiveTheBitsOfTheLibrariesAtTheEdgesOfTheirRules) {
  EXPECT_EQ(CompareAll("level_edges"), 37);
}

// Of zeros of both signs the first is the least value; the libraries' vector loops take the one or
// the other by its place.
TEST(LevelRules, AZeroPointHasTheSignOfTheFirstOfItsZeros) {
  for (const char* const rule : {"quanto", "gguf"}) {
    const auto quantizer = ParseQuantizerRuleText(absl::StrCat(
        R"({"format": "int4", "element": "u4x2", "zero_point": "float", "group": 4, "scale_rule": ")",
        rule, "\"}"));
    ASSERT_TRUE(quantizer.ok()) << quantizer.status();
    const std::vector<float> values = {3, 0.0f, -0.0f, 4, 3, -0.0f, 0.0f, 4};
    const Tensor source = *Tensor::FromBytes(DType::kF32, {2, 4}, std::as_bytes(std::span(values)));
    const auto made = QuantizeCpu(source, Quantizer(quantizer->spec),
                                  {.rowwise = true, .columnwise = false}, {}, {});
    ASSERT_TRUE(made.ok()) << made.status();
    const auto* zeros = made->rowwise->zero_point.as<uint32_t>();
    EXPECT_EQ(zeros[0], 0x00000000u) << rule;
    EXPECT_EQ(zeros[1], 0x80000000u) << rule;
  }
}

/// How many cases of a rule differ once its quantizer is changed so.
int DifferingCases(const std::string& rule, const Json& change) {
  int differing = 0;
  for (const Library& library : testing::LibraryFiles()) {
    for (const Case& of : library.cases) {
      if (!of.HasLevels()) continue;
      Json json = QuantizerOf(of);
      if (json.is_null() || json["scale_rule"] != rule) continue;
      json.update(change);
      const auto parsed = ParseQuantizerRuleText(json.dump());
      if (!parsed.ok() || !CheckQuantizer(parsed->spec).ok()) continue;
      const Asked asked = {parsed->spec,
                           of.block == "column" ? Usage::kColumnwise : Usage::kRowwise};
      differing += !Difference(testing::LibrarySources(), library, of, asked).empty();
    }
  }
  return differing;
}

// Every rule, broken once: its neighbours make other bits of some stored case.
TEST(LevelRules, EveryRuleDiffersFromItsNeighbours) {
  const std::pair<const char*, const char*> neighbours[] = {{"torchao", "compressed_tensors"},
                                                            {"torchao", "modelopt"},
                                                            {"compressed_tensors", "torchao"},
                                                            {"compressed_tensors", "qwix"},
                                                            {"modelopt", "torchao"},
                                                            {"modelopt", "bitnet"},
                                                            {"modelopt", "bitsandbytes"},
                                                            {"quanto", "torchao"},
                                                            {"bitsandbytes", "modelopt"},
                                                            {"bitsandbytes", "torchao"},
                                                            {"bitsandbytes", "qwix"},
                                                            {"bitnet", "bitsandbytes"},
                                                            {"bitnet", "quanto"},
                                                            {"gguf", "modelopt"},
                                                            {"gguf", "quanto"},
                                                            {"gguf", "torchao"},
                                                            {"qwix", "compressed_tensors"},
                                                            {"qwix", "torchao"},
                                                            {"qwix", "bitsandbytes"}};
  for (const auto& [rule, neighbour] : neighbours) {
    EXPECT_GT(DifferingCases(rule, {{"scale_rule", neighbour}}), 0) << rule << " as " << neighbour;
  }
  EXPECT_GT(DifferingCases("torchao", {{"operation_dtype", "f32"}}), 0);
  EXPECT_GT(DifferingCases("torchao", {{"operation_dtype", "source"}}), 0);
  EXPECT_GT(DifferingCases("quanto", {{"zero_point", "integer"}}), 0);
  EXPECT_GT(DifferingCases("quanto", {{"zero_point", "float"}}), 0);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
