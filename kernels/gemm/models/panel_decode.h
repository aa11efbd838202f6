// Decodes codes into packed panels by plain loops, which each kernel file compiles for its own
// instruction set. Everything is a template on a type that is local to that file, so that no
// function built for one instruction set is linked into callers of another.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/gemm/models/panel.h"
#include "kernels/gemm/operand_formats.h"
#include "kernels/numerics/float_format.h"
#include "kernels/numerics/fused_step.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {

template <class Local>
struct PanelDecode {
  template <class Panel>
  struct Element {
    typename Panel::Value value;
    typename Panel::Exponent exponent;
  };

  /// An exact power of two in the value type.
  static inline float PowerOfTwo(float, int32_t exponent) {
    return std::bit_cast<float>((exponent + 127) << 23);
  }
  static inline double PowerOfTwo(double, int32_t exponent) {
    return std::bit_cast<double>(static_cast<int64_t>(exponent + 1023) << 52);
  }

  template <class Panel, class Format>
  static inline Element<Panel> DecodeOne(uint32_t code) {
    using C = FormatConstants<Format>;
    using Value = typename Panel::Value;
    // FP6 and FP4 codes fill the low bits of their bytes.
    if constexpr (C::kBits < 8) code &= (1u << C::kBits) - 1;
    const uint32_t magnitude = code & ~static_cast<uint32_t>(C::kSignMask);
    const int32_t field = static_cast<int32_t>(magnitude >> Format::kMantissaBits);
    // Arithmetic instead of conditions, which compilers turn into branches for E2M1's few fields.
    const int32_t is_normal = field != 0;
    const int32_t exponent = field + 1 - is_normal - Format::kBias;
    const int32_t significand =
        static_cast<int32_t>(magnitude & C::kMantissaMask) | is_normal << Format::kMantissaBits;
    const bool keep = magnitude != 0 && magnitude <= C::kMaxFinite;
    const Value absolute =
        static_cast<Value>(significand) * PowerOfTwo(Value(), exponent - Format::kMantissaBits);
    const Value value = (code & C::kSignMask) != 0 ? -absolute : absolute;
    return {keep ? value : Value(0),
            keep ? static_cast<typename Panel::Exponent>(exponent) : Panel::kExponentOfZero};
  }

  template <class Format>
  static inline uint32_t Load(const typename Format::Storage* codes, int64_t index) {
    if constexpr (Format::kMantissaBits == 23) return RoundToTf32(codes[index]);
    return codes[index];
  }

  template <class Panel, class Format>
  static void Row(const void* source, int64_t count, typename Panel::Value* __restrict values,
                  typename Panel::Exponent* __restrict exponents) {
    constexpr int64_t kRun = 256;
    const auto* codes = static_cast<const typename Format::Storage*>(source);
    for (int64_t begin = 0; begin < count; begin += kRun) {
      const int64_t length = count - begin < kRun ? count - begin : kRun;
      // As in Columns; compilers do not vectorise a loop in which tf32 treats NaN separately
      // either.
      uint32_t run[kRun];
      for (int64_t i = 0; i < length; ++i) run[i] = Load<Format>(codes, begin + i);
      for (int64_t i = 0; i < length; ++i) {
        const Element<Panel> element = DecodeOne<Panel, Format>(run[i]);
        values[begin + i] = element.value;
        exponents[begin + i] = element.exponent;
      }
    }
  }

  template <class Panel, class Format>
  static void Columns(const void* source, int depth, typename Panel::Value* __restrict values,
                      typename Panel::Exponent* __restrict exponents) {
    using Value = typename Panel::Value;
    constexpr int kColumns = Panel::kColumns;
    const auto* codes = static_cast<const typename Format::Storage*>(source);
    for (int k = 0; k < depth; ++k) {
      // Widened to 32 bits first, since compilers do not vectorise a loop from bytes to doubles.
      uint32_t row[kColumns];
      for (int j = 0; j < kColumns; ++j) row[j] = Load<Format>(codes, int64_t(k) * kColumns + j);
      for (int j = 0; j < kColumns; ++j) {
        const Element<Panel> element = DecodeOne<Panel, Format>(row[j]);
        values[2 * k * kColumns + j] = element.value > 0 ? element.value : Value(0);
        values[(2 * k + 1) * kColumns + j] = element.value < 0 ? element.value : Value(0);
        exponents[k * kColumns + j] = element.exponent;
      }
    }
  }

  static void NarrowRow(const void* codes, DType dtype, int64_t count, float* values,
                        int8_t* exponents) {
    if (dtype == DType::kF8E4M3) return Row<NarrowPanel, E4M3>(codes, count, values, exponents);
    Row<NarrowPanel, E5M2>(codes, count, values, exponents);
  }

  static void NarrowColumns(const void* codes, DType dtype, int depth, float* values,
                            int8_t* exponents) {
    if (dtype == DType::kF8E4M3) return Columns<NarrowPanel, E4M3>(codes, depth, values, exponents);
    Columns<NarrowPanel, E5M2>(codes, depth, values, exponents);
  }

  static void WideRow(const void* codes, DType dtype, int64_t count, double* values,
                      int16_t* exponents) {
    VisitFormat<OperandFormats>(
        dtype, [&]<class Format>() { Row<WidePanel, Format>(codes, count, values, exponents); });
  }

  static void WideColumns(const void* codes, DType dtype, int depth, double* values,
                          int16_t* exponents) {
    VisitFormat<OperandFormats>(dtype, [&]<class Format>() {
      Columns<WidePanel, Format>(codes, depth, values, exponents);
    });
  }
};

}  // namespace quantgate
