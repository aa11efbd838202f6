// Sums over ranks by hand: bf16 rounded with integers, orders spelled out from the words of
// distributed training's implementations. Shares nothing with kernels/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/tensor/tensor.h"

namespace quantgate {

uint16_t Bf16Bits(float value);  ///< Round to nearest even, by integers; not for NaN.
float Bf16Value(uint16_t bits);

/// What a profile by this name ("nccl_ring", "bf16_rotated:1", ...) says: the order in which the
/// owner of a block adds, and whether each sum is rounded to the element type.
struct ReferenceOrder {
  std::vector<int> ranks;
  bool rounds_each = false;
};
ReferenceOrder OrderByHand(const std::string& profile, int owner, int size);

/// Element `index` of the sum, as the bits of an element; parts are bf16 or f32.
uint32_t SumByHand(const std::vector<Tensor>& parts, int64_t index, const ReferenceOrder& order);
/// All of it for rows whose owners are said by rows_of_owners.
std::string SumByHand(const std::vector<Tensor>& parts, const std::string& profile,
                      const std::vector<int64_t>& rows_of_owners);

/// Numbers on which orders differ, in fp32 too: large ones that cancel, and small ones of which
/// adding a large one takes bits away.
Tensor OrderSensitive(int rank, DType dtype, Shape shape);
/// Integers so small that every sum of 8 is exact in bf16.
Tensor SmallIntegers(int rank, DType dtype, Shape shape);

}  // namespace quantgate
