#include "tests/gemm/scaled_vectors.h"

#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <sstream>
#include <utility>

#include "tests/base/repository_file.h"
#include "tests/gemm/exact/exact_vectors.h"

namespace quantgate {
namespace {

/// One row of codes; FP4 packed.
Tensor RowOf(DType dtype, std::vector<uint32_t> codes) {
  if (dtype == DType::kF4E2M1x2) {
    std::vector<uint32_t> bytes(codes.size() / 2);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = codes[2 * i] | codes[2 * i + 1] << 4;
    codes = bytes;
  }
  return TensorOfCodes(dtype, {1, static_cast<int64_t>(codes.size())}, codes);
}

}  // namespace

std::vector<std::string> LinesOf(const std::string& file) {
  std::ifstream stream(RepositoryFile("tests/data/" + file));
  EXPECT_TRUE(stream.is_open()) << file;
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with('#')) lines.push_back(line);
  }
  return lines;
}

std::vector<std::string> PartsOf(const std::string& line) {
  std::vector<std::string> parts;
  std::istringstream stream(line);
  for (std::string part; std::getline(stream, part, '|');) parts.push_back(part);
  return parts;
}

std::vector<std::string> WordsOf(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::vector<uint32_t> CodesOf(const std::string& text) {
  std::vector<uint32_t> codes;
  for (const std::string& word : WordsOf(text)) {
    codes.push_back(static_cast<uint32_t>(std::stoul(word, nullptr, 16)));
  }
  return codes;
}

Tensor OptionalF32(const std::string& word) {
  if (word == "-") return {};
  return Tensor::FromScalar(std::bit_cast<float>(CodesOf(word)[0])).value();
}

GemmOperand RowOperand(const std::string& type, const std::string& scaling,
                       std::vector<uint32_t> codes, const std::vector<uint32_t>& scales) {
  GemmOperand operand;
  operand.data = RowOf(ParseDType(type).value(), std::move(codes));
  operand.scaling = ParseScaleMode(scaling).value();
  if (operand.scaling == ScaleMode::kNone) return operand;
  const DType dtype = operand.scaling == ScaleMode::kMx32   ? DType::kF8E8M0
                      : operand.scaling == ScaleMode::kNv16 ? DType::kF8E4M3
                                                            : DType::kF32;
  operand.scale_inv = TensorOfCodes(dtype, {1, static_cast<int64_t>(scales.size())}, scales);
  return operand;
}

namespace {

ExactVector ParseExactScaled(const std::string& line) {
  const std::vector<std::string> parts = PartsOf(line);
  const std::vector<std::string> head = WordsOf(parts[0]);
  const std::vector<std::string> scalars = WordsOf(parts[1]);
  const std::vector<std::string> largest = WordsOf(parts[2]);
  const std::vector<uint32_t> expected = CodesOf(parts[7]);
  ExactVector vector{line, {}, expected[0], expected[1]};
  GemmDesc& desc = vector.desc;
  desc.arithmetic.family = ArithmeticFamily::kExact;
  desc.a = RowOperand(head[0], head[2], CodesOf(parts[3]), CodesOf(parts[5]));
  desc.b = RowOperand(head[1], head[3], CodesOf(parts[4]), CodesOf(parts[6]));
  desc.out_dtype = ParseDType(head[4]).value();
  desc.alpha = std::bit_cast<float>(CodesOf(scalars[0])[0]);
  desc.beta = std::bit_cast<float>(CodesOf(scalars[1])[0]);
  const DType c_dtype = IsFp8(desc.out_dtype) ? DType::kBF16 : desc.out_dtype;
  if (desc.beta != 0) desc.c = TensorOfCodes(c_dtype, {1, 1}, CodesOf(scalars[2]));
  desc.bias = OptionalF32(scalars[3]);
  if (IsFp8(desc.out_dtype)) desc.d_scale = OptionalF32(scalars[4]);
  desc.a.amax = OptionalF32(scalars[5]);
  desc.b.amax = OptionalF32(scalars[6]);
  desc.a.e4m3_max = std::stoi(largest[0]);
  desc.b.e4m3_max = std::stoi(largest[1]);
  return vector;
}

}  // namespace

std::vector<ExactVector> ReadExactScaledVectors() {
  std::vector<ExactVector> vectors;
  for (const std::string& line : LinesOf("exact_scaled_dots.txt")) {
    vectors.push_back(ParseExactScaled(line));
  }
  return vectors;
}

}  // namespace quantgate
