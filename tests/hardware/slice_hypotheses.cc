#include "tests/hardware/slice_hypotheses.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace quantgate::hardware {
namespace {

/// Columns [begin, end) of operand data or of its scales, whose columns are `block` of k.
Tensor KRange(const Tensor& tensor, int64_t begin, int64_t end, int64_t block) {
  const int64_t from = begin / block, to = (end + block - 1) / block;
  const int64_t columns = tensor.shape()[1];
  const size_t width = static_cast<size_t>(DTypeBytes(tensor.dtype()));
  Tensor part = *Tensor::Allocate(tensor.dtype(), {tensor.shape()[0], to - from});
  for (int64_t row = 0; row < tensor.shape()[0]; ++row) {
    std::memcpy(part.data() + row * (to - from) * width,
                tensor.data() + (row * columns + from) * width, (to - from) * width);
  }
  return part;
}

}  // namespace

std::vector<std::pair<std::string, std::vector<int64_t>>> SliceHypotheses(int64_t k, int slices) {
  const int64_t tiles = (k + 127) / 128, small = tiles / slices, more = tiles % slices;
  std::vector<std::pair<std::string, std::vector<int64_t>>> hypotheses;
  const auto add = [&](const std::string& name, auto tiles_of) {
    std::vector<int64_t> ends;
    int64_t end = 0;
    for (int i = 0; i < slices; ++i) {
      end += tiles_of(i);
      ends.push_back(std::min(k, end * 128));
    }
    ends.back() = k;
    hypotheses.emplace_back(name, ends);
  };
  add("even, longer slices first", [&](int i) { return small + (i < more); });
  add("even, longer slices last", [&](int i) { return small + (i >= slices - more); });
  add("tiles / slices each, the rest to the last", [&](int) { return small; });
  return hypotheses;
}

std::vector<uint8_t> SlicedOutput(const GemmDesc& model, const std::vector<int64_t>& ends) {
  const int64_t count = model.a.data.shape()[0] * model.b.data.shape()[0];
  std::vector<float> sum(count);
  int64_t begin = 0;
  for (const int64_t end : ends) {
    GemmDesc part = model;
    part.alpha = 1;
    part.beta = 0;
    part.c = Tensor();
    for (GemmOperand* operand : {&part.a, &part.b}) {
      operand->data = KRange(operand->data, begin, end, 1);
      operand->scale_inv = KRange(operand->scale_inv, begin, end, 128);
    }
    const GemmResult result = *GemmCpu(part, ExecutionContext{});
    for (int64_t i = 0; i < count; ++i) {
      sum[i] = begin == 0 ? result.d.as<float>()[i] : sum[i] + result.d.as<float>()[i];
    }
    begin = end;
  }
  std::vector<uint8_t> bytes(count * sizeof(float));
  for (int64_t i = 0; i < count; ++i) {
    const float scaled = sum[i] * model.alpha;
    const float value = std::fma(model.beta, model.c.as<float>()[i], scaled);
    std::memcpy(&bytes[i * sizeof(float)], &value, sizeof(float));
  }
  return bytes;
}

}  // namespace quantgate::hardware
