#include "kernels/gemm/exact/exact_operand.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/gemm/exact/exact.h"
#include "kernels/numerics/cast.h"
#include "kernels/numerics/float_format.h"

namespace quantgate {
namespace {

template <class F>
constexpr std::array<double, 256> TableOf() {
  std::array<double, 256> table{};
  for (int code = 0; code < 256; ++code) {
    // FP6 and FP4 codes fill the low bits of their bytes.
    const int low_bits = code & ((1 << FormatConstants<F>::kBits) - 1);
    table[code] = DecodeFloat<F>(static_cast<typename F::Storage>(low_bits));
  }
  return table;
}
const std::array<double, 256> kE4M3Values = TableOf<E4M3>();
const std::array<double, 256> kE5M2Values = TableOf<E5M2>();
const std::array<double, 256> kE2M3Values = TableOf<E2M3>();
const std::array<double, 256> kE3M2Values = TableOf<E3M2>();
const std::array<double, 256> kE2M1Values = TableOf<E2M1>();

void SetElement(DType dtype, ExactSource& source) {
  source.element = ExactElement::kTable;
  switch (dtype) {
    case DType::kBF16:
      source.element = ExactElement::kBF16;
      return;
    case DType::kF16:
      source.element = ExactElement::kF16;
      return;
    case DType::kF8E4M3:
      source.table = kE4M3Values.data();
      return;
    case DType::kF8E5M2:
      source.table = kE5M2Values.data();
      return;
    case DType::kF6E2M3:
      source.table = kE2M3Values.data();
      return;
    case DType::kF6E3M2:
      source.table = kE3M2Values.data();
      return;
    case DType::kF4E2M1x2:
      source.table = kE2M1Values.data();
      return;
    default:
      source.element = ExactElement::kF32;
  }
}

double ValueAt(const ExactSource& source, int64_t index) {
  switch (source.element) {
    case ExactElement::kF32:
      return static_cast<const float*>(source.elements)[index];
    case ExactElement::kBF16:
      return DecodeFloat<BFloat16>(static_cast<const uint16_t*>(source.elements)[index]);
    case ExactElement::kF16:
      return DecodeFloat<Float16>(static_cast<const uint16_t*>(source.elements)[index]);
    case ExactElement::kTable:
      return source.table[static_cast<const uint8_t*>(source.elements)[index]];
  }
  return 0;
}

}  // namespace

const ExactKernels& ExactKernelsFor(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return ExactKernelsAvx512();
    case Isa::kAvx2:
      return ExactKernelsAvx2();
    case Isa::kScalar:
      break;
  }
  return ExactKernelsScalar();
}

ExactOutput ExactOutputOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return ExactOutput::kBF16;
    case DType::kF16:
      return ExactOutput::kF16;
    case DType::kF8E4M3:
      return ExactOutput::kE4M3;
    case DType::kF8E5M2:
      return ExactOutput::kE5M2;
    default:
      return ExactOutput::kF32;
  }
}

ExactOperand::ExactOperand(OperandView operand) : view(std::move(operand)) {
  source.elements = view.data;
  SetElement(view.dtype, source);
  source.rows = view.rows;
  source.k = view.k;
  source.row_stride = view.row_stride;
  source.k_stride = view.k_stride;
  if (!view.scales.has_value()) return;
  const BlockScaleView& blocks = view.scales;
  const int64_t row_blocks = (view.rows + blocks.row_block - 1) / blocks.row_block;
  const int64_t k_blocks = (view.k + blocks.k_block - 1) / blocks.k_block;
  scales.resize(row_blocks * k_blocks);
  for (int64_t row = 0; row < row_blocks; ++row) {
    for (int64_t block = 0; block < k_blocks; ++block) {
      scales[row * k_blocks + block] = blocks.At(row * blocks.row_block, block * blocks.k_block);
    }
  }
  source.scales = scales.data();
  source.row_block = blocks.row_block;
  source.k_block = blocks.k_block;
  source.scale_row_stride = k_blocks;
  source.scale_block_stride = 1;
}

void DecodeExactRow(const ExactSource& source, int64_t row, double* values) {
  const double* scales = source.scales == nullptr
                             ? nullptr
                             : source.scales + row / source.row_block * source.scale_row_stride;
  for (int64_t k = 0; k < source.k; ++k) {
    values[k] = ValueAt(source, row * source.row_stride + k * source.k_stride);
    if (scales != nullptr) values[k] *= scales[k / source.k_block * source.scale_block_stride];
  }
}

namespace {

/// Multiplies columns [begin, end) of a packed panel by `factors`, one per row.
void ScaleColumns(const ExactSource& source, const double* factors, int panel_rows, int64_t begin,
                  int64_t end, double* panel) {
  if (!source.absolute) {
    for (int64_t k = begin; k < end; ++k) {
      for (int r = 0; r < panel_rows; ++r) panel[k * panel_rows + r] *= factors[r];
    }
    return;
  }
  for (int64_t k = begin; k < end; ++k) {
    for (int r = 0; r < panel_rows; ++r) {
      const double scaled =
          panel[k * panel_rows + r] * (std::fabs(factors[r]) + source.scale_floor);
      panel[k * panel_rows + r] = scaled == 0 ? 0 : scaled + source.product_floor;
    }
  }
}

}  // namespace

void PackExactPanel(const ExactSource& source, int64_t row, int panel_rows, int64_t k_begin,
                    int64_t count, const ExactKernels& kernels, double* panel) {
  kernels.pack[static_cast<int>(source.element)](source, row, panel_rows, k_begin, count, panel);
  if (source.scales == nullptr) return;
  double factors[kExactPanelRowsMax];
  for (int64_t k = 0; k < count;) {
    const int64_t block = (k_begin + k) / source.k_block;
    const int64_t end = std::min(count, (block + 1) * source.k_block - k_begin);
    for (int r = 0; r < panel_rows; ++r) {
      const int64_t inside = std::min(row + r, source.rows - 1);
      factors[r] = source.scales[inside / source.row_block * source.scale_row_stride +
                                 block * source.scale_block_stride];
      // Rows past the end are zeros, which a NaN scale must not change.
      if (row + r >= source.rows) factors[r] = 0;
    }
    ScaleColumns(source, factors, panel_rows, k, end, panel);
    k = end;
  }
}

std::vector<float> DecodeToFloats(const Tensor& tensor) {
  ExactSource source;
  source.elements = tensor.data();
  SetElement(tensor.dtype(), source);
  std::vector<float> values(tensor.element_count());
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    values[i] = static_cast<float>(ValueAt(source, i));
  }
  return values;
}

std::vector<float> ScalesOf(const GemmOperand& operand, int64_t rows) {
  const bool is_whole =
      operand.scaling == ScaleMode::kTensor || operand.scaling == ScaleMode::kOuter;
  const Tensor& given = operand.scaling == ScaleMode::kNv16 ? operand.amax : operand.scale_inv;
  const bool is_global = is_whole || operand.scaling == ScaleMode::kNv16;
  if (!is_global || !given.has_value()) return std::vector<float>(rows, 1.0f);
  const float* scales = given.as<float>();
  if (given.element_count() == 1) return std::vector<float>(rows, scales[0]);
  return std::vector<float>(scales, scales + rows);
}

int64_t GlobalDivisor(const GemmDesc& desc) {
  int64_t divisor = 1;
  for (const GemmOperand* operand : {&desc.a, &desc.b}) {
    if (operand->scaling == ScaleMode::kNv16 && operand->amax.has_value()) {
      divisor *= 6 * operand->e4m3_max;
    }
  }
  return divisor;
}

double ExactRowBounds::LargestRatio() const {
  double largest = 0;
  for (size_t i = 0; i < norm.size(); ++i) {
    if (std::isfinite(norm[i])) largest = std::max(largest, norm[i] / lowest_bit[i]);
  }
  return largest;
}

ExactRowBounds BoundRows(const ExactSource& source, int panel_rows, const ExactKernels& kernels,
                         const ExecutionContext& context) {
  const int64_t panels = (source.rows + panel_rows - 1) / panel_rows;
  ExactRowBounds bounds;
  bounds.norm.assign(panels * panel_rows, 0.0);
  bounds.lowest_bit.assign(panels * panel_rows, std::numeric_limits<double>::infinity());
  const double inflation = ExactNormInflation(source.k);
  ParallelFor(context, panels, 4, [&](int64_t begin, int64_t end) {
    std::vector<double> packed(kExactDepth * panel_rows);
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t row = panel * panel_rows;
      const ExactRowStatistics rows{&bounds.norm[row], &bounds.lowest_bit[row]};
      for (int64_t k = 0; k < source.k; k += kExactDepth) {
        const int64_t count = std::min(kExactDepth, source.k - k);
        PackExactPanel(source, row, panel_rows, k, count, kernels, packed.data());
        kernels.accumulate_statistics(packed.data(), panel_rows, count, rows);
      }
      for (int r = 0; r < panel_rows; ++r) {
        double& norm = bounds.norm[row + r];
        norm = std::sqrt(norm * inflation) * (1 + 0x1p-50);
      }
    }
  });
  return bounds;
}

}  // namespace quantgate
