#include "kernels/gemm/exact_operand.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/numerics/cast.h"
#include "kernels/numerics/float_format.h"

namespace quantgate {
namespace {

template <class F>
constexpr std::array<double, 256> TableOf() {
  std::array<double, 256> table{};
  for (int code = 0; code < 256; ++code) {
    table[code] = DecodeFloat<F>(static_cast<typename F::Storage>(code));
  }
  return table;
}
const std::array<double, 256> kE4M3Values = TableOf<E4M3>();
const std::array<double, 256> kE5M2Values = TableOf<E5M2>();

ExactSource SourceOf(const Tensor& tensor, int64_t outer, int64_t inner, bool rows_first = true) {
  ExactSource source;
  source.elements = tensor.data();
  switch (tensor.dtype()) {
    case DType::kBF16:
      source.element = ExactElement::kBF16;
      break;
    case DType::kF16:
      source.element = ExactElement::kF16;
      break;
    case DType::kF8E4M3:
      source.element = ExactElement::kTable;
      source.table = kE4M3Values.data();
      break;
    case DType::kF8E5M2:
      source.element = ExactElement::kTable;
      source.table = kE5M2Values.data();
      break;
    default:
      source.element = ExactElement::kF32;
      break;
  }
  source.rows = rows_first ? outer : inner;
  source.k = rows_first ? inner : outer;
  source.row_stride = rows_first ? inner : 1;
  source.k_stride = rows_first ? 1 : inner;
  return source;
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

ExactSource ExactSourceA(const GemmDesc& desc) {
  const Shape& shape = desc.a.data.shape();
  return SourceOf(desc.a.data, shape[0], shape[1], desc.layout != GemmLayout::kNT);
}
ExactSource ExactSourceB(const GemmDesc& desc) {
  const Shape& shape = desc.b.data.shape();
  return SourceOf(desc.b.data, shape[0], shape[1], desc.layout == GemmLayout::kTN);
}

void DecodeExactRow(const ExactSource& source, int64_t row, double* values) {
  for (int64_t k = 0; k < source.k; ++k) {
    values[k] = ValueAt(source, row * source.row_stride + k * source.k_stride);
  }
}

std::vector<float> DecodeToFloats(const Tensor& tensor) {
  const ExactSource source = SourceOf(tensor, 1, tensor.element_count());
  std::vector<float> values(tensor.element_count());
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    values[i] = static_cast<float>(ValueAt(source, i));
  }
  return values;
}

std::vector<float> ScalesOf(const GemmOperand& operand, int64_t rows) {
  if (operand.scaling == ScaleMode::kNone) return std::vector<float>(rows, 1.0f);
  const float* scales = operand.scale_inv.as<float>();
  if (operand.scaling == ScaleMode::kTensor) return std::vector<float>(rows, scales[0]);
  return std::vector<float>(scales, scales + rows);
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
  // Each square and each addition loses at most 2^-53 of the sum so far: k of each, some slack on
  // top.
  const double inflation = 1 + static_cast<double>(source.k + 16) * 0x1p-52;
  ParallelFor(context, panels, 4, [&](int64_t begin, int64_t end) {
    std::vector<double> packed(kExactDepth * panel_rows);
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t row = panel * panel_rows;
      const ExactRowStatistics rows{&bounds.norm[row], &bounds.lowest_bit[row]};
      for (int64_t k = 0; k < source.k; k += kExactDepth) {
        const int64_t count = std::min(kExactDepth, source.k - k);
        kernels.pack[static_cast<int>(source.element)](source, row, panel_rows, k, count,
                                                       packed.data());
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
