// Blocking: the rows of a are packed once per block for all of K. Each tile of rows x kColumns then
// walks K in panels, packs its own panel of b (a cost that all rows of the tile share) and advances
// its accumulators.
#include "kernels/gemm/models/accumulate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/base/execution.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/cublaslt/workspace.h"
#include "kernels/gemm/models/gather.h"
#include "kernels/gemm/models/panel.h"
#include "kernels/gemm/models/round_toward_zero.h"
#include "kernels/gemm/models/row_blocking.h"
#include "kernels/gemm/models/scalar_dot.h"
#include "kernels/gemm/models/special_outputs.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/float_format.h"

namespace quantgate {
namespace {

constexpr int64_t kPanelDepth = 128;   // k of a packed panel of b: 72 to 80 KiB, within L2.
constexpr int64_t kSignsOverread = 8;  // Kernels load a whole register of a short step.

void AddInto(const float* part, int64_t count, float* total) {
  for (int64_t i = 0; i < count; ++i) total[i] = total[i] + part[i];
}

/// The memory of one tile while it is computed.
template <class Panel>
struct TileWorkspace {
  Workspace<uint32_t> codes;  // [kPanelDepth][kColumns], of the widest code.
  Workspace<typename Panel::Value> b;
  Workspace<typename Panel::Exponent> b_exponents;
  Workspace<float> accumulators, slice, total;  // [rows][kColumns]
  Workspace<float> scales;                      // One block's: [kColumns], then [rows].

  absl::Status Allocate(int64_t rows, const FusedRule& rule) {
    const int64_t count = rows * Panel::kColumns;
    QG_RETURN_IF_ERROR(codes.Resize(kPanelDepth * Panel::kColumns));
    QG_RETURN_IF_ERROR(b.Resize(kPanelDepth * 2 * Panel::kColumns));
    QG_RETURN_IF_ERROR(b_exponents.Resize(kPanelDepth * Panel::kColumns));
    QG_RETURN_IF_ERROR(accumulators.Resize(count));
    QG_RETURN_IF_ERROR(scales.Resize(Panel::kColumns + rows));
    if (rule.promotion != Promotion::kNone) QG_RETURN_IF_ERROR(slice.Resize(count));
    if (rule.slices > 1) QG_RETURN_IF_ERROR(total.Resize(count));
    return absl::OkStatus();
  }
};

template <class Panel>
class FusedAccumulator {
 public:
  FusedAccumulator(const OperandView& a, const OperandView& b, const FusedRule& rule,
                   const ExecutionContext& context, const PanelKernels<Panel>& kernels)
      : a_(a),
        b_(b),
        rule_(rule),
        slices_(SlicesOf(rule, a.k)),
        context_(context),
        kernels_(kernels),
        promote_(KernelsFor(context.isa).promote),
        k_padded_(RoundUp(a.k, rule.step)),
        a_classes_(a, slices_.back().end, a.dtype == DType::kF32),
        b_classes_(b, slices_.back().end, b.dtype == DType::kF32) {}

  absl::Status Run(AccumulatorSink sink) {
    if (a_.rows == 0) return absl::OkStatus();
    has_specials_ = a_classes_.any_special() || b_classes_.any_special();
    if (has_specials_) {
      a_classes_.BuildSets();
      b_classes_.BuildSets();
    }
    constexpr int64_t kBytesPerElement =
        sizeof(typename Panel::Value) + sizeof(typename Panel::Exponent);
    const int64_t rows_max = RowsPerBlock(a_.rows, k_padded_ * kBytesPerElement, context_.threads);
    QG_RETURN_IF_ERROR(packed_a_.Resize(rows_max * k_padded_ + kSignsOverread));
    QG_RETURN_IF_ERROR(packed_a_exponents_.Resize(rows_max * k_padded_));
    for (int64_t row = 0; row < a_.rows; row += rows_max) {
      const int64_t rows = std::min(rows_max, a_.rows - row);
      PackA(row, rows);
      RunBlock(row, rows, sink);
      QG_RETURN_IF_ERROR(context_.CheckCancelled());
      QG_RETURN_IF_ERROR(error_.status());
    }
    return absl::OkStatus();
  }

 private:
  /// Packs rows [row, row + rows) of a, and a row of zeros where rows is odd, in the order of
  /// PanelTask.
  void PackA(int64_t row, int64_t rows) {
    constexpr int64_t kGrain = 16;
    block_rows_ = RoundUp(rows, 2);
    ParallelFor(context_, block_rows_, kGrain, [&](int64_t begin, int64_t end) {
      Workspace<typename Panel::Value> values;
      Workspace<typename Panel::Exponent> exponents;
      Workspace<uint32_t> gathered;
      absl::Status status = values.Resize(k_padded_);
      if (status.ok()) status = exponents.Resize(k_padded_);
      if (status.ok() && a_.k_stride != 1) status = gathered.Resize(kGrain * a_.k);
      if (!status.ok()) return error_.Record(status);
      const int64_t code_bytes = DTypeBytes(a_.dtype);
      const auto* codes = a_.data + (row + begin) * a_.row_stride * code_bytes;
      if (a_.k_stride != 1) {
        const int64_t inside = std::min(end, rows) - begin;
        GatherByRow(a_, row + begin, inside, 0, a_.k, a_.k, gathered.data());
        codes = reinterpret_cast<const std::byte*>(gathered.data());
      }
      for (int64_t r = begin; r < end; ++r) {
        const int64_t count = r < rows ? a_.k : 0;
        kernels_.decode_row(codes + (r - begin) * a_.k * code_bytes, a_.dtype, count, values.data(),
                            exponents.data());
        ApplyRowScales(row + r, count, values.data(), exponents.data());
        std::fill(values.data() + count, values.data() + k_padded_, typename Panel::Value(0));
        std::fill(exponents.data() + count, exponents.data() + k_padded_, Panel::kExponentOfZero);
        ScatterSteps(values.data(), r, packed_a_.data());
        ScatterSteps(exponents.data(), r, packed_a_exponents_.data());
      }
    });
  }

  /// Whether scales are powers of two that move the exponents of products, rather than factors of
  /// promoted sums.
  bool scales_products() const { return a_.scales.has_value() && !scales_sums(); }
  bool scales_sums() const {
    return rule_.promotion == Promotion::kScaled || rule_.promotion == Promotion::kScaledTwice;
  }

  /// Multiplies the first `count` values of an operand's row by their blocks' scales. NaN scales
  /// are left out, since special_outputs.h gives the outputs that they reach.
  void ApplyRowScales(int64_t row, int64_t count, typename Panel::Value* values,
                      typename Panel::Exponent* exponents) const {
    if (!scales_products()) return;
    for (int64_t k = 0; k < count; k += a_.scales.k_block) {
      const FusedElement scale = a_.scales.ElementAt(row, k);
      const auto factor = static_cast<typename Panel::Value>(std::ldexp(1.0, scale.exponent));
      const int64_t end = std::min<int64_t>(count, k + a_.scales.k_block);
      for (int64_t i = k; i < end; ++i) {
        const bool zero = values[i] == 0;
        values[i] *= factor;
        exponents[i] =
            static_cast<typename Panel::Exponent>(exponents[i] + (zero ? 0 : scale.exponent));
      }
    }
  }

  /// The same for a decoded panel of b with k in [begin, begin + depth).
  void ApplyColumnScales(int64_t column, int64_t begin, int depth, typename Panel::Value* values,
                         typename Panel::Exponent* exponents) const {
    if (!scales_products()) return;
    constexpr int kColumns = Panel::kColumns;
    typename Panel::Value factors[kColumns];
    typename Panel::Exponent shifts[kColumns];
    const int64_t inside = std::min<int64_t>(kColumns, b_.rows - column);
    const int64_t depth_inside = std::min<int64_t>(depth, b_.k - begin);
    for (int64_t i = 0; i < depth_inside; ++i) {
      if (i == 0 || (begin + i) % b_.scales.k_block == 0) {
        for (int64_t j = 0; j < kColumns; ++j) {
          const int64_t row = column + std::min(j, inside - 1);
          const int16_t exponent = b_.scales.ElementAt(row, begin + i).exponent;
          factors[j] = static_cast<typename Panel::Value>(std::ldexp(1.0, exponent));
          shifts[j] = static_cast<typename Panel::Exponent>(exponent);
        }
      }
      typename Panel::Value* const positive = values + i * 2 * kColumns;
      typename Panel::Value* const negative = positive + kColumns;
      typename Panel::Exponent* const row_exponents = exponents + i * kColumns;
      for (int j = 0; j < kColumns; ++j) {
        const bool zero = positive[j] + negative[j] == 0;
        positive[j] *= factors[j];
        negative[j] *= factors[j];
        row_exponents[j] =
            static_cast<typename Panel::Exponent>(row_exponents[j] + (zero ? 0 : shifts[j]));
      }
    }
  }

  /// Copies one row [k_padded_] to row r of packed [steps][block_rows_][step].
  template <typename T>
  void ScatterSteps(const T* source, int64_t r, T* packed) const {
    for (int64_t k = 0; k < k_padded_; k += rule_.step) {
      std::memcpy(packed + k * block_rows_ + r * rule_.step, source + k, rule_.step * sizeof(T));
    }
  }

  void RunBlock(int64_t row, int64_t rows, AccumulatorSink sink) {
    const int64_t column_tiles = DivideUp(b_.rows, Panel::kColumns);
    const int64_t tile_rows = TileRowsMax(rows, column_tiles, context_.threads);
    const std::vector<BlockTile> tiles = TilesOf(rows, column_tiles, context_.threads);
    ParallelForEach(context_, static_cast<int64_t>(tiles.size()), [&](WorkFeed& feed) {
      TileWorkspace<Panel> workspace;
      const absl::Status allocated = workspace.Allocate(tile_rows, rule_);
      if (!allocated.ok()) return error_.Record(allocated);
      while (const std::optional<int64_t> i = feed.Next()) {
        const BlockTile& tile = tiles[static_cast<size_t>(*i)];
        RunTile(row, tile.row, tile.rows, tile.column_tile * Panel::kColumns, workspace, sink);
      }
    });
  }

  /// Computes rows [block_row + tile_row, ... + rows) x columns [column, column + kColumns).
  void RunTile(int64_t block_row, int64_t tile_row, int64_t rows, int64_t column,
               TileWorkspace<Panel>& workspace, AccumulatorSink sink) const {
    const int64_t count = RoundUp(rows, 2) * Panel::kColumns;
    float* result = workspace.accumulators.data();
    for (const KRange& slice : slices_) {
      const float* slice_sum = RunSlice(slice, block_row, tile_row, rows, column, workspace);
      if (slices_.size() == 1) {
        result = const_cast<float*>(slice_sum);
      } else if (slice.begin == 0) {
        result = workspace.total.data();
        std::memcpy(result, slice_sum, count * sizeof(float));
      } else {
        AddInto(slice_sum, count, result);
      }
    }
    const int columns = static_cast<int>(std::min<int64_t>(Panel::kColumns, b_.rows - column));
    if (has_specials_) SettleSpecials(block_row + tile_row, rows, column, columns, result);
    sink({block_row + tile_row, rows, column, columns, result, Panel::kColumns});
  }

  /// Sums one slice of K from zero; returns its sums, which live in the workspace.
  const float* RunSlice(const KRange& slice, int64_t block_row, int64_t tile_row, int64_t rows,
                        int64_t column, TileWorkspace<Panel>& workspace) const {
    const int64_t count = RoundUp(rows, 2) * Panel::kColumns;
    float* const accumulators = workspace.accumulators.data();
    std::memset(accumulators, 0, count * sizeof(float));
    if (rule_.promotion == Promotion::kNone) {
      for (int64_t k = slice.begin; k < slice.end; k += kPanelDepth) {
        RunPanel({k, std::min(slice.end, k + kPanelDepth)}, tile_row, rows, column, workspace);
      }
      return accumulators;
    }
    float* const sum = workspace.slice.data();
    std::memset(sum, 0, count * sizeof(float));
    for (int64_t k = slice.begin; k < slice.end; k += rule_.promote_k) {
      if (k > slice.begin) std::memset(accumulators, 0, count * sizeof(float));
      RunPanel({k, std::min(slice.end, k + rule_.promote_k)}, tile_row, rows, column, workspace);
      if (scales_sums()) {
        PromoteBlock(k, block_row + tile_row, rows, column, workspace);
      } else {
        AddInto(accumulators, count, sum);
      }
    }
    return sum;
  }

  /// Adds the accumulators of the block of k to the slice's sums, under the block's scales.
  void PromoteBlock(int64_t k, int64_t row, int64_t rows, int64_t column,
                    TileWorkspace<Panel>& workspace) const {
    float* const column_scales = workspace.scales.data();
    float* const row_scales = column_scales + Panel::kColumns;
    for (int64_t j = 0; j < Panel::kColumns; ++j) {
      column_scales[j] = b_.scales.At(std::min(column + j, b_.rows - 1), k);
    }
    for (int64_t r = 0; r < RoundUp(rows, 2); ++r) {
      row_scales[r] = a_.scales.At(std::min(row + r, a_.rows - 1), k);
    }
    promote_({workspace.accumulators.data(), RoundUp(rows, 2), row_scales, column_scales,
              rule_.promotion == Promotion::kScaledTwice, workspace.slice.data()});
  }

  void RunPanel(const KRange& range, int64_t tile_row, int64_t rows, int64_t column,
                TileWorkspace<Panel>& workspace) const {
    const int depth = static_cast<int>(RoundUp(range.end - range.begin, rule_.step));
    GatherByK(b_, column, Panel::kColumns, range.begin, depth, workspace.codes.data());
    kernels_.decode_columns(workspace.codes.data(), b_.dtype, depth, workspace.b.data(),
                            workspace.b_exponents.data());
    ApplyColumnScales(column, range.begin, depth, workspace.b.data(), workspace.b_exponents.data());
    const int64_t a_offset = range.begin * block_rows_ + tile_row * rule_.step;
    const ScopedRoundTowardZero round_toward_zero;
    kernels_.multiply({packed_a_.data() + a_offset, packed_a_exponents_.data() + a_offset,
                       block_rows_, RoundUp(rows, 2), workspace.b.data(),
                       workspace.b_exponents.data(), depth / rule_.step, rule_.step,
                       rule_.align_bits, workspace.accumulators.data()});
  }

  /// Replaces the outputs that a NaN or an infinity reaches, which the kernels took for zeros.
  void SettleSpecials(int64_t row, int64_t rows, int64_t column, int columns, float* values) const {
    for (int64_t r = 0; r < rows; ++r) {
      const bool row_special = a_classes_.is_special(row + r);
      for (int j = 0; j < columns; ++j) {
        if (!row_special && !b_classes_.is_special(column + j)) continue;
        float& value = values[r * Panel::kColumns + j];
        value = SettledValue(row + r, column + j, value);
      }
    }
  }

  float SettledValue(int64_t m, int64_t n, float finite_sum) const {
    const SpecialProducts products = FindSpecialProducts(a_classes_, m, b_classes_, n);
    // A block's scale may change the sign of an infinity, or make it NaN.
    if (scales_sums() && !products.nan) return ScalarDot(a_, b_, rule_, m, n);
    if (products.nan || (products.positive_infinity && products.negative_infinity)) {
      return std::bit_cast<float>(uint32_t(Float32::kCanonicalNan));
    }
    const float infinity = products.positive_infinity ? INFINITY : -INFINITY;
    // Only finite products that overflow to the other infinity first can change the result, and
    // then the finite sum has that infinity too.
    if (std::isnan(finite_sum) || finite_sum == -infinity) {
      return ScalarDot(a_, b_, rule_, m, n);
    }
    return infinity;
  }

  const OperandView a_, b_;
  const FusedRule rule_;
  const std::vector<KRange> slices_;
  const ExecutionContext& context_;
  const PanelKernels<Panel>& kernels_;
  const PromoteKernel promote_;
  const int64_t k_padded_;
  ClassSets a_classes_, b_classes_;
  bool has_specials_ = false;
  int64_t block_rows_ = 0;
  Workspace<typename Panel::Value> packed_a_;  // [k_padded_ / step][block_rows_][step]
  Workspace<typename Panel::Exponent> packed_a_exponents_;
  FirstError error_;
};

/// An FP8 operand as ProductOrder::kPairsOfFour takes it: fp16 numbers in that order of k, padded
/// with zeros to whole instructions.
absl::StatusOr<OperandView> InPairsOfFour(const OperandView& view) {
  OperandView ordered = view;
  ordered.dtype = DType::kF16;
  ordered.k = RoundUp(view.k, 32);
  ordered.row_stride = ordered.k;
  ordered.k_stride = 1;
  QG_ASSIGN_OR_RETURN(
      ordered.owned,
      Buffer::Allocate(static_cast<size_t>(ordered.rows * ordered.k) * sizeof(uint16_t)));
  ordered.data = ordered.owned->data();
  uint16_t as_f16[256];
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    as_f16[code] = EncodeFloat<Float16>(view.dtype == DType::kF8E4M3 ? DecodeFloat<E4M3>(byte)
                                                                     : DecodeFloat<E5M2>(byte));
  }
  auto* out = reinterpret_cast<uint16_t*>(ordered.owned->data());
  for (int64_t row = 0; row < ordered.rows; ++row) {
    for (int64_t i = 0; i < ordered.k; ++i) {
      const int64_t k = fused_rule_steps::PairsOfFour(0, i);
      *out++ = k < view.k ? as_f16[*view.at<uint8_t>(row, k)] : uint16_t(0);
    }
  }
  return ordered;
}

}  // namespace

std::vector<KRange> SlicesOf(const FusedRule& rule, int64_t k) {
  const int64_t slice_k = SliceLength(rule, k);
  std::vector<KRange> slices;
  for (int64_t i = 0; i < rule.slices && i * slice_k < k; ++i) {
    slices.push_back({i * slice_k, std::min(k, (i + 1) * slice_k)});
  }
  return slices;
}

absl::Status AccumulateFused(const OperandView& a, const OperandView& b, const FusedRule& rule,
                             const ExecutionContext& context, AccumulatorSink sink) {
  if (rule.f16_accumulator) return AccumulateScalar(a, b, rule, context, sink);
  if (rule.group > 1) return AccumulateGroups(a, b, rule, context, sink);
  if (rule.order == ProductOrder::kPairsOfFour) {
    FusedRule ascending = rule;
    ascending.order = ProductOrder::kAscending;
    QG_ASSIGN_OR_RETURN(const OperandView a_ordered, InPairsOfFour(a));
    QG_ASSIGN_OR_RETURN(const OperandView b_ordered, InPairsOfFour(b));
    return AccumulateFused(a_ordered, b_ordered, ascending, context, sink);
  }
  const KernelTable& kernels = KernelsFor(context.isa);
  if (rule.out_mantissa == NarrowPanel::kOutMantissa) {
    return FusedAccumulator<NarrowPanel>(a, b, rule, context, kernels.narrow).Run(sink);
  }
  return FusedAccumulator<WidePanel>(a, b, rule, context, kernels.wide).Run(sink);
}

}  // namespace quantgate
