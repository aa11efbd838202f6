#include "tests/gemm/exact/exact_vectors.h"

#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <sstream>

#include "tests/base/repository_file.h"

namespace quantgate {
namespace {

std::vector<std::string> SplitWords(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::vector<uint32_t> ParseCodes(const std::string& text) {
  std::vector<uint32_t> codes;
  for (const std::string& word : SplitWords(text)) {
    codes.push_back(static_cast<uint32_t>(std::stoul(word, nullptr, 16)));
  }
  return codes;
}

DType TypeNamed(const std::string& name) {
  for (const DTypeTraits& traits : AllDTypes()) {
    if (traits.name == name) return traits.dtype;
  }
  ADD_FAILURE() << "unknown type " << name;
  return DType::kF32;
}

GemmOperand Operand(DType dtype, const std::vector<uint32_t>& codes, uint32_t scale_code) {
  GemmOperand operand;
  operand.data = TensorOfCodes(dtype, {1, static_cast<int64_t>(codes.size())}, codes);
  if (IsFp8(dtype)) {
    operand.scaling = ScaleMode::kTensor;
    operand.scale_inv = TensorOfCodes(DType::kF32, {1}, {scale_code});
  }
  return operand;
}

ExactVector ParseVector(const std::string& line) {
  std::vector<std::string> parts;
  std::istringstream stream(line);
  for (std::string part; std::getline(stream, part, '|');) parts.push_back(part);
  const std::vector<std::string> types = SplitWords(parts[0]);
  const std::vector<uint32_t> scalars = ParseCodes(parts[1]);
  ExactVector vector;
  vector.text = line;
  GemmDesc& desc = vector.desc;
  desc.a = Operand(TypeNamed(types[0]), ParseCodes(parts[2]), scalars[1]);
  desc.b = Operand(TypeNamed(types[1]), ParseCodes(parts[3]), scalars[2]);
  desc.out_dtype = TypeNamed(types[2]);
  desc.arithmetic.family = ArithmeticFamily::kExact;
  desc.alpha = std::bit_cast<float>(scalars[0]);
  desc.beta = std::bit_cast<float>(scalars[3]);
  const DType c_dtype = IsFp8(desc.out_dtype) ? DType::kBF16 : desc.out_dtype;
  if (desc.beta != 0) desc.c = TensorOfCodes(c_dtype, {1, 1}, {scalars[4]});
  if (types[3] != "none") desc.bias = TensorOfCodes(TypeNamed(types[3]), {1}, {scalars[5]});
  if (IsFp8(desc.out_dtype)) desc.d_scale = TensorOfCodes(DType::kF32, {1}, {scalars[6]});
  const std::vector<uint32_t> expected = ParseCodes(parts[4]);
  vector.d = expected[0];
  vector.amax = expected[1];
  return vector;
}

}  // namespace

uint32_t CodeAt(const Tensor& tensor, int64_t index) {
  switch (DTypeBytes(tensor.dtype())) {
    case 4:
      return tensor.as<uint32_t>()[index];
    case 2:
      return tensor.as<uint16_t>()[index];
    default:
      return tensor.as<uint8_t>()[index];
  }
}

std::vector<ExactVector> ReadExactVectors() {
  std::ifstream file(RepositoryFile("tests/data/exact_dots.txt"));
  EXPECT_TRUE(file.is_open());
  std::vector<ExactVector> vectors;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with('#')) vectors.push_back(ParseVector(line));
  }
  return vectors;
}

}  // namespace quantgate
