// What tests/hardware/torch_layer.py and torch_layers.py recorded: reading it, and holding tensors
// against it.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "kernels/tensor/files/tensor_file.h"

namespace quantgate {

/// tests/data/`name`; discarded where it is no JSON.
nlohmann::json ReadGolden(const std::string& name);

/// data/bytegpt_block1.safetensors, and a test failure where it is not what `golden` was made of.
TensorFile ReadSamples(const nlohmann::json& golden);

/// Digest first; where it differs, the first rows say how.
void ExpectTensor(const Tensor& tensor, const nlohmann::json& golden);

/// Elements ((i * 2654435761 mod 2^32) >> 16 - 32768) * scale, i the index, in f32.
Tensor IndexValues(Shape shape, float scale);

}  // namespace quantgate
