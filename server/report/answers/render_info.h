// What a server, or this build, is and can do, as text.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "quantgate/v1/info_service.pb.h"

namespace quantgate {

/// The store of this machine: bytes and files below its directory.
struct LocalStoreUsage {
  std::string path;
  int64_t bytes = 0;
  int64_t files = 0;
};

struct InfoFacts {
  v1::Capabilities capabilities;
  v1::ListRecipesResponse recipes;
  v1::ListArithmeticsResponse arithmetics;
  std::optional<LocalStoreUsage> store = {};  ///< Absent where nothing of this machine is asked.
};

/// The counts of all classes of an inventory together.
v1::AlgorithmClass SumOfClasses(const v1::AlgorithmInventory& inventory);

void PrintInfo(const InfoFacts& facts, bool uses_colour, std::ostream& out);

}  // namespace quantgate
