// QuantizeCpu and DequantizeCpu against vectors of an independent implementation (tests/vectors/
// fp8_current_reference.py): real and adversarial tensors, every knob; each instruction set
// has its share, one thread and two.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "kernels/quantize/quantizer.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/files/tensor_file.h"
#include "kernels/tensor/fingerprint.h"
#include "tests/quantize/vector_tensors.h"

namespace quantgate {
namespace QG_TEST_FILE {

const std::string kRoot = QUANTGATE_SOURCE_DIR;

std::vector<std::byte> FromHex(const std::string& hex) {
  std::vector<std::byte> bytes(hex.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return bytes;
}

float FloatFromHex(const std::string& hex) {
  return std::bit_cast<float>(static_cast<uint32_t>(std::stoul(hex, nullptr, 16)));
}

std::string HexOf(const Tensor& scalar) {
  char text[9];
  std::snprintf(text, sizeof(text), "%08x", *scalar.as<uint32_t>());
  return text;
}

std::string Digest(std::initializer_list<Tensor> tensors) {
  Sha256Stream stream;
  for (const Tensor& tensor : tensors) stream.Update(tensor.bytes());
  return stream.Finish().Hex().substr(0, 32);
}

Shape ParseShape(const std::string& text) {
  Shape shape;
  std::stringstream dims(text);
  for (std::string dim; std::getline(dims, dim, 'x');) shape.push_back(std::stoll(dim));
  return shape;
}

struct Case {
  std::string name, source, element, rule, pow2, eps, rounding, overflow;
  std::string amax, scale, scale_inv, codes_digest, transposed_digest, values_digest, counts, codes;

  std::string Text() const {
    return name + " " + source + " " + element + " " + rule + " pow2=" + pow2 + " eps=" + eps +
           " " + rounding + " " + overflow;
  }
  QuantizerSpec Spec() const {
    return {.format = QuantizerFormat::kFp8Tensor,
            .element = *ParseDType(element),
            .power_2_scale = pow2 == "1",
            .amax_epsilon = FloatFromHex(eps),
            .scale_rule = rule == "divide" ? ScaleRule::kDivide : ScaleRule::kReciprocal,
            .element_rounding = rounding == "nearest_even" ? ElementRounding::kNearestEven
                                                           : ElementRounding::kNearestAway,
            .overflow = overflow == "saturate" ? Overflow::kSaturate : Overflow::kNan};
  }
};

struct Vectors {
  std::map<std::string, Tensor> tensors;
  std::vector<Case> cases;
};

/// A tensor of the sample file, cast: these casts have their own tests.
Tensor RealTensor(const std::string& name, DType dtype) {
  static const TensorFile file = *ReadSafetensors(kRoot + "/data/bytegpt_block1.safetensors");
  return *CastTensor(*file.Find(name), dtype, {});
}

Vectors Load() {
  Vectors vectors;
  std::ifstream file(kRoot + "/tests/data/fp8_current_vectors.txt");
  for (std::string line; std::getline(file, line);) {
    std::stringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "tensor") {
      std::string name, source, shape, hex;
      words >> name >> source >> shape >> hex;
      vectors.tensors[name + source] =
          *Tensor::FromBytes(*ParseDType(source), ParseShape(shape), FromHex(hex));
    } else if (kind == "case") {
      Case c;
      words >> c.name >> c.source >> c.element >> c.rule >> c.pow2 >> c.eps >> c.rounding >>
          c.overflow >> c.amax >> c.scale >> c.scale_inv >> c.codes_digest >> c.transposed_digest >>
          c.values_digest >> c.counts >> c.codes;
      vectors.cases.push_back(c);
      if (vectors.tensors.count(c.name + c.source) == 0) {
        vectors.tensors[c.name + c.source] = RealTensor(c.name, *ParseDType(c.source));
      }
    }
  }
  return vectors;
}

std::string CountsText(const QuantizationCounts& c) {
  std::stringstream text;
  text << c.normal << ',' << c.zero << ',' << c.subnormal << ',' << c.flushed_to_zero << ','
       << c.saturated << ',' << c.infinite << ',' << c.nan;
  return text.str();
}

class QuantizeVectors : public ::testing::TestWithParam<ExecutionContext> {};

TEST_P(QuantizeVectors, CodesScalesCountsAndValues) {
  const ExecutionContext& context = GetParam();
  static const Vectors vectors = Load();
  ASSERT_GT(vectors.cases.size(), 1000u);
  for (const Case& c : vectors.cases) {
    if (!testing::RunsCase(context, c.Text())) continue;
    SCOPED_TRACE(c.Text());
    const Tensor& source = vectors.tensors.at(c.name + c.source);
    const QuantizedTensor q =
        *QuantizeCpu(source, c.Spec(), {.rowwise = true, .columnwise = true}, {}, context);
    EXPECT_EQ(HexOf(q.rowwise->amax), c.amax);
    EXPECT_EQ(HexOf(q.rowwise->scale), c.scale);
    EXPECT_EQ(HexOf(q.rowwise->scale_inv), c.scale_inv);
    EXPECT_EQ(HexOf(q.columnwise->scale_inv), c.scale_inv);
    if (c.codes != "-") {
      EXPECT_EQ(testing::HexBytes(q.rowwise->data), c.codes);
    }
    EXPECT_EQ(Digest({q.rowwise->data}), c.codes_digest);
    EXPECT_EQ(Digest({q.columnwise->data}), c.transposed_digest);
    EXPECT_EQ(CountsText(q.counts), c.counts);
    for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
      EXPECT_EQ(Digest({*DequantizeCpu(q, usage, DType::kBF16, context),
                        *DequantizeCpu(q, usage, DType::kF16, context),
                        *DequantizeCpu(q, usage, DType::kF32, context)}),
                c.values_digest)
          << UsageName(usage);
    }
    if (HasFailure()) return;  // The first of a thousand cases says enough.
  }
}

INSTANTIATE_TEST_SUITE_P(EveryPath, QuantizeVectors, ::testing::ValuesIn(testing::EveryPath()),
                         [](const auto& path) { return testing::PathName(path.param); });

}  // namespace QG_TEST_FILE
}  // namespace quantgate
