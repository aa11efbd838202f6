#include "tests/validate/diagnosis/mutants.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <numbers>

#include "kernels/compare/element_values.h"
#include "kernels/tensor/convert.h"

namespace quantgate {

namespace {

std::vector<Mutant> OfKind(const nlohmann::json& all, const std::string& kind) {
  std::vector<Mutant> mutants;
  for (const nlohmann::json& one : all) {
    if (one["kind"] != kind) continue;
    mutants.push_back(
        {one["name"], one["subject"], one["cause"], one["maker"], one["input"], one["parameters"]});
  }
  return mutants;
}

}  // namespace

std::vector<Mutant> MutantsOfKind(const std::string& kind) {
  std::ifstream file(QUANTGATE_SOURCE_DIR "/tests/data/mutants.json");
  return OfKind(nlohmann::json::parse(file).at("mutants"), kind);
}

MutantsWithoutRule MutantsWithoutRuleOfKind(const std::string& kind) {
  const char* const path = std::getenv("QUANTGATE_MUTANT_TENSORS");
  if (path == nullptr) return {};
  MutantsWithoutRule of{*ReadSafetensors(path), {}};
  of.mutants = OfKind(nlohmann::json::parse(of.file.metadata.at("without_rule")), kind);
  return of;
}

Matrix Matrix::Transposed() const {
  Matrix transposed(columns, rows);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) transposed(j, i) = (*this)(i, j);
  }
  return transposed;
}

Matrix Matrix::Mapped(const std::function<double(double)>& function) const {
  Matrix mapped = *this;
  for (double& value : mapped.at) value = function(value);
  return mapped;
}

Matrix Product(const Matrix& left, const Matrix& right) {
  Matrix product(left.rows, right.rows);
  for (int64_t i = 0; i < left.rows; ++i) {
    for (int64_t j = 0; j < right.rows; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < left.columns; ++k) sum += left(i, k) * right(j, k);
      product(i, j) = sum;
    }
  }
  return product;
}

namespace {

double RoundedOnce(double value, const std::string& dtype) {
  const float single = static_cast<float>(value);
  if (dtype == "f16") return static_cast<double>(static_cast<_Float16>(single));
  if (dtype == "f32" || !std::isfinite(single)) return single;
  const uint32_t bits = std::bit_cast<uint32_t>(single);
  return std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u);
}

}  // namespace

Matrix Rounded(const Matrix& values, const std::string& dtype) {
  return values.Mapped([&](double value) { return RoundedOnce(value, dtype); });
}

Tensor TensorOfMatrix(const Matrix& values, DType dtype, bool is_vector) {
  const Shape shape = is_vector ? Shape{values.columns} : Shape{values.rows, values.columns};
  const std::vector<float> singles(values.at.begin(), values.at.end());
  return *CastTensor(*Tensor::FromBytes(DType::kF32, shape, std::as_bytes(std::span(singles))),
                     dtype, ExecutionContext());
}

Matrix MatrixOfTensor(const Tensor& tensor) {
  Matrix values(tensor.rows(), tensor.columns());
  DecodeValues(tensor, 0, tensor.element_count(), values.at.data());
  return values;
}

double Draw::Normal() {
  const double radius = std::sqrt(-2 * std::log(1 - Unit()));
  return radius * std::cos(2 * std::numbers::pi * Unit());
}

Matrix Draw::Normals(int64_t rows, int64_t columns, double size) {
  Matrix values(rows, columns);
  for (double& value : values.at) value = Normal() * size;
  return values;
}

std::vector<int64_t> Draw::Places(int64_t bound, int64_t count) {
  std::vector<int64_t> places(static_cast<size_t>(bound));
  for (int64_t i = 0; i < bound; ++i) places[size_t(i)] = i;
  for (int64_t i = 0; i < count; ++i) {
    std::swap(places[size_t(i)], places[size_t(i + Below(bound - i))]);
  }
  places.resize(size_t(count));
  return places;
}

}  // namespace quantgate
