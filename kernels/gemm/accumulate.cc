// Blocking. Rows of a are packed once per super-block for all of K. Each tile of rows x kColumns
// then walks K in panels, packs the panel of b for itself (its cost is shared by all rows of the
// tile) and advances its accumulators.
#include "kernels/gemm/accumulate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/gemm/gather.h"
#include "kernels/gemm/panel.h"
#include "kernels/gemm/round_toward_zero.h"
#include "kernels/gemm/scalar_dot.h"
#include "kernels/gemm/special_outputs.h"
#include "kernels/numerics/float_format.h"

namespace quantgate {
namespace {

constexpr int64_t kPanelDepth = 128;   // k of one packed panel of b: 72 to 80 KiB, within L2.
constexpr int64_t kTileRowsMax = 512;  // Amortises the packing of b; 128 KiB of accumulators.
constexpr int64_t kTileRowsMin = 32;
constexpr int64_t kPackedBytesMax = 48 << 20;  // Of packed a in one super-block.

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Typed memory from Buffer::Allocate, which reports failure as a status.
template <typename T>
class Workspace {
 public:
  absl::Status Resize(int64_t count) {
    QG_ASSIGN_OR_RETURN(buffer_, Buffer::Allocate(static_cast<size_t>(count) * sizeof(T)));
    return absl::OkStatus();
  }
  T* data() const { return reinterpret_cast<T*>(buffer_->data()); }

 private:
  std::shared_ptr<Buffer> buffer_;
};

/// The first error of several threads.
class FirstError {
 public:
  void Record(absl::Status status) {
    if (status.ok()) return;
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
  }
  absl::Status status() const { return status_; }

 private:
  std::mutex mutex_;
  absl::Status status_;
};

void AddInto(const float* part, int64_t count, float* total) {
  for (int64_t i = 0; i < count; ++i) total[i] = total[i] + part[i];
}

/// What one tile needs while it is computed.
template <class Panel>
struct TileWorkspace {
  Workspace<uint32_t> codes;  // [kPanelDepth][kColumns], of the widest code.
  Workspace<typename Panel::Value> b;
  Workspace<typename Panel::Exponent> b_exponents;
  Workspace<float> accumulators, slice, total;  // [rows][kColumns]

  absl::Status Allocate(int64_t rows, const AccumulationRule& rule) {
    const int64_t count = rows * Panel::kColumns;
    QG_RETURN_IF_ERROR(codes.Resize(kPanelDepth * Panel::kColumns));
    QG_RETURN_IF_ERROR(b.Resize(kPanelDepth * 2 * Panel::kColumns));
    QG_RETURN_IF_ERROR(b_exponents.Resize(kPanelDepth * Panel::kColumns));
    QG_RETURN_IF_ERROR(accumulators.Resize(count));
    if (rule.promote_k > 0) QG_RETURN_IF_ERROR(slice.Resize(count));
    if (rule.slices > 1) QG_RETURN_IF_ERROR(total.Resize(count));
    return absl::OkStatus();
  }
};

template <class Panel>
class Sm90Accumulator {
 public:
  Sm90Accumulator(const OperandView& a, const OperandView& b, const AccumulationRule& rule,
                  const ExecutionContext& context, const PanelKernels<Panel>& kernels)
      : a_(a),
        b_(b),
        rule_(rule),
        slices_(SlicesOf(rule, a.k)),
        context_(context),
        kernels_(kernels),
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
    const int64_t fitting = kPackedBytesMax / (k_padded_ * kBytesPerElement);
    const int64_t rows_max = std::min(RoundUp(a_.rows, 2), std::max(kTileRowsMin, fitting / 2 * 2));
    QG_RETURN_IF_ERROR(packed_a_.Resize(rows_max * k_padded_));
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
        std::fill(values.data() + count, values.data() + k_padded_, typename Panel::Value(0));
        std::fill(exponents.data() + count, exponents.data() + k_padded_, Panel::kExponentOfZero);
        ScatterSteps(values.data(), r, packed_a_.data());
        ScatterSteps(exponents.data(), r, packed_a_exponents_.data());
      }
    });
  }

  /// One row [k_padded_] to row r of packed [steps][block_rows_][step].
  template <typename T>
  void ScatterSteps(const T* source, int64_t r, T* packed) const {
    for (int64_t k = 0; k < k_padded_; k += rule_.step) {
      std::memcpy(packed + k * block_rows_ + r * rule_.step, source + k, rule_.step * sizeof(T));
    }
  }

  void RunBlock(int64_t row, int64_t rows, AccumulatorSink sink) {
    const int64_t column_tiles = RoundUp(b_.rows, Panel::kColumns) / Panel::kColumns;
    // Enough tiles that threads finish together, yet as many rows as that allows.
    const int64_t row_tiles_wanted = (4 * context_.threads + column_tiles - 1) / column_tiles;
    const int64_t tile_rows = std::clamp(
        RoundUp((rows + row_tiles_wanted - 1) / row_tiles_wanted, 2), kTileRowsMin, kTileRowsMax);
    const int64_t row_tiles = (rows + tile_rows - 1) / tile_rows;
    ParallelFor(context_, column_tiles * row_tiles, 1, [&](int64_t begin, int64_t end) {
      TileWorkspace<Panel> workspace;
      const absl::Status allocated = workspace.Allocate(RoundUp(tile_rows, 2), rule_);
      if (!allocated.ok()) return error_.Record(allocated);
      for (int64_t tile = begin; tile < end; ++tile) {
        const int64_t tile_row = tile % row_tiles * tile_rows;
        RunTile(row, tile_row, std::min(tile_rows, rows - tile_row),
                tile / row_tiles * Panel::kColumns, workspace, sink);
      }
    });
  }

  /// Rows [block_row + tile_row, ... + rows) x columns [column, column + kColumns).
  void RunTile(int64_t block_row, int64_t tile_row, int64_t rows, int64_t column,
               TileWorkspace<Panel>& workspace, AccumulatorSink sink) const {
    const int64_t count = RoundUp(rows, 2) * Panel::kColumns;
    float* result = workspace.accumulators.data();
    for (const KRange& slice : slices_) {
      const float* slice_sum = RunSlice(slice, tile_row, rows, column, workspace);
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

  /// One slice of K from zero; returns its sums, which live in the workspace.
  const float* RunSlice(const KRange& slice, int64_t tile_row, int64_t rows, int64_t column,
                        TileWorkspace<Panel>& workspace) const {
    const int64_t count = RoundUp(rows, 2) * Panel::kColumns;
    float* const accumulators = workspace.accumulators.data();
    std::memset(accumulators, 0, count * sizeof(float));
    if (rule_.promote_k == 0) {
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
      AddInto(accumulators, count, sum);
    }
    return sum;
  }

  void RunPanel(const KRange& range, int64_t tile_row, int64_t rows, int64_t column,
                TileWorkspace<Panel>& workspace) const {
    const int depth = static_cast<int>(RoundUp(range.end - range.begin, rule_.step));
    GatherByK(b_, column, Panel::kColumns, range.begin, depth, workspace.codes.data());
    kernels_.decode_columns(workspace.codes.data(), b_.dtype, depth, workspace.b.data(),
                            workspace.b_exponents.data());
    const int64_t a_offset = range.begin * block_rows_ + tile_row * rule_.step;
    const ScopedRoundTowardZero round_toward_zero;
    kernels_.multiply({packed_a_.data() + a_offset, packed_a_exponents_.data() + a_offset,
                       block_rows_, RoundUp(rows, 2), workspace.b.data(),
                       workspace.b_exponents.data(), depth / rule_.step, rule_.step,
                       workspace.accumulators.data()});
  }

  /// Replaces the outputs that a NaN or an infinity reaches; the kernels took those operands for
  /// zeros.
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
    if (products.nan || (products.positive_infinity && products.negative_infinity)) {
      return std::bit_cast<float>(uint32_t(Float32::kCanonicalNan));
    }
    const float infinity = products.positive_infinity ? INFINITY : -INFINITY;
    // Only finite products that overflow the other way first can change the outcome, and such an
    // overflow would have stuck to the finite sum too.
    if (std::isnan(finite_sum) || finite_sum == -infinity) {
      return ScalarDotSm90(a_, b_, rule_, m, n);
    }
    return infinity;
  }

  const OperandView a_, b_;
  const AccumulationRule rule_;
  const std::vector<KRange> slices_;
  const ExecutionContext& context_;
  const PanelKernels<Panel>& kernels_;
  const int64_t k_padded_;
  ClassSets a_classes_, b_classes_;
  bool has_specials_ = false;
  int64_t block_rows_ = 0;
  Workspace<typename Panel::Value> packed_a_;  // [k_padded_ / step][block_rows_][step]
  Workspace<typename Panel::Exponent> packed_a_exponents_;
  FirstError error_;
};

}  // namespace

AccumulationRule Sm90Rule(DType dtype, bool split, int slices) {
  // A tile of split-K is 128 bytes of k in every type.
  const int64_t tile_k = 128 / DTypeBytes(dtype);
  if (IsFp8(dtype)) return {32, split ? 128 : 0, slices, tile_k};
  return {dtype == DType::kF32 ? 8 : 16, 0, slices, tile_k};
}

std::vector<KRange> SlicesOf(const AccumulationRule& rule, int64_t k) {
  if (rule.slices <= 1) return {{0, k}};
  // cuBLASLt 13.1 rounds the integer quotient k / slices up to whole tiles. Where the quotient is
  // whole tiles already and leaves a remainder, the last products of k are in no slice and are
  // lost: 8 of 776 at 12 slices, on the H200 (tests/data/golden_gemm_splitk.safetensors).
  const int64_t slice_k = std::max(rule.tile_k, RoundUp(k / rule.slices, rule.tile_k));
  std::vector<KRange> slices;
  for (int64_t i = 0; i < rule.slices && i * slice_k < k; ++i) {
    slices.push_back({i * slice_k, std::min(k, (i + 1) * slice_k)});
  }
  return slices;
}

absl::Status AccumulateSm90(const OperandView& a, const OperandView& b,
                            const AccumulationRule& rule, const ExecutionContext& context,
                            AccumulatorSink sink) {
  const KernelTable& kernels = KernelsFor(context.isa);
  if (IsFp8(a.dtype)) {
    return Sm90Accumulator<NarrowPanel>(a, b, rule, context, kernels.narrow).Run(sink);
  }
  return Sm90Accumulator<WidePanel>(a, b, rule, context, kernels.wide).Run(sink);
}

}  // namespace quantgate
