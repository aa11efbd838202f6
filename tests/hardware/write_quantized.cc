// Writes what QuantGate's quantizers make of real and adversarial tensors, for torch_quantizers.py
// to compare with on a GPU host:
//   write_quantized FOLDER
// FOLDER/{fp8_tensor,fp8_block,mxfp8,nvfp4}.safetensors: every case of the vector files, and every
// set of their knobs on larger tensors. All tensors are bytes (U8); metadata "cases" has one line
// per case, "sources" one per source.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "kernels/quantize/quantizer.h"
#include "kernels/tensor/files/tensor_file.h"
#include "tests/quantize/vector_tensors.h"

namespace quantgate {
namespace {

using Words = std::vector<std::string>;

std::string Joined(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

Tensor AsBytes(const Tensor& tensor) {
  const auto bytes = tensor.bytes();
  return *Tensor::FromBytes(DType::kU8, {static_cast<int64_t>(bytes.size())}, bytes);
}

/// Sources, cases and what the quantizers made of them.
class Results {
 public:
  void AddSource(const std::string& key, const Tensor& source) {
    if (!sources_.insert(key).second) return;
    tensors_.push_back({"source " + key, AsBytes(source)});
    std::string shape;
    for (const int64_t dim : source.shape())
      shape += (shape.empty() ? "" : "x") + std::to_string(dim);
    source_lines_ += key + " " + shape + "\n";
  }
  void Add(const std::string& key, const std::string& knobs, const Tensor& source,
           const Quantizer& quantizer, const QuantizeArguments& arguments) {
    AddSource(key, source);
    for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
      const bool rowwise = usage == Usage::kRowwise;
      const auto quantized = QuantizeCpu(source, quantizer, {rowwise, !rowwise}, arguments, {});
      if (!quantized.ok()) continue;  // A row-scaled columnwise copy: refused by rule.
      const std::string case_name = std::to_string(count_++);
      const QuantizedCopy& copy = *quantized->copy(usage);
      lines_ += case_name + " " + key + " " + std::string(UsageName(usage)) + " " + knobs + "\n";
      tensors_.push_back({case_name + " codes", AsBytes(copy.data)});
      tensors_.push_back({case_name + " scale_inv", AsBytes(copy.scale_inv)});
      if (copy.amax.has_value()) tensors_.push_back({case_name + " amax", AsBytes(copy.amax)});
      const auto values = DequantizeCpu(*quantized, usage, DType::kF32, {});
      if (values.ok()) tensors_.push_back({case_name + " values", AsBytes(*values)});
    }
  }
  void Write(const std::string& path) const {
    const absl::Status status =
        WriteSafetensors(path, tensors_, {{"cases", lines_}, {"sources", source_lines_}});
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      std::exit(1);
    }
    std::printf("%s: %ld cases\n", path.c_str(), static_cast<long>(count_));
  }

 private:
  std::vector<NamedTensor> tensors_;
  std::set<std::string> sources_;
  std::string lines_, source_lines_;
  int64_t count_ = 0;
};

/// Larger tensors by name: of a trained model and drawn.
std::vector<std::pair<std::string, Tensor>> LargerTensors() {
  std::vector<std::pair<std::string, Tensor>> larger;
  const TensorFile file = *ReadSafetensors(QUANTGATE_SOURCE_DIR "/data/bytegpt_block1.safetensors");
  for (const std::string name : {"fc1.x", "fc1.weight", "fc1.dy"}) {
    larger.emplace_back(name + ".whole", *file.Find(name));
  }
  return larger;
}

using QuantizerReader = std::function<Quantizer(const Words&)>;

void WriteFormat(const std::string& folder, const std::string& format, size_t knobs_end,
                 const QuantizerReader& quantizer_of) {
  const testing::VectorFile vectors = testing::ReadVectors(format + "_vectors.txt");
  Results results;
  std::set<Words> knob_sets;
  const auto add = [&](const std::string& key, const Tensor& source, const Words& words) {
    const Words knobs(words.begin() + 2, words.begin() + static_cast<std::ptrdiff_t>(knobs_end));
    const QuantizeArguments arguments =
        format == "nvfp4" ? testing::Nvfp4Arguments(words) : QuantizeArguments{};
    results.Add(key, Joined(knobs), source, quantizer_of(words), arguments);
  };
  for (const Words& words : vectors.cases) {
    const std::string key = words[0] + " " + words[1];
    add(key, vectors.tensors.at(key), words);
    Words knobs(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(knobs_end));
    knobs[0] = knobs[1] = "";
    knob_sets.insert(knobs);
  }
  for (const auto& [name, source] : LargerTensors()) {
    for (const Words& knobs : knob_sets) add(name + " bf16", source, knobs);
  }
  results.Write(folder + "/" + format + ".safetensors");
}

/// Per-tensor FP8, current and delayed: ELEMENT SCALING POW2 EPS RULE ROUNDING OVERFLOW SCALE.
void WriteFp8Tensor(const std::string& folder) {
  const testing::VectorFile vectors = testing::ReadVectors("fp8_block_vectors.txt");
  std::vector<std::pair<std::string, Tensor>> sources(vectors.tensors.begin(),
                                                      vectors.tensors.end());
  for (const auto& [name, source] : LargerTensors()) sources.emplace_back(name + " bf16", source);
  struct Knobs {
    bool power_2 = false;
    float epsilon = 0.0f;
    ScaleRule rule = ScaleRule::kDivide;
    float delayed_scale = 0.0f;
  };
  const Knobs knob_sets[] = {{},
                             {true},
                             {false, 0.5f},
                             {false, 0.0f, ScaleRule::kReciprocal},
                             {false, 0.0f, ScaleRule::kDivide, 37.25f},
                             {false, 0.0f, ScaleRule::kDivide, 0x1.8p-9f}};
  Results results;
  for (const auto& [key, source] : sources) {
    for (const DType element : {DType::kF8E4M3, DType::kF8E5M2}) {
      for (const Knobs& knobs : knob_sets) {
        QuantizerSpec spec;
        spec.format = QuantizerFormat::kFp8Tensor;
        spec.element = element;
        spec.power_2_scale = knobs.power_2;
        spec.amax_epsilon = knobs.epsilon;
        spec.scale_rule = knobs.rule;
        QuantizeArguments arguments;
        if (knobs.delayed_scale != 0.0f) {
          spec.scaling = Scaling::kDelayed;
          arguments.scale = *Tensor::FromScalar(knobs.delayed_scale);
        }
        char text[128];
        std::snprintf(text, sizeof(text), "%s %s %d %.9g %s nearest_even saturate %.9g",
                      std::string(DTypeName(element)).c_str(),
                      knobs.delayed_scale != 0.0f ? "delayed" : "current", knobs.power_2,
                      knobs.epsilon, knobs.rule == ScaleRule::kDivide ? "divide" : "reciprocal",
                      knobs.delayed_scale);
        results.Add(key, text, source, spec, arguments);
      }
    }
  }
  results.Write(folder + "/fp8_tensor.safetensors");
}

}  // namespace
}  // namespace quantgate

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_quantized FOLDER\n");
    return 2;
  }
  const std::string folder = argv[1];
  quantgate::WriteFp8Tensor(folder);
  quantgate::WriteFormat(folder, "fp8_block", 9, quantgate::testing::Fp8BlockQuantizer);
  quantgate::WriteFormat(folder, "mxfp8", 7, quantgate::testing::Mxfp8Quantizer);
  quantgate::WriteFormat(folder, "nvfp4", 11, quantgate::testing::Nvfp4Quantizer);
  return 0;
}
