// A safetensors file in memory: what WriteSafetensors writes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/tensor/files/tensor_file.h"

namespace quantgate {

/// U8 [bytes] in host memory; the tensors are there too. INVALID_ARGUMENT as WriteSafetensors.
absl::StatusOr<Tensor> SafetensorsBytes(const std::vector<NamedTensor>& tensors,
                                        const std::map<std::string, std::string>& metadata);

}  // namespace quantgate
