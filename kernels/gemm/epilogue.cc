#include "kernels/gemm/epilogue.h"

#include <algorithm>

#include "kernels/gemm/epilogue_step.h"
#include "kernels/gemm/scaling_check.h"
#include "kernels/numerics/cast.h"

namespace quantgate {
namespace {

namespace steps = epilogue_steps;

/// Decodes `count` elements from index `begin` of a f32, bf16, f16 or FP8 array.
void Decode(DType dtype, const std::byte* data, int64_t begin, int64_t count, float* out) {
  const auto decode = [&]<class Format>(Format) {
    const auto* codes = reinterpret_cast<const typename Format::Storage*>(data) + begin;
    for (int64_t i = 0; i < count; ++i) out[i] = DecodeFloat<Format>(codes[i]);
  };
  switch (dtype) {
    case DType::kBF16:
      return decode(BFloat16());
    case DType::kF16:
      return decode(Float16());
    case DType::kF8E4M3:
      return decode(E4M3());
    case DType::kF8E5M2:
      return decode(E5M2());
    default: {
      const float* values = reinterpret_cast<const float*>(data) + begin;
      std::copy(values, values + count, out);
    }
  }
}

template <class Format>
void EncodeRow(const float* values, int columns, typename Format::Storage* out) {
  for (int i = 0; i < columns; ++i) out[i] = EncodeFloat<Format>(values[i]);
}

/// steps::Product of each value.
void ScaleBy(float coefficient, bool keeps_negative_zero, int columns, float* values) {
  if (keeps_negative_zero) {
    for (int i = 0; i < columns; ++i) values[i] = steps::Product(values[i], coefficient, true);
  } else {
    for (int i = 0; i < columns; ++i) values[i] = steps::Product(values[i], coefficient, false);
  }
}

float ScalarOf(const GemmOperand& operand) {
  return operand.scaling == ScaleMode::kTensor ? *operand.scale_inv.as<float>() : 1.0f;
}

/// rnd(value) as fp32: the rounding to the output type before c is added.
void RoundToDType(DType dtype, int columns, float* values) {
  if (dtype == DType::kBF16) {
    for (int i = 0; i < columns; ++i) {
      values[i] = DecodeFloat<BFloat16>(steps::EncodeBFloat16(values[i]));
    }
  } else if (dtype == DType::kF16) {
    for (int i = 0; i < columns; ++i) {
      values[i] = DecodeFloat<Float16>(EncodeFloat<Float16>(values[i]));
    }
  }
}

}  // namespace

// Transformer Engine's order: alpha is multiplied by the amaxes, the N side's first, and then by
// the constant reciprocal of the largest codes.
float Nvfp4Coefficient(const GemmDesc& desc) {
  const auto amax_of = [&](const GemmOperand& operand) {
    return operand.amax.has_value() && !IsRowScaled(desc.a) ? *operand.amax.as<float>() : 1.0f;
  };
  return steps::Coefficient(desc.alpha, amax_of(desc.b), amax_of(desc.a)) * Nvfp4Reciprocal(desc);
}

float Nvfp4Reciprocal(const GemmDesc& desc) {
  int largest = 1;  // At most 6^2 * 448^2, exact in fp32.
  for (const GemmOperand* operand : {&desc.b, &desc.a}) {
    if (operand->amax.has_value()) largest *= 6 * operand->e4m3_max;
  }
  return 1.0f / static_cast<float>(largest);
}

Combination CombinationOf(const GemmDesc& desc) {
  const Arithmetic arithmetic = desc.arithmetic.Resolved();
  if (arithmetic.family == ArithmeticFamily::kSm90 && arithmetic.split_k > 1) {
    return Combination::kSplitK;
  }
  return desc.in_place && desc.beta == 1 ? Combination::kInPlace : Combination::kFused;
}

bool KeepsNegativeZero(const GemmDesc& desc) {
  return CombinationOf(desc) == Combination::kSplitK ||
         (desc.alpha == 1 && IsFp8Block(desc.a.scaling));
}

Epilogue::Epilogue(const GemmDesc& desc, const GemmShape& shape, Tensor& d)
    : out_dtype_(desc.out_dtype),
      n_(shape.n),
      d_(d.has_value() ? d.data() : nullptr),
      combination_(CombinationOf(desc)),
      keeps_negative_zero_(KeepsNegativeZero(desc)),
      beta_(desc.beta),
      c_(desc.c) {
  if (desc.a.scaling == ScaleMode::kNv16) {
    coefficient_ = Nvfp4Coefficient(desc);
    SetRowFactors(desc);
  } else if (desc.a.scaling == ScaleMode::kOuter) {
    row_scale_ = desc.a.scale_inv.as<float>();
    column_scale_ = desc.b.scale_inv.as<float>();
    coefficient_ = desc.alpha;
  } else {
    coefficient_ = steps::Coefficient(desc.alpha, ScalarOf(desc.b), ScalarOf(desc.a));
  }
  if (desc.bias.has_value()) {
    bias_.resize(shape.n);
    Decode(desc.bias.dtype(), desc.bias.data(), 0, shape.n, bias_.data());
  }
  if (desc.d_scale.has_value()) d_scale_ = *desc.d_scale.as<float>();
}

// A row-scaled operand keeps both amaxes out of the GEMM, whose fp32 result is multiplied by their
// products.
void Epilogue::SetRowFactors(const GemmDesc& desc) {
  if (!IsRowScaled(desc.a)) return;
  const float column_amax = desc.b.amax.has_value() ? *desc.b.amax.as<float>() : 1.0f;
  row_factor_.resize(desc.a.amax.element_count());
  for (size_t row = 0; row < row_factor_.size(); ++row) {
    row_factor_[row] = desc.a.amax.as<float>()[row] * column_amax;
  }
}

void Epilogue::ScaleByVectors(int64_t row, int64_t column, int columns, float* values) const {
  if (row_scale_ == nullptr) return;
  const float row_scale = row_scale_[row];
  for (int i = 0; i < columns; ++i) {
    values[i] = steps::ScaleByVectors(values[i], column_scale_[column + i], row_scale);
  }
}

void Epilogue::AddBias(int64_t column, int columns, float* values) const {
  if (bias_.empty()) return;
  const float* const bias = bias_.data() + column;
  for (int i = 0; i < columns; ++i) values[i] = values[i] + bias[i];
}

void Epilogue::Combine(int64_t row, int64_t column, int columns, float* values) const {
  if (beta_ == 0) {
    ScaleBy(coefficient_, keeps_negative_zero_, columns, values);
    if (!row_factor_.empty()) {
      for (int i = 0; i < columns; ++i) values[i] = values[i] * row_factor_[row];
    }
    return AddBias(column, columns, values);
  }
  float c[kColumnsMax];
  Decode(c_.dtype(), c_.data(), row * n_ + column, columns, c);
  switch (combination_) {
    case Combination::kFused:
      for (int i = 0; i < columns; ++i) {
        values[i] = steps::CombineFused(values[i], coefficient_, beta_, c[i]);
      }
      return AddBias(column, columns, values);
    case Combination::kInPlace:
      for (int i = 0; i < columns; ++i) values[i] = steps::ProductPlusZero(values[i], coefficient_);
      AddBias(column, columns, values);
      RoundToDType(out_dtype_, columns, values);
      for (int i = 0; i < columns; ++i) values[i] = values[i] + c[i];
      return;
    case Combination::kSplitK:
      for (int i = 0; i < columns; ++i) {
        values[i] = steps::CombineSplitK(values[i], coefficient_, beta_, c[i]);
      }
      return AddBias(column, columns, values);
  }
}

uint32_t Epilogue::Store(int columns, float* values, std::byte* destination) const {
  switch (out_dtype_) {
    case DType::kBF16: {
      auto* out = reinterpret_cast<uint16_t*>(destination);
      for (int i = 0; i < columns; ++i) out[i] = steps::EncodeBFloat16(values[i]);
      return 0;
    }
    case DType::kF16:
      EncodeRow<Float16>(values, columns, reinterpret_cast<uint16_t*>(destination));
      return 0;
    case DType::kF8E4M3:
    case DType::kF8E5M2: {
      uint32_t amax = 0;
      for (int i = 0; i < columns; ++i) {
        amax = std::max(amax, steps::AmaxBits(values[i], combination_));
      }
      ScaleBy(d_scale_, keeps_negative_zero_, columns, values);
      auto* out = reinterpret_cast<uint8_t*>(destination);
      if (out_dtype_ == DType::kF8E4M3) {
        EncodeRow<E4M3>(values, columns, out);
      } else {
        EncodeRow<E5M2>(values, columns, out);
      }
      return amax;
    }
    default: {
      auto* out = reinterpret_cast<float*>(destination);
      for (int i = 0; i < columns; ++i) out[i] = CanonicalFloat(values[i]);
      return 0;
    }
  }
}

uint32_t Epilogue::Apply(int64_t row, int64_t column, int columns,
                         const float* accumulators) const {
  std::byte* const out = d_ + (row * n_ + column) * DTypeBytes(out_dtype_);
  return ApplyTo(row, column, columns, accumulators, out);
}

uint32_t Epilogue::ApplyTo(int64_t row, int64_t column, int columns, const float* accumulators,
                           std::byte* out) const {
  float values[kColumnsMax];
  std::copy(accumulators, accumulators + columns, values);
  ScaleByVectors(row, column, columns, values);
  Combine(row, column, columns, values);
  return Store(columns, values, out);
}

}  // namespace quantgate
