#include <cmath>
#include <limits>

#include "kernels/tensor/convert.h"
#include "tests/validate/diagnosis/mutants.h"

namespace quantgate {
namespace {

struct ActivationPair {
  std::function<double(double)> value, slope;
};

double Sigmoid(double h) { return 1 / (1 + std::exp(-h)); }
/// As np.maximum(h, 0), which keeps NaN.
double Relu(double h) { return std::isnan(h) ? h : std::max(h, 0.0); }
double GeluTanh(double h) { return std::tanh(0.7978845608 * (h + 0.044715 * h * h * h)); }

ActivationPair ActivationOf(const std::string& name) {
  if (name == "relu") return {Relu, [](double h) { return h > 0 ? 1.0 : 0.0; }};
  if (name == "srelu") {
    return {[](double h) { return Relu(h) * Relu(h); }, [](double h) { return 2 * Relu(h); }};
  }
  if (name == "silu") {
    return {[](double h) { return h / (1 + std::exp(-h)); },
            [](double h) { return Sigmoid(h) * (1 + h * (1 - Sigmoid(h))); }};
  }
  if (name == "gelu_tanh") {
    return {[](double h) { return 0.5 * h * (1 + GeluTanh(h)); },
            [](double h) {
              const double t = GeluTanh(h);
              return 0.5 * (1 + t) + 0.5 * h * (1 - t * t) * 0.7978845608 * (1 + 0.134145 * h * h);
            }};
  }
  if (name == "gelu_erf") {
    return {[](double h) { return 0.5 * h * (1 + std::erf(h / std::sqrt(2.0))); },
            [](double h) {
              return 0.5 * (1 + std::erf(h / std::sqrt(2.0))) +
                     h * std::exp(-h * h / 2) / std::sqrt(2 * M_PI);
            }};
  }
  return {[](double h) { return h; }, [](double) { return 1.0; }};
}

Matrix ColumnSums(const Matrix& values) {
  Matrix sums(1, values.columns);
  for (int64_t i = 0; i < values.rows; ++i) {
    for (int64_t j = 0; j < values.columns; ++j) sums(0, j) += values(i, j);
  }
  return sums;
}

Matrix SumOf(const Matrix& left, const Matrix& right) {
  Matrix sum = left;
  for (size_t i = 0; i < sum.at.size(); ++i) {
    sum.at[i] = static_cast<float>(sum.at[i] + right.at[i]);
  }
  return sum;
}

/// From `row` on, rows are rotated by `by`.
Matrix Rolled(const Matrix& values, int64_t row, int64_t by) {
  Matrix rolled = values;
  const int64_t count = values.rows - row;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < values.columns; ++j) {
      rolled(row + (i + by) % count, j) = values(row + i, j);
    }
  }
  return rolled;
}

Matrix ThroughFp8(const Matrix& values, const std::string& element) {
  double amax = 0;
  for (const double value : values.at) amax = std::max(amax, std::abs(value));
  const float scale = float(element == "e4m3" ? 448.0 : 57344.0) / float(amax);
  const Matrix scaled = values.Mapped([&](double value) { return float(value) * scale; });
  const DType dtype = element == "e4m3" ? DType::kF8E4M3 : DType::kF8E5M2;
  return MatrixOfTensor(TensorOfMatrix(scaled, dtype)).Mapped([&](double value) {
    return float(value) / scale;
  });
}

/// As np.where(random < share, values * (1 + 0.1 normal), values).
Matrix Noisy(const Matrix& values, double share, Draw draw) {
  return values.Mapped([&](double value) {
    const double noise = 1 + draw.Normal() * 0.1;
    return draw.Unit() < share ? value * noise : value;
  });
}

Matrix MixedWithNoise(const Matrix& values, Draw draw) {
  double mean = 0;
  for (const double value : values.at) mean += std::abs(value) / double(values.at.size());
  return values.Mapped([&](double value) { return value * 0.8 + draw.Normal() * mean * 0.2; });
}

Matrix Scattered(const Matrix& values, int64_t count, Draw draw) {
  Matrix scattered = values;
  const std::vector<int64_t> places = draw.Places(int64_t(values.at.size()), count);
  const std::vector<int64_t> order = draw.Places(count, count);
  for (size_t i = 0; i < places.size(); ++i) {
    scattered.at[size_t(places[i])] = values.at[size_t(places[size_t(order[i])])];
  }
  return scattered;
}

/// The results with another dw, which main_grad has too.
Matrices WithDw(const LayerMutant& mutant, const Matrix& dw) {
  Matrices results = mutant.right;
  results["dw"] = Rounded(dw, "bf16");
  results["main_grad"] = SumOf(mutant.parts.main_grad, results["dw"]);
  return results;
}

using Maker = std::function<Matrices(const LayerMutant&, const nlohmann::json&)>;
using Change = std::function<void(LayerParts&, const LayerMutant&, const nlohmann::json&)>;

/// A maker that computes the whole layer from changed parts.
Maker Layer(Change change) {
  return [change](const LayerMutant& mutant, const nlohmann::json& p) {
    LayerParts parts = mutant.parts;
    change(parts, mutant, p);
    return LayerOutputsOf(parts);
  };
}

/// A maker that replaces one result.
Maker One(std::function<Matrix(const LayerMutant&, const Matrix&, const nlohmann::json&)> change,
          std::string dtype, std::string name = "") {
  return [=](const LayerMutant& mutant, const nlohmann::json& p) {
    Matrices results = mutant.right;
    Matrix& result = results[name.empty() ? p["name"].get<std::string>() : name];
    result = Rounded(change(mutant, result, p), dtype);
    return results;
  };
}

const std::map<std::string, Maker>& Makers() {
  using Json = nlohmann::json;
  const auto scaled = [](const LayerMutant&, const Matrix& values, const Json& p) {
    const float factor = p["factor"];
    return values.Mapped([=](double value) { return float(value) * factor; });
  };
  const auto both_x = [](LayerParts& parts, const Matrix& x) { parts.x = parts.x_of_dw = x; };
  const auto both_w = [](LayerParts& parts, const Matrix& w) { parts.w = parts.w_of_dx = w; };
  static const std::map<std::string, Maker> makers = {
      {"scaled_dw", [=](const LayerMutant& m,
                        const Json& p) { return WithDw(m, scaled(m, m.right.at("dw"), p)); }},
      {"scaled_gradient", One(scaled, "bf16")},
      {"transposed_weight", Layer([=](LayerParts& parts, const LayerMutant&, const Json&) {
         both_w(parts, parts.w.Transposed());
       })},
      {"transposed_weight_of_dgrad", Layer([](LayerParts& parts, const LayerMutant&, const Json&) {
         parts.w_of_dx = parts.w.Transposed();
       })},
      {"permuted_rows", Layer([=](LayerParts& parts, const LayerMutant&, const Json& p) {
         both_x(parts, Rolled(parts.x, p["row"], p["by"]));
       })},
      {"permuted_output_rows", One([](const LayerMutant&, const Matrix& y,
                                      const Json& p) { return Rolled(y, p["row"], p["by"]); },
                                   "bf16", "y")},
      {"nan_in_x", Layer([=](LayerParts& parts, const LayerMutant&, const Json& p) {
         Matrix x = parts.x;
         x(p["row"], p["column"]) = std::numeric_limits<double>::quiet_NaN();
         both_x(parts, x);
       })},
      {"infinity_in_w", Layer([=](LayerParts& parts, const LayerMutant&, const Json& p) {
         Matrix w = parts.w;
         w(p["row"], p["column"]) = std::numeric_limits<double>::infinity();
         both_w(parts, w);
       })},
      {"accumulated_twice", One([](const LayerMutant& m, const Matrix& sum,
                                   const Json&) { return SumOf(sum, m.right.at("dw")); },
                                "f32", "main_grad")},
      {"overwritten_main_grad",
       One([](const LayerMutant& m, const Matrix&, const Json&) { return m.right.at("dw"); }, "f32",
           "main_grad")},
      {"another_activation", Layer([](LayerParts& parts, const LayerMutant&, const Json& p) {
         parts.activation = parts.slope = p["activation"];
       })},
      {"another_slope", Layer([](LayerParts& parts, const LayerMutant&, const Json& p) {
         parts.slope = p["activation"];
       })},
      {"wrong_layer_bias", Layer([](LayerParts& parts, const LayerMutant&, const Json& p) {
         const double times = p["times"];
         parts.b = parts.b.Mapped([=](double value) { return value * times; });
       })},
      {"missing_rows",
       [](const LayerMutant& m, const Json& p) {
         LayerParts parts = m.parts;
         for (int64_t row = parts.dy.rows - int64_t(p["rows"]); row < parts.dy.rows; ++row) {
           for (int64_t column = 0; column < parts.dy.columns; ++column) parts.dy(row, column) = 0;
         }
         Matrices results = LayerOutputsOf(parts);
         for (const char* kept : {"y", "dx"}) results[kept] = m.right.at(kept);
         return results;
       }},
      {"stale_x", Layer([](LayerParts& parts, const LayerMutant& m, const Json&) {
         parts.x_of_dw = m.related.at("x_before");
       })},
      {"stale_weight", Layer([](LayerParts& parts, const LayerMutant& m, const Json&) {
         parts.w_of_dx = m.related.at("w_after");
       })},
      {"stale_gradient", Layer([](LayerParts& parts, const LayerMutant& m, const Json&) {
         parts.dy = m.related.at("dy_before");
       })},
      {"quantized_operand", Layer([=](LayerParts& parts, const LayerMutant&, const Json& p) {
         if (p["name"] == "x")
           both_x(parts, ThroughFp8(parts.x, p["element"]));
         else
           both_w(parts, ThroughFp8(parts.w, p["element"]));
       })},
      {"noisy_result", One([](const LayerMutant&, const Matrix& values,
                              const Json& p) { return Noisy(values, p["share"], Draw(p["seed"])); },
                           "bf16")},
      {"mixed_with_noise",
       One([](const LayerMutant&, const Matrix& values,
              const Json& p) { return MixedWithNoise(values, Draw(p["seed"])); },
           "bf16")},
      {"scattered_outputs",
       One([](const LayerMutant&, const Matrix& values,
              const Json& p) { return Scattered(values, p["count"], Draw(p["seed"])); },
           "bf16", "y")},
  };
  return makers;
}

}  // namespace

const std::vector<std::string>& LayerActivations() {
  static const std::vector<std::string> names = {"none", "relu",      "srelu",
                                                 "silu", "gelu_tanh", "gelu_erf"};
  return names;
}

Matrices LayerOutputsOf(const LayerParts& parts) {
  const ActivationPair forward = ActivationOf(parts.activation), back = ActivationOf(parts.slope);
  Matrix h = Product(parts.x, parts.w);
  for (int64_t i = 0; i < h.rows; ++i) {
    for (int64_t j = 0; j < h.columns; ++j) h(i, j) += parts.b(0, j);
  }
  Matrix dh = h.Mapped(back.slope);
  for (size_t i = 0; i < dh.at.size(); ++i) dh.at[i] *= parts.dy.at[i];
  Matrices outputs = {{"y", h.Mapped(forward.value)},
                      {"dx", Product(dh, parts.w_of_dx.Transposed())},
                      {"dw", Product(dh.Transposed(), parts.x_of_dw.Transposed())},
                      {"db", ColumnSums(dh)}};
  for (auto& [name, values] : outputs) values = Rounded(values, "bf16");
  outputs["main_grad"] = SumOf(parts.main_grad, outputs["dw"]);
  return outputs;
}

LayerMutant MakeLayerMutant(const Mutant& mutant) {
  Draw draw(mutant.input["seed"]);
  const int64_t m = mutant.input["m"], n = mutant.input["n"], k = mutant.input["k"];
  const double size = 1 / std::sqrt(double(k));
  const auto bf16 = [&](int64_t rows, int64_t columns, double deviation) {
    return Rounded(draw.Normals(rows, columns, deviation), "bf16");
  };
  LayerMutant made;
  LayerParts& parts = made.parts;
  parts.activation = parts.slope = mutant.subject;
  parts.x = parts.x_of_dw = bf16(m, k, 1);
  parts.w = parts.w_of_dx = bf16(n, k, size);
  parts.b = bf16(1, n, 0.1);
  parts.dy = bf16(m, n, 0.1);
  parts.main_grad = Rounded(draw.Normals(n, k, 0.3), "f32");
  made.related = {
      {"x_before", bf16(m, k, 1)}, {"w_after", bf16(n, k, size)}, {"dy_before", bf16(m, n, 0.1)}};
  made.right = LayerOutputsOf(parts);
  made.mutated = Makers().at(mutant.maker)(made, mutant.parameters);
  return made;
}

}  // namespace quantgate
