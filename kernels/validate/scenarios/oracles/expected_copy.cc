#include "kernels/validate/scenarios/oracles/expected_copy.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/numerics/e8m0.h"
#include "kernels/numerics/hadamard.h"
#include "kernels/numerics/library_rule.h"
#include "kernels/numerics/nvfp4.h"
#include "kernels/numerics/stochastic_rounding.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

float MaxFiniteOf(DType element) {
  float value = 0;
  VisitFormat<AllFormats>(element, [&]<class F>() { value = MaxFinite<F>(); });
  return value;
}

float DecodeCode(DType element, uint8_t code) {
  float value = 0;
  VisitFormat<AllFormats>(element, [&]<class F>() {
    if constexpr (FormatConstants<F>::kBits <= 8) value = DecodeFloat<F>(code);
  });
  return value;
}

uint8_t EncodeCode(const QuantizerSpec& spec, float value) {
  uint8_t code = 0;
  VisitFormat<AllFormats>(spec.element, [&]<class F>() {
    if constexpr (FormatConstants<F>::kBits <= 8) {
      code = EncodeFloat<F>(value, spec.element_rounding, spec.overflow);
    }
  });
  return code;
}

float LargestFiniteOf(DType source) {
  if (source == DType::kBF16) return MaxFinite<BFloat16>();
  return source == DType::kF16 ? MaxFinite<Float16>() : MaxFinite<Float32>();
}

/// The steps of library_rule.h that `spec` asks for; a line is one block.
LibraryRule LibraryRuleOf(const QuantizerSpec& spec, DType source) {
  LibraryRule rule;
  rule.source = source == DType::kBF16  ? StepFormat::kBF16
                : source == DType::kF16 ? StepFormat::kF16
                                        : StepFormat::kF32;
  rule.options.rule = spec.scale_rule;
  rule.options.power_2 = spec.power_2_scale;
  rule.options.amax_epsilon = spec.amax_epsilon;
  switch (spec.format) {
    case QuantizerFormat::kFp8Tensor:
      rule.is_whole = true;
      break;
    case QuantizerFormat::kMxfp8:
      rule.scales = ScaleKind::kE8m0;
      break;
    case QuantizerFormat::kNvfp4:
      rule.scales = ScaleKind::kTwoLevel;
      rule.e4m3_max = spec.e4m3_max;
      break;
    default:
      rule.scales = ScaleKind::kF32;
      rule.options.value_for_infinity = LargestFiniteOf(source);
  }
  rule.scale_dtype = spec.scale_dtype;
  rule.zero_scale = spec.zero_scale;
  rule.operation = spec.element_operation;
  rule.operation_dtype = spec.operation_dtype;
  rule.rounding = spec.element_rounding;
  rule.overflow = spec.overflow;
  rule.zero_sign = spec.zero_sign;
  return rule;
}

float Larger(float a, float b) {
  const float magnitude = b < 0 ? -b : b;
  return magnitude > a ? magnitude : a;  // The comparison is false for NaN, which is thus ignored.
}

/// How a direction divides the source: into `lines` lines of `length` elements, with blocks along
/// the lines.
struct Lines {
  Lines(Usage usage, int64_t rows, int64_t columns)
      : is_rowwise(usage == Usage::kRowwise),
        lines(is_rowwise ? rows : columns),
        length(is_rowwise ? columns : rows),
        columns(columns) {}

  int64_t SourceIndex(int64_t line, int64_t i) const {
    return is_rowwise ? line * columns + i : i * columns + line;
  }

  const bool is_rowwise;
  const int64_t lines, length, columns;
};

bool HasF32Blocks(QuantizerFormat format) {
  return format == QuantizerFormat::kFp8Block || format == QuantizerFormat::kFp8Block32 ||
         format == QuantizerFormat::kFp8Block64 || format == QuantizerFormat::kFp8Block256;
}

/// Where codes and scales are stored: line by line, but columnwise mxfp8 in the order of the
/// source.
struct CopyLayout {
  CopyLayout(QuantizerFormat format, int block_dim, const Lines& lines)
      : keeps_source(format == QuantizerFormat::kMxfp8 && !lines.is_rowwise),
        lines(lines),
        has_one_a_line(format == QuantizerFormat::kFp8Rowwise),
        block(has_one_a_line ? std::max<int64_t>(lines.length, 1) : BlockLength(format)),
        lines_per_scale(HasF32Blocks(format) && block_dim == 2 ? block : 1),
        blocks(CeilDivide(lines.length, block)) {}

  int64_t CodeIndex(int64_t line, int64_t i) const {
    return keeps_source ? i * lines.lines + line : line * lines.length + i;
  }
  int64_t ScaleIndex(int64_t line, int64_t i) const {
    const int64_t scale_line = line / lines_per_scale;
    return keeps_source ? i / block * lines.lines + scale_line : scale_line * blocks + i / block;
  }
  Shape CodeShape(int codes_per_byte) const {
    return keeps_source ? Shape{lines.length, lines.lines / codes_per_byte}
                        : Shape{lines.lines, lines.length / codes_per_byte};
  }
  Shape ScaleShape() const {
    const int64_t scale_lines = CeilDivide(lines.lines, lines_per_scale);
    if (has_one_a_line) return {scale_lines};
    return keeps_source ? Shape{blocks, scale_lines} : Shape{scale_lines, blocks};
  }

  const bool keeps_source;
  const Lines& lines;
  const bool has_one_a_line;
  const int64_t block;
  const int64_t lines_per_scale;
  const int64_t blocks;
};

/// Writes one code; FP4 codes two to a byte, the even index in the low nibble.
void WriteCode(Tensor& data, int64_t index, uint8_t code) {
  uint8_t* bytes = data.as<uint8_t>();
  if (data.dtype() != DType::kF4E2M1x2) {
    bytes[index] = code;
  } else if (index % 2 == 0) {
    bytes[index / 2] = code;
  } else {
    bytes[index / 2] = static_cast<uint8_t>(bytes[index / 2] | code << 4);
  }
}

uint8_t ReadCode(const Tensor& data, int64_t index) {
  const uint8_t* bytes = data.as<uint8_t>();
  if (data.dtype() != DType::kF4E2M1x2) return bytes[index];
  return index % 2 == 0 ? bytes[index / 2] & 0xF : bytes[index / 2] >> 4;
}

/// Makes the copy of one direction.
class CopyMaker {
 public:
  CopyMaker(const Tensor& source, const QuantizerSpec& spec, Usage usage,
            const QuantizeArguments& arguments)
      : source_(source),
        spec_(spec),
        arguments_(arguments),
        usage_(usage),
        library_rule_(LibraryRuleOf(spec, source.dtype())),
        lines_(usage, source.rows(), source.columns()),
        layout_(spec.format, spec.block_dim, lines_) {
    copy_.format = spec.format;
    copy_.element = spec.element;
    copy_.block_dim = spec.block_dim;
  }

  absl::StatusOr<QuantizedCopy> Make() {
    const int per_byte = spec_.element == DType::kF4E2M1x2 ? 2 : 1;
    QG_ASSIGN_OR_RETURN(copy_.data, Tensor::Allocate(spec_.element, layout_.CodeShape(per_byte)));
    std::fill_n(copy_.data.as<uint8_t>(), copy_.data.byte_size(), uint8_t{0});
    if (spec_.format == QuantizerFormat::kFp8Tensor) {
      QG_RETURN_IF_ERROR(MakePerTensor());
      return copy_;
    }
    const bool has_f32 = HasF32Blocks(spec_.format) || layout_.has_one_a_line;
    const DType scale_dtype = has_f32                                   ? DType::kF32
                              : spec_.format == QuantizerFormat::kMxfp8 ? DType::kF8E8M0
                                                                        : DType::kF8E4M3;
    QG_ASSIGN_OR_RETURN(copy_.scale_inv, Tensor::Allocate(scale_dtype, layout_.ScaleShape()));
    if (spec_.format == QuantizerFormat::kNvfp4) QG_RETURN_IF_ERROR(PrepareNvfp4());
    // Lines without elements have scale 1.
    if (layout_.has_one_a_line && lines_.length == 0) {
      std::fill_n(copy_.scale_inv.as<float>(), lines_.lines, 1.0f);
    }
    const int64_t lines_per_block = spec_.block_dim == 2 ? layout_.block : 1;
    for (int64_t line = 0; line < lines_.lines; line += lines_per_block) {
      const int64_t line_end = std::min(line + lines_per_block, lines_.lines);
      for (int64_t i = 0; i < lines_.length; i += layout_.block) {
        MakeBlock({line, line_end, i, std::min(i + layout_.block, lines_.length)});
      }
    }
    return copy_;
  }

 private:
  struct Block {
    int64_t line, line_end, begin, end;
  };

  float Value(int64_t line, int64_t i) const {
    return ValueAt(source_, lines_.SourceIndex(line, i));
  }

  template <class Body>
  void ForEach(const Block& block, Body body) {
    for (int64_t line = block.line; line < block.line_end; ++line) {
      for (int64_t i = block.begin; i < block.end; ++i) body(line, i);
    }
  }

  float AmaxOf(const Block& block) {
    float amax = 0;
    ForEach(block, [&](int64_t line, int64_t i) { amax = Larger(amax, Value(line, i)); });
    return amax;
  }
  bool HasNan(const Block& block) {
    bool has_nan = false;
    ForEach(block, [&](int64_t line, int64_t i) { has_nan |= Value(line, i) != Value(line, i); });
    return has_nan;
  }

  /// By another library's steps.
  UnitScale LibraryScaleOf(float amax, float tensor_amax) const {
    UnitScale scale;
    VisitFormat<AllFormats>(spec_.element, [&]<class F>() {
      if constexpr (FormatConstants<F>::kBits <= 8) {
        scale = MakeUnitScale<F>(library_rule_, amax, tensor_amax);
      }
    });
    return scale;
  }
  void WriteLibraryCodes(const Block& block, const UnitScale& scale) {
    ForEach(block, [&](int64_t line, int64_t i) {
      uint8_t code = 0;
      VisitFormat<AllFormats>(spec_.element, [&]<class F>() {
        if constexpr (FormatConstants<F>::kBits <= 8) {
          code = ElementCode<F>(library_rule_, ScaledElement(library_rule_, scale, Value(line, i)));
        }
      });
      WriteCode(copy_.data, layout_.CodeIndex(line, i), code);
    });
  }
  void MakeLibraryBlock(const Block& block, float amax) {
    if (UnitTakesNan(library_rule_) && HasNan(block)) {
      amax = std::numeric_limits<float>::quiet_NaN();
    }
    const float tensor_amax = copy_.amax.has_value() ? *copy_.amax.as<float>() : 0.0f;
    const UnitScale scale = LibraryScaleOf(amax, tensor_amax);
    ForEach(block, [&](int64_t line, int64_t i) {
      const int64_t index = layout_.ScaleIndex(line, i);
      if (copy_.scale_inv.dtype() == DType::kF32) {
        copy_.scale_inv.as<float>()[index] = scale.scale_inv;
      } else {
        copy_.scale_inv.as<uint8_t>()[index] = scale.code;
      }
    });
    WriteLibraryCodes(block, scale);
  }

  absl::Status MakePerTensor() {
    const bool is_delayed = spec_.scaling == Scaling::kDelayed;
    float amax = ExpectedAmax(source_);
    const Tensor& group = arguments_.group_amax_rowwise;
    if (!is_delayed && group.has_value()) amax = *group.as<float>();
    QG_ASSIGN_OR_RETURN(copy_.amax, Tensor::FromScalar(amax));
    const bool is_empty = source_.element_count() == 0 && !group.has_value();
    const Block whole = {0, lines_.lines, 0, lines_.length};
    if (spec_.has_library_steps()) {
      const UnitScale unit = is_delayed
                                 ? GivenUnitScale(library_rule_, *arguments_.scale.as<float>())
                             : is_empty ? GivenUnitScale(library_rule_, 1.0f)
                                        : LibraryScaleOf(amax, 0.0f);
      QG_ASSIGN_OR_RETURN(copy_.scale_inv, Tensor::FromScalar(unit.scale_inv));
      WriteLibraryCodes(whole, unit);
      return absl::OkStatus();
    }
    const ScaleOptions options{.rule = spec_.scale_rule,
                               .power_2 = spec_.power_2_scale,
                               .amax_epsilon = spec_.amax_epsilon};
    const float scale =
        is_delayed ? *arguments_.scale.as<float>()
        : is_empty ? 1.0f
                   : ComputeScale(amax, MaxFiniteOf(spec_.element), options, spec_.subnormals());
    QG_ASSIGN_OR_RETURN(copy_.scale_inv,
                        Tensor::FromScalar(Flushed(1.0f / scale, spec_.subnormals())));
    ForEach(whole, [&](int64_t line, int64_t i) {
      WriteCode(copy_.data, layout_.CodeIndex(line, i), EncodeCode(spec_, Value(line, i) * scale));
    });
    return absl::OkStatus();
  }

  absl::Status PrepareNvfp4() {
    copy_.e4m3_max = spec_.e4m3_max;
    const Tensor& group = usage_ == Usage::kRowwise ? arguments_.group_amax_rowwise
                                                    : arguments_.group_amax_columnwise;
    std::vector<float> amaxes(spec_.row_scaled ? lines_.lines : 1);
    for (int64_t line = 0; spec_.row_scaled && line < lines_.lines; ++line) {
      amaxes[line] = AmaxOf({line, line + 1, 0, lines_.length});
    }
    if (!spec_.row_scaled) {
      amaxes[0] = group.has_value() ? *group.as<float>() : ExpectedAmax(source_);
    }
    for (const float amax : amaxes) {
      if (spec_.has_library_steps()) break;  // Their blocks begin with the amax itself.
      tensor_scales_.push_back(MakeNvfp4TensorScale(amax, spec_.e4m3_max, spec_.scale_rule));
    }
    if (!HasTensorScale(spec_.scale_rule)) return absl::OkStatus();
    QG_ASSIGN_OR_RETURN(copy_.amax,
                        Tensor::FromBytes(DType::kF32, {static_cast<int64_t>(amaxes.size())},
                                          std::as_bytes(std::span(amaxes))));
    return absl::OkStatus();
  }

  const Nvfp4TensorScale& TensorScaleOf(int64_t line) const {
    return tensor_scales_[spec_.row_scaled ? line : 0];
  }

  void MakeBlock(const Block& block) {
    const float amax = AmaxOf(block);
    if (spec_.has_library_steps()) return MakeLibraryBlock(block, amax);
    switch (spec_.format) {
      case QuantizerFormat::kFp8Block:
      case QuantizerFormat::kFp8Block32:
      case QuantizerFormat::kFp8Block64:
      case QuantizerFormat::kFp8Block256:
      case QuantizerFormat::kFp8Rowwise:
        return MakeFp8Block(block, amax);
      case QuantizerFormat::kMxfp8:
        return MakeMxfp8Block(block, amax);
      default:
        return MakeNvfp4Block(block, amax);
    }
  }

  void MakeFp8Block(const Block& block, float amax) {
    const float scale = ComputeScale(amax, MaxFiniteOf(spec_.element),
                                     {.rule = spec_.scale_rule,
                                      .power_2 = spec_.power_2_scale,
                                      .amax_epsilon = spec_.amax_epsilon,
                                      .value_for_infinity = LargestFiniteOf(source_.dtype())},
                                     spec_.subnormals());
    ForEach(block, [&](int64_t line, int64_t i) {
      copy_.scale_inv.as<float>()[layout_.ScaleIndex(line, i)] =
          Flushed(1.0f / scale, spec_.subnormals());
      WriteCode(copy_.data, layout_.CodeIndex(line, i), EncodeCode(spec_, Value(line, i) * scale));
    });
  }

  void MakeMxfp8Block(const Block& block, float amax) {
    uint8_t scale = 0;
    VisitFormat<AllFormats>(spec_.element, [&]<class F>() {
      if constexpr (FormatConstants<F>::kBits <= 8) {
        scale = E8m0Scale<F>(amax, spec_.scale_rule, spec_.subnormals());
      }
    });
    const float multiplier = E8m0Multiplier(scale);
    ForEach(block, [&](int64_t line, int64_t i) {
      copy_.scale_inv.as<uint8_t>()[layout_.ScaleIndex(line, i)] = scale;
      WriteCode(copy_.data, layout_.CodeIndex(line, i),
                EncodeCode(spec_, Value(line, i) * multiplier));
    });
  }

  void MakeNvfp4Block(const Block& block, float amax) {
    const Nvfp4TensorScale& tensor_scale = TensorScaleOf(block.line);
    Nvfp4BlockScale scale = MakeNvfp4BlockScale(amax, tensor_scale);
    if (spec_.four_over_six != FourOverSix::kNone) {
      const FourOverSixScales both = MakeFourOverSixScales(amax, tensor_scale);
      scale = ErrorOf(block, both.four) < ErrorOf(block, both.six) ? both.four : both.six;
    }
    ForEach(block, [&](int64_t line, int64_t i) {
      copy_.scale_inv.as<uint8_t>()[layout_.ScaleIndex(line, i)] = scale.code;
      const float scaled = scale.Scaled(Value(line, i));
      WriteCode(copy_.data, layout_.CodeIndex(line, i),
                spec_.element_rounding == ElementRounding::kStochastic
                    ? EncodeE2m1Stochastic(scaled, RandomByte(line, i))
                    : EncodeCode(spec_, scaled));
    });
  }

  uint8_t RandomByte(int64_t line, int64_t i) const {
    const bool is_rowwise = usage_ == Usage::kRowwise;
    const StochasticStream stream{arguments_.seed, arguments_.call_id, is_rowwise ? 0u : 1u};
    const PhiloxCounter bits = StochasticBits(stream, static_cast<uint64_t>(line),
                                              static_cast<uint64_t>(i / layout_.block));
    return StochasticByte(bits, static_cast<int>(i % layout_.block));
  }

  /// The error of a block under a scale. The order of the sum is that of docs/quantizers.md section
  /// 6.7: along each line, then, for 2-D blocks, over the lines pairwise at distances 8, 4, 2, 1.
  float ErrorOf(const Block& block, const Nvfp4BlockScale& scale) {
    float sums[16] = {};
    const float amax = copy_.amax.as<float>()[spec_.row_scaled ? block.line : 0];
    ForEach(block, [&](int64_t line, int64_t i) {
      const float value = Value(line, i);
      sums[line - block.line] +=
          FourOverSixError(value, EncodeFloat<E2M1>(scale.Scaled(value)), scale.code, amax,
                           spec_.e4m3_max, spec_.four_over_six == FourOverSix::kMse);
    });
    for (int distance = spec_.block_dim == 2 ? 8 : 0; distance > 0; distance /= 2) {
      for (int i = 0; i < distance; ++i) sums[i] += sums[i + distance];
    }
    return sums[0];
  }

  const Tensor& source_;
  const QuantizerSpec& spec_;
  const QuantizeArguments& arguments_;
  const Usage usage_;
  const LibraryRule library_rule_;
  const Lines lines_;
  const CopyLayout layout_;
  std::vector<Nvfp4TensorScale> tensor_scales_;
  QuantizedCopy copy_;
};

float ScaleOf(const QuantizedCopy& copy, int64_t line, int64_t index) {
  switch (copy.format) {
    case QuantizerFormat::kFp8Tensor:
      return *copy.scale_inv.as<float>();
    case QuantizerFormat::kFp8Block:
    case QuantizerFormat::kFp8Block32:
    case QuantizerFormat::kFp8Block64:
    case QuantizerFormat::kFp8Block256:
    case QuantizerFormat::kFp8Rowwise:
      return copy.scale_inv.as<float>()[index];
    case QuantizerFormat::kMxfp8:
      return DecodeE8m0(copy.scale_inv.as<uint8_t>()[index]);
    default: {
      const uint8_t code = copy.scale_inv.as<uint8_t>()[index];
      if (!copy.amax.has_value()) return DecodeFloat<E4M3>(code);
      const float amax = copy.amax.as<float>()[copy.is_row_scaled() ? line : 0];
      return DecodeFloat<E4M3>(code) * amax * (1.0f / (6.0f * static_cast<float>(copy.e4m3_max)));
    }
  }
}

}  // namespace

float ValueAt(const Tensor& tensor, int64_t index) {
  switch (tensor.dtype()) {
    case DType::kF32:
      return tensor.as<float>()[index];
    case DType::kBF16:
      return DecodeFloat<BFloat16>(tensor.as<uint16_t>()[index]);
    case DType::kF16:
      return DecodeFloat<Float16>(tensor.as<uint16_t>()[index]);
    default:
      return DecodeCode(tensor.dtype(), ReadCode(tensor, index));
  }
}

void SetValue(Tensor& tensor, int64_t index, float value) {
  switch (tensor.dtype()) {
    case DType::kBF16:
      tensor.as<uint16_t>()[index] = EncodeFloat<BFloat16>(value);
      return;
    case DType::kF16:
      tensor.as<uint16_t>()[index] = EncodeFloat<Float16>(value);
      return;
    default:
      tensor.as<float>()[index] = CanonicalFloat(value);
  }
}

float ExpectedAmax(const Tensor& source) {
  float amax = 0;
  for (int64_t i = 0; i < source.element_count(); ++i) amax = Larger(amax, ValueAt(source, i));
  return amax;
}

absl::Status ExpectedGroupAmaxes(std::span<const Tensor> tensors, const Quantizer& quantizer,
                                 QuantizeArguments& arguments) {
  float rowwise = 0, columnwise = 0;
  for (const Tensor& tensor : tensors) {
    rowwise = Larger(rowwise, ExpectedAmax(tensor));
    if (!quantizer.columnwise.hadamard) continue;
    QG_ASSIGN_OR_RETURN(const Tensor transformed, ExpectedHadamard(tensor));
    columnwise = Larger(columnwise, ExpectedAmax(transformed));
  }
  if (!quantizer.columnwise.hadamard) columnwise = rowwise;
  QG_ASSIGN_OR_RETURN(arguments.group_amax_rowwise, Tensor::FromScalar(rowwise));
  QG_ASSIGN_OR_RETURN(arguments.group_amax_columnwise, Tensor::FromScalar(columnwise));
  return absl::OkStatus();
}

absl::StatusOr<Tensor> Transposed(const Tensor& tensor) {
  const bool is_packed = tensor.dtype() == DType::kF4E2M1x2;
  const int64_t rows = tensor.rows(), columns = tensor.columns() * (is_packed ? 2 : 1);
  if (is_packed) {
    QG_ASSIGN_OR_RETURN(Tensor turned, Tensor::Allocate(tensor.dtype(), {columns, rows / 2}));
    for (int64_t i = 0; i < rows * columns; ++i) {
      WriteCode(turned, i, ReadCode(tensor, i % rows * columns + i / rows));
    }
    return turned;
  }
  const int bytes = DTypeBytes(tensor.dtype());
  QG_ASSIGN_OR_RETURN(Tensor turned, Tensor::Allocate(tensor.dtype(), {columns, rows}));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      std::memcpy(turned.data() + (j * rows + i) * bytes, tensor.data() + (i * columns + j) * bytes,
                  bytes);
    }
  }
  return turned;
}

absl::StatusOr<Tensor> TakeRows(const Tensor& tensor, int64_t begin, int64_t rows) {
  const size_t row_bytes = tensor.columns() * DTypeBytes(tensor.dtype());
  return Tensor::FromBytes(tensor.dtype(), {rows, tensor.columns()},
                           tensor.bytes().subspan(begin * row_bytes, rows * row_bytes));
}

absl::StatusOr<Tensor> ExpectedHadamard(const Tensor& source) {
  QG_ASSIGN_OR_RETURN(Tensor transformed, Tensor::Allocate(source.dtype(), source.shape()));
  const int64_t columns = source.columns();
  for (int64_t row = 0; row < source.rows(); row += kHadamardLength) {
    for (int64_t column = 0; column < columns; ++column) {
      uint16_t in[kHadamardLength], out[kHadamardLength];
      for (int i = 0; i < kHadamardLength; ++i) {
        in[i] = source.as<uint16_t>()[(row + i) * columns + column];
      }
      HadamardTransform(in, out);
      for (int i = 0; i < kHadamardLength; ++i) {
        transformed.as<uint16_t>()[(row + i) * columns + column] = out[i];
      }
    }
  }
  return transformed;
}

absl::StatusOr<QuantizedCopy> ExpectedCopy(const Tensor& source, const QuantizerSpec& spec,
                                           Usage usage, const QuantizeArguments& arguments) {
  if (spec.format == QuantizerFormat::kIdentity) {
    QuantizedCopy copy;
    copy.element = source.dtype();
    copy.data = source;
    return copy;
  }
  QuantizerSpec resolved = spec;
  resolved.scale_rule = ResolveScaleRule(spec.scale_rule, spec.format);
  const bool transforms = spec.hadamard && usage == Usage::kColumnwise;
  Tensor of_rule = source;
  if (transforms) {
    QG_ASSIGN_OR_RETURN(of_rule, ExpectedHadamard(source));
  }
  QG_ASSIGN_OR_RETURN(QuantizedCopy copy, CopyMaker(of_rule, resolved, usage, arguments).Make());
  copy.hadamard = transforms;
  return copy;
}

absl::StatusOr<QuantizedTensor> ExpectedQuantization(const Tensor& source,
                                                     const Quantizer& quantizer, Usages usages,
                                                     const QuantizeArguments& arguments) {
  QuantizedTensor quantized;
  quantized.source_dtype = source.dtype();
  quantized.shape = source.shape();
  QG_ASSIGN_OR_RETURN(QuantizedCopy rowwise,
                      ExpectedCopy(source, quantizer.rowwise, Usage::kRowwise, arguments));
  Tensor columnwise_source = source;
  if (quantizer.columnwise_source == ColumnwiseSource::kRowwiseDequantized) {
    QG_ASSIGN_OR_RETURN(columnwise_source, ExpectedValues(rowwise, Usage::kRowwise, source.rows(),
                                                          source.columns(), source.dtype()));
  }
  if (usages.rowwise) quantized.rowwise = std::move(rowwise);
  if (!usages.columnwise) return quantized;
  QG_ASSIGN_OR_RETURN(quantized.columnwise, ExpectedCopy(columnwise_source, quantizer.columnwise,
                                                         Usage::kColumnwise, arguments));
  return quantized;
}

absl::StatusOr<Tensor> ExpectedValues(const QuantizedCopy& copy, Usage usage, int64_t rows,
                                      int64_t columns, DType out) {
  QG_ASSIGN_OR_RETURN(Tensor values, Tensor::Allocate(out, {rows, columns}));
  if (copy.format == QuantizerFormat::kIdentity) {
    for (int64_t i = 0; i < values.element_count(); ++i) {
      SetValue(values, i, ValueAt(copy.data, i));
    }
    return values;
  }
  const Lines lines(usage, rows, columns);
  const CopyLayout layout(copy.format, copy.block_dim, lines);
  for (int64_t line = 0; line < lines.lines; ++line) {
    for (int64_t i = 0; i < lines.length; ++i) {
      const float scale = ScaleOf(copy, line, layout.ScaleIndex(line, i));
      const float value =
          DecodeCode(copy.element, ReadCode(copy.data, layout.CodeIndex(line, i))) * scale;
      SetValue(values, lines.SourceIndex(line, i), value);
    }
  }
  return values;
}

}  // namespace quantgate
