// NVFP4: the rows of a are packed once, then each tile of columns packs its own part of b and walks
// K.
#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <vector>

#include "kernels/base/execution.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/cublaslt/workspace.h"
#include "kernels/gemm/models/accumulate.h"
#include "kernels/gemm/models/gather.h"
#include "kernels/gemm/models/panel.h"
#include "kernels/gemm/models/round_toward_zero.h"
#include "kernels/gemm/models/row_blocking.h"
#include "kernels/gemm/models/special_outputs.h"
#include "kernels/numerics/cast.h"

namespace quantgate {
namespace {

using Panel = GroupPanel;
constexpr int64_t kPanelDepth = 512;  // k of one packed panel of b: 64 KiB of values, within L2.

GroupScale ScaleOf(const BlockScaleView& scales, int64_t row, int64_t k) {
  const FusedElement scale = scales.ElementAt(row, k);
  if (scale.kind != FloatClass::kFinite) return {0, Panel::kExponentOfZero};
  return {scales.At(row, k), scale.exponent};
}

class GroupAccumulator {
 public:
  GroupAccumulator(const OperandView& a, const OperandView& b, const FusedRule& rule,
                   const ExecutionContext& context)
      : a_(a),
        b_(b),
        rule_(rule),
        context_(context),
        kernel_(KernelsFor(context.isa).groups),
        steps_((a.k + Panel::kStep - 1) / Panel::kStep),
        a_classes_(a, a.k, false),
        b_classes_(b, b.k, false) {
    for (int code = 0; code < 16; ++code) values_[code] = DecodeFloat<E2M1>(uint8_t(code));
  }

  absl::Status Run(AccumulatorSink sink) {
    if (a_.rows == 0) return absl::OkStatus();
    const int64_t row_bytes =
        steps_ * (Panel::kStep * sizeof(float) + Panel::kGroups * sizeof(GroupScale));
    const int64_t rows_max = RowsPerBlock(a_.rows, row_bytes, context_.threads);
    QG_RETURN_IF_ERROR(packed_a_.Resize(rows_max * steps_ * Panel::kStep));
    QG_RETURN_IF_ERROR(packed_a_scales_.Resize(rows_max * steps_ * Panel::kGroups));
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
  struct TileWorkspace {
    Workspace<uint8_t> codes;
    Workspace<float> b;
    Workspace<double> b_scales;
    Workspace<int32_t> b_exponents;
    Workspace<float> accumulators;

    absl::Status Allocate(int64_t rows) {
      constexpr int64_t kScales = kPanelDepth / Panel::kGroup * Panel::kColumns;
      QG_RETURN_IF_ERROR(codes.Resize(kPanelDepth * Panel::kColumns));
      QG_RETURN_IF_ERROR(b.Resize(kPanelDepth * Panel::kColumns));
      QG_RETURN_IF_ERROR(b_scales.Resize(kScales));
      QG_RETURN_IF_ERROR(b_exponents.Resize(kScales));
      return accumulators.Resize(rows * Panel::kColumns);
    }
  };

  /// Packs rows [row, row + rows) of a, and a row of zeros where rows is odd, in the order of
  /// GroupTask.
  void PackA(int64_t row, int64_t rows) {
    block_rows_ = RoundUp(rows, 2);
    ParallelFor(context_, block_rows_, 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t step = 0; step < steps_; ++step) PackStepOfA(row, rows, r, step);
      }
    });
  }

  void PackStepOfA(int64_t row, int64_t rows, int64_t r, int64_t step) {
    float* const values = packed_a_.data() + (step * block_rows_ + r) * Panel::kStep;
    GroupScale* const scales = packed_a_scales_.data() + (step * block_rows_ + r) * Panel::kGroups;
    const int64_t k = step * Panel::kStep;
    const int64_t inside = r < rows ? std::min<int64_t>(Panel::kStep, a_.k - k) : 0;
    const auto* codes = a_.at<uint8_t>(r < rows ? row + r : row, k);
    for (int64_t i = 0; i < Panel::kStep; ++i) values[i] = i < inside ? values_[codes[i]] : 0.0f;
    for (int g = 0; g < Panel::kGroups; ++g) {
      scales[g] = g * Panel::kGroup < inside ? ScaleOf(a_.scales, row + r, k + g * Panel::kGroup)
                                             : GroupScale{0, Panel::kExponentOfZero};
    }
  }

  void RunBlock(int64_t row, int64_t rows, AccumulatorSink sink) {
    const int64_t column_tiles = DivideUp(b_.rows, Panel::kColumns);
    const int64_t tile_rows = TileRowsMax(rows, column_tiles, context_.threads);
    const std::vector<BlockTile> tiles = TilesOf(rows, column_tiles, context_.threads);
    ParallelForEach(context_, static_cast<int64_t>(tiles.size()), [&](WorkFeed& feed) {
      TileWorkspace workspace;
      const absl::Status allocated = workspace.Allocate(tile_rows);
      if (!allocated.ok()) return error_.Record(allocated);
      while (const std::optional<int64_t> i = feed.Next()) {
        const BlockTile& tile = tiles[static_cast<size_t>(*i)];
        RunTile(row, tile.row, tile.rows, tile.column_tile * Panel::kColumns, workspace, sink);
      }
    });
  }

  void RunTile(int64_t block_row, int64_t tile_row, int64_t rows, int64_t column,
               TileWorkspace& workspace, AccumulatorSink sink) const {
    const int64_t padded_rows = RoundUp(rows, 2);
    float* const accumulators = workspace.accumulators.data();
    std::memset(accumulators, 0, padded_rows * Panel::kColumns * sizeof(float));
    for (int64_t k = 0; k < a_.k; k += kPanelDepth) {
      const int64_t depth = RoundUp(std::min(kPanelDepth, a_.k - k), Panel::kStep);
      PackB(column, k, depth, workspace);
      const int64_t a_offset = k / Panel::kStep * block_rows_ + tile_row;
      const ScopedRoundTowardZero round_toward_zero;
      kernel_({packed_a_.data() + a_offset * Panel::kStep,
               packed_a_scales_.data() + a_offset * Panel::kGroups, block_rows_, padded_rows,
               workspace.b.data(), workspace.b_scales.data(), workspace.b_exponents.data(),
               static_cast<int>(depth / Panel::kStep), rule_.align_bits, accumulators});
    }
    const int columns = static_cast<int>(std::min<int64_t>(Panel::kColumns, b_.rows - column));
    SettleNans(block_row + tile_row, rows, column, columns, accumulators);
    sink({block_row + tile_row, rows, column, columns, accumulators, Panel::kColumns});
  }

  void PackB(int64_t column, int64_t k, int64_t depth, TileWorkspace& workspace) const {
    GatherByK(b_, column, Panel::kColumns, k, depth, workspace.codes.data());
    for (int64_t i = 0; i < depth * Panel::kColumns; ++i) {
      workspace.b.data()[i] = values_[workspace.codes.data()[i]];
    }
    for (int64_t g = 0; g < depth / Panel::kGroup; ++g) {
      for (int64_t j = 0; j < Panel::kColumns; ++j) {
        const int64_t at = k + g * Panel::kGroup;
        const bool inside = column + j < b_.rows && at < b_.k;
        const GroupScale scale =
            inside ? ScaleOf(b_.scales, column + j, at) : GroupScale{0, Panel::kExponentOfZero};
        workspace.b_scales.data()[g * Panel::kColumns + j] = scale.value;
        workspace.b_exponents.data()[g * Panel::kColumns + j] = scale.exponent;
      }
    }
  }

  /// Sets the NaN outputs: only scales can be NaN, and each makes its whole row or column NaN.
  void SettleNans(int64_t row, int64_t rows, int64_t column, int columns, float* values) const {
    if (!a_classes_.any_special() && !b_classes_.any_special()) return;
    for (int64_t r = 0; r < rows; ++r) {
      for (int j = 0; j < columns; ++j) {
        if (!a_classes_.is_special(row + r) && !b_classes_.is_special(column + j)) continue;
        values[r * Panel::kColumns + j] = std::bit_cast<float>(uint32_t(Float32::kCanonicalNan));
      }
    }
  }

  const OperandView a_, b_;
  const FusedRule rule_;
  const ExecutionContext& context_;
  const GroupKernel kernel_;
  const int64_t steps_;
  const ClassSets a_classes_, b_classes_;
  float values_[16];
  int64_t block_rows_ = 0;
  Workspace<float> packed_a_;  // [steps_][block_rows_][kStep]
  Workspace<GroupScale> packed_a_scales_;
  FirstError error_;
};

}  // namespace

absl::Status AccumulateGroups(const OperandView& a, const OperandView& b, const FusedRule& rule,
                              const ExecutionContext& context, AccumulatorSink sink) {
  return GroupAccumulator(a, b, rule, context).Run(sink);
}

}  // namespace quantgate
