#include "tests/comm/overlap/overlap_values.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "kernels/numerics/cast.h"
#include "tests/comm/sum_reference.h"

namespace quantgate {
namespace {

Tensor Bf16Values(int64_t rows, int64_t columns, std::mt19937& random) {
  Tensor tensor = *Tensor::Allocate(DType::kBF16, {rows, columns});
  for (int64_t i = 0; i < rows * columns; ++i) {
    const float value = (static_cast<float>(random() % 20001) - 10000.0f) / 3001.0f;
    tensor.as<uint16_t>()[i] = EncodeFloat<BFloat16>(value);
  }
  return tensor;
}

/// E4M3 codes of magnitudes below 2.
Tensor Codes(int64_t rows, int64_t columns, std::mt19937& random) {
  Tensor tensor = *Tensor::Allocate(DType::kF8E4M3, {rows, columns});
  for (int64_t i = 0; i < rows * columns; ++i) {
    tensor.as<uint8_t>()[i] = static_cast<uint8_t>(random() & 0xBF);
  }
  return tensor;
}

}  // namespace

std::string PayloadName(Payload payload) {
  return payload == Payload::kBf16 ? "bf16" : payload == Payload::kFp8 ? "fp8_tensor" : "mxfp8";
}

std::vector<int64_t> EqualRows(Payload payload, int ranks) {
  return std::vector<int64_t>(ranks, payload == Payload::kMxfp8 ? 128 : 6);
}

int64_t WidthOf(Payload payload) { return payload == Payload::kMxfp8 ? 128 : 48; }

GemmOperand MakeOperand(Payload payload, int64_t rows, int64_t k, int seed) {
  std::mt19937 random(seed);
  GemmOperand operand;
  if (payload == Payload::kBf16) {
    operand.data = Bf16Values(rows, k, random);
    return operand;
  }
  operand.data = Codes(rows, k, random);
  if (payload == Payload::kFp8) {
    operand.scaling = ScaleMode::kTensor;
    operand.scale_inv = *Tensor::FromScalar(0.0625f);
    return operand;
  }
  operand.scaling = ScaleMode::kMx32;
  operand.scale_inv = *Tensor::Allocate(DType::kF8E8M0, {rows, k / 32});
  for (size_t i = 0; i < operand.scale_inv.byte_size(); ++i) {
    operand.scale_inv.as<uint8_t>()[i] = static_cast<uint8_t>(122 + random() % 10);
  }
  return operand;
}

Tensor Identity(int64_t n) {
  Tensor tensor = *Tensor::Allocate(DType::kF32, {n, n});
  for (int64_t i = 0; i < n * n; ++i) tensor.as<float>()[i] = i / n == i % n ? 1.0f : 0.0f;
  return tensor;
}

GemmDesc MakeGemm(Payload payload, int64_t m, int64_t n, int64_t k, int seed) {
  GemmDesc gemm;
  gemm.a = MakeOperand(payload, m, k, seed);
  gemm.b = MakeOperand(payload, n, k, seed + 1000);
  gemm.out_dtype = DType::kBF16;
  return gemm;
}

Tensor Joined(const std::vector<Tensor>& parts) {
  Shape shape = parts[0].shape();
  shape[0] = 0;
  for (const Tensor& part : parts) shape[0] += part.shape()[0];
  Tensor whole = *Tensor::Allocate(parts[0].dtype(), shape);
  std::byte* to = whole.data();
  for (const Tensor& part : parts) {
    std::memcpy(to, part.data(), part.byte_size());
    to += part.byte_size();
  }
  return whole;
}

GemmDesc OrderSensitiveGemm(int rank, int64_t m, int64_t n) {
  GemmDesc gemm;
  gemm.arithmetic = *Arithmetic::Parse("fp32");
  gemm.a.data = OrderSensitive(rank, DType::kF32, {m, n});
  gemm.b.data = Identity(n);
  return gemm;
}

OverlapRank::OverlapRank(Rank& rank, OverlapOptions options)
    : group(rank.group(kWorldGroup)), buffers(rank.engine()) {
  overlap = *Overlap::Create(group, buffers, options);
}

}  // namespace quantgate
