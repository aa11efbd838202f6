// The loops behind ExactKernels for one instruction set. Each exact_kernels_<isa>.cc includes this
// once in its anonymous namespace, after it has defined Vector, kLanes, kPanelVectors, kPanelRows,
// Load, Store, Broadcast and MultiplyAdd. Everything here has internal linkage for the reason given
// in exact_kernels.h.

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

typedef int64_t Words __attribute__((vector_size(kLanes * sizeof(int64_t))));
typedef uint32_t Codes
    __attribute__((vector_size(kLanes * sizeof(uint32_t)), aligned(4), may_alias));
typedef uint8_t Flags __attribute__((vector_size(kLanes), aligned(1), may_alias));

inline Words Bits(Vector x) { return (Words)x; }
inline Vector Number(Words x) { return (Vector)x; }

#include "kernels/gemm/exact/exact_certify_body.h"

template <class Out>
void Certify(const ExactRow& row, uint32_t* codes, uint32_t* amax, uint8_t* doubt) {
  for (int64_t j = 0; j < row.count; j += kLanes) {
    const Certified result = CertifyAt<Out>(row, j);
    *reinterpret_cast<Codes*>(codes + j) = __builtin_convertvector(result.codes, Codes);
    if constexpr (Out::kIs8Bit) {
      *reinterpret_cast<Codes*>(amax + j) = __builtin_convertvector(result.amax, Codes);
    }
    *reinterpret_cast<Flags*>(doubt + j) = __builtin_convertvector(result.doubt, Flags);
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
