// Questions about cuBLASLt as hypotheses in code: outputs counted per question and hypothesis, and
// what the sections of cublaslt_open_rules share.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/hardware/cublaslt_probe.h"
#include "tests/hardware/gemm_family.h"

namespace quantgate::hardware {

/// Outputs that differ, by question and hypothesis.
class Findings {
 public:
  void Count(const std::string& question, const std::string& hypothesis, int64_t outputs,
             int64_t differ) {
    Entry& entry = table_[question][hypothesis];
    entry.outputs += outputs, entry.differ += differ;
  }

  /// Every question with its hypotheses, the best ones first.
  void Print() const;

 private:
  struct Entry {
    int64_t outputs = 0, differ = 0;
  };
  std::map<std::string, std::map<std::string, Entry>> table_;
};

template <class T>
std::vector<T> As(const std::vector<uint8_t>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<uint8_t> BytesOfTensor(const Tensor& tensor);
/// f32 values in another type, RNE, and back.
std::vector<uint8_t> Cast(const std::vector<float>& values, const std::string& type);
std::vector<float> Widened(const std::vector<uint8_t>& bytes, const std::string& type);
/// Elements that differ; NaNs of any payload are alike.
int64_t Differing(const std::vector<uint8_t>& x, const std::vector<uint8_t>& y,
                  const std::string& type);

/// Operands of one pattern, block scales where the family has them.
Trial TrialOf(const Family& family, const GemmShape& shape, testing::Pattern pattern,
              uint64_t seed);
/// Under sm90; empty, with a line printed, where the model refuses.
std::vector<uint8_t> ModelOutput(GemmDesc desc, int split_k = 1);
/// The accumulator before an epilogue: f32 output, nothing added.
std::vector<float> ModelAccumulator(GemmDesc desc);

/// Runs `probe` by every algorithm; `judge` sees each output. Says so where there is none.
using Judge =
    std::function<void(ProbedGemm&, const ProbedAlgorithm&, const std::vector<uint8_t>& d)>;
void EveryAlgorithm(ProbedDevice& device, const std::string& what, const Probe& probe,
                    const Judge& judge);

std::string WithId(const std::string& question, const ProbedAlgorithm& algorithm);

/// The exact value of a fused step: products aligned to the largest exponent, truncated, summed.
double FusedStep(const float* a, const float* b, int count, double c, int fraction_bits);
float TowardZero(double value);

// Sections with a file of their own.
void GeluEpilogues(ProbedDevice& device, Findings& findings);
void BiasGradients(ProbedDevice& device, Findings& findings);

}  // namespace quantgate::hardware
