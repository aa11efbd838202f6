// A reference for sums over ranks: rounds bf16 with integers, and spells the orders out from the
// descriptions of distributed training's implementations. Shares no code with kernels/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/tensor/tensor.h"

namespace quantgate {

uint16_t Bf16Bits(float value);  ///< Round to nearest even, by integers; not for NaN.
float Bf16Value(uint16_t bits);

/// The meaning of a reduction profile ("nccl_ring", "bf16_rotated:1", ...): the order in which the
/// owner of a block adds, and whether each sum is rounded to the element type.
struct ReferenceOrder {
  std::vector<int> ranks;
  bool rounds_each = false;
};
ReferenceOrder OrderByHand(const std::string& profile, int owner, int size);

/// The bits of element `index` of the sum of parts, which are bf16 or f32.
uint32_t SumByHand(const std::vector<Tensor>& parts, int64_t index, const ReferenceOrder& order);
/// The bytes of the whole sum, where owner i has rows_of_owners[i] rows.
std::string SumByHand(const std::vector<Tensor>& parts, const std::string& profile,
                      const std::vector<int64_t>& rows_of_owners);

/// Numbers whose sum depends on the order, in fp32 too: large ones that cancel, and small ones that
/// lose bits when a large one is added.
Tensor OrderSensitive(int rank, DType dtype, Shape shape);
/// Integers so small that every sum of 8 is exact in bf16.
Tensor SmallIntegers(int rank, DType dtype, Shape shape);

}  // namespace quantgate
