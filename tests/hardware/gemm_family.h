// GEMMs by operand types, scaling, layout and accumulation, drawn in host memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "tests/gemm/operand_pattern.h"

namespace quantgate::hardware {

struct Family {
  std::string a_type, b_type, d_type;
  GemmLayout layout = GemmLayout::kTN;
  bool split_accumulator = false;
  int alignment = 8;  ///< Of n and k; m takes any value where the layout lets it.
  int k_alignment = 8;
  bool in_place = true;  ///< Drawn among the epilogues.
  bool bias = true;
  ScaleMode a_block = ScaleMode::kNone, b_block = ScaleMode::kNone;

  bool is_fp8() const { return a_type.starts_with("f8"); }
  bool is_block_scaled() const { return a_block != ScaleMode::kNone; }
  int chunk() const { return is_fp8() ? 32 : a_type == "f32" ? 8 : 16; }
  /// "f8_e4m3[1x128] x f8_e4m3[128x128] -> bf16, TN".
  std::string Name() const;
  /// The one type of bias that cuBLASLt takes.
  std::string BiasType() const { return is_fp8() && d_type != "f16" ? "bf16" : d_type; }
};

std::vector<Family> AllFamilies();

/// A shape, its data and its epilogue, under sm90.
struct Trial {
  GemmShape shape{};
  GemmDesc gemm;
  std::string text;
};

DType DTypeOf(const std::string& name);
/// "f32", "bf16", "f16", "f8_e4m3", "f8_e5m2".
int BytesOf(const std::string& type);

/// Ends the process where the bytes are not of that shape.
Tensor TensorOf(const std::string& type, Shape shape, const std::vector<uint8_t>& bytes);

/// The same matrix as testing::PatternMatrix, on all cores, optionally stored transposed.
std::vector<uint8_t> Draw(testing::Pattern pattern, const std::string& type, int chunk,
                          uint64_t seed, int64_t rows, int64_t columns, bool transposed);

/// Positive scales within 2^-8 ... 2^8: powers of two, or any fraction; or by a pattern of any
/// sign and size.
enum class ScaleValues { kPowers, kFractions, kWide, kSpecials };
std::vector<float> DrawScales(ScaleValues values, uint64_t seed, int64_t count);

/// Scales of an operand of [rows][k].
int64_t ScaleCount(ScaleMode scaling, int64_t rows, int64_t k);
/// The operand, of [rows][k], with them.
GemmOperand WithScales(GemmOperand operand, ScaleMode scaling, const std::vector<float>& values,
                       int64_t rows, int64_t k);

/// Operands, layout, types and accumulation of `family` at trial.shape.
void SetOperands(Trial& trial, const Family& family, testing::Pattern a_pattern, uint64_t a_seed,
                 testing::Pattern b_pattern, uint64_t b_seed);
/// Block scales where the family has them.
void SetBlockScales(Trial& trial, const Family& family, ScaleValues values, uint64_t seed);
/// C and bias of pattern kModel.
void SetC(Trial& trial, uint64_t seed);
void SetBias(Trial& trial, const Family& family, uint64_t seed);
void SetSums(Trial& trial, float alpha, float beta, bool in_place);

}  // namespace quantgate::hardware
