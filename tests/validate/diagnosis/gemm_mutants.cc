#include <bit>
#include <cmath>

#include "kernels/tensor/convert.h"
#include "tests/validate/diagnosis/mutants.h"

namespace quantgate {
namespace {

struct Operand {
  Matrix values, scales;  ///< What codes say, and the scale of each; 1 without scales.
  Tensor codes;
  int64_t block = 0;  ///< Elements along K with one scale; 0: one scale or none.
};

struct GemmParts {
  std::string subject, out;
  Operand a, b;
  Matrix c, bias;
  float alpha = 1, beta = 0;
};

/// Rows with their own magnitudes, as gemm_inputs draws them.
Matrix DrawnOperand(int64_t rows, int64_t k, Draw& draw) {
  Matrix values = draw.Normals(rows, k, 0.3);
  for (int64_t row = 0; row < rows; ++row) {
    const double magnitude = std::exp2(double(draw.Below(5) - 2));
    for (int64_t column = 0; column < k; ++column) values(row, column) *= magnitude;
  }
  return Rounded(values, "bf16");
}

/// Codes under scales by the rules of docs/quantizers.md sections 3 to 5.
Operand MakeOperand(const Matrix& values, const std::string& subject, GemmOperand& made) {
  Operand operand;
  operand.scales = values.Mapped([](double) { return 1.0; });
  if (subject == "bf16") {
    operand.values = values;
    made.data = TensorOfMatrix(values, DType::kBF16);
    return operand;
  }
  operand.block = subject == "mxfp8" ? 32 : subject == "fp8" ? 0 : 128;
  const int64_t length = operand.block == 0 ? values.columns : operand.block;
  Matrix scaled = values, stored(values.rows, values.columns / length);
  double tensor_amax = 0;
  for (const double value : values.at) tensor_amax = std::max(tensor_amax, std::abs(value));
  for (int64_t row = 0; row < values.rows; ++row) {
    for (int64_t block = 0; block < stored.columns; ++block) {
      double amax = subject == "fp8" ? tensor_amax : 0;
      for (int64_t i = 0; i < length && subject != "fp8"; ++i) {
        amax = std::max(amax, std::abs(values(row, block * length + i)));
      }
      float factor = 448.0f / float(amax);
      float scale_inv = 1.0f / factor;
      if (subject == "mxfp8") {
        int exponent = 0;
        if (std::frexp(amax / 448, &exponent) == 0.5) --exponent;
        factor = std::ldexp(1.0f, -exponent);
        scale_inv = std::ldexp(1.0f, exponent);
      }
      stored(row, block) = scale_inv;
      for (int64_t i = 0; i < length; ++i) {
        const int64_t column = block * length + i;
        scaled(row, column) = float(values(row, column)) * factor;
        operand.scales(row, column) = scale_inv;
      }
    }
  }
  operand.codes = made.data = TensorOfMatrix(scaled, DType::kF8E4M3);
  operand.values = MatrixOfTensor(operand.codes);
  made.scaling = subject == "fp8"     ? ScaleMode::kTensor
                 : subject == "mxfp8" ? ScaleMode::kMx32
                                      : ScaleMode::k1x128;
  if (subject == "mxfp8") {
    std::vector<uint8_t> exponents;
    for (const double scale : stored.at) exponents.push_back(uint8_t(std::ilogb(scale) + 127));
    made.scale_inv = *Tensor::FromBytes(DType::kF8E8M0, {stored.rows, stored.columns},
                                        std::as_bytes(std::span(exponents)));
  } else if (subject == "fp8") {
    made.scale_inv = *Tensor::FromScalar(float(stored.at[0]));
  } else {
    made.scale_inv = TensorOfMatrix(stored, DType::kF32);
  }
  return operand;
}

Matrix Multiplied(const Matrix& left, const Matrix& right) {
  Matrix product = left;
  for (size_t i = 0; i < product.at.size(); ++i) product.at[i] *= right.at[i];
  return product;
}

Matrix Scaled(const Operand& operand) { return Multiplied(operand.values, operand.scales); }

/// Columns [begin, end).
Matrix Columns(const Matrix& values, int64_t begin, int64_t end) {
  Matrix part(values.rows, end - begin);
  for (int64_t row = 0; row < values.rows; ++row) {
    for (int64_t column = begin; column < end; ++column) {
      part(row, column - begin) = values(row, column);
    }
  }
  return part;
}

struct EpilogueChange {
  float alpha, beta, bias = 1;
  bool is_bias_by_row = false;
};

Matrix Epilogue(const GemmParts& parts, const Matrix& sums, const EpilogueChange& change,
                const std::string& out) {
  Matrix d = sums;
  for (int64_t i = 0; i < d.rows; ++i) {
    for (int64_t j = 0; j < d.columns; ++j) {
      const float scaled = change.alpha * float(sums(i, j));
      const float addend = change.beta * float(parts.c(i, j));
      const float bias = float(parts.bias(0, change.is_bias_by_row ? i : j));
      d(i, j) = (scaled + addend) + change.bias * bias;
    }
  }
  return Rounded(d, out);
}

Matrix Finished(const GemmParts& parts, const Matrix& sums) {
  return Epilogue(parts, Rounded(sums, "f32"), {parts.alpha, parts.beta}, parts.out);
}

Matrix ProductOf(const GemmParts& parts, const Matrix& a, const Matrix& b) {
  return Rounded(Product(a, b), "f32");
}

/// The bytes of the transpose under the same shape.
Matrix ReadKMajor(const Matrix& values) {
  Matrix read = values.Transposed();
  std::swap(read.rows, read.columns);
  return read;
}

float DecodeFnuz(uint8_t code) {
  if (code == 0x80) return 0;
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? mantissa * 0x1p-10 : (1 + mantissa / 8.0) * std::exp2(exponent - 8);
  return float(code & 0x80 ? -magnitude : magnitude);
}

/// The codes of an operand in another format, NaN and infinities as 0.
Matrix ReadAs(const Operand& operand, const std::string& element) {
  Matrix read = operand.values;
  if (element == "e5m2") {
    read = MatrixOfTensor(*operand.codes.Reinterpret(DType::kF8E5M2, operand.codes.shape()));
  } else {
    for (size_t i = 0; i < read.at.size(); ++i) {
      read.at[i] = DecodeFnuz(operand.codes.as<uint8_t>()[i]);
    }
  }
  return read.Mapped([](double value) { return std::isfinite(value) ? value : 0; });
}

using Json = nlohmann::json;

Matrix OfOneOperand(const GemmParts& parts, const Json& p, const Matrix& values) {
  const bool is_a = p["operand"] == "a";
  return Finished(
      parts, ProductOf(parts, is_a ? values : Scaled(parts.a), is_a ? Scaled(parts.b) : values));
}

Matrix WithoutRule(const std::string& maker, const GemmParts& parts, const Json& p,
                   const Matrix& right) {
  Draw draw(p["seed"]);
  Matrix d = right;
  if (maker == "noisy_elements") {
    for (double& value : d.at) {
      const double noise = draw.Normal() * double(p["size"]);
      if (draw.Unit() < double(p["share"])) value += noise;
    }
  } else if (maker == "random_rectangle") {
    const int64_t rows = p["rows"], columns = p["columns"];
    const int64_t top = draw.Below(d.rows - rows), left = draw.Below(d.columns - columns);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) d(top + i, left + j) = draw.Normal();
    }
  } else if (maker == "turned_result_bits") {
    for (const int64_t place : draw.Places(int64_t(d.at.size()), p["count"])) {
      const uint32_t bits = std::bit_cast<uint32_t>(float(d.at[size_t(place)]));
      d.at[size_t(place)] = std::bit_cast<float>(bits ^ (1u << (16 + draw.Below(14))));
    }
    return d;
  } else {
    const Matrix a = Scaled(parts.a), b = Scaled(parts.b);
    Matrix sums = ProductOf(parts, a, b);
    for (int64_t i = 0; i < d.rows; ++i) {
      for (int64_t j = 0; j < d.columns; ++j) {
        for (int term = 0; term < p["terms"]; ++term) {
          const int64_t k = draw.Below(a.columns);
          sums(i, j) -= a(i, k) * b(j, k);
        }
      }
    }
    return Finished(parts, sums);
  }
  return Rounded(d, parts.out);
}

Matrix OfBlocks(const GemmParts& parts, const Json& p) {
  const bool is_a = p["operand"] == "a";
  const Operand& own = is_a ? parts.a : parts.b;
  Matrix stored(own.values.rows, own.values.columns / own.block);
  for (int64_t row = 0; row < stored.rows; ++row) {
    for (int64_t block = 0; block < stored.columns; ++block) {
      stored(row, block) = own.scales(row, block * own.block);
    }
  }
  const Matrix wrong = ReadKMajor(stored);
  Matrix values = own.values;
  for (int64_t row = 0; row < values.rows; ++row) {
    for (int64_t k = 0; k < values.columns; ++k) values(row, k) *= wrong(row, k / own.block);
  }
  return OfOneOperand(parts, p, values);
}

Matrix Mutated(const std::string& maker, const GemmParts& parts, const Json& p,
               const Matrix& right) {
  const Matrix a = Scaled(parts.a), b = Scaled(parts.b), sums = ProductOf(parts, a, b);
  const Operand& own = p.value("operand", "a") == "a" ? parts.a : parts.b;
  const Operand& other = p.value("operand", "a") == "a" ? parts.b : parts.a;
  const EpilogueChange usual{parts.alpha, parts.beta};
  const auto finished = [&](EpilogueChange change) {
    return Epilogue(parts, sums, change, parts.out);
  };
  const auto with = [&](auto change) {
    EpilogueChange changed = usual;
    change(changed);
    return finished(changed);
  };
  if (maker == "partial_sums_in_bf16") {
    Matrix total(right.rows, right.columns);
    for (int64_t begin = 0; begin < a.columns; begin += int64_t(p["length"])) {
      const int64_t end = std::min(a.columns, begin + int64_t(p["length"]));
      const Matrix part = ProductOf(parts, Columns(a, begin, end), Columns(b, begin, end));
      for (size_t i = 0; i < total.at.size(); ++i) total.at[i] += part.at[i];
      total = Rounded(total, "bf16");
    }
    return Finished(parts, total);
  }
  if (maker == "rounded_slices") {
    Matrix total(right.rows, right.columns);
    const int64_t length = a.columns / int64_t(p["slices"]);  // K is a multiple.
    for (int64_t begin = 0; begin < a.columns; begin += length) {
      const Matrix part = Rounded(
          Product(Columns(a, begin, begin + length), Columns(b, begin, begin + length)), "bf16");
      for (size_t i = 0; i < total.at.size(); ++i) total.at[i] = float(total.at[i] + part.at[i]);
    }
    return Finished(parts, total);
  }
  if (maker == "other_operands_scale") {
    return OfOneOperand(parts, p, Multiplied(own.values, other.scales));
  }
  if (maker == "scale_twice") return OfOneOperand(parts, p, Multiplied(Scaled(own), own.scales));
  if (maker == "scale_missing") return OfOneOperand(parts, p, own.values);
  if (maker == "missing_tail") {
    const int64_t end = a.columns - int64_t(p["tail"]);
    return Finished(parts, ProductOf(parts, Columns(a, 0, end), Columns(b, 0, end)));
  }
  if (maker == "repeated_stretch") {
    const int64_t end = p["length"];
    const Matrix part = ProductOf(parts, Columns(a, 0, end), Columns(b, 0, end));
    Matrix total = sums;
    for (size_t i = 0; i < total.at.size(); ++i) total.at[i] += part.at[i];
    return Finished(parts, total);
  }
  if (maker == "wrong_alpha") {
    return with([&](EpilogueChange& change) {
      if (p["how"] == "missing") change.alpha = 1;
      if (p["how"] == "twice") change.alpha = parts.alpha * parts.alpha;
      if (p["how"] == "bias") change.bias = parts.alpha;
    });
  }
  if (maker == "wrong_beta") {
    return with([&](EpilogueChange& change) { change.beta = p["how"] == "missing" ? 0 : 1; });
  }
  if (maker == "wrong_bias") {
    return with([&](EpilogueChange& change) { change.bias = p["times"]; });
  }
  if (maker == "bias_along_m") {
    return with([&](EpilogueChange& change) { change.is_bias_by_row = true; });
  }
  if (maker == "transposed_result") return right.Transposed();
  if (maker == "transposed_operand") return OfOneOperand(parts, p, ReadKMajor(Scaled(own)));
  if (maker == "read_as_another_format") {
    return OfOneOperand(parts, p, Multiplied(ReadAs(own, p["element"]), own.scales));
  }
  if (maker == "k_major_block_scales") return OfBlocks(parts, p);
  if (maker == "wrong_output_rounding") {
    const Matrix value = Epilogue(parts, sums, usual, "f32");
    if (p["how"] == "f16 first") return Rounded(Rounded(value, "f16"), parts.out);
    return value.Mapped([](double one) {
      return std::bit_cast<float>(std::bit_cast<uint32_t>(float(one)) & 0xFFFF0000u);
    });
  }
  if (maker == "shifted_rows") {
    Matrix shifted = a;
    for (int64_t row = 0; row < a.rows; ++row) {
      for (int64_t k = 0; k < a.columns; ++k) {
        shifted(row, k) = a((row + int64_t(p["by"])) % a.rows, k);
      }
    }
    return Finished(parts, ProductOf(parts, shifted, b));
  }
  return WithoutRule(maker, parts, p, right);
}

}  // namespace

GemmMutant MakeGemmMutant(const Mutant& mutant) {
  Draw draw(mutant.input["seed"]);
  const int64_t m = mutant.input["m"], n = mutant.input["n"], k = mutant.input["k"];
  GemmMutant made;
  GemmParts parts;
  parts.subject = mutant.subject;
  parts.out = mutant.input["out"];
  parts.alpha = mutant.input["alpha"];
  parts.beta = mutant.input["beta"];
  parts.a = MakeOperand(DrawnOperand(m, k, draw), mutant.subject, made.desc.a);
  parts.b = MakeOperand(DrawnOperand(n, k, draw), mutant.subject, made.desc.b);
  parts.c = Rounded(draw.Normals(m, n, 1), parts.out);
  parts.bias = Rounded(draw.Normals(1, n, 1), "bf16");
  made.out = parts.out == "bf16" ? DType::kBF16 : DType::kF32;
  made.desc.alpha = parts.alpha;
  made.desc.beta = parts.beta;
  made.desc.bias = TensorOfMatrix(parts.bias, DType::kBF16, true);
  if (parts.beta != 0) made.desc.c = TensorOfMatrix(parts.c, made.out);
  made.right = Finished(parts, ProductOf(parts, Scaled(parts.a), Scaled(parts.b)));
  made.mutated = Mutated(mutant.maker, parts, mutant.parameters, made.right);
  return made;
}

}  // namespace quantgate
