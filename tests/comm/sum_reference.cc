#include "tests/comm/sum_reference.h"

#include <bit>
#include <cstring>
#include <utility>

namespace quantgate {
namespace {

float ElementValue(const Tensor& tensor, int64_t index) {
  return tensor.dtype() == DType::kBF16 ? Bf16Value(tensor.as<uint16_t>()[index])
                                        : tensor.as<float>()[index];
}

void SetElement(Tensor& tensor, int64_t index, float value) {
  if (tensor.dtype() == DType::kBF16) {
    tensor.as<uint16_t>()[index] = Bf16Bits(value);
  } else {
    tensor.as<float>()[index] = value;
  }
}

uint32_t Random(int rank, int64_t index) {
  uint64_t state =
      (static_cast<uint64_t>(rank) << 40 ^ static_cast<uint64_t>(index)) + 0x9E3779B97F4A7C15u;
  for (int i = 0; i < 3; ++i) state = (state ^ state >> 29) * 0xBF58476D1CE4E5B9u;
  return static_cast<uint32_t>(state >> 32);
}

}  // namespace

uint16_t Bf16Bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t half = 0x7FFF + (bits >> 16 & 1);
  return static_cast<uint16_t>((bits + half) >> 16);
}

float Bf16Value(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

ReferenceOrder OrderByHand(const std::string& profile, int owner, int size) {
  ReferenceOrder order;
  for (int i = 0; i < size; ++i) {
    int rank = i;
    if (profile == "ub_p2p") rank = (owner - i + size) % size;
    if (profile == "ub_atomic") rank = (owner + i) % size;
    if (profile == "nccl_ring") rank = (owner + 1 + i) % size;
    if (profile == "bf16_rotated:0") rank = (owner + i) % size;
    if (profile == "bf16_rotated:1") rank = (owner + 1 + i) % size;
    order.ranks.push_back(rank);
  }
  order.rounds_each = profile == "nccl_ring" || profile.starts_with("bf16_rotated");
  return order;
}

uint32_t SumByHand(const std::vector<Tensor>& parts, int64_t index, const ReferenceOrder& order) {
  const bool is_bf16 = parts[0].dtype() == DType::kBF16;
  float sum = ElementValue(parts[order.ranks[0]], index);
  for (size_t i = 1; i < order.ranks.size(); ++i) {
    sum = sum + ElementValue(parts[order.ranks[i]], index);
    if (is_bf16 && order.rounds_each) sum = Bf16Value(Bf16Bits(sum));
  }
  return is_bf16 ? Bf16Bits(sum) : std::bit_cast<uint32_t>(sum);
}

std::string SumByHand(const std::vector<Tensor>& parts, const std::string& profile,
                      const std::vector<int64_t>& rows_of_owners) {
  const int size = static_cast<int>(parts.size());
  const int bytes = DTypeBytes(parts[0].dtype());
  const int64_t row_elements =
      parts[0].shape()[0] == 0 ? 0 : parts[0].element_count() / parts[0].shape()[0];
  std::string sum;
  int64_t index = 0;
  for (int owner = 0; owner < size; ++owner) {
    const ReferenceOrder order = OrderByHand(profile, owner, size);
    const int64_t end = index + rows_of_owners[owner] * row_elements;
    for (; index < end; ++index) {
      const uint32_t bits = SumByHand(parts, index, order);
      sum.append(reinterpret_cast<const char*>(&bits), bytes);
    }
  }
  return sum;
}

Tensor OrderSensitive(int rank, DType dtype, Shape shape) {
  Tensor tensor = *Tensor::Allocate(dtype, std::move(shape));
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    const bool is_large = (rank + i) % 2 == 0;
    // The large ones of two ranks have one magnitude and cancel.
    const uint32_t random = Random(is_large ? 100 : rank, i);
    const float mantissa = 1.0f + static_cast<float>(random % 128) / 128;
    const int exponent = is_large ? 16 : -6 + static_cast<int>(random >> 8 & 3);
    const float sign = (rank / 2 + i) % 2 == 0 ? 1.0f : -1.0f;
    SetElement(tensor, i, sign * mantissa * std::bit_cast<float>((127 + exponent) << 23));
  }
  return tensor;
}

Tensor SmallIntegers(int rank, DType dtype, Shape shape) {
  Tensor tensor = *Tensor::Allocate(dtype, std::move(shape));
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    SetElement(tensor, i, static_cast<float>(static_cast<int>(Random(rank, i) % 17) - 8));
  }
  return tensor;
}

}  // namespace quantgate
