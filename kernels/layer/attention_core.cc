#include "kernels/layer/attention_core.h"

#include <cmath>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/layer/linear/linear_operands.h"
#include "kernels/ops/reduction/ordered_reduction.h"

namespace quantgate {
namespace {

using Matrices = std::vector<Tensor>;

/// Matrices of a tensor [...][S][columns], one for each query head: that of head n is number
/// place(n).
struct HeadMatrices {
  const Tensor& all;
  std::function<int64_t(int64_t)> place;
};

/// A product of all heads: which GEMM it is, and how records name it and its operands.
struct Product {
  const char* name;
  GemmRole role;
  GemmLayout layout;
  const char *a, *b;
};
constexpr Product kScores{"scores", GemmRole::kFprop, GemmLayout::kTN, "queries", "keys"};
constexpr Product kContext{"context", GemmRole::kFprop, GemmLayout::kNN, "probabilities", "values"};
constexpr Product kDProbabilities{"dprobabilities", GemmRole::kDgrad, GemmLayout::kTN, "dcontext",
                                  "values"};
constexpr Product kDValues{"dv", GemmRole::kDgrad, GemmLayout::kNT, "probabilities", "dcontext"};
constexpr Product kDQueries{"dq", GemmRole::kDgrad, GemmLayout::kNN, "dscores", "keys"};
constexpr Product kDKeys{"dk", GemmRole::kDgrad, GemmLayout::kNT, "dscores", "queries"};

constexpr const char* kSavedNames[] = {"heads", "probabilities"};
constexpr size_t kSavedHeads = 0, kSavedProbabilities = 1;

/// [A][B][C] of a tensor with as many elements.
absl::StatusOr<Tensor> As3D(const Tensor& tensor, int64_t a, int64_t b, int64_t c) {
  return tensor.Reinterpret(tensor.dtype(), {a, b, c});
}

/// Attention of one step, in one direction.
class AttentionPass {
 public:
  AttentionPass(ProgramRun& run, size_t index)
      : run_(run),
        operation_(run.program.operations[index]),
        dims_(operation_.core),
        qkv_shape_(run.program.values[static_cast<size_t>(operation_.input)].shape),
        dtype_(run.layer.activation_dtype) {}

  absl::StatusOr<LayerValue> Forward(const LayerValue& x, OperationSaved& saved);
  absl::StatusOr<ValueGradient> Backward(const OperationSaved& saved, const ValueGradient& dy);

 private:
  Engine& engine() { return run_.recorder.engine(); }
  const Cancellation* cancellation() { return run_.recorder.cancellation(); }
  bool Has(const char* fault) const { return run_.recorder.faults().Has(fault); }
  std::string Name(const char* what) const { return absl::StrCat(operation_.name, ".", what); }
  bool is_rotated() const { return operation_.attention.rotary_base.has_value(); }
  bool is_empty() const { return dims_.sequence * dims_.batch == 0; }
  float scale() const { return AttentionScale(dims_); }
  template <typename Body>
  auto Timed(const char* what, Body body) -> decltype(body()) {
    return run_.recorder.Timed({StageKind::kOperation, Name(what)}, body);
  }

  // The places of the matrices of query head n, of all batches, among all heads.
  int64_t GroupOf(int64_t n) const;
  int64_t QueryPlace(int64_t n) const;
  int64_t KeyPlace(int64_t n) const { return GroupOf(n) * dims_.members() + dims_.queries(); }
  int64_t ValuePlace(int64_t n) const { return KeyPlace(n) + 1; }

  /// Matrix `place` of a tensor of matrices of S rows.
  absl::StatusOr<Tensor> Matrix(const Tensor& all, int64_t place) const {
    return RowSlice(all, place * dims_.sequence, dims_.sequence);
  }
  /// [S][B][count * D] to [B * count][S][D], and back.
  absl::StatusOr<Tensor> TakeApart(const Tensor& tensor, int64_t count);
  absl::StatusOr<Tensor> PutTogether(const Tensor& heads, Shape shape);
  absl::StatusOr<Tensor> Rotated(const char* stage, const Tensor& heads, bool is_backward);
  absl::StatusOr<RotaryTable> Table();
  absl::StatusOr<SoftmaxResult> Softmax(const Tensor& scores);
  absl::StatusOr<SoftmaxResult> SoftmaxOneKeyMore(const SoftmaxDesc& desc);
  absl::StatusOr<Tensor> Allocate(int64_t count, int64_t columns) {
    return engine().Allocate(dtype_, {count, dims_.sequence, columns});
  }
  // The matrices of a tensor that has one for each query head, and of one of all heads.
  HeadMatrices OnlyQueries(const Tensor& all) const {
    return {all, [](int64_t n) { return n; }};
  }
  HeadMatrices Queries(const Tensor& all) const {
    return {all, [this](int64_t n) { return QueryPlace(n); }};
  }
  HeadMatrices Keys(const Tensor& all) const {
    return {all, [this](int64_t n) { return KeyPlace(n); }};
  }
  HeadMatrices Values(const Tensor& all) const {
    return {all, [this](int64_t n) { return ValuePlace(n); }};
  }
  // The matrices of the key and the value head of each group, by group.
  HeadMatrices KeysOfGroups(const Tensor& all) const {
    return {all, [this](int64_t group) { return group * dims_.members() + dims_.queries(); }};
  }
  HeadMatrices ValuesOfGroups(const Tensor& all) const {
    return {all, [this](int64_t group) { return group * dims_.members() + dims_.queries() + 1; }};
  }
  /// One GEMM for each query head, of its matrices of a and b to that of d.
  absl::Status Multiply(const Product& product, const HeadMatrices& a, const HeadMatrices& b,
                        const HeadMatrices& d);
  /// The product's sums over the query heads of each group, to the matrix of d of the group.
  absl::Status MultiplyAndSum(const Product& product, const HeadMatrices& a, const HeadMatrices& b,
                              const HeadMatrices& d);
  absl::StatusOr<Tensor> HeadsGradient(const OperationSaved& saved, const Tensor& dcontext);

  ProgramRun& run_;
  const PlannedOperation& operation_;
  const AttentionDims& dims_;
  const Shape& qkv_shape_;
  const DType dtype_;
};

int64_t AttentionPass::GroupOf(int64_t n) const {
  const int64_t batch = n / dims_.heads, head = n % dims_.heads;
  const int64_t group = Has(kFaultGroupOfWrongHead) ? head % dims_.groups : head / dims_.queries();
  return batch * dims_.groups + group;
}

int64_t AttentionPass::QueryPlace(int64_t n) const {
  return n / dims_.queries() * dims_.members() + n % dims_.queries();
}

absl::StatusOr<Tensor> AttentionPass::TakeApart(const Tensor& tensor, int64_t count) {
  QG_ASSIGN_OR_RETURN(const Tensor by_position,
                      As3D(tensor, dims_.sequence, dims_.batch * count, dims_.columns));
  return engine().SwapDims(by_position, cancellation());
}

absl::StatusOr<Tensor> AttentionPass::PutTogether(const Tensor& heads, Shape shape) {
  QG_ASSIGN_OR_RETURN(const Tensor by_position, engine().SwapDims(heads, cancellation()));
  return by_position.Reinterpret(by_position.dtype(), std::move(shape));
}

absl::StatusOr<RotaryTable> AttentionPass::Table() {
  const RotaryKey key{*operation_.attention.rotary_base, dims_.sequence, dims_.columns, dtype_};
  RotaryMemory& memory = run_.state.rotary;
  if (memory.key == key) return memory.table;
  QG_ASSIGN_OR_RETURN(RotaryTable table,
                      MakeRotaryTable(key.base, key.positions, key.columns, key.dtype));
  for (Tensor* const tensor : {&table.cosines, &table.sines}) {
    QG_ASSIGN_OR_RETURN(*tensor, engine().ToDevice(*tensor, cancellation()));
  }
  memory = {key, table};
  return table;
}

absl::StatusOr<Tensor> AttentionPass::Rotated(const char* stage, const Tensor& heads,
                                              bool is_backward) {
  if (!is_rotated()) return heads;
  return Timed(stage, [&]() -> absl::StatusOr<Tensor> {
    RotaryDesc desc;
    desc.heads = heads;
    QG_ASSIGN_OR_RETURN(desc.table, Table());
    desc.period = dims_.members();
    desc.rotated = dims_.queries() + 1;
    desc.is_backward = is_backward && !Has(kFaultRotationNotTransposed);
    return engine().Rotate(desc, cancellation());
  });
}

/// The softmax with a mask that lets every query have one key more: row i of a matrix under the
/// mask of row i + 1. The last row has all keys either way.
absl::StatusOr<SoftmaxResult> AttentionPass::SoftmaxOneKeyMore(const SoftmaxDesc& given) {
  const int64_t rows = dims_.sequence, all = dims_.matrices() * rows;
  QG_ASSIGN_OR_RETURN(const Tensor last, RowSlice(given.scores, all - 1, 1));
  QG_ASSIGN_OR_RETURN(const Tensor others, RowSlice(given.scores, 0, all - 1));
  const Tensor rotated[] = {last, others};
  QG_ASSIGN_OR_RETURN(const Tensor joined, engine().ConcatenateRows(rotated, cancellation()));
  SoftmaxDesc shifted = given;
  QG_ASSIGN_OR_RETURN(shifted.scores, As3D(joined, dims_.matrices(), rows, rows));
  QG_ASSIGN_OR_RETURN(const SoftmaxResult more, engine().SoftmaxForward(shifted, cancellation()));
  QG_ASSIGN_OR_RETURN(const SoftmaxResult right, engine().SoftmaxForward(given, cancellation()));
  SoftmaxResult result;
  for (Tensor SoftmaxResult::*const part :
       {&SoftmaxResult::probabilities, &SoftmaxResult::rounded}) {
    Matrices parts;
    for (int64_t first = 0; first < all; first += rows) {
      QG_ASSIGN_OR_RETURN(parts.emplace_back(), RowSlice(more.*part, first + 1, rows - 1));
      QG_ASSIGN_OR_RETURN(parts.emplace_back(), RowSlice(right.*part, first + rows - 1, 1));
    }
    QG_ASSIGN_OR_RETURN(const Tensor whole, engine().ConcatenateRows(parts, cancellation()));
    QG_ASSIGN_OR_RETURN(result.*part, As3D(whole, dims_.matrices(), rows, rows));
  }
  return result;
}

absl::StatusOr<SoftmaxResult> AttentionPass::Softmax(const Tensor& scores) {
  return Timed("softmax", [&]() -> absl::StatusOr<SoftmaxResult> {
    const SoftmaxDesc desc{scores, scale(), operation_.attention.mask};
    const bool is_off = Has(kFaultMaskOneKeyMore) && desc.mask == AttentionMask::kCausal;
    return is_off ? SoftmaxOneKeyMore(desc) : engine().SoftmaxForward(desc, cancellation());
  });
}

absl::Status AttentionPass::Multiply(const Product& product, const HeadMatrices& a,
                                     const HeadMatrices& b, const HeadMatrices& d) {
  std::vector<MatrixProduct> products(static_cast<size_t>(dims_.matrices()));
  for (int64_t n = 0; n < dims_.matrices(); ++n) {
    MatrixProduct& of_head = products[static_cast<size_t>(n)];
    QG_ASSIGN_OR_RETURN(of_head.a, Matrix(a.all, a.place(n)));
    QG_ASSIGN_OR_RETURN(of_head.b, Matrix(b.all, b.place(n)));
    QG_ASSIGN_OR_RETURN(of_head.d, Matrix(d.all, d.place(n)));
  }
  GemmRecord record;
  record.role = product.role;
  record.output = Name(product.name);
  record.desc.layout = product.layout;
  record.desc.out_dtype = dtype_;
  record.desc.arithmetic = run_.recorder.arithmetic();
  record.a = {Name(product.a)};
  record.b = {Name(product.b)};
  return run_.recorder.Gemms(Name(product.name), std::move(record), products);
}

absl::Status AttentionPass::MultiplyAndSum(const Product& product, const HeadMatrices& a,
                                           const HeadMatrices& b, const HeadMatrices& d) {
  if (dims_.queries() == 1) return Multiply(product, a, b, d);
  QG_ASSIGN_OR_RETURN(const Tensor of_queries, Allocate(dims_.matrices(), dims_.columns));
  QG_RETURN_IF_ERROR(Multiply(product, a, b, OnlyQueries(of_queries)));
  const std::string stage = absl::StrCat("sum ", product.name, " of groups");
  return Timed(stage.c_str(), [&]() -> absl::Status {
    for (int64_t first = 0; first < dims_.matrices(); first += dims_.queries()) {
      Matrices parts(static_cast<size_t>(dims_.queries()));
      for (size_t i = 0; i < parts.size(); ++i) {
        QG_ASSIGN_OR_RETURN(parts[i], Matrix(of_queries, first + static_cast<int64_t>(i)));
      }
      QG_ASSIGN_OR_RETURN(const Tensor sum, Matrix(d.all, d.place(first / dims_.queries())));
      QG_RETURN_IF_ERROR(engine().OrderedSumTo(parts, SumAccumulation::kF32, sum, cancellation()));
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<LayerValue> AttentionPass::Forward(const LayerValue& x, OperationSaved& saved) {
  for (const std::string& note :
       LinearNotes(operation_.linear.flow, operation_.linear.m, operation_.linear.n,
                   operation_.linear.k, run_.recorder.arithmetic())) {
    run_.recorder.AddNote(note);
  }
  const Shape shape = AttentionOutputShape(dims_, qkv_shape_);
  LayerValue y;
  if (is_empty()) {
    QG_ASSIGN_OR_RETURN(y.tensor, engine().Allocate(dtype_, shape));
    return y;
  }
  QG_ASSIGN_OR_RETURN(const Tensor qkv, InActivationDType(run_, operation_, "x", x.plain()));
  QG_ASSIGN_OR_RETURN(Tensor heads, Timed("take heads apart", [&] {
                        return TakeApart(qkv, dims_.groups * dims_.members());
                      }));
  QG_ASSIGN_OR_RETURN(heads, Rotated("rotate", heads, /*is_backward=*/false));
  if (is_rotated()) y.inside.push_back({RotatedHeadsName(operation_), heads});

  SoftmaxResult softmax;
  {
    // The products are dropped before the contexts are made.
    QG_ASSIGN_OR_RETURN(const Tensor scores, Allocate(dims_.matrices(), dims_.sequence));
    QG_RETURN_IF_ERROR(Multiply(kScores, Queries(heads), Keys(heads), OnlyQueries(scores)));
    QG_ASSIGN_OR_RETURN(softmax, Softmax(scores));
  }
  if (operation_.needs_backward) {
    QG_RETURN_IF_ERROR(KeepAll(
        run_, operation_,
        {{std::begin(kSavedNames), std::end(kSavedNames)}, {heads, softmax.probabilities}}, saved));
  }

  QG_ASSIGN_OR_RETURN(const Tensor contexts, Allocate(dims_.matrices(), dims_.columns));
  QG_RETURN_IF_ERROR(
      Multiply(kContext, OnlyQueries(softmax.rounded), Values(heads), OnlyQueries(contexts)));
  QG_ASSIGN_OR_RETURN(y.tensor,
                      Timed("put heads together", [&] { return PutTogether(contexts, shape); }));
  return y;
}

/// The gradient of the rotated heads, [B * groups * members][S][D].
absl::StatusOr<Tensor> AttentionPass::HeadsGradient(const OperationSaved& saved,
                                                    const Tensor& dcontext) {
  const Tensor& heads = saved.operands[kSavedHeads].original;
  const Tensor& probabilities = saved.operands[kSavedProbabilities].original;
  Tensor dscores;
  {
    QG_ASSIGN_OR_RETURN(const Tensor gradient, Allocate(dims_.matrices(), dims_.sequence));
    QG_RETURN_IF_ERROR(
        Multiply(kDProbabilities, OnlyQueries(dcontext), Values(heads), OnlyQueries(gradient)));
    QG_ASSIGN_OR_RETURN(dscores, Timed("softmax.backward", [&] {
                          return engine().SoftmaxBackward(
                              {gradient, probabilities, scale(), operation_.attention.mask},
                              cancellation());
                        }));
  }
  QG_ASSIGN_OR_RETURN(const Tensor rounded,
                      run_.recorder.Cast(Name("round probabilities"), probabilities, dtype_));
  QG_ASSIGN_OR_RETURN(Tensor dheads, engine().Allocate(dtype_, heads.shape()));
  QG_RETURN_IF_ERROR(MultiplyAndSum(kDValues, OnlyQueries(rounded), OnlyQueries(dcontext),
                                    ValuesOfGroups(dheads)));
  QG_RETURN_IF_ERROR(Multiply(kDQueries, OnlyQueries(dscores), Keys(heads), Queries(dheads)));
  QG_RETURN_IF_ERROR(
      MultiplyAndSum(kDKeys, OnlyQueries(dscores), Queries(heads), KeysOfGroups(dheads)));
  return dheads;
}

absl::StatusOr<ValueGradient> AttentionPass::Backward(const OperationSaved& saved,
                                                      const ValueGradient& dy) {
  ValueGradient dx;
  if (is_empty()) {
    QG_ASSIGN_OR_RETURN(dx.value, engine().Allocate(dtype_, qkv_shape_));
    return dx;
  }
  QG_RETURN_IF_ERROR(UseAll(run_, operation_, saved));
  QG_ASSIGN_OR_RETURN(const Tensor dcontext, Timed("take dcontext apart", [&] {
                        return TakeApart(dy.plain(), dims_.heads);
                      }));
  QG_ASSIGN_OR_RETURN(Tensor dheads, HeadsGradient(saved, dcontext));
  if (is_rotated()) dx.inside.push_back({RotatedHeadsGradientName(operation_), dheads});
  QG_ASSIGN_OR_RETURN(dheads, Rotated("rotate.backward", dheads, /*is_backward=*/true));
  QG_ASSIGN_OR_RETURN(
      dx.value, Timed("put dheads together", [&] { return PutTogether(dheads, qkv_shape_); }));
  return dx;
}

}  // namespace

AttentionDims AttentionDimsOf(const ProgramOperation& operation, const Shape& qkv, int ranks) {
  const AttentionOptions& options = operation.attention;
  const int64_t parts = operation.divides_heads ? ranks : 1;
  AttentionDims dims;
  dims.sequence = qkv.front();
  dims.batch = qkv.size() == 3 ? qkv[1] : 1;
  dims.groups = options.group_count() / parts;
  dims.heads = options.heads / parts;
  dims.columns = qkv.back() / (dims.groups * dims.members());
  return dims;
}

absl::StatusOr<AttentionDims> CheckAttentionDims(const ProgramOperation& operation,
                                                 const Shape& qkv, int ranks) {
  const AttentionOptions& options = operation.attention;
  if (operation.divides_heads && options.group_count() % ranks != 0) {
    return Refuse(operation.field + (options.groups == 0 ? ".heads" : ".groups"),
                  absl::StrCat(options.group_count()),
                  absl::StrCat("it must be a multiple of ", ranks,
                               ", the ranks of the tensor-parallel group, each of which has whole "
                               "groups of heads"));
  }
  const AttentionDims dims = AttentionDimsOf(operation, qkv, ranks);
  if (qkv.back() != dims.groups * dims.members() * dims.columns || dims.columns < 1) {
    return Refuse(
        "parameters[qkv.weight]", absl::StrCat(qkv.back(), " rows"),
        absl::StrCat("N, its first dim, must be a multiple of ", dims.groups * dims.members(),
                     ": D rows for each of ", dims.heads, " query heads, ", dims.groups,
                     " key heads and as many value heads"));
  }
  if (options.rotary_base.has_value() && dims.columns % 2 != 0) {
    return Refuse(operation.field + ".rotary_base", absl::StrCat(*options.rotary_base),
                  absl::StrCat("it rotates pairs of columns, and a head has ", dims.columns,
                               ", an odd number"));
  }
  return dims;
}

float AttentionScale(const AttentionDims& dims) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(dims.columns)));
}

std::string RotatedHeadsName(const ProgramOperation& operation) {
  return operation.name + ".heads";
}

std::string RotatedHeadsGradientName(const ProgramOperation& operation) {
  return operation.name + ".dheads";
}

Shape AttentionOutputShape(const AttentionDims& dims, Shape qkv) {
  qkv.back() = dims.heads * dims.columns;
  return qkv;
}

LinearUnit AttentionUnit(const std::string& name, const AttentionDims& dims, DType dtype,
                         bool has_backward) {
  LinearUnit unit;
  unit.names = LinearNames(name + ".", "");
  unit.m = unit.n = dims.sequence;
  unit.k = dims.columns;
  unit.recipe = std::make_shared<const Recipe>(*Recipe::Parse("bf16"));
  LinearDataflow& flow = unit.flow;
  flow.activation_dtype = flow.bias_dtype = dtype;
  flow.fprop_dtype = flow.dgrad_dtype = flow.wgrad_dtype = dtype;
  flow.is_empty = dims.sequence * dims.batch == 0;
  // The contexts contract over keys as dgrad does.
  flow.needs_dx = true;
  flow.needs_dw = has_backward;
  return unit;
}

absl::StatusOr<LayerValue> ForwardAttention(ProgramRun& run, size_t operation, const LayerValue& x,
                                            OperationSaved& saved) {
  return AttentionPass(run, operation).Forward(x, saved);
}

absl::StatusOr<ValueGradient> BackwardAttention(ProgramRun& run, size_t operation,
                                                const OperationSaved& saved,
                                                const ValueGradient& dy) {
  return AttentionPass(run, operation).Backward(saved, dy);
}

}  // namespace quantgate
