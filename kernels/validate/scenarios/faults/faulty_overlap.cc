#include "kernels/validate/scenarios/faults/faulty_overlap.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/comm/row_blocks.h"
#include "kernels/validate/scenarios/faults/comm_faults.h"

namespace quantgate {
namespace {

absl::StatusOr<Tensor> ZerosOn(Engine& engine, DType dtype, Shape shape) {
  QG_ASSIGN_OR_RETURN(Tensor zeros, Tensor::Allocate(dtype, std::move(shape)));
  std::fill_n(zeros.data(), zeros.byte_size(), std::byte{0});
  return engine.ToDevice(zeros, nullptr);
}

/// The first bytes of `tensor`, repeated where there are too few, as elements of another type.
absl::StatusOr<Tensor> ReadAs(Engine& engine, const Tensor& tensor, DType dtype) {
  const auto bytes = static_cast<int64_t>(tensor.byte_size());
  const int64_t wanted = tensor.element_count() * DTypeBytes(dtype);
  QG_ASSIGN_OR_RETURN(const Tensor flat, tensor.Reinterpret(DType::kU8, {bytes}));
  const std::vector<Tensor> parts(static_cast<size_t>((wanted + bytes - 1) / bytes), flat);
  QG_ASSIGN_OR_RETURN(const Tensor repeated, engine.ConcatenateRows(parts, nullptr));
  QG_ASSIGN_OR_RETURN(const Tensor read, repeated.RowRange(0, wanted));
  return read.Reinterpret(dtype, tensor.shape());
}

class FaultyOverlap final : public Overlap {
 public:
  FaultyOverlap(const SeededFaults& faults, std::unique_ptr<Overlap> overlap,
                OverlapBuffers& buffers, BufferMemories& memories)
      : Overlap(overlap->group(), buffers, {}),
        faults_(faults),
        overlap_(std::move(overlap)),
        buffers_(buffers),
        memories_(memories) {}

  absl::StatusOr<GatheredGemm> AllGatherGemm(const AllGatherGemmCall& call) override {
    QG_ASSIGN_OR_RETURN(GatheredGemm result, overlap_->AllGatherGemm(call));
    if (call.method != OverlapMethod::kRingExchange) return result;
    QG_ASSIGN_OR_RETURN(const std::vector<Tensor> gathered, result.gathered.Read());
    GemmDesc whole = call.gemm;
    whole.a.data = gathered[0];
    if (whole.a.scaling == ScaleMode::kMx32) whole.a.scale_inv = gathered[1];
    if (faults_.Has(kFaultChunkOrder)) {
      QG_ASSIGN_OR_RETURN(result.gemm.d, FromTheOtherEnd(result.gemm.d));
    }
    if (faults_.Has(kFaultCopyNotAwaited)) {
      QG_ASSIGN_OR_RETURN(whole.a.data,
                          BeforeTheCopies(call.name.buffer, result.local[0], gathered[0]));
      QG_RETURN_IF_ERROR(Multiply(whole, result));
    }
    if (faults_.Has(kFaultScalesLeftBehind) && whole.a.scaling == ScaleMode::kMx32) {
      const std::vector<Tensor> own(static_cast<size_t>(group().size()), result.local[1]);
      QG_ASSIGN_OR_RETURN(whole.a.scale_inv, engine().ConcatenateRows(own, nullptr));
      QG_RETURN_IF_ERROR(engine().Copy(whole.a.scale_inv, gathered[1], 0));
      QG_RETURN_IF_ERROR(Multiply(whole, result));
    }
    if (faults_.Has(kFaultBufferPrecisionKept)) {
      const DType own = gathered[0].dtype();
      const DType kept = memories_.precision.try_emplace(call.name.buffer, own).first->second;
      if (kept != own) {
        QG_ASSIGN_OR_RETURN(whole.a.data, ReadAs(engine(), gathered[0], kept));
        QG_RETURN_IF_ERROR(Multiply(whole, result));
      }
    }
    if (faults_.Has(kFaultSlotKept)) {
      for (size_t i = 0; i < gathered.size(); ++i) {
        const int64_t rows = result.local[i].shape()[0];
        QG_ASSIGN_OR_RETURN(result.local[i], gathered[i].RowRange(group().rank() * rows, rows));
      }
    }
    if (faults_.Has(kFaultStaleViewRead)) {
      QG_RETURN_IF_ERROR(result.gathered.Release());
      result.gathered = BufferView(gathered);
    }
    return result;
  }

  absl::StatusOr<ScatteredGemm> ReduceScatterGemm(const ReduceScatterGemmCall& call) override {
    QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(call.gemm));
    const int64_t tail = shape.n % call.splits;
    const bool is_pipeline = call.method == OverlapMethod::kPipeline;
    if (!faults_.Has(kFaultPipelineTail) || !is_pipeline || tail == 0) {
      return overlap_->ReduceScatterGemm(call);
    }
    ReduceScatterGemmCall cut = call;
    QG_ASSIGN_OR_RETURN(cut.gemm.b.data, call.gemm.b.data.RowRange(0, shape.n - tail));
    QG_ASSIGN_OR_RETURN(ScatteredGemm result, overlap_->ReduceScatterGemm(cut));
    QG_ASSIGN_OR_RETURN(const Tensor zeros,
                        ZerosOn(engine(), result.y.dtype(), {result.y.shape()[0], tail}));
    const Tensor both[] = {result.y, zeros};
    QG_ASSIGN_OR_RETURN(result.y, engine().ConcatenateColumns(both, nullptr));
    return result;
  }

  absl::StatusOr<GatheredGemm> BulkAllGather(const BulkAllGatherCall& call) override {
    return overlap_->BulkAllGather(call);
  }

  absl::StatusOr<ScatteredGemm> BulkReduceScatter(const BulkReduceScatterCall& call) override {
    QG_ASSIGN_OR_RETURN(ScatteredGemm result, overlap_->BulkReduceScatter(call));
    if (!faults_.Has(kFaultGradientInBuffer)) return result;
    const auto buffer = buffers_.BufferFor(call.name.buffer, call.name.mode);
    QG_ASSIGN_OR_RETURN(const std::vector<Tensor> slots,
                        buffer->Fill(call.name.owner, {{result.y.dtype(), result.y.shape()}}));
    QG_RETURN_IF_ERROR(engine().Copy(result.y, slots[0], 0));
    result.y = slots[0];
    QG_RETURN_IF_ERROR(buffer->Start());
    QG_ASSIGN_OR_RETURN(BufferView view, buffer->Finish());
    QG_RETURN_IF_ERROR(view.Release());
    return result;
  }

 private:
  Engine& engine() const { return group().engine(); }

  absl::Status Multiply(const GemmDesc& whole, GatheredGemm& result) {
    QG_ASSIGN_OR_RETURN(const GemmResult product, engine().Gemm(whole, group().cancellation()));
    result.gemm.d = product.d;
    return absl::OkStatus();
  }

  /// Chunks of d where they belong if they came in the order r, r + 1, ...
  absl::StatusOr<Tensor> FromTheOtherEnd(const Tensor& d) {
    const int size = group().size();
    QG_ASSIGN_OR_RETURN(const std::vector<Tensor> chunks,
                        RowBlocks(d, EvenRows(d.shape()[0], size)));
    std::vector<Tensor> turned;
    for (int place = 0; place < size; ++place) {
      turned.push_back(chunks[static_cast<size_t>((2 * group().rank() - place + 2 * size) % size)]);
    }
    return engine().ConcatenateRows(turned, nullptr);
  }

  /// The operand as it is before anything has come: this rank's own rows, and of the others what
  /// the buffer held.
  absl::StatusOr<Tensor> BeforeTheCopies(const std::string& buffer, const Tensor& own,
                                         const Tensor& gathered) {
    Tensor& last = memories_.last[buffer];
    if (!last.has_value() || last.dtype() != gathered.dtype() || last.shape() != gathered.shape()) {
      QG_ASSIGN_OR_RETURN(last, ZerosOn(engine(), gathered.dtype(), gathered.shape()));
    }
    QG_ASSIGN_OR_RETURN(std::vector<Tensor> blocks,
                        RowBlocks(last, EvenRows(gathered.shape()[0], group().size())));
    blocks[static_cast<size_t>(group().rank())] = own;
    QG_ASSIGN_OR_RETURN(const Tensor before, engine().ConcatenateRows(blocks, nullptr));
    QG_ASSIGN_OR_RETURN(last, engine().ConcatenateRows({&gathered, 1}, nullptr));
    return before;
  }

  const SeededFaults& faults_;
  const std::unique_ptr<Overlap> overlap_;
  OverlapBuffers& buffers_;
  BufferMemories& memories_;
};

}  // namespace

std::unique_ptr<Overlap> OverlapWith(const SeededFaults& faults, std::unique_ptr<Overlap> overlap,
                                     OverlapBuffers& buffers, BufferMemories& memories) {
  if (faults.empty()) return overlap;
  return std::make_unique<FaultyOverlap>(faults, std::move(overlap), buffers, memories);
}

}  // namespace quantgate
