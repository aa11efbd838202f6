// How split-K may cut k: candidates to hold against a device's outputs.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gemm/gemm.h"

namespace quantgate::hardware {

/// Ways to cut k into slices of whole 128-blocks, by name: the ends of the slices.
std::vector<std::pair<std::string, std::vector<int64_t>>> SliceHypotheses(int64_t k, int slices);

/// The f32 output of slices that end at `ends`, of operands with scales of 128: each summed by
/// itself, then added in order, then fma(beta, c, f32(alpha * sum)), as after any split-K.
std::vector<uint8_t> SlicedOutput(const GemmDesc& model, const std::vector<int64_t>& ends);

}  // namespace quantgate::hardware
