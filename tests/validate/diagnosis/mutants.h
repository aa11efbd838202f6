// The mutants of tests/data/mutants.json, made again from what tests/vectors/mutants.py defines:
// the same makers, parameters, shapes and distributions. The numbers are drawn anew from the seeds,
// since numpy's generator is not here, so that a diagnosis does not depend on the draw.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/tensor/files/tensor_file.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

struct Mutant {
  std::string name, subject, cause, maker;
  nlohmann::json input, parameters;
};

/// Those of one kind: "gemm", "layer".
std::vector<Mutant> MutantsOfKind(const std::string& kind);

/// Those of one kind that are mistakes of kernels that no rule names, with their tensors as numpy
/// made them. They are not made again here.
struct MutantsWithoutRule {
  TensorFile file;  ///< NAME.TENSOR.
  std::vector<Mutant> mutants;
};
/// Of the file that the variable QUANTGATE_MUTANT_TENSORS names.
MutantsWithoutRule MutantsWithoutRuleOfKind(const std::string& kind);

/// A matrix of numbers; a vector has one row.
struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<double> at;

  Matrix() = default;
  Matrix(int64_t row_count, int64_t column_count)
      : rows(row_count), columns(column_count), at(size_t(row_count * column_count)) {}
  double& operator()(int64_t row, int64_t column) { return at[size_t(row * columns + column)]; }
  double operator()(int64_t row, int64_t column) const {
    return at[size_t(row * columns + column)];
  }
  Matrix Transposed() const;
  Matrix Mapped(const std::function<double(double)>& function) const;
};

/// left right^T in binary64.
Matrix Product(const Matrix& left, const Matrix& right);
/// Rounds to f32, and then to `dtype`: "f32", "bf16", "f16".
Matrix Rounded(const Matrix& values, const std::string& dtype);
/// A tensor of these values, which `dtype` has: [columns] of a vector, else [rows][columns].
Tensor TensorOfMatrix(const Matrix& values, DType dtype, bool is_vector = false);
Matrix MatrixOfTensor(const Tensor& tensor);

/// The draws of one mutant.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  double Normal();
  double Unit() { return double(random_() >> 11) * 0x1p-53; }
  int64_t Below(int64_t bound) { return int64_t(random_() % uint64_t(bound)); }
  Matrix Normals(int64_t rows, int64_t columns, double size);
  /// `count` different numbers below `bound`.
  std::vector<int64_t> Places(int64_t bound, int64_t count);

 private:
  std::mt19937_64 random_;
};

using Matrices = std::map<std::string, Matrix>;

/// h = x w^T + b, y = act(h); dh = dy act'(h); dx = dh w, dw = dh^T x, db: column sums of dh, each
/// rounded to f32 and then to bf16; main_grad + dw in f32.
struct LayerParts {
  std::string activation, slope;
  Matrix x, w, b, dy, main_grad;
  Matrix x_of_dw, w_of_dx;  ///< Of the GEMMs of backward.
};
Matrices LayerOutputsOf(const LayerParts& parts);
/// "none", "relu", "srelu", "silu", "gelu_tanh", "gelu_erf".
const std::vector<std::string>& LayerActivations();

struct LayerMutant {
  LayerParts parts;
  Matrices related;  ///< x_before, w_after, dy_before.
  Matrices right, mutated;
};
LayerMutant MakeLayerMutant(const Mutant& mutant);

struct GemmMutant {
  GemmDesc desc;
  DType out;
  Matrix right, mutated;
};
GemmMutant MakeGemmMutant(const Mutant& mutant);

}  // namespace quantgate
