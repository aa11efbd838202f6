// Certification of the exact GEMM's fp64 results: gives the code that an interval around the result
// proves, or doubt. The arithmetic is the same for vectors of every instruction set and for the
// threads of a GPU, so the CPU and the CUDA engine doubt the same outputs. exact_kernels_body.h and
// exact_round_cuda.cu include this in an anonymous namespace after they have defined Vector
// (doubles) and Words (as many int64_t), or one of each; Load and Broadcast of Vectors; Bits and
// Number, which convert between the two; and ProductError(a, b, product), which is exactly a * b -
// product. Results of comparisons are used only in ?: expressions.

// The constants for rounding to a format; FP8 saturates.
template <class Format>
struct OutOf {
  using Constants = FormatConstants<Format>;
  static constexpr bool kIs8Bit = Constants::kBits == 8;
  static constexpr int kMantissa = Format::kMantissaBits, kExponentMin = Constants::kExponentMin;
  static constexpr int kSignShift = Constants::kBits - 1;
  static constexpr int64_t kLargest = Constants::kMaxFinite, kBeyond = kLargest + (kIs8Bit ? 0 : 1);
};
using OutF32 = OutOf<Float32>;
using OutBF16 = OutOf<BFloat16>;
using OutF16 = OutOf<Float16>;
using OutE4M3 = OutOf<E4M3>;
using OutE5M2 = OutOf<E5M2>;

QG_HOST_DEVICE inline Vector Magnitude(Vector x) { return Number(Bits(x) & 0x7FFFFFFFFFFFFFFF); }

// RNE of finite |x| < 2^900 to the format, as codes. x is divided by its binade (by that of the
// smallest normal number where x is below it), so that adding 2^52 rounds it to a whole number of
// ulps; that number and the binade add up to the code, carries included.
template <class Out>
QG_HOST_DEVICE inline Words RoundToCode(Vector x) {
  constexpr double kSmallestNormal =
      __builtin_bit_cast(double, uint64_t(Out::kExponentMin + 1023) << 52);
  const Vector smallest_normal = Broadcast(kSmallestNormal);
  const Vector own_binade = Number(Bits(x) & 0x7FF0000000000000);
  const Vector binade = own_binade > smallest_normal ? own_binade : smallest_normal;
  const Vector inverse = Number(0x7FE0000000000000 - Bits(binade));
  const Vector ulps = Magnitude(x) * inverse * double(1 << Out::kMantissa) + 0x1p52;
  const Words field = (Bits(binade) >> 52) - (Out::kExponentMin + 1023);
  const Words code = (field << Out::kMantissa) + (Bits(ulps) & 0xFFFFFFFF);
  const Words beyond = Words{} + Out::kBeyond;
  const Words bounded = code > Out::kLargest ? beyond : code;
  const Words sign = Words{} + (int64_t(1) << Out::kSignShift);
  return bounded | (Bits(x) < 0 ? sign : Words{});
}

// An interval around a real number: |real - middle| <= radius. Radius 0 means exact.
struct Interval {
  Vector middle;
  Vector radius;
};

// How far from the middle the ends of the interval are taken: the radius plus more than the
// rounding errors of the ends, which are 2^-53 of |middle| + radius.
QG_HOST_DEVICE inline Vector Slack(const Interval& v) {
  const Vector wide = v.radius * (1 + 0x1p-40) + Magnitude(v.middle) * 0x1p-52;
  return v.radius == 0 ? Broadcast(0) : wide;
}

// middle + term, with the rounding error found by TwoSum (Knuth) in the radius.
QG_HOST_DEVICE inline Interval AddTerm(const Interval& v, Vector term) {
  const Vector sum = v.middle + term;
  const Vector part = sum - v.middle;
  const Vector error = (v.middle - (sum - part)) + (term - part);
  return {sum, v.radius + Magnitude(error)};
}

// The unrounded output j. The radius loses less than 2^-50 of itself by its own roundings, which
// Slack covers.
QG_HOST_DEVICE inline Interval ValueOf(const ExactRow& row, int64_t j) {
  const Vector s = Load(row.s + j);
  const Vector norms = row.norm_a * Load(row.norm_b + j);
  const Vector bound = row.relative_error * norms;
  const Vector error = norms < row.lowest_bit_a * Load(row.lowest_bit_b + j) ? Broadcast(0) : bound;
  const Vector coefficient = Broadcast(row.coefficient);
  const Vector scale_b = Load(row.scale_b + j);
  const Vector high = coefficient * scale_b;
  const Vector low = ProductError(coefficient, scale_b, high);
  const Vector product = high * s;
  const Vector product_error = ProductError(high, s, product);
  const Vector radius = Magnitude(high) * error + Magnitude(low) * error + Magnitude(low * s) +
                        Magnitude(product_error) + Magnitude(product) * row.coefficient_error;
  return AddTerm(AddTerm({product, radius}, Load(row.addend + j)), Load(row.bias + j));
}

struct Certified {
  Words codes;
  Words amax;   // 8-bit formats: f32(|v|) before d_scale, as bits; else 0.
  Words doubt;  // 1: not certain, or not finite; else 0.
};

template <class Out>
QG_HOST_DEVICE inline Certified CertifyAt(const ExactRow& row, int64_t j) {
  Interval v = ValueOf(row, j);
  Certified result{};
  Words uncertain{};
  if constexpr (Out::kIs8Bit) {
    const Vector slack = Slack(v);
    result.amax = RoundToCode<OutF32>(Magnitude(v.middle) - slack);
    uncertain = result.amax ^ RoundToCode<OutF32>(Magnitude(v.middle) + slack);
    const Vector d_scale = Broadcast(row.d_scale);
    const Vector scaled = v.middle * d_scale;
    const Vector error = ProductError(v.middle, d_scale, scaled);
    v = {scaled, v.radius * Magnitude(d_scale) + Magnitude(error)};
  }
  const Vector slack = Slack(v);
  // Adding +0 turns a -0 from 0 * negative into the +0 of an exact zero.
  result.codes = RoundToCode<Out>((v.middle + 0.0) - slack);
  uncertain |= result.codes ^ RoundToCode<Out>((v.middle + 0.0) + slack);
  const Words doubtful = Words{} + 1;
  const Words certain = uncertain != 0 ? doubtful : Words{};
  // False for NaN and Inf, from the dot product or from any factor.
  result.doubt = Magnitude(v.middle) + v.radius < 0x1p900 ? certain : doubtful;
  return result;
}
