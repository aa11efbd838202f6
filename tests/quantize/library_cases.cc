#include "tests/quantize/library_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/e8m0.h"
#include "kernels/tensor/convert.h"

namespace quantgate::testing {
namespace {

std::string Folder() { return std::string(QUANTGATE_SOURCE_DIR) + "/tests/data/libraries/"; }

}  // namespace

bool LibraryCase::HasLevels() const {
  static constexpr const char* kRules[] = {"bitsandbytes_four_bits",
                                           "bitsandbytes_int8",
                                           "compressed_int",
                                           "gguf_q4_0",
                                           "gguf_q4_1",
                                           "gguf_q5_0",
                                           "gguf_q5_1",
                                           "gguf_q8_0",
                                           "gguf_tq2_0",
                                           "modelopt_int4",
                                           "modelopt_int8",
                                           "nf4_of_rounded_quotient",
                                           "quanto_few_bits",
                                           "torch_affine",
                                           "torchao_int",
                                           "torchao_tinygemm",
                                           "transformers_bitnet"};
  if (std::find(std::begin(kRules), std::end(kRules), rule) != std::end(kRules)) return true;
  if (rule == "quanto_eight_bits") return Argument("element") == "int8";
  const std::string kind = rule == "qwix" ? Argument("kind") : "";
  return kind == "int8" || kind == "int4" || kind == "nf4";
}

const TensorFile& LibrarySources() {
  static const auto& file = *new TensorFile(*ReadSafetensors(Folder() + "sources.safetensors"));
  return file;
}

const std::vector<LibraryFile>& LibraryFiles() {
  static const auto& all = *[] {
    auto* list = new std::vector<LibraryFile>;
    for (const char* name :
         {"bitsandbytes", "compressed_tensors", "deepgemm", "gfloat", "gguf", "modelopt",
          "optimum_quanto", "qwix", "torch", "torchao", "transformers"}) {
      LibraryFile library;
      library.file = *ReadKnownSafetensors(absl::StrCat(Folder(), name, ".safetensors"));
      library.name =
          library.file.metadata.at("library") + " " + library.file.metadata.at("version");
      for (const auto& json : nlohmann::json::parse(library.file.metadata.at("cases"))) {
        library.cases.push_back(
            {name, json["name"], json["source"], json["rule"], json["block"], json["arguments"]});
      }
      list->push_back(std::move(library));
    }
    return list;
  }();
  return all;
}

int64_t RowsOf(const LibraryCase& of, const Tensor& source) {
  return of.arguments.value("rows", source.rows());
}

std::vector<float> StoredScales(const Tensor& stored, float (*of_byte)(uint8_t)) {
  if (stored.dtype() == DType::kI32) {  // Four exponents of a row, the first lowest.
    std::vector<float> scales;
    for (size_t i = 0; i < stored.byte_size(); ++i) {
      scales.push_back(DecodeE8m0(stored.as<uint8_t>()[i]));
    }
    return scales;
  }
  const bool has_bytes = DTypeBytes(stored.dtype()) == 1;
  const Tensor values = has_bytes ? stored : *CastTensor(stored, DType::kF32, {});
  std::vector<float> scales;
  for (int64_t i = 0; i < stored.element_count(); ++i) {
    if (has_bytes) {
      scales.push_back(of_byte(stored.as<uint8_t>()[i]));
    } else {
      scales.push_back(values.as<float>()[i]);
    }
  }
  return scales;
}

float RoundedTo(DType dtype, float value) {
  if (dtype == DType::kBF16) return DecodeFloat<BFloat16>(EncodeFloat<BFloat16>(value));
  if (dtype == DType::kF16) return DecodeFloat<Float16>(EncodeFloat<Float16>(value));
  return value;
}

bool IsSameFloat(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (a != a && b != b);
}

void LibraryTable::Add(const LibraryFile& library, const LibraryCase& of,
                       const nlohmann::json& quantizer, int64_t values, bool differs) {
  std::vector<std::string> knobs;
  for (const auto& [key, value] : quantizer.items()) {
    knobs.push_back(
        absl::StrCat(key, "=", value.is_string() ? value.get<std::string>() : value.dump()));
  }
  Row& row =
      rows_[absl::StrCat(library.name, " | ", of.rule, " | `", absl::StrJoin(knobs, ","), "`")];
  ++row.tensors;
  row.values += values;
  row.differing += differs;
}

void LibraryTable::ExpectDocumented(const std::string& heading) const {
  std::vector<std::string> computed;
  for (const auto& [name, row] : rows_) {
    computed.push_back(absl::StrCat("| ", name, " | ", row.tensors, " | ", row.values, " | ",
                                    row.differing, " |"));
  }
  std::ifstream file(std::string(QUANTGATE_SOURCE_DIR) + "/docs/evidence.md");
  std::vector<std::string> documented;
  bool is_below = false;
  for (std::string line; std::getline(file, line);) {
    if (is_below && line.empty() && !documented.empty()) break;
    if (is_below && absl::StartsWith(line, "| ")) documented.push_back(line);
    is_below |= absl::StartsWith(line, heading);
  }
  if (!documented.empty()) documented.erase(documented.begin());  // The names of its columns.
  EXPECT_TRUE(documented == computed)
      << "docs/evidence.md below \"" << heading << "\" should have\n"
      << absl::StrJoin(computed, "\n");
}

}  // namespace quantgate::testing
