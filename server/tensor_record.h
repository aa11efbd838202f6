// What is registered of a tensor: its bytes' digest and type, and its name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/tensor/fingerprint.h"
#include "kernels/tensor/tensor.h"
#include "server/digest.h"

namespace quantgate {

/// What the bytes of a tensor mean.
struct TensorType {
  DType dtype = DType::kF32;
  Shape shape;
  friend bool operator==(const TensorType&, const TensorType&) = default;
};
/// "bf16[256x512]".
std::string TensorTypeText(const TensorType& type);

struct TensorRecord {
  int64_t id = 0;  ///< Ascending with time.
  Digest digest;
  TensorType type;
  std::string name;
  Fingerprint fingerprint;
};

struct TensorPage {
  std::vector<TensorRecord> records;
  int64_t next_before_id = 0;  ///< 0 on the last page.
};

}  // namespace quantgate
