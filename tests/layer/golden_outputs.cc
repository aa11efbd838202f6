#include "tests/layer/golden_outputs.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "kernels/tensor/fingerprint.h"

namespace quantgate {
namespace {

using Json = nlohmann::json;

/// The codes of the first elements of a row, as the recorders print them.
std::string HeadOf(const Tensor& tensor, int64_t row, int64_t count) {
  const size_t width = DTypeBytes(tensor.dtype());
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t code = 0;
    std::memcpy(&code, tensor.data() + (row * tensor.columns() + i) * width, width);
    char hex[12];
    std::snprintf(hex, sizeof(hex), "%0*x", static_cast<int>(2 * width), code);
    text += (i > 0 ? " " : "") + std::string(hex);
  }
  return text;
}

}  // namespace

Json ReadGolden(const std::string& name) {
  std::ifstream file(QUANTGATE_SOURCE_DIR "/tests/data/" + name);
  return Json::parse(file, nullptr, /*allow_exceptions=*/false);
}

TensorFile ReadSamples(const Json& golden) {
  auto file = ReadSafetensors(QUANTGATE_SOURCE_DIR "/data/bytegpt_block1.safetensors");
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return TensorFile();
  EXPECT_GT(golden["inputs"].size(), 0u);
  for (const auto& [name, digest] : golden["inputs"].items()) {
    EXPECT_EQ(Sha256Of(file->Find(name)->bytes()).Hex(), digest.get<std::string>()) << name;
  }
  return *std::move(file);
}

void ExpectTensor(const Tensor& tensor, const Json& golden) {
  EXPECT_EQ(DTypeName(tensor.dtype()), golden["dtype"].get<std::string>());
  const std::string digest = Sha256Of(tensor.bytes()).Hex();
  EXPECT_EQ(digest, golden["sha256"].get<std::string>());
  if (digest == golden["sha256"].get<std::string>()) return;
  for (size_t row = 0; row < golden["head"].size(); ++row) {
    EXPECT_EQ(HeadOf(tensor, static_cast<int64_t>(row), std::min<int64_t>(16, tensor.columns())),
              golden["head"][row].get<std::string>())
        << "row " << row;
  }
}

Tensor IndexValues(Shape shape, float scale) {
  Tensor tensor = *Tensor::Allocate(DType::kF32, std::move(shape));
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    const uint32_t mixed = static_cast<uint32_t>(i * 2654435761u) >> 16;
    tensor.as<float>()[i] = static_cast<float>(static_cast<int>(mixed) - 32768) * scale;
  }
  return tensor;
}

}  // namespace quantgate
