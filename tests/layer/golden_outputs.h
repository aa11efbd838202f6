// Reading the recordings of tests/hardware/torch_layer.py and torch_layers.py, and comparing
// tensors with them.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "kernels/tensor/files/tensor_file.h"

namespace quantgate {

/// The JSON of tests/data/`name`; discarded if it is none.
nlohmann::json ReadGolden(const std::string& name);

/// data/bytegpt_block1.safetensors. A test failure if `golden` was not made of it.
TensorFile ReadSamples(const nlohmann::json& golden);

/// Expects the recorded digest; if it differs, compares the first rows to show how.
void ExpectTensor(const Tensor& tensor, const nlohmann::json& golden);

/// An f32 tensor whose element i is ((i * 2654435761 mod 2^32) >> 16 - 32768) * scale.
Tensor IndexValues(Shape shape, float scale);

}  // namespace quantgate
