// engine_parity [SECONDS] [SEED]: the CUDA engine against the CPU engine over large tensors and
// drawn shapes: quantizers of every recipe, dequantized values, GEMM models, sums, fingerprints.
// Exits 1 where one byte differs.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kernels/engine/cuda_engine.h"
#include "kernels/layer/layer.h"
#include "tests/engine/recipe_cases.h"

namespace quantgate {
namespace {

template <typename T>
T Need(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::cerr << value.status() << "\n";
  std::exit(1);
}

struct Tally {
  int64_t calls = 0, elements = 0, differing = 0;
};

class Parity {
 public:
  Parity(double seconds, uint64_t seed)
      : cuda_(Need(CudaEngine::Open(0))), cpu_(MakeCpuEngine({})), random_(seed), seed_(seed) {
    end_ = std::chrono::steady_clock::now() +
           std::chrono::duration_cast<std::chrono::steady_clock::duration>(
               std::chrono::duration<double>(seconds));
  }

  int Run() {
    const DeviceDescription device = cuda_->Describe();
    std::printf("%s, driver %s, CUDA %s, cuBLASLt %s; seed %llu\n", device.name.c_str(),
                device.driver.c_str(), device.cuda.c_str(), device.cublaslt.c_str(),
                static_cast<unsigned long long>(seed_));
    while (std::chrono::steady_clock::now() < end_) {
      for (const char* recipe : kRecipeCases) {
        if (std::chrono::steady_clock::now() >= end_) break;
        One(recipe);
      }
    }
    Tally all;
    for (const auto& [name, tally] : tallies_) {
      std::printf("%-24s %7lld calls %14lld elements %lld differ\n", name.c_str(),
                  static_cast<long long>(tally.calls), static_cast<long long>(tally.elements),
                  static_cast<long long>(tally.differing));
      all.elements += tally.elements;
      all.differing += tally.differing;
    }
    std::printf("%.3e elements compared, %lld differ\n", static_cast<double>(all.elements),
                static_cast<long long>(all.differing));
    return all.differing == 0 ? 0 : 1;
  }

 private:
  int64_t Draw(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }

  void Compare(const std::string& what, const std::string& detail, const Tensor& subject,
               const Tensor& reference) {
    if (!subject.has_value() && !reference.has_value()) return;
    Tally& tally = tallies_[what];
    ++tally.calls;
    tally.elements += reference.element_count();
    const Fingerprint ours = Need(cuda_->FingerprintOf(subject, nullptr));
    const Fingerprint theirs = Need(cpu_->FingerprintOf(reference, nullptr));
    if (ours == theirs) return;
    const Tensor host = Need(cuda_->ToHost(subject, nullptr));
    const ParityReport parity = Need(cpu_->CompareBits(host, reference, nullptr));
    // Equal bytes under different fingerprints would be a difference of the fingerprints.
    const int64_t differing = std::max<int64_t>(parity.mismatch_count, 1);
    tally.differing += differing;
    std::printf("DIFFERS %s: %s: %lld of %lld\n", what.c_str(), detail.c_str(),
                static_cast<long long>(differing),
                static_cast<long long>(reference.element_count()));
  }

  void CompareQuantized(const std::string& detail, const QuantizedTensor& subject,
                        const QuantizedTensor& reference) {
    for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
      const auto &ours = subject.copy(usage), &theirs = reference.copy(usage);
      if (!theirs.has_value()) continue;
      Compare("codes", detail, ours->data, theirs->data);
      Compare("scales", detail, ours->scale_inv, theirs->scale_inv);
      Compare("amaxes", detail, ours->amax, theirs->amax);
    }
  }

  /// One recipe's quantizers on a large tensor, and its whole layer on a smaller one.
  void One(const char* name) {
    const Recipe recipe = Need(Recipe::Parse(name));
    const DType dtypes[] = {DType::kBF16, DType::kBF16, DType::kF32, DType::kF16};
    const auto& distributions = AllDistributions();
    GeneratorSpec spec;
    spec.distribution = distributions[Draw(0, static_cast<int64_t>(distributions.size()) - 1)];
    spec.seed = random_();
    spec.dtype = dtypes[Draw(0, 3)];
    spec.shape = {32 * Draw(1, 96), 32 * Draw(1, 96)};
    const std::string detail = std::string(name) + " " + std::string(DTypeName(spec.dtype)) + " " +
                               ShapeText(spec.shape) + " " +
                               std::string(DistributionName(spec.distribution)) + " seed " +
                               std::to_string(spec.seed);
    const Tensor source = Need(cuda_->Generate(spec, nullptr));
    const Tensor host = Need(cpu_->Generate(spec, nullptr));
    Compare("generated", detail, source, host);
    Compare("column sums", detail, Need(cuda_->ColumnSums(source, spec.dtype, nullptr)),
            Need(cpu_->ColumnSums(host, spec.dtype, nullptr)));
    if (!recipe.is_delayed() && recipe.is_quantized()) {
      for (const TensorRole role :
           {TensorRole::kInput, TensorRole::kWeight, TensorRole::kGradOutput}) {
        QuantizeRole(recipe, role, detail, source, host, spec.seed);
      }
    }
    Layer(recipe, name);
  }

  void QuantizeRole(const Recipe& recipe, TensorRole role, const std::string& detail,
                    const Tensor& source, const Tensor& host, uint64_t seed) {
    QuantizeArguments arguments;
    arguments.seed = seed;
    arguments.call_id = CallIdOf(role);
    const Quantizer& quantizer = recipe.QuantizerFor(role);
    const Usages usages[] = {{true, true}, {true, false}, {false, true}};
    const Usages usage = usages[Draw(0, 2)];
    if (!CheckQuantization(host.dtype(), host.shape(), quantizer, usage).ok()) return;
    const QuantizedTensor ours =
        Need(cuda_->Quantize(source, quantizer, usage, arguments, nullptr));
    const QuantizedTensor theirs = Need(cpu_->Quantize(host, quantizer, usage, arguments, nullptr));
    CompareQuantized(detail, ours, theirs);
    if (!usage.rowwise) return;
    Compare("dequantized", detail,
            Need(cuda_->Dequantize(ours, Usage::kRowwise, DType::kF32, nullptr)),
            Need(cpu_->Dequantize(theirs, Usage::kRowwise, DType::kF32, nullptr)));
  }

  void Layer(const Recipe& recipe, const char* name) {
    const DType dtype = Draw(0, 2) == 0 ? DType::kF32 : DType::kBF16;
    const int64_t m = 32 * Draw(1, 8), n = 32 * Draw(1, 8), k = 32 * Draw(1, 16);
    const auto& distributions = AllDistributions();
    const auto make = [&](Shape shape) {
      GeneratorSpec spec;
      spec.distribution = distributions[Draw(0, static_cast<int64_t>(distributions.size()) - 1)];
      spec.seed = random_();
      spec.dtype = dtype;
      spec.shape = std::move(shape);
      return Need(cpu_->Generate(spec, nullptr));
    };
    LayerRequest request;
    request.x = make({m, k});
    request.parameters["weight"] = make({n, k});
    request.grad_output = make({m, n});
    if (Draw(0, 1) == 0) request.parameters["bias"] = make({n});
    request.seed = random_();
    const std::string text(name);
    const bool is_blackwell = text.rfind("mxfp8", 0) == 0 || text.rfind("nvfp4", 0) == 0;
    const char* models[] = {is_blackwell ? "sm100" : "sm90", "exact", "fp32"};
    const Arithmetic arithmetic = Need(Arithmetic::Parse(models[Draw(0, 2)]));
    const auto theirs = RunLayer(*cpu_, request, recipe, arithmetic, nullptr);
    const auto ours = RunLayer(*cuda_, request, recipe, arithmetic, nullptr);
    const std::string detail = text + " " + arithmetic.ToString() + " " + std::to_string(m) + "x" +
                               std::to_string(n) + "x" + std::to_string(k);
    if (theirs.status() != ours.status()) {
      std::printf("DIFFERS status: %s\n", detail.c_str());
      ++tallies_["statuses"].differing;
      return;
    }
    if (!theirs.ok()) return;
    for (size_t i = 0; i < theirs->outputs.size(); ++i) {
      Compare("layer outputs", detail, ours->outputs[i].tensor, theirs->outputs[i].tensor);
    }
    for (size_t i = 0; i < theirs->state.size(); ++i) {
      Compare("layer states", detail, ours->state[i].tensor, theirs->state[i].tensor);
    }
  }

  const std::unique_ptr<CudaEngine> cuda_;
  const std::unique_ptr<Engine> cpu_;
  std::mt19937_64 random_;
  const uint64_t seed_;
  std::chrono::steady_clock::time_point end_;
  std::map<std::string, Tally> tallies_;
};

}  // namespace
}  // namespace quantgate

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 60;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  return quantgate::Parity(seconds, seed).Run();
}
