// The decoders of GEMM operands against Unpack on every instruction set: all codes of every format
// but f32, of which those around the ties of tf32 in every binade.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/gemm/models/panel.h"
#include "kernels/gemm/operand_formats.h"
#include "kernels/numerics/fused_step.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace QG_TEST_FILE {

std::vector<uint32_t> CodesOf(DType dtype) {
  std::vector<uint32_t> codes;
  if (dtype != DType::kF32) {
    const size_t count = size_t{1} << (8 * DTypeBytes(dtype));
    for (uint32_t code = 0; code < count; ++code) codes.push_back(code);
    return codes;
  }
  for (uint32_t upper = 0; upper < 1 << 9; ++upper) {
    for (const uint32_t mantissa : {0u, 1u, 0xFFFu, 0x1000u, 0x1001u, 0x2FFFu, 0x3000u, 0x3001u,
                                    0x400000u, 0x7FEFFFu, 0x7FF000u, 0x7FFFFFu}) {
      codes.push_back(upper << 23 | mantissa);
    }
  }
  return codes;
}

/// The codes as an operand holds them.
std::vector<std::byte> Stored(DType dtype, const std::vector<uint32_t>& codes) {
  const auto width = static_cast<size_t>(DTypeBytes(dtype));
  std::vector<std::byte> bytes(codes.size() * width);
  for (size_t i = 0; i < codes.size(); ++i) std::memcpy(&bytes[i * width], &codes[i], width);
  return bytes;
}

struct Expected {
  double value;
  int exponent;
};

template <class Panel>
Expected ExpectedOf(DType dtype, uint32_t code) {
  Unpacked u = {};
  int mantissa_bits = 0;
  VisitFormat<OperandFormats>(dtype, [&]<class F>() {
    if (dtype == DType::kF32) code = RoundToTf32(code);
    constexpr int kBits = FormatConstants<F>::kBits;
    const uint32_t mask = kBits < 8 ? (1u << kBits) - 1 : 0xFFFFFFFF;  // In the low bits of bytes.
    u = Unpack<F>(static_cast<typename F::Storage>(code & mask));
    mantissa_bits = F::kMantissaBits;
  });
  if (u.kind != FloatClass::kFinite) return {0.0, Panel::kExponentOfZero};
  const double magnitude =
      std::ldexp(static_cast<double>(u.significand), u.exponent - mantissa_bits);
  return {u.negative ? -magnitude : magnitude, u.exponent};
}

/// Rows of several lengths from several places: decoders may take many codes together.
template <class Panel>
void ExpectRows(const PanelKernels<Panel>& kernels, DType dtype) {
  const std::vector<uint32_t> codes = CodesOf(dtype);
  const std::vector<std::byte> bytes = Stored(dtype, codes);
  const auto all = static_cast<int64_t>(codes.size());
  for (const int64_t begin : {int64_t{0}, int64_t{7}}) {
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{15}, int64_t{240}, all - begin}) {
      // One more, which must stay as it is.
      std::vector<typename Panel::Value> values(static_cast<size_t>(count + 1), 77);
      std::vector<typename Panel::Exponent> exponents(static_cast<size_t>(count + 1), 77);
      kernels.decode_row(bytes.data() + begin * DTypeBytes(dtype), dtype, count, values.data(),
                         exponents.data());
      for (int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(i);
        const uint32_t code = codes[static_cast<size_t>(begin + i)];
        const Expected expected = ExpectedOf<Panel>(dtype, code);
        ASSERT_EQ(values[at], expected.value) << code;
        ASSERT_FALSE(values[at] == 0 && std::signbit(values[at])) << code;
        ASSERT_EQ(exponents[at], expected.exponent) << code;
      }
      ASSERT_EQ(values.back(), 77);
      ASSERT_EQ(exponents.back(), 77);
    }
  }
}

template <class Panel>
void ExpectColumns(const PanelKernels<Panel>& kernels, DType dtype) {
  constexpr size_t kColumns = Panel::kColumns;
  const std::vector<uint32_t> codes = CodesOf(dtype);
  ASSERT_EQ(codes.size() % kColumns, 0u);
  std::vector<typename Panel::Value> values(2 * codes.size());
  std::vector<typename Panel::Exponent> exponents(codes.size());
  kernels.decode_columns(Stored(dtype, codes).data(), dtype,
                         static_cast<int>(codes.size() / kColumns), values.data(),
                         exponents.data());
  for (size_t i = 0; i < codes.size(); ++i) {
    const Expected expected = ExpectedOf<Panel>(dtype, codes[i]);
    const size_t positive = i / kColumns * 2 * kColumns + i % kColumns;
    ASSERT_EQ(values[positive], std::fmax(expected.value, 0.0)) << codes[i];
    ASSERT_EQ(values[positive + kColumns], std::fmin(expected.value, 0.0)) << codes[i];
    ASSERT_EQ(exponents[i], expected.exponent) << codes[i];
  }
}

TEST(PanelDecode, EveryFormatOnEveryInstructionSet) {
  for (const Isa isa : RunnableIsas()) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3,
                              DType::kF8E5M2, DType::kF6E2M3, DType::kF6E3M2, DType::kF4E2M1x2}) {
      SCOPED_TRACE(std::string(IsaName(isa)) + " " + std::string(DTypeName(dtype)));
      ExpectRows(KernelsFor(isa).wide, dtype);
      ExpectColumns(KernelsFor(isa).wide, dtype);
      if (dtype != DType::kF8E4M3 && dtype != DType::kF8E5M2) continue;
      ExpectRows(KernelsFor(isa).narrow, dtype);
      ExpectColumns(KernelsFor(isa).narrow, dtype);
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
