// Where the blocks of an error report lie (docs/reports.md section 2), for kernels too.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace quantgate {

/// First row or column of block `index` of `count` along an extent.
QG_HOST_DEVICE constexpr int64_t BlockEdge(int index, int count, int64_t extent) {
  return index * extent / count;
}

}  // namespace quantgate
