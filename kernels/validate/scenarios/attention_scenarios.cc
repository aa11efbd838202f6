// Attention and the layers around it: who reads whose keys, what the mask leaves out, rotations,
// residuals, and what is saved for backward.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/layer/layer_request.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/oracles/expected_linear.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

constexpr int64_t kPositions = 16, kBatches = 2, kModel = 64, kHeadColumns = 16;

/// What a step gave and kept.
struct AttentionRun {
  std::map<std::string, Tensor> values;  ///< Outputs and intermediates in host memory.
  std::vector<SavedOperand> saved;

  absl::StatusOr<Tensor> Find(const std::string& name) const {
    const auto found = values.find(name);
    if (found != values.end()) return found->second;
    return absl::InternalError(absl::StrCat("the step has no ", name));
  }
};

absl::StatusOr<AttentionRun> RunAttention(ScenarioContext& context, Engine& engine,
                                          const SeededFaults& faults, LayerRequest request) {
  std::vector<Tensor*> tensors = {&request.x, &request.grad_output};
  for (auto& [name, parameter] : request.parameters) tensors.push_back(&parameter);
  for (Tensor* const tensor : tensors) {
    QG_ASSIGN_OR_RETURN(*tensor, engine.ToDevice(*tensor, context.cancellation()));
  }
  QG_RETURN_IF_ERROR(CheckLayerTensors(request));
  QG_ASSIGN_OR_RETURN(const LayerPlanPointer plan, DecideLayer(request, context.recipe()));
  StepRecorder recorder(engine, Arithmetic(), context.cancellation());
  recorder.SeedFaults(faults);
  QG_ASSIGN_OR_RETURN(ComputedLayer work, ComputeLayer(recorder, request, plan, context.recipe()));
  QG_ASSIGN_OR_RETURN(const LayerResult result,
                      FinishStep(recorder, request, plan, work.state, std::move(work.forward),
                                 std::move(work.backward)));
  AttentionRun run;
  for (const auto* named : {&result.outputs, &result.intermediates}) {
    for (const NamedTensor& tensor : *named) {
      QG_ASSIGN_OR_RETURN(run.values[tensor.name],
                          engine.ToHost(tensor.tensor, context.cancellation()));
    }
  }
  run.saved = result.saved;
  return run;
}

absl::StatusOr<AttentionRun> RunAttention(ScenarioContext& context, const LayerRequest& request) {
  return RunAttention(context, context.engine(), context.faults(), request);
}

/// A layer of these heads in 16 positions of 2 batches.
absl::StatusOr<LayerRequest> MakeAttention(ScenarioContext& context, LayerKind kind,
                                           const AttentionOptions& attention) {
  LayerRequest request;
  request.layer.kind = kind;
  request.layer.attention = attention;
  uint64_t seed = 900;
  const auto make = [&](Shape shape, Tensor& tensor) -> absl::Status {
    QG_ASSIGN_OR_RETURN(
        tensor, context.Generate(Distribution::kNormal, ++seed, DType::kBF16, std::move(shape)));
    return absl::OkStatus();
  };
  auto& parameters = request.parameters;
  const int64_t rows = (attention.heads + 2 * attention.group_count()) * kHeadColumns;
  QG_RETURN_IF_ERROR(make({kPositions, kBatches, kModel}, request.x));
  QG_RETURN_IF_ERROR(make({kPositions, kBatches, kModel}, request.grad_output));
  QG_RETURN_IF_ERROR(make({rows, kModel}, parameters["qkv.weight"]));
  QG_RETURN_IF_ERROR(make({rows}, parameters["qkv.bias"]));
  QG_RETURN_IF_ERROR(make({kModel, attention.heads * kHeadColumns}, parameters["proj.weight"]));
  if (kind == LayerKind::kAttention) return request;
  for (const char* name : {"norm1.gamma", "norm2.gamma"}) {
    QG_RETURN_IF_ERROR(make({kModel}, parameters[name]));
  }
  QG_RETURN_IF_ERROR(make({96, kModel}, parameters["fc1.weight"]));
  QG_RETURN_IF_ERROR(make({kModel, 96}, parameters["fc2.weight"]));
  return request;
}

/// Elements [begin, begin + count) of a tensor, in their order.
absl::StatusOr<Tensor> TakeElements(const Tensor& tensor, int64_t begin, int64_t count) {
  const size_t bytes = DTypeBytes(tensor.dtype());
  return Tensor::FromBytes(tensor.dtype(), {count},
                           tensor.bytes().subspan(static_cast<size_t>(begin) * bytes,
                                                  static_cast<size_t>(count) * bytes));
}

// ---- The mask

// With one key, whose probability is 1, a query's context is the value of that key.
absl::Status ExpectFirstValues(ScenarioContext& context, const AttentionRun& run,
                               const AttentionOptions& attention) {
  QG_ASSIGN_OR_RETURN(const Tensor qkv, run.Find("qkv.y"));
  QG_ASSIGN_OR_RETURN(const Tensor contexts, run.Find("proj.x"));
  const int64_t queries = attention.heads / attention.group_count();
  for (int64_t batch = 0; batch < kBatches; ++batch) {
    for (int64_t head = 0; head < attention.heads; ++head) {
      const int64_t value = head / queries * (queries + 2) + queries + 1;
      QG_ASSIGN_OR_RETURN(
          const Tensor expected,
          TakeElements(qkv, batch * qkv.columns() + value * kHeadColumns, kHeadColumns));
      QG_ASSIGN_OR_RETURN(
          const Tensor found,
          TakeElements(contexts, batch * contexts.columns() + head * kHeadColumns, kHeadColumns));
      QG_RETURN_IF_ERROR(context.ExpectSameBits(
          absl::StrCat("context of the first query, batch ", batch, ", head ", head), found,
          expected));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCausalMask(ScenarioContext& context) {
  const AttentionOptions attention = {.heads = 4, .groups = 2, .mask = AttentionMask::kCausal};
  QG_ASSIGN_OR_RETURN(LayerRequest request,
                      MakeAttention(context, LayerKind::kAttention, attention));
  QG_ASSIGN_OR_RETURN(const AttentionRun run, RunAttention(context, request));
  QG_RETURN_IF_ERROR(ExpectFirstValues(context, run, attention));
  // Other tokens from position 10 on change nothing before it.
  constexpr int64_t kChanged = 10;
  const int64_t kept = kChanged * kBatches * kModel;
  QG_ASSIGN_OR_RETURN(const Tensor other, context.Generate(Distribution::kNormal, 990, DType::kBF16,
                                                           request.x.shape()));
  std::vector<std::byte> bytes(request.x.bytes().begin(), request.x.bytes().end());
  const auto first =
      static_cast<std::ptrdiff_t>(static_cast<size_t>(kept) * DTypeBytes(DType::kBF16));
  std::copy(other.bytes().begin() + first, other.bytes().end(), bytes.begin() + first);
  QG_ASSIGN_OR_RETURN(request.x, Tensor::FromBytes(DType::kBF16, request.x.shape(), bytes));
  QG_ASSIGN_OR_RETURN(const AttentionRun changed, RunAttention(context, request));
  QG_ASSIGN_OR_RETURN(const Tensor y, run.Find("y"));
  QG_ASSIGN_OR_RETURN(const Tensor of_changed, changed.Find("y"));
  QG_ASSIGN_OR_RETURN(const Tensor expected, TakeElements(y, 0, kept));
  QG_ASSIGN_OR_RETURN(const Tensor found, TakeElements(of_changed, 0, kept));
  return context.ExpectSameBits("y before the first token that changes", found, expected);
}

// ---- Groups

/// The rows of qkv of a layer in which every query head has a copy of its group's key and value.
absl::StatusOr<Tensor> WithRepeatedKeys(const Tensor& tensor, const AttentionOptions& attention) {
  const int64_t queries = attention.heads / attention.groups;
  const auto head = static_cast<size_t>(kHeadColumns) *
                    (tensor.byte_size() / static_cast<size_t>(tensor.shape()[0]));
  std::vector<std::byte> bytes;
  for (int64_t query = 0; query < attention.heads; ++query) {
    const int64_t first = query / queries * (queries + 2);
    for (const int64_t place : {first + query % queries, first + queries, first + queries + 1}) {
      const auto begin =
          tensor.bytes().begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(place) * head);
      bytes.insert(bytes.end(), begin, begin + static_cast<std::ptrdiff_t>(head));
    }
  }
  Shape shape = tensor.shape();
  shape[0] = 3 * attention.heads * kHeadColumns;
  return Tensor::FromBytes(tensor.dtype(), std::move(shape), bytes);
}

absl::Status CheckGroupsOfHeads(ScenarioContext& context) {
  const AttentionOptions attention = {.heads = 4, .groups = 2, .rotary_base = 100.0f};
  QG_ASSIGN_OR_RETURN(const LayerRequest request,
                      MakeAttention(context, LayerKind::kAttention, attention));
  QG_ASSIGN_OR_RETURN(const AttentionRun run, RunAttention(context, request));
  LayerRequest repeated = request;
  repeated.layer.attention.groups = attention.heads;
  for (const char* name : {"qkv.weight", "qkv.bias"}) {
    QG_ASSIGN_OR_RETURN(repeated.parameters[name],
                        WithRepeatedKeys(request.parameters.at(name), attention));
  }
  QG_ASSIGN_OR_RETURN(const AttentionRun expected,
                      RunAttention(context, context.reference(), SeededFaults(), repeated));
  for (const char* name : {"proj.x", "y", "proj.dw"}) {
    QG_ASSIGN_OR_RETURN(const Tensor found, run.Find(name));
    QG_ASSIGN_OR_RETURN(const Tensor of_repeated, expected.Find(name));
    QG_RETURN_IF_ERROR(context.ExpectSameBits(name, found, of_repeated));
  }
  return absl::OkStatus();
}

// ---- Rotations

/// Rotated heads and gradients back to the layout of qkv's output, by the transposed rotation.
absl::Status CheckRotation(ScenarioContext& context) {
  const AttentionOptions attention = {
      .heads = 4, .groups = 2, .mask = AttentionMask::kCausal, .rotary_base = 10.0f};
  QG_ASSIGN_OR_RETURN(const LayerRequest request,
                      MakeAttention(context, LayerKind::kAttention, attention));
  QG_ASSIGN_OR_RETURN(const AttentionRun run, RunAttention(context, request));
  QG_ASSIGN_OR_RETURN(const Tensor dheads, run.Find("core.dheads"));
  QG_ASSIGN_OR_RETURN(const Tensor gradient, run.Find("qkv.grad_output"));
  QG_ASSIGN_OR_RETURN(const RotaryTable table,
                      MakeRotaryTable(10.0f, kPositions, kHeadColumns, DType::kBF16));
  constexpr int64_t kHalf = kHeadColumns / 2, kMembers = 4;
  const int64_t heads = dheads.shape()[0] / kBatches;
  const auto rounded = [](float value) -> absl::StatusOr<float> {
    QG_ASSIGN_OR_RETURN(const Tensor one, Tensor::FromScalar(value));
    QG_ASSIGN_OR_RETURN(const Tensor cast, ExpectedCast(one, DType::kBF16));
    return ValueAt(cast, 0);
  };
  for (int64_t place = 0; place < kBatches * heads; ++place) {
    const bool is_value = place % kMembers == kMembers - 1;
    for (int64_t s = 0; s < kPositions; ++s) {
      for (int64_t i = 0; i < kHeadColumns; ++i) {
        const bool is_low = i < kHalf;
        const int64_t row = (place * kPositions + s) * kHeadColumns;
        const float own = ValueAt(dheads, row + i);
        float expected = own;
        if (!is_value) {
          const float other = ValueAt(dheads, row + (is_low ? i + kHalf : i - kHalf));
          const int64_t entry = s * kHalf + i % kHalf;
          QG_ASSIGN_OR_RETURN(const float kept, rounded(own * ValueAt(table.cosines, entry)));
          QG_ASSIGN_OR_RETURN(const float turned, rounded(other * ValueAt(table.sines, entry)));
          QG_ASSIGN_OR_RETURN(expected, rounded(is_low ? kept + turned : kept - turned));
        }
        const int64_t at = (s * kBatches * heads + place) * kHeadColumns + i;
        context.ExpectSameFloat(absl::StrCat("qkv.grad_output of head ", place),
                                ValueAt(gradient, at), expected);
      }
    }
  }
  return absl::OkStatus();
}

// ---- Residuals

absl::Status CheckResiduals(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const LayerRequest request,
                      MakeAttention(context, LayerKind::kTransformerLayer, {.heads = 4}));
  QG_ASSIGN_OR_RETURN(AttentionRun run, RunAttention(context, request));
  run.values["x"] = request.x;
  const char* const sums[][3] = {{"add1.y", "proj.y", "x"}, {"y", "fc2.y", "add1.y"}};
  for (const auto& [name, branch, residual] : sums) {
    QG_ASSIGN_OR_RETURN(const Tensor a, run.Find(branch));
    QG_ASSIGN_OR_RETURN(const Tensor b, run.Find(residual));
    QG_ASSIGN_OR_RETURN(Tensor sum, Tensor::Allocate(DType::kF32, a.shape()));
    for (int64_t i = 0; i < a.element_count(); ++i) {
      sum.as<float>()[i] = ValueAt(a, i) + ValueAt(b, i);
    }
    QG_ASSIGN_OR_RETURN(const Tensor expected, ExpectedCast(sum, DType::kBF16));
    QG_ASSIGN_OR_RETURN(const Tensor found, run.Find(name));
    QG_RETURN_IF_ERROR(context.ExpectSameBits(name, found, expected));
  }
  return absl::OkStatus();
}

// ---- Saved bytes

absl::Status CheckSavedAttention(ScenarioContext& context) {
  const AttentionOptions attention = {.heads = 4, .groups = 2, .rotary_base = 100.0f};
  QG_ASSIGN_OR_RETURN(const LayerRequest request,
                      MakeAttention(context, LayerKind::kTransformerLayer, attention));
  QG_ASSIGN_OR_RETURN(const AttentionRun run, RunAttention(context, request));
  constexpr int64_t kBF16Bytes = 2, kF32Bytes = 4;
  const std::pair<const char*, int64_t> expected[] = {
      {"core heads", 8 * kBatches * kPositions * kHeadColumns * kBF16Bytes},
      {"core probabilities", 4 * kBatches * kPositions * kPositions * kF32Bytes}};
  for (const auto& [name, bytes] : expected) {
    int64_t found = 0;
    for (const SavedOperand& operand : run.saved) {
      if (operand.name != name) continue;
      found += operand.counted.bytes();
      context.ExpectSameText(absl::StrCat(name, " at use"), operand.at_use.Hex(),
                             operand.at_save.Hex());
    }
    context.ExpectEqual(absl::StrCat("bytes of ", name), found, bytes);
  }
  return absl::OkStatus();
}

}  // namespace

ScenarioGroup AttentionScenarios() {
  ScenarioGroup group;
  group.scenarios.push_back(
      {.name = "causal-queries-see-no-later-key",
       .invariant = "Under a causal mask a query attends to the keys up to its own position.",
       .criterion = "The first query's context bit-equal to the first value; y bit-equal before "
                    "tokens that change.",
       .faults = {kFaultMaskOneKeyMore},
       .recipes = {"bf16", "mxfp8", "fp8_block"},
       .run = &CheckCausalMask});
  group.scenarios.push_back(
      {.name = "query-heads-read-their-groups-key",
       .invariant = "The query heads of a group share its key and its value.",
       .criterion = "Contexts, y and dw of proj bit-equal to those of a layer in which every query "
                    "head has a copy of its group's key and value.",
       .faults = {kFaultGroupOfWrongHead},
       .recipes = {"bf16", "fp8_current", "mxfp8"},
       .run = &CheckGroupsOfHeads});
  group.scenarios.push_back(
      {.name = "gradients-rotate-back",
       .invariant = "The gradients of rotated queries and keys are rotated by the transposed "
                    "rotation, those of values are not rotated.",
       .criterion = "Gradients of qkv's output bit-equal to those of the heads, rotated by hand.",
       .faults = {kFaultRotationNotTransposed},
       .recipes = {"bf16", "mxfp8"},
       .run = &CheckRotation});
  group.scenarios.push_back(
      {.name = "residuals-are-added-once",
       .invariant = "A transformer layer adds its input to attention, and that sum to the MLP.",
       .criterion = "Both sums bit-equal to one fp32 addition by hand, rounded.",
       .faults = {kFaultAddendTwice},
       .recipes = {"bf16", "fp8_current", "mxfp8"},
       .run = &CheckResiduals});
  group.scenarios.push_back(
      {.name = "saved-attention-is-counted",
       .invariant = "Attention keeps its heads and its fp32 probabilities for backward.",
       .criterion = "Their bytes equal to products of dims by hand; fingerprints at use equal to "
                    "those at save.",
       .bug_classes = {51},
       .faults = {kFaultProbabilitiesUncounted},
       .recipes = {"bf16", "mxfp8", "mxfp8:backward_override=high_precision"},
       .run = &CheckSavedAttention});
  group.faults = {
      InCode(kFaultMaskOneKeyMore, "Lets every query of a causal mask have one key more."),
      InCode(kFaultGroupOfWrongHead, "Gives query head h the key and value of group h mod groups."),
      InCode(kFaultRotationNotTransposed,
             "Applies the forward rotation to gradients of queries and keys."),
      InCode(kFaultAddendTwice, "Adds the residual twice."),
      InCode(kFaultProbabilitiesUncounted,
             "Counts the bytes saved for backward without attention's probabilities.", 51),
  };
  return group;
}

}  // namespace quantgate
