// Programs of random collective calls over random groups, with the results that they must give, for
// worlds on any devices.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/comm/group/world.h"

namespace quantgate {

struct ProgramCall {
  int kind = 0;
  std::string group;
  int64_t rows = 0;  ///< Rows of the first member, from which those of the others follow.
};

struct RandomProgram {
  std::vector<std::pair<std::string, std::vector<std::vector<int>>>> groups;
  std::vector<ProgramCall> calls;  ///< In one global order.

  /// Draws a program for worlds of `size` ranks.
  static RandomProgram Draw(int size, std::mt19937& random);
};

/// A rank that ends before a call of its program, as if it had been killed.
struct Death {
  int rank = -1;  ///< -1: no rank dies.
  size_t call = 0;
};

/// Adds the program's groups to a new world and runs it; expects the bytes of every result.
absl::Status RunProgram(World& world, const RandomProgram& program, Death death = {});

}  // namespace quantgate
