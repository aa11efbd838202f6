// Where the blocks of an error report lie (docs/reports.md section 2), for kernels too.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace quantgate {

/// The first row or column of block `index`, where an extent of so many rows or columns is cut into
/// `count` blocks.
QG_HOST_DEVICE constexpr int64_t BlockEdge(int index, int count, int64_t extent) {
  return index * extent / count;
}

}  // namespace quantgate
