// Norms of a real layer against fp64, within the bound that docs/numerics.md section 5.1
// derives. Everything below is fp64 arithmetic on the operands themselves, written from the
// mathematical formulas; its own error, of 2^-53, is far below what doubling the bound leaves.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iostream>
#include <string>
#include <vector>

#include "kernels/ops/norm/norm.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/files/tensor_file.h"
#include "tests/base/repository_file.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr double kU = 0x1p-24;

using Row = std::vector<double>;

Tensor RealTensor(const std::string& name) {
  static const TensorFile file =
      *ReadSafetensors(RepositoryFile("data/bytegpt_block1.safetensors"));
  return *CastTensor(*file.Find(name), DType::kF32, {});
}

Row RowOf(const Tensor& tensor, int64_t row) {
  const float* begin = tensor.as<float>() + row * tensor.columns();
  return Row(begin, begin + tensor.columns());
}

double Mean(const Row& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

/// Levels of the pairwise sum of `count` values.
double Levels(size_t count) { return std::bit_width(count - 1); }

/// A number that the formulas give, and how far fp32 may be from it.
struct Bounded {
  double value = 0, bound = 0;
};

/// The norm of one row, in the letters of docs/numerics.md section 5.1.
struct NormOfRow {
  Row hat, e;  ///< xhat, and the bound of its error.
  Bounded mean, rstd;
};

NormOfRow Normalize(const Row& x, const NormOptions& options) {
  const bool is_centered = options.kind == NormKind::kLayerNorm;
  const double levels = Levels(x.size());
  Row magnitudes, squares;
  for (const double value : x) magnitudes.push_back(std::abs(value));
  NormOfRow norm;
  norm.mean.value = is_centered ? Mean(x) : 0;
  norm.mean.bound = is_centered ? (levels + 2) * kU * Mean(magnitudes) : 0;
  const double mu = norm.mean.value, d = norm.mean.bound;
  for (const double value : x) squares.push_back((value - mu) * (value - mu));
  const double variance = Mean(squares), radicand = variance + double{options.epsilon};
  norm.rstd.value = 1 / std::sqrt(radicand);
  const double r = (d * d + (levels + 5) * kU * (variance + d * d)) / (2 * radicand) + 2.5 * kU;
  norm.rstd.bound = r * norm.rstd.value;
  for (const double value : x) {
    norm.hat.push_back((value - mu) * norm.rstd.value);
    norm.e.push_back(std::abs(norm.hat.back()) * (r + 2 * kU) + norm.rstd.value * d);
  }
  return norm;
}

std::vector<Bounded> ForwardRow(const NormOfRow& norm, const Row& g, const Row& beta) {
  std::vector<Bounded> y(g.size());
  for (size_t i = 0; i < g.size(); ++i) {
    const double scaled = g[i] * norm.hat[i];
    y[i].value = scaled + beta[i];
    y[i].bound = std::abs(g[i]) * norm.e[i] + kU * (3 * std::abs(scaled) + std::abs(beta[i]));
  }
  return y;
}

std::vector<Bounded> BackwardRow(const NormOfRow& norm, const Row& g, const Row& dz,
                                 bool is_centered) {
  const size_t n = g.size();
  const double levels = Levels(n);
  Row dyg(n), products(n), product_errors(n), magnitudes(n), product_magnitudes(n);
  for (size_t i = 0; i < n; ++i) {
    dyg[i] = g[i] * dz[i];
    products[i] = dyg[i] * norm.hat[i];
    magnitudes[i] = std::abs(dyg[i]);
    product_magnitudes[i] = std::abs(products[i]);
    product_errors[i] = magnitudes[i] * norm.e[i] + 3 * kU * product_magnitudes[i];
  }
  const double a = Mean(products), b = is_centered ? Mean(dyg) : 0;
  const double ea = Mean(product_errors) + (levels + 2) * kU * Mean(product_magnitudes);
  const double eb = is_centered ? (levels + 4) * kU * Mean(magnitudes) : 0;
  const double rstd = norm.rstd.value, r = norm.rstd.bound / rstd;
  std::vector<Bounded> dx(n);
  for (size_t i = 0; i < n; ++i) {
    const double hat = std::abs(norm.hat[i]);
    dx[i].value = rstd * (dyg[i] - (a * norm.hat[i] + b));
    dx[i].bound = rstd * (2 * kU * magnitudes[i] + hat * ea + std::abs(a) * norm.e[i] +
                          2 * kU * std::abs(a) * hat + eb + kU * std::abs(b)) +
                  (r + 2 * kU) * std::abs(dx[i].value);
  }
  return dx;
}

/// The largest share of the bound that an error takes.
class LargestShare {
 public:
  explicit LargestShare(std::string what) : what_(std::move(what)) {}
  ~LargestShare() {
    // Doubled for what is of second order. That the errors come near shows that both are measured.
    EXPECT_LE(share_, 2) << what_;
    EXPECT_GT(share_, 1e-3) << what_;
    std::cout << what_ << ": largest error is " << share_ << " of the bound\n";
  }
  void Add(double actual, const Bounded& expected) {
    const double error = std::abs(actual - expected.value);
    EXPECT_TRUE(std::isfinite(error)) << what_;
    if (error > 0) share_ = std::max(share_, error / expected.bound);
  }
  void Add(const Tensor& actual, int64_t row, const std::vector<Bounded>& expected) {
    const Row values = RowOf(actual, row);
    ASSERT_EQ(values.size(), expected.size());
    for (size_t i = 0; i < values.size(); ++i) Add(values[i], expected[i]);
  }

 private:
  const std::string what_;
  double share_ = 0;
};

/// dgamma and dbeta of all rows, from each row's terms.
class ColumnBounds {
 public:
  ColumnBounds(size_t rows, size_t columns)
      : levels_(Levels(rows)), dgamma_(columns), dbeta_(columns) {}
  void AddRow(const NormOfRow& norm, const Row& dz) {
    for (size_t i = 0; i < dz.size(); ++i) {
      const double term = std::abs(dz[i] * norm.hat[i]);
      dgamma_[i].value += dz[i] * norm.hat[i];
      dgamma_[i].bound += std::abs(dz[i]) * norm.e[i] + (1 + levels_) * kU * term;
      dbeta_[i].value += dz[i];
      dbeta_[i].bound += levels_ * kU * std::abs(dz[i]);
    }
  }
  const std::vector<Bounded>& dgamma() const { return dgamma_; }
  const std::vector<Bounded>& dbeta() const { return dbeta_; }

 private:
  const double levels_;
  std::vector<Bounded> dgamma_, dbeta_;
};

struct RealNorm {
  NormForwardDesc forward;
  NormBackwardDesc backward;
};

/// The second norm of the layer in f32, so that nothing is rounded but what the bound counts.
RealNorm RealNormOf(NormKind kind) {
  RealNorm norm;
  norm.forward.x = norm.backward.x = RealTensor("ln2.x");
  norm.forward.gamma = norm.backward.gamma = RealTensor("ln2.weight");
  norm.forward.options.kind = norm.backward.options.kind = kind;
  norm.forward.out = DType::kF32;
  if (kind == NormKind::kLayerNorm) norm.forward.beta = RealTensor("ln2.bias");
  norm.backward.dz = RealTensor("ln2.dy");
  norm.backward.wanted.dbeta = kind == NormKind::kLayerNorm;
  return norm;
}

void CheckRealNorm(NormKind kind) {
  const std::string name(NormKindName(kind));
  RealNorm norm = RealNormOf(kind);
  const bool is_centered = kind == NormKind::kLayerNorm;
  const NormForwardResult z = *NormForwardCpu(norm.forward, {});
  norm.backward.mean = z.mean;
  norm.backward.rstd = z.rstd;
  const NormGradients gradients = *NormBackwardCpu(norm.backward, {});

  const Tensor& x = norm.forward.x;
  const Row gamma = RowOf(norm.forward.gamma, 0);
  const Row beta = is_centered ? RowOf(norm.forward.beta, 0) : Row(gamma.size(), 0.0);
  LargestShare rstd(name + " rstd"), y(name + " y"), dx(name + " dx");
  ColumnBounds columns(static_cast<size_t>(x.rows()), gamma.size());
  for (int64_t row = 0; row < x.rows(); ++row) {
    const NormOfRow expected = Normalize(RowOf(x, row), norm.forward.options);
    const Row dz = RowOf(norm.backward.dz, row);
    rstd.Add(z.rstd.as<float>()[row], expected.rstd);
    y.Add(z.y, row, ForwardRow(expected, gamma, beta));
    dx.Add(gradients.dx, row, BackwardRow(expected, gamma, dz, is_centered));
    columns.AddRow(expected, dz);
  }
  LargestShare dgamma(name + " dgamma");
  dgamma.Add(gradients.dgamma, 0, columns.dgamma());
  if (is_centered) {
    LargestShare dbeta(name + " dbeta");
    dbeta.Add(gradients.dbeta, 0, columns.dbeta());
  }
}

TEST(NormBound, LayerNormOfARealLayer) { CheckRealNorm(NormKind::kLayerNorm); }
TEST(NormBound, RmsNormOfARealLayer) { CheckRealNorm(NormKind::kRmsNorm); }

}  // namespace QG_TEST_FILE
}  // namespace quantgate
