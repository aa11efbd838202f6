// The loops behind ExactKernels, for one instruction set: included once by each
// exact_kernels_<isa>.cc, after it has defined Vector, kLanes, kPanelVectors, kPanelRows, Load,
// Store, Broadcast and MultiplyAdd in its anonymous namespace. Everything here has internal linkage
// for the reason given in exact_kernels.h.

constexpr int kBPanelRows = kLanes * kPanelVectors;

// Element decoders. An f16 significand shifted into place is scaled by 2^112, which is exact for
// subnormals too.
struct DecodeF32 {
  using Element = float;
  static double Decode(float x, const double*) { return static_cast<double>(x); }
};
struct DecodeBF16 {
  using Element = uint16_t;
  static double Decode(uint16_t x, const double*) {
    return static_cast<double>(__builtin_bit_cast(float, static_cast<uint32_t>(x) << 16));
  }
};
struct DecodeF16 {
  using Element = uint16_t;
  static double Decode(uint16_t x, const double*) {
    const uint32_t magnitude = static_cast<uint32_t>(x & 0x7FFF) << 13;
    const float finite = __builtin_bit_cast(float, magnitude) * 0x1p112f;
    const uint32_t special = magnitude | 0x7F800000u;
    const uint32_t bits = magnitude >= 0x0F800000u ? special : __builtin_bit_cast(uint32_t, finite);
    const uint32_t sign = static_cast<uint32_t>(x & 0x8000) << 16;
    return static_cast<double>(__builtin_bit_cast(float, bits | sign));
  }
};
struct DecodeTable {
  using Element = uint8_t;
  static double Decode(uint8_t x, const double* table) { return table[x]; }
};

template <class Decoder, bool kAbsolute>
inline double DecodeElement(typename Decoder::Element x, const ExactSource& source) {
  const double value = Decoder::Decode(x, source.table);
  if constexpr (!kAbsolute) return value;
  const double magnitude = __builtin_fabs(value);
  return magnitude == 0 ? 0.0 : magnitude + source.floor;
}

template <class Decoder, bool kAbsolute, int kRows>
void PackPanel(const ExactSource& source, int64_t row, int64_t k_begin, int64_t count,
               double* panel) {
  using Element = typename Decoder::Element;
  const auto* base = static_cast<const Element*>(source.elements) + row * source.row_stride +
                     k_begin * source.k_stride;
  const int64_t left = source.rows - row;
  const int rows = left < kRows ? static_cast<int>(left) : kRows;
  if (rows < kRows) {
    for (int64_t i = 0; i < count * kRows; ++i) panel[i] = 0;
  }
  if (source.row_stride == 1) {
    for (int64_t k = 0; k < count; ++k) {
      const Element* in = base + k * source.k_stride;
      double* out = panel + k * kRows;
      if (rows == kRows) {
        for (int r = 0; r < kRows; ++r) out[r] = DecodeElement<Decoder, kAbsolute>(in[r], source);
      } else {
        for (int r = 0; r < rows; ++r) out[r] = DecodeElement<Decoder, kAbsolute>(in[r], source);
      }
    }
    return;
  }
  // Transposes in strips of 8 columns, which keeps the strip of the panel in the L1 cache.
  int64_t k = 0;
  for (; k + 8 <= count; k += 8) {
    for (int r = 0; r < rows; ++r) {
      const Element* in = base + r * source.row_stride + k;
      double strip[8];
      for (int i = 0; i < 8; ++i) strip[i] = DecodeElement<Decoder, kAbsolute>(in[i], source);
      for (int i = 0; i < 8; ++i) panel[(k + i) * kRows + r] = strip[i];
    }
  }
  for (; k < count; ++k) {
    for (int r = 0; r < rows; ++r) {
      panel[k * kRows + r] =
          DecodeElement<Decoder, kAbsolute>(base[r * source.row_stride + k], source);
    }
  }
}

template <class Decoder>
void Pack(const ExactSource& source, int64_t row, int panel_rows, int64_t k_begin, int64_t count,
          double* panel) {
  const bool is_a = panel_rows == kPanelRows;
  if (source.absolute) {
    is_a ? PackPanel<Decoder, true, kPanelRows>(source, row, k_begin, count, panel)
         : PackPanel<Decoder, true, kBPanelRows>(source, row, k_begin, count, panel);
  } else {
    is_a ? PackPanel<Decoder, false, kPanelRows>(source, row, k_begin, count, panel)
         : PackPanel<Decoder, false, kBPanelRows>(source, row, k_begin, count, panel);
  }
}

// The lowest set bit of a nonzero double, as a value: x minus x without that bit, or |x| for a
// power of two.
inline double LowestBit(double x) {
  const uint64_t bits = __builtin_bit_cast(uint64_t, x) & 0x7FFFFFFFFFFFFFFFu;
  const uint64_t mantissa = bits & 0x000FFFFFFFFFFFFFu;
  const double magnitude = __builtin_bit_cast(double, bits);
  const double rest = __builtin_bit_cast(double, bits ^ (mantissa & (0 - mantissa)));
  return mantissa == 0 ? magnitude : magnitude - rest;
}

template <int kRows>
void AccumulatePanel(const double* panel, int64_t count, const ExactRowStatistics& rows) {
  double sums[kRows];
  double lowest[kRows];
  for (int r = 0; r < kRows; ++r) sums[r] = rows.sum_squares[r];
  for (int r = 0; r < kRows; ++r) lowest[r] = rows.lowest_bit[r];
  for (int64_t k = 0; k < count; ++k) {
    for (int r = 0; r < kRows; ++r) {
      const double x = panel[k * kRows + r];
      const double bit = x == 0 ? __builtin_inf() : LowestBit(x);
      sums[r] += x * x;
      lowest[r] = bit < lowest[r] ? bit : lowest[r];
    }
  }
  for (int r = 0; r < kRows; ++r) rows.sum_squares[r] = sums[r];
  for (int r = 0; r < kRows; ++r) rows.lowest_bit[r] = lowest[r];
}

void AccumulateStatistics(const double* panel, int panel_rows, int64_t count,
                          const ExactRowStatistics& rows) {
  panel_rows == kPanelRows ? AccumulatePanel<kPanelRows>(panel, count, rows)
                           : AccumulatePanel<kBPanelRows>(panel, count, rows);
}

void Multiply(const double* a, const double* b, int64_t count, double* s, int64_t stride) {
  Vector sums[kPanelRows][kPanelVectors];
  for (int i = 0; i < kPanelRows; ++i) {
    for (int j = 0; j < kPanelVectors; ++j) sums[i][j] = Broadcast(0);
  }
  for (int64_t k = 0; k < count; ++k) {
    Vector columns[kPanelVectors];
    for (int j = 0; j < kPanelVectors; ++j) columns[j] = Load(b + j * kLanes);
    for (int i = 0; i < kPanelRows; ++i) {
      const Vector row = Broadcast(a[i]);
      for (int j = 0; j < kPanelVectors; ++j) {
        sums[i][j] = MultiplyAdd(row, columns[j], sums[i][j]);
      }
    }
    a += kPanelRows;
    b += kBPanelRows;
  }
  for (int i = 0; i < kPanelRows; ++i) {
    for (int j = 0; j < kPanelVectors; ++j) {
      double* out = s + i * stride + j * kLanes;
      Store(out, Load(out) + sums[i][j]);
    }
  }
}

// The facts of a format that rounding needs (float_format.h has them for the rest of the engine).
struct OutF32 {
  static constexpr int kMantissa = 23, kExponentMin = -126, kSignShift = 31;
  static constexpr int64_t kLargest = 0x7F7FFFFF, kBeyond = 0x7F800000;
  static constexpr bool kIs8Bit = false;
};
struct OutBF16 {
  static constexpr int kMantissa = 7, kExponentMin = -126, kSignShift = 15;
  static constexpr int64_t kLargest = 0x7F7F, kBeyond = 0x7F80;
  static constexpr bool kIs8Bit = false;
};
struct OutF16 {
  static constexpr int kMantissa = 10, kExponentMin = -14, kSignShift = 15;
  static constexpr int64_t kLargest = 0x7BFF, kBeyond = 0x7C00;
  static constexpr bool kIs8Bit = false;
};
struct OutE4M3 {
  static constexpr int kMantissa = 3, kExponentMin = -6, kSignShift = 7;
  static constexpr int64_t kLargest = 0x7E, kBeyond = 0x7E;
  static constexpr bool kIs8Bit = true;
};
struct OutE5M2 {
  static constexpr int kMantissa = 2, kExponentMin = -14, kSignShift = 7;
  static constexpr int64_t kLargest = 0x7B, kBeyond = 0x7B;
  static constexpr bool kIs8Bit = true;
};

typedef int64_t Words __attribute__((vector_size(kLanes * sizeof(int64_t))));
typedef uint32_t Codes
    __attribute__((vector_size(kLanes * sizeof(uint32_t)), aligned(4), may_alias));
typedef uint8_t Flags __attribute__((vector_size(kLanes), aligned(1), may_alias));

inline Vector Magnitude(Vector x) { return (Vector)((Words)x & 0x7FFFFFFFFFFFFFFF); }

// RNE of finite |x| < 2^900 to the format, as codes. x is divided by its binade (that of the
// smallest normal for what lies below), so that adding 2^52 rounds it to an integer number of ulps;
// that integer and the binade add up to the code, carries included.
template <class Out>
inline Words RoundToCode(Vector x) {
  constexpr double kSmallestNormal =
      __builtin_bit_cast(double, uint64_t(Out::kExponentMin + 1023) << 52);
  const Vector smallest_normal = Broadcast(kSmallestNormal);
  const Vector own_binade = (Vector)((Words)x & 0x7FF0000000000000);
  const Vector binade = own_binade > smallest_normal ? own_binade : smallest_normal;
  const Vector inverse = (Vector)(0x7FE0000000000000 - (Words)binade);
  const Vector ulps = Magnitude(x) * inverse * double(1 << Out::kMantissa) + 0x1p52;
  const Words field = ((Words)binade >> 52) - (Out::kExponentMin + 1023);
  const Words code = (field << Out::kMantissa) + ((Words)ulps & 0xFFFFFFFF);
  const Words beyond = Words{} + Out::kBeyond;
  const Words bounded = code > Out::kLargest ? beyond : code;
  return bounded | (((Words)x < 0) & (int64_t(1) << Out::kSignShift));
}

// An interval around a real number: |real - middle| <= radius. Radius 0: exact.
struct Interval {
  Vector middle;
  Vector radius;
};

// How far the ends of the interval are moved outwards: more than their own rounding errors, 2^-53
// of |middle| + radius.
inline Vector Slack(const Interval& v) {
  const Vector wide = v.radius * (1 + 0x1p-40) + Magnitude(v.middle) * 0x1p-52;
  return v.radius == 0 ? Broadcast(0) : wide;
}

// middle + term, with the rounding error found by TwoSum (Knuth) in the radius.
inline Interval AddTerm(const Interval& v, Vector term) {
  const Vector sum = v.middle + term;
  const Vector part = sum - v.middle;
  const Vector error = (v.middle - (sum - part)) + (term - part);
  return {sum, v.radius + Magnitude(error)};
}

// Each step's own rounding of the radius is below 2^-50 of it; Slack covers them all.
inline Interval ValueOf(const ExactRow& row, int64_t j) {
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

template <class Out>
void Certify(const ExactRow& row, uint32_t* codes, uint32_t* amax, uint8_t* doubt) {
  for (int64_t j = 0; j < row.count; j += kLanes) {
    Interval v = ValueOf(row, j);
    Words uncertain{};
    if constexpr (Out::kIs8Bit) {
      const Vector slack = Slack(v);
      const Words lower = RoundToCode<OutF32>(Magnitude(v.middle) - slack);
      const Words upper = RoundToCode<OutF32>(Magnitude(v.middle) + slack);
      *reinterpret_cast<Codes*>(amax + j) = __builtin_convertvector(lower, Codes);
      uncertain = lower ^ upper;
      const Vector d_scale = Broadcast(row.d_scale);
      const Vector scaled = v.middle * d_scale;
      const Vector error = ProductError(v.middle, d_scale, scaled);
      v = {scaled, v.radius * Magnitude(d_scale) + Magnitude(error)};
    }
    const Vector slack = Slack(v);
    // Adding +0 turns a -0 from 0 * negative into the +0 of an exact zero.
    const Words lower = RoundToCode<Out>((v.middle + 0.0) - slack);
    const Words upper = RoundToCode<Out>((v.middle + 0.0) + slack);
    *reinterpret_cast<Codes*>(codes + j) = __builtin_convertvector(lower, Codes);
    uncertain |= lower ^ upper;
    // False for NaN and Inf, from the dot product or from any factor.
    const Words finite = Magnitude(v.middle) + v.radius < 0x1p900;
    const Words doubtful = ((uncertain != 0) | ~finite) & 1;
    *reinterpret_cast<Flags*>(doubt + j) = __builtin_convertvector(doubtful, Flags);
  }
}

constexpr ExactKernels kKernels = {
    kPanelRows,
    kBPanelRows,
    {Pack<DecodeF32>, Pack<DecodeBF16>, Pack<DecodeF16>, Pack<DecodeTable>},
    AccumulateStatistics,
    Multiply,
    {Certify<OutF32>, Certify<OutBF16>, Certify<OutF16>, Certify<OutE4M3>, Certify<OutE5M2>},
};
