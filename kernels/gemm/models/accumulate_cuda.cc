#include "kernels/gemm/models/accumulate_cuda.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/base/cuda_status.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/models/accumulate.h"
#include "kernels/gemm/models/rules.h"
#include "kernels/gemm/models/scalar_dot.h"
#include "kernels/gemm/operand_view.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

int64_t RoundUpTo(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

absl::Status CheckCancelled(const Cancellation* cancellation) {
  return cancellation == nullptr ? absl::OkStatus() : cancellation->Check();
}

ScaleFormat ScaleFormatOf(DType dtype) {
  switch (dtype) {
    case DType::kF8E8M0:
      return ScaleFormat::kE8M0;
    case DType::kF8E4M3:
      return ScaleFormat::kE4M3;
    default:
      return ScaleFormat::kF32;
  }
}

CudaOperand OperandOf(const GemmOperand& operand, int64_t rows, int64_t k, bool k_contiguous) {
  CudaOperand view;
  view.data = operand.data.data();
  view.format = FormatOf(operand.data.dtype());
  view.rows = rows;
  view.k = k;
  view.row_stride = k_contiguous ? k : 1;
  view.k_stride = k_contiguous ? 1 : rows;
  const BlockScaleView scales = BlockScalesOf(operand, rows, k, k_contiguous);
  if (!scales.has_value()) return view;
  view.scales = scales.data;
  view.scale_format = ScaleFormatOf(scales.dtype);
  view.row_block = scales.row_block;
  view.k_block = scales.k_block;
  view.scale_row_stride = scales.row_stride;
  view.scale_block_stride = scales.block_stride;
  return view;
}

/// The packed forms of one operand. Those that a rule does not need are absent.
struct PackedMemory {
  std::shared_ptr<Buffer> values, shifts, scales, classes;
  Tensor special_rows;
  int64_t rows_padded = 0;

  template <typename T>
  static T* As(const std::shared_ptr<Buffer>& buffer) {
    return buffer == nullptr ? nullptr : reinterpret_cast<T*>(buffer->data());
  }
  uint32_t* special() { return special_rows.as<uint32_t>(); }
};

class CudaAccumulator {
 public:
  CudaAccumulator(CudaDevice& device, const GemmDesc& desc, const GemmShape& shape,
                  const Cancellation* cancellation, float* accumulators)
      : device_(device),
        shape_(shape),
        cancellation_(cancellation),
        operands_{CudaOperandA(desc, shape), CudaOperandB(desc, shape)},
        accumulators_(accumulators) {}

  absl::Status Fp32() {
    const int64_t k_padded = RoundUpTo(shape_.k, kPackedDepth);
    QG_ASSIGN_OR_RETURN(const PackedMemory a, PackReals(operands_.a, k_padded, 0.0f));
    QG_ASSIGN_OR_RETURN(const PackedMemory b, PackReals(operands_.b, k_padded, -0.0f));
    QG_RETURN_IF_ERROR(CheckCancelled(cancellation_));
    return QG_CUDA_STATUS(
        LaunchFp32({PackedMemory::As<float>(a.values), PackedMemory::As<float>(b.values),
                    a.rows_padded, b.rows_padded, shape_.m, shape_.n, k_padded, accumulators_},
                   device_.stream()));
  }

  absl::Status Under(const FusedRule& rule, CudaPath path) {
    operands_.use = ScaleUseOf(rule, operands_.a);
    if (path == CudaPath::kScalar || !HasTunedKernel(rule, operands_.use)) {
      return QG_CUDA_STATUS(LaunchScalar({rule, operands_, accumulators_}, device_.stream()));
    }
    return rule.group > 1 ? Groups(rule) : Fused(rule);
  }

 private:
  absl::Status Groups(const FusedRule& rule) {
    const int64_t k_padded = RoundUpTo(shape_.k, rule.step);
    QG_ASSIGN_OR_RETURN(PackedMemory a, PackGroups(operands_.a, k_padded));
    QG_ASSIGN_OR_RETURN(PackedMemory b, PackGroups(operands_.b, k_padded));
    QG_RETURN_IF_ERROR(CheckCancelled(cancellation_));
    QG_CUDA_RETURN_IF_ERROR(LaunchGroups(
        {PackedMemory::As<uint32_t>(a.values), PackedMemory::As<uint32_t>(b.values),
         PackedMemory::As<int32_t>(a.scales), PackedMemory::As<int32_t>(b.scales), a.rows_padded,
         b.rows_padded, shape_.m, shape_.n, k_padded, rule.align_bits, accumulators_},
        device_.stream()));
    return Settle(rule, a, b, 0);
  }

  absl::Status Fused(const FusedRule& rule) {
    const std::vector<KRange> slices = SlicesOf(rule, shape_.k);
    const int64_t k_padded = RoundUpTo(shape_.k, kPackedDepth);
    QG_ASSIGN_OR_RETURN(PackedMemory a,
                        PackProducts(operands_.a, rule, slices.back().end, k_padded));
    QG_ASSIGN_OR_RETURN(PackedMemory b,
                        PackProducts(operands_.b, rule, slices.back().end, k_padded));
    std::shared_ptr<Buffer> slice_sums;
    const int64_t count = shape_.m * shape_.n;
    if (slices.size() > 1) {
      QG_ASSIGN_OR_RETURN(slice_sums, device_.AllocateBytes(count * sizeof(float)));
    }
    FusedTask task{rule,
                   Packed(a, operands_.a, rule),
                   Packed(b, operands_.b, rule),
                   {},
                   {},
                   shape_.m,
                   shape_.n,
                   0,
                   0,
                   accumulators_};
    if (operands_.use == ScaleUse::kSums) {
      task.a_scales = operands_.a;
      task.b_scales = operands_.b;
    }
    for (const KRange& slice : slices) {
      QG_RETURN_IF_ERROR(CheckCancelled(cancellation_));
      task.begin = slice.begin;
      task.end = RoundUpTo(slice.end, kPackedDepth);
      task.accumulators = slice.begin == 0 ? accumulators_ : PackedMemory::As<float>(slice_sums);
      QG_CUDA_RETURN_IF_ERROR(LaunchFused(task, device_.stream()));
      if (slice.begin == 0) continue;
      QG_CUDA_RETURN_IF_ERROR(
          LaunchAddSlice(task.accumulators, count, accumulators_, device_.stream()));
    }
    return Settle(rule, a, b, k_padded / 32);
  }

  absl::Status Settle(const FusedRule& rule, PackedMemory& a, PackedMemory& b, int64_t words) {
    return QG_CUDA_STATUS(LaunchSpecialOutputs(
        {rule, operands_, PackedMemory::As<uint32_t>(a.classes),
         PackedMemory::As<uint32_t>(b.classes), words, a.special(), b.special(), accumulators_},
        device_.stream()));
  }

  static PackedOperand Packed(const PackedMemory& memory, const CudaOperand& operand,
                              const FusedRule& rule) {
    const bool becomes_f16 = rule.order == ProductOrder::kPairsOfFour;
    const int exponent_min =
        becomes_f16 ? FormatConstants<Float16>::kExponentMin : ExponentMinOf(operand.format);
    return {PackedMemory::As<float>(memory.values),
            PackedMemory::As<int16_t>(memory.shifts),
            PackedMemory::As<uint32_t>(memory.classes),
            operand.rows,
            memory.rows_padded,
            RoundUpTo(operand.k, kPackedDepth),
            exponent_min};
  }

  absl::StatusOr<PackedMemory> PackReals(const CudaOperand& operand, int64_t k_padded,
                                         float padding) {
    PackedMemory memory;
    memory.rows_padded = RoundUpTo(operand.rows, kPackedRows);
    QG_ASSIGN_OR_RETURN(memory.values,
                        device_.AllocateBytes(memory.rows_padded * k_padded * sizeof(float)));
    QG_CUDA_RETURN_IF_ERROR(LaunchPackReals(
        {operand, padding, memory.rows_padded, k_padded, PackedMemory::As<float>(memory.values)},
        device_.stream()));
    return memory;
  }

  absl::StatusOr<PackedMemory> PackGroups(const CudaOperand& operand, int64_t k_padded) {
    PackedMemory memory;
    const int64_t rows_padded = memory.rows_padded = RoundUpTo(operand.rows, kPackedRows);
    QG_ASSIGN_OR_RETURN(memory.values, device_.AllocateBytes(rows_padded * k_padded));
    QG_ASSIGN_OR_RETURN(memory.scales,
                        device_.AllocateBytes(rows_padded * k_padded / 16 * sizeof(int32_t)));
    QG_ASSIGN_OR_RETURN(memory.special_rows,
                        device_.AllocateZeroed(DType::kI32, {operand.rows + 1}));
    QG_CUDA_RETURN_IF_ERROR(
        LaunchPackGroups({operand, rows_padded, k_padded, PackedMemory::As<uint32_t>(memory.values),
                          PackedMemory::As<int32_t>(memory.scales), memory.special()},
                         device_.stream()));
    return memory;
  }

  absl::StatusOr<PackedMemory> PackProducts(const CudaOperand& operand, const FusedRule& rule,
                                            int64_t k_end, int64_t k_padded) {
    PackedMemory memory;
    const int64_t rows_padded = memory.rows_padded = RoundUpTo(operand.rows, kPackedRows);
    QG_ASSIGN_OR_RETURN(memory.values,
                        device_.AllocateBytes(rows_padded * k_padded * sizeof(float)));
    if (operands_.use == ScaleUse::kExponents) {
      QG_ASSIGN_OR_RETURN(
          memory.shifts,
          device_.AllocateBytes(rows_padded * (k_padded / kPackedDepth) * sizeof(int16_t)));
    }
    QG_ASSIGN_OR_RETURN(memory.classes, device_.AllocateBytes(operand.rows * (k_padded / 32) * 4 *
                                                              sizeof(uint32_t)));
    QG_ASSIGN_OR_RETURN(memory.special_rows,
                        device_.AllocateZeroed(DType::kI32, {operand.rows + 1}));
    QG_CUDA_RETURN_IF_ERROR(LaunchPackProducts(
        {operand, operands_.use, rule.order, k_end, rows_padded, k_padded,
         PackedMemory::As<float>(memory.values), PackedMemory::As<int16_t>(memory.shifts),
         PackedMemory::As<uint32_t>(memory.classes), memory.special()},
        device_.stream()));
    return memory;
  }

  CudaDevice& device_;
  const GemmShape shape_;
  const Cancellation* const cancellation_;
  OperandPair operands_;
  float* const accumulators_;
};

}  // namespace

bool HasTunedKernel(const FusedRule& rule, ScaleUse use) {
  if (rule.group > 1) return rule.group == 16 && rule.step == 64 && rule.out_mantissa == 23;
  const bool is_short = rule.step == 4 || rule.step == 8 || rule.step == 16;
  const bool is_step = rule.step == 32 || (is_short && use != ScaleUse::kExponents);
  const bool is_narrow = rule.align_bits == 13 && rule.out_mantissa == 13 && rule.step >= 16;
  const bool is_wide = rule.align_bits <= 25 && (rule.out_mantissa == 23 || rule.f16_accumulator);
  return is_step && (is_narrow || is_wide);
}

ScaleUse ScaleUseOf(const FusedRule& rule, const CudaOperand& operand) {
  if (operand.scales == nullptr) return ScaleUse::kNone;
  if (rule.group > 1) return ScaleUse::kGroups;
  return ScalesSums(rule) ? ScaleUse::kSums : ScaleUse::kExponents;
}

CudaOperand CudaOperandA(const GemmDesc& desc, const GemmShape& shape) {
  return OperandOf(desc.a, shape.m, shape.k, desc.layout != GemmLayout::kNT);
}

CudaOperand CudaOperandB(const GemmDesc& desc, const GemmShape& shape) {
  return OperandOf(desc.b, shape.n, shape.k, desc.layout == GemmLayout::kTN);
}

absl::Status AccumulateCuda(CudaDevice& device, const GemmDesc& desc, const GemmShape& shape,
                            CudaPath path, const Cancellation* cancellation, float* accumulators) {
  CudaAccumulator accumulator(device, desc, shape, cancellation, accumulators);
  if (ResolvedFor(desc).family == ArithmeticFamily::kFp32) return accumulator.Fp32();
  QG_ASSIGN_OR_RETURN(const FusedRule rule, RuleFor(desc));
  return accumulator.Under(rule, path);
}

}  // namespace quantgate
