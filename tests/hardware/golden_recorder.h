// Runs a GEMM case on the device through every algorithm that cuBLASLt offers and keeps its output
// in a golden file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/gemm/operand_pattern.h"
#include "tests/hardware/cublaslt_runs.h"
#include "tests/hardware/golden_file.h"

namespace quantgate::hardware {

struct OperandTypes {
  std::string a, b;
  int chunk;  // Products of one fused step on Hopper.
  bool is_fp8() const { return a.starts_with("f8"); }
};
inline const OperandTypes kBf16{"bf16", "bf16", 16}, kF16{"f16", "f16", 16}, kTf32{"f32", "f32", 8},
    kE4m3{"f8_e4m3", "f8_e4m3", 32}, kE5m2E4m3{"f8_e5m2", "f8_e4m3", 32},
    kE4m3E5m2{"f8_e4m3", "f8_e5m2", 32};

/// One case before its operands exist.
struct CaseSpec {
  OperandTypes types;
  testing::Pattern a_pattern, b_pattern;
  int64_t k;
  std::string d_type = "f32";
  int64_t m = 16, n = 32;
  GemmLayout layout = GemmLayout::kTN;
  bool split_accumulator = false;
  float alpha = 1.0f, beta = 0.0f;
  bool in_place = false;
  testing::Pattern c_pattern = testing::Pattern::kModel;
  std::string bias_type = "";
  testing::Pattern bias_pattern = testing::Pattern::kModel;
  std::vector<float> a_scale = {}, b_scale = {};
  ScaleMode a_block = ScaleMode::kNone, b_block = ScaleMode::kNone;  ///< Block scales, drawn:
  testing::Pattern scale_pattern = testing::Pattern::kModel;  ///< magnitudes but for kSpecials.
  bool has_d_scale = false;
  float d_scale = 1.0f;
  int force_split_k = 1;  ///< Slices, added in fp32.
  bool digest_only = false;
};

class Recorder {
 public:
  explicit Recorder(CublasLtRuns& cublaslt) : cublaslt_(cublaslt) {}

  /// Runs every algorithm offered for `spec`, adds the case to `file`, and prints what was seen.
  void Record(GoldenFile& file, const CaseSpec& spec);
  void WriteVariants(const std::string& path, const std::string& origin) const {
    variants_.Write(path, origin);
  }
  void PrintSummary() const {
    std::printf("recorded %d cases; %d refused; %d with an algorithm that differs\n", recorded_,
                refused_, varied_);
  }

 private:
  Tensor AddOperand(GoldenFile& file, const CaseSpec& spec, const char* name, DType type,
                    testing::Pattern pattern, uint64_t seed, int64_t rows, int64_t columns,
                    bool transposed, nlohmann::json& one);
  /// Draws the block scales of an operand of `rows` x k and names them in the case.
  Tensor AddBlockScales(GoldenFile& file, const CaseSpec& spec, const char* name, ScaleMode scaling,
                        uint64_t seed, int64_t rows, nlohmann::json& one);
  /// The case's GEMM in host memory; names its operands and parameters in the case.
  GemmDesc DescOf(GoldenFile& file, const CaseSpec& spec, nlohmann::json& one);
  /// What a case's algorithms gave.
  struct Seen {
    int ran = 0, agreeing = 0;
    Tensor d, amax;         ///< Of the first.
    std::string algorithm;  ///< The first.
  };
  Seen RunAlgorithms(const GemmDesc& gemm, const CaseSpec& spec, const std::string& name);

  CublasLtRuns& cublaslt_;
  GoldenFile variants_;
  int recorded_ = 0, refused_ = 0, varied_ = 0;
};

}  // namespace quantgate::hardware
