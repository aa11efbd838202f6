#include "kernels/gemm/exact/exact.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/exact/exact_kernels.h"
#include "kernels/gemm/exact/exact_operand.h"
#include "kernels/gemm/exact/exact_output.h"
#include "kernels/gemm/exact/exact_tile.h"

namespace quantgate {
namespace {

std::vector<double> PaddedDoubles(const std::vector<float>& values, size_t count) {
  std::vector<double> padded(values.begin(), values.end());
  padded.resize(count);
  return padded;
}

/// One dtype that the sums are rounded to; shared by all threads, each of which writes its own
/// tiles.
class ExactRounding {
 public:
  explicit ExactRounding(Tensor d) : d_(std::move(d)) {}

  const Tensor& d() const { return d_; }
  ExactOutput output() const { return ExactOutputOf(d_.dtype()); }
  /// Stores the codes of the elements from `index` on.
  void Store(const std::vector<uint32_t>& codes, int64_t index, int64_t count);
  void RaiseAmax(uint32_t amax);
  uint32_t amax() const { return amax_; }
  void CountWideDot() { ++wide_dots_; }
  void CountWideEpilogue() { ++wide_epilogues_; }
  int64_t wide_dots() const { return wide_dots_; }
  int64_t wide_epilogues() const { return wide_epilogues_; }

 private:
  Tensor d_;
  std::atomic<int64_t> wide_dots_{0};
  std::atomic<int64_t> wide_epilogues_{0};
  std::atomic<uint32_t> amax_{0};
};

void ExactRounding::Store(const std::vector<uint32_t>& codes, int64_t index, int64_t count) {
  switch (DTypeBytes(d_.dtype())) {
    case 4:
      std::copy_n(codes.begin(), count, d_.as<uint32_t>() + index);
      break;
    case 2:
      std::copy_n(codes.begin(), count, d_.as<uint16_t>() + index);
      break;
    default:
      std::copy_n(codes.begin(), count, d_.as<uint8_t>() + index);
      break;
  }
}

void ExactRounding::RaiseAmax(uint32_t amax) {
  uint32_t seen = amax_.load();
  while (seen < amax && !amax_.compare_exchange_weak(seen, amax)) {
  }
}

/// A GEMM taken apart for the kernels; shared by all threads.
class ExactProblem {
 public:
  ExactProblem(const GemmDesc& desc, const GemmShape& shape, ExactOperand a, ExactOperand b,
               const ExecutionContext& context)
      : desc_(desc),
        shape_(shape),
        kernels_(ExactKernelsFor(context.isa)),
        a_operand_(std::move(a)),
        b_operand_(std::move(b)),
        a_(a_operand_.source),
        b_(b_operand_.source),
        a_bounds_(BoundRows(a_, kernels_.a_panel_rows, kernels_, context)),
        b_bounds_(BoundRows(b_, kernels_.b_panel_rows, kernels_, context)),
        a_scales_(ScalesOf(desc.a, shape.m)),
        b_scales_(ScalesOf(desc.b, shape.n)),
        d_scale_(desc.d_scale.has_value() ? *desc.d_scale.as<float>() : 1.0f),
        bias_(desc.bias.has_value() ? DecodeToFloats(desc.bias) : std::vector<float>(shape.n)),
        c_(desc.beta != 0 ? DecodeToFloats(desc.c) : std::vector<float>()),
        divisor_(GlobalDivisor(desc)),
        b_scales_wide_(PaddedDoubles(b_scales_, b_bounds_.norm.size())),
        bias_wide_(PaddedDoubles(bias_, b_bounds_.norm.size())),
        relative_error_(ExactRelativeError(shape.k)) {
    for (double& scale : b_scales_wide_) scale /= static_cast<double>(divisor_);
  }

  /// Multiplies the tile once and rounds it each way.
  void RunTile(const ExactTile& tile, std::deque<ExactRounding>& roundings,
               ExactTileMemory& memory);
  std::string NoteOf(const ExactRounding& rounding) const;

 private:
  bool IsExactInFp64(int64_t row, int64_t column) const {
    return a_bounds_.norm[row] * b_bounds_.norm[column] <
           std::ldexp(a_bounds_.lowest_bit[row], kExactFastBits) * b_bounds_.lowest_bit[column];
  }
  void RoundTile(const ExactTile& tile, const ExactSums& sums, ExactRounding& rounding,
                 ExactTileMemory& memory);
  ExactCode Redo(int64_t row, int64_t column, double s, ExactRounding& rounding,
                 ExactTileMemory& memory);
  ExactDot DotInWideIntegers(int64_t row, int64_t column, ExactTileMemory& memory);

  const GemmDesc& desc_;
  const GemmShape shape_;
  const ExactKernels& kernels_;
  const ExactOperand a_operand_, b_operand_;
  const ExactSource a_, b_;
  const ExactRowBounds a_bounds_, b_bounds_;
  const std::vector<float> a_scales_, b_scales_;
  const float d_scale_;
  const std::vector<float> bias_, c_;
  const int64_t divisor_;
  std::vector<double> b_scales_wide_;  // Divided by divisor_, rounded.
  const std::vector<double> bias_wide_;
  const double relative_error_;
};

ExactDot ExactProblem::DotInWideIntegers(int64_t row, int64_t column, ExactTileMemory& memory) {
  if (memory.decoded_row != row) {
    memory.a_row.resize(shape_.k);
    DecodeExactRow(a_, row, memory.a_row.data());
    memory.decoded_row = row;
  }
  memory.b_row.resize(shape_.k);
  DecodeExactRow(b_, column, memory.b_row.data());
  ExactDot dot;
  for (int64_t k = 0; k < shape_.k; ++k) {
    const double product = memory.a_row[k] * memory.b_row[k];
    dot.AddDouble(product);
    // Under fp32 block scales a product has up to 56 bits; its rounding error is an fp64 number.
    if (a_.scales != nullptr) {
      dot.AddDouble(std::fma(memory.a_row[k], memory.b_row[k], -product));
    }
  }
  return dot;
}

// Computes an output that the interval could not decide. Where the fp64 dot product is exact, it is
// used; otherwise it is taken again in wide integers.
ExactCode ExactProblem::Redo(int64_t row, int64_t column, double s, ExactRounding& rounding,
                             ExactTileMemory& memory) {
  ExactTerms terms;
  terms.alpha = desc_.alpha;
  terms.scale_a = a_scales_[row];
  terms.scale_b = b_scales_[column];
  terms.beta = desc_.beta;
  if (desc_.beta != 0) terms.c = c_[row * shape_.n + column];
  terms.bias = bias_[column];
  terms.d_scale = d_scale_;
  terms.divisor = static_cast<uint64_t>(divisor_);
  if (!std::isfinite(s)) return RoundSpecialOutput(s, terms, rounding.output());
  ExactDot dot;
  if (IsExactInFp64(row, column)) {
    rounding.CountWideEpilogue();
    dot.AddDouble(s);
  } else {
    rounding.CountWideDot();
    dot = DotInWideIntegers(row, column, memory);
  }
  return RoundExactOutput(dot, terms, rounding.output());
}

void ExactProblem::RunTile(const ExactTile& tile, std::deque<ExactRounding>& roundings,
                           ExactTileMemory& memory) {
  const ExactSums sums = MultiplyTile(a_, b_, tile, kernels_, memory);
  for (ExactRounding& rounding : roundings) RoundTile(tile, sums, rounding, memory);
}

void ExactProblem::RoundTile(const ExactTile& tile, const ExactSums& sums, ExactRounding& rounding,
                             ExactTileMemory& memory) {
  const int64_t count = tile.n_end - tile.n_begin;
  const auto certify = kernels_.certify[static_cast<int>(rounding.output())];
  memory.codes.resize(sums.stride);
  memory.amax.resize(sums.stride);
  memory.doubt.resize(sums.stride);
  memory.addend.assign(sums.stride, 0.0);
  uint32_t amax = 0;
  for (int64_t row = tile.m_begin; row < tile.m_end; ++row) {
    const double* s = sums.sums + (row - tile.m_begin) * sums.stride;
    if (desc_.beta != 0) {
      const float* c = &c_[row * shape_.n + tile.n_begin];
      for (int64_t j = 0; j < count; ++j) memory.addend[j] = static_cast<double>(desc_.beta) * c[j];
    }
    const ExactRow exact_row = {count,
                                s,
                                a_bounds_.norm[row],
                                std::ldexp(a_bounds_.lowest_bit[row], kExactFastBits),
                                &b_bounds_.norm[tile.n_begin],
                                &b_bounds_.lowest_bit[tile.n_begin],
                                relative_error_,
                                static_cast<double>(desc_.alpha) * a_scales_[row],
                                divisor_ == 1 ? 0.0 : 0x1p-52,
                                &b_scales_wide_[tile.n_begin],
                                memory.addend.data(),
                                &bias_wide_[tile.n_begin],
                                d_scale_};
    certify(exact_row, memory.codes.data(), memory.amax.data(), memory.doubt.data());
    for (int64_t j = 0; j < count; ++j) {
      if (memory.doubt[j] == 0) continue;
      const ExactCode redone = Redo(row, tile.n_begin + j, s[j], rounding, memory);
      memory.codes[j] = redone.code;
      memory.amax[j] = redone.amax;
    }
    rounding.Store(memory.codes, row * shape_.n + tile.n_begin, count);
    if (IsFp8(rounding.d().dtype())) {
      amax = std::max(amax, *std::max_element(memory.amax.begin(), memory.amax.begin() + count));
    }
  }
  rounding.RaiseAmax(amax);
}

std::string ExactProblem::NoteOf(const ExactRounding& rounding) const {
  return ExactNote({a_bounds_.LargestRatio() * b_bounds_.LargestRatio(), shape_.m * shape_.n,
                    rounding.wide_dots(), rounding.wide_epilogues()});
}

}  // namespace

absl::StatusOr<GemmResult> ExactGemm(const GemmDesc& given, const ExecutionContext& context) {
  GemmDesc desc = given;
  desc.arithmetic = Arithmetic{ArithmeticFamily::kExact};
  QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(desc));
  ScopedIeeeEnvironment ieee;
  GemmResult result;
  result.arithmetic = desc.arithmetic;
  QG_ASSIGN_OR_RETURN(result.d, OutputOf(desc, shape, Tensor::Allocate));
  std::deque<ExactRounding> roundings;
  roundings.emplace_back(result.d);
  if (desc.also_f32) {
    QG_ASSIGN_OR_RETURN(result.f32, Tensor::Allocate(DType::kF32, {shape.m, shape.n}));
    roundings.emplace_back(result.f32);
  }
  QG_ASSIGN_OR_RETURN(OperandView a, ViewOfA(desc, shape));
  QG_ASSIGN_OR_RETURN(OperandView b, ViewOfB(desc, shape));
  ExactProblem problem(desc, shape, ExactOperand(std::move(a)), ExactOperand(std::move(b)),
                       context);
  const std::vector<ExactTile> tiles =
      CutIntoTiles(shape.m, shape.n, 4 * context.threads, ExactKernelsFor(context.isa));
  ExactTileMemoryPool pool;
  ParallelFor(context, static_cast<int64_t>(tiles.size()), 1, [&](int64_t begin, int64_t end) {
    std::unique_ptr<ExactTileMemory> memory = pool.Take();
    for (int64_t i = begin; i < end; ++i) problem.RunTile(tiles[i], roundings, *memory);
    pool.Return(std::move(memory));
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  if (IsFp8(desc.out_dtype)) {
    QG_ASSIGN_OR_RETURN(result.amax,
                        Tensor::FromScalar(std::bit_cast<float>(roundings.front().amax())));
  }
  result.note = problem.NoteOf(roundings.back());
  return result;
}

// Error analysis of recursive summation (Higham, "Accuracy and Stability of Numerical Algorithms",
// 3.1): fused multiply-adds round sums only, so |fl(s) - s| <= gamma_d sum |a b| <= gamma_d ||a||
// ||b||, gamma_d = d u / (1 - d u), u = 2^-53. The addition to zero that opens a sum rounds too
// where fp32 block scales make products of up to 56 bits: one more. The last factor covers the
// rounding of the bound itself.
double ExactRelativeError(int64_t k) {
  const double du = static_cast<double>(ExactRoundingDepth(k) + 1) * 0x1p-53;
  return du / (1 - du) * (1 + 0x1p-40);
}

// Each of k squares and k additions loses at most 2^-53 of the sum so far; 16 more give some slack.
double ExactNormInflation(int64_t k) { return 1 + static_cast<double>(k + 16) * 0x1p-52; }

std::string ExactNote(const ExactStatistics& statistics) {
  const double ratio = statistics.largest_ratio;
  const int bits = ratio == 0 ? 0 : std::max(0, std::ilogb(ratio) + 1);
  std::string note =
      bits <= kExactFastBits
          ? absl::StrFormat("fp64 exact: needs %d of %d bits", bits, kExactFastBits)
          : absl::StrFormat("certified fp64: needs up to %d bits of %d", bits, kExactFastBits);
  if (statistics.wide_dots > 0) {
    absl::StrAppendFormat(&note, ", %d of %d outputs by 704-bit integers", statistics.wide_dots,
                          statistics.outputs);
  }
  if (statistics.wide_epilogues > 0) {
    absl::StrAppendFormat(&note, ", %d of %d epilogues by wide integers", statistics.wide_epilogues,
                          statistics.outputs);
  }
  return note;
}

}  // namespace quantgate
