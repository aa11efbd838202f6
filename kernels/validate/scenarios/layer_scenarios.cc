// Which gradients come back, experts, norms, refusals, and engines beside each other.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/layer.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/training/session_faults.h"
#include "kernels/validate/scenarios/linear_subject.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/scenario_groups.h"
#include "kernels/validate/scenarios/sessions/session_subject.h"

namespace quantgate {
namespace {

// ---- Gradients that are asked for

std::string RequiresText(const RequiresGrad& requires_grad) {
  return absl::StrCat("x ", requires_grad.x ? 1 : 0, " w ", requires_grad.weight ? 1 : 0, " b ",
                      requires_grad.bias ? 1 : 0, ": ");
}

/// The operands that a step must save (docs/quantizers.md section 9): x if dw is wanted, the weight
/// if any gradient is, and under high_precision also the codes of the weight, although backward
/// does not read them.
std::string ExpectedSaved(const Recipe& recipe, const RequiresGrad& requires_grad) {
  if (!requires_grad.x && !requires_grad.weight && !requires_grad.bias) return "";
  std::string saved = requires_grad.weight ? "x " : "";
  absl::StrAppend(&saved, "weight ");
  if (recipe.is_quantized() && recipe.backward_override() == BackwardOverride::kHighPrecision) {
    absl::StrAppend(&saved, "weight workspace ");
  }
  return saved;
}

absl::Status CheckRequiresGrad(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(LinearOperands operands,
                      MakeLinearOperands(context, DType::kBF16, 32, 32, 64, 30));
  for (int bits = 0; bits < 8; ++bits) {
    RequiresGrad& wanted = operands.requires_grad;
    wanted.x = (bits & 1) != 0;
    wanted.weight = (bits & 2) != 0;
    wanted.bias = (bits & 4) != 0;
    const std::string name = RequiresText(wanted);
    QG_ASSIGN_OR_RETURN(const LinearRun run, RunLinearOn(context, operands, context.recipe()));
    QG_ASSIGN_OR_RETURN(const NamedOutputs expected,
                        ExpectedLinear(context.reference(), operands, context.recipe()));
    QG_RETURN_IF_ERROR(ExpectSameOutputs(context, name, run.outputs, expected));
    std::string saved;
    for (const SavedOperand& operand : run.saved) absl::StrAppend(&saved, operand.name, " ");
    context.ExpectSameText(name + "saved operands", saved, ExpectedSaved(context.recipe(), wanted));
  }
  return absl::OkStatus();
}

absl::Status CheckFrozenWeight(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(LinearOperands operands,
                      MakeLinearOperands(context, DType::kBF16, 64, 32, 64, 31));
  QG_ASSIGN_OR_RETURN(const Tensor expected,
                      ExpectedColumnSums(operands.grad_output, DType::kBF16));
  for (const bool x_requires : {true, false}) {
    operands.requires_grad = {.x = x_requires, .weight = false, .bias = true};
    QG_ASSIGN_OR_RETURN(const LinearRun run, RunLinearOn(context, operands, context.recipe()));
    const auto db = run.outputs.find("db");
    QG_RETURN_IF_ERROR(context.ExpectSameBits(RequiresText(operands.requires_grad) + "db",
                                              db == run.outputs.end() ? Tensor() : db->second,
                                              expected));
  }
  return absl::OkStatus();
}

/// Opens a session and returns the status of its first forward.
absl::Status FirstStep(ScenarioContext& context, const SessionSpec& spec) {
  QG_ASSIGN_OR_RETURN(const auto parameters, MakeParameters(context, 50));
  QG_ASSIGN_OR_RETURN(auto session, OneRankSession::Open(context.engine(), spec, parameters,
                                                         context.cancellation(), context.faults()));
  ForwardStep step;
  QG_ASSIGN_OR_RETURN(step.x, context.Generate(Distribution::kNormal, 1, DType::kBF16, {32, 32}));
  return session->Forward(step, context.cancellation()).status();
}

absl::Status CheckDelayedRefusal(ScenarioContext& context) {
  for (const BackwardOverride mode : {BackwardOverride::kNone, BackwardOverride::kHighPrecision,
                                      BackwardOverride::kDequantized}) {
    const SessionSpec spec = TwoLayerSpec(context.recipe().WithBackwardOverride(mode));
    context.ExpectCode(absl::StrCat("first step under ", std::string(BackwardOverrideName(mode))),
                       FirstStep(context, spec),
                       mode == BackwardOverride::kNone ? absl::StatusCode::kOk
                                                       : absl::StatusCode::kInvalidArgument);
  }
  return absl::OkStatus();
}

// ---- Experts

constexpr int64_t kExpertInputs = 64, kExpertOutputs = 32;

/// One expert's rows and parameters.
struct Expert {
  int64_t rows = 0;
  LinearOperands operands;
};

absl::StatusOr<Expert> MakeExpert(ScenarioContext& context, int64_t rows, uint64_t seed,
                                  float scale) {
  Expert expert{rows, {}};
  QG_ASSIGN_OR_RETURN(expert.operands, MakeLinearOperands(context, DType::kBF16, rows,
                                                          kExpertOutputs, kExpertInputs, seed));
  QG_ASSIGN_OR_RETURN(expert.operands.x, context.Generate(Distribution::kNormal, seed, DType::kBF16,
                                                          {rows, kExpertInputs}, scale));
  expert.operands.seed = 3;
  return expert;
}

absl::StatusOr<Tensor> Joined(const std::vector<Tensor>& parts) {
  std::vector<std::byte> bytes;
  int64_t rows = 0;
  for (const Tensor& part : parts) {
    bytes.insert(bytes.end(), part.bytes().begin(), part.bytes().end());
    rows += part.rows();
  }
  return Tensor::FromBytes(parts.front().dtype(), {rows, parts.front().columns()}, bytes);
}

/// Outputs of each expert, by the names of a linear layer, from one grouped step.
absl::StatusOr<std::vector<NamedOutputs>> RunGrouped(ScenarioContext& context,
                                                     const std::vector<Expert>& experts) {
  LayerRequest request;
  request.layer.kind = LayerKind::kGroupedLinear;
  request.seed = 3;
  std::vector<Tensor> x, grad_output;
  for (size_t i = 0; i < experts.size(); ++i) {
    const LinearOperands& operands = experts[i].operands;
    request.layer.m_splits.push_back(experts[i].rows);
    x.push_back(operands.x);
    grad_output.push_back(operands.grad_output);
    QG_ASSIGN_OR_RETURN(request.parameters[absl::StrCat("weight.", i)],
                        context.ToEngine(operands.weight));
    QG_ASSIGN_OR_RETURN(request.parameters[absl::StrCat("bias.", i)],
                        context.ToEngine(operands.bias));
  }
  QG_ASSIGN_OR_RETURN(const Tensor all_x, Joined(x));
  QG_ASSIGN_OR_RETURN(const Tensor all_grad_output, Joined(grad_output));
  QG_ASSIGN_OR_RETURN(request.x, context.ToEngine(all_x));
  QG_ASSIGN_OR_RETURN(request.grad_output, context.ToEngine(all_grad_output));
  QG_RETURN_IF_ERROR(CheckLayer(request, context.recipe()));
  QG_ASSIGN_OR_RETURN(
      const LayerResult result,
      RunLayer(context.engine(), request, context.recipe(), Arithmetic(), context.cancellation()));
  NamedOutputs whole;
  for (const NamedTensor& output : result.outputs) {
    QG_ASSIGN_OR_RETURN(whole[output.name], context.ToHost(output.tensor));
  }
  std::vector<NamedOutputs> parts(experts.size());
  int64_t begin = 0;
  for (size_t i = 0; i < experts.size(); ++i) {
    for (const char* name : {"y", "dx"}) {
      QG_ASSIGN_OR_RETURN(parts[i][name], TakeRows(whole.at(name), begin, experts[i].rows));
    }
    for (const char* name : {"dw", "db"}) {
      parts[i][name] = whole.at(absl::StrCat(name, ".", i));
    }
    begin += experts[i].rows;
  }
  return parts;
}

absl::StatusOr<std::vector<Expert>> ThreeExperts(ScenarioContext& context) {
  std::vector<Expert> experts;
  const std::pair<int64_t, float> sizes[] = {{160, 1.0f}, {96, 8.0f}, {64, 0.25f}};
  for (const auto& [rows, scale] : sizes) {
    QG_ASSIGN_OR_RETURN(Expert expert, MakeExpert(context, rows, 400 + rows, scale));
    experts.push_back(std::move(expert));
  }
  return experts;
}

absl::Status CheckSeparateLinears(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(std::vector<Expert> experts, ThreeExperts(context));
  QG_ASSIGN_OR_RETURN(const auto grouped, RunGrouped(context, experts));
  for (size_t i = 0; i < experts.size(); ++i) {
    experts[i].operands.first_call_id = static_cast<uint32_t>(3 * i);
    QG_ASSIGN_OR_RETURN(const NamedOutputs expected,
                        ExpectedLinear(context.reference(), experts[i].operands, context.recipe()));
    QG_RETURN_IF_ERROR(
        ExpectSameOutputs(context, absl::StrCat("expert ", i, " "), grouped[i], expected));
  }
  return absl::OkStatus();
}

absl::Status CheckPermutation(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const std::vector<Expert> experts, ThreeExperts(context));
  const size_t order[] = {2, 0, 1};
  std::vector<Expert> permuted;
  for (const size_t i : order) permuted.push_back(experts[i]);
  QG_ASSIGN_OR_RETURN(const auto in_order, RunGrouped(context, experts));
  QG_ASSIGN_OR_RETURN(const auto out_of_order, RunGrouped(context, permuted));
  for (size_t i = 0; i < experts.size(); ++i) {
    QG_RETURN_IF_ERROR(ExpectSameOutputs(context, absl::StrCat("expert ", order[i], " "),
                                         out_of_order[i], in_order[order[i]]));
  }
  return absl::OkStatus();
}

absl::Status CheckEmptyExpert(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(std::vector<Expert> experts, ThreeExperts(context));
  QG_ASSIGN_OR_RETURN(const auto without, RunGrouped(context, experts));
  QG_ASSIGN_OR_RETURN(const Expert empty, MakeExpert(context, 0, 500, 1.0f));
  experts.insert(experts.begin() + 1, empty);
  QG_ASSIGN_OR_RETURN(const auto with, RunGrouped(context, experts));
  for (const size_t i : {0, 1, 2}) {
    QG_RETURN_IF_ERROR(ExpectSameOutputs(context, absl::StrCat("expert ", i, " "),
                                         with[i == 0 ? 0 : i + 1], without[i]));
  }
  for (const char* name : {"dw", "db"}) {
    const Tensor& gradient = with[1].at(name);
    for (int64_t i = 0; i < gradient.element_count(); ++i) {
      context.ExpectSameFloat(absl::StrCat(name, " of the empty expert"), ValueAt(gradient, i),
                              0.0f);
    }
  }
  return absl::OkStatus();
}

// ---- Norms

// Under delayed scaling the quantizer reads the norm's fp32 result, unless the norm's output is
// returned, which is rounded first.
absl::Status CheckNormRounding(ScenarioContext& context) {
  LayerRequest request;
  request.layer.kind = LayerKind::kLayerNormLinear;
  QG_ASSIGN_OR_RETURN(const LinearOperands operands,
                      MakeLinearOperands(context, DType::kBF16, 64, 64, 128, 33));
  QG_ASSIGN_OR_RETURN(const Tensor gamma,
                      context.Generate(Distribution::kNormal, 34, DType::kBF16, {128}));
  QG_ASSIGN_OR_RETURN(request.x, context.ToEngine(operands.x));
  QG_ASSIGN_OR_RETURN(request.parameters["gamma"], context.ToEngine(gamma));
  QG_ASSIGN_OR_RETURN(request.parameters["weight"], context.ToEngine(operands.weight));
  Tensor y[2];
  for (const bool returned : {false, true}) {
    request.layer.return_norm_output = returned;
    QG_ASSIGN_OR_RETURN(const LayerResult result,
                        RunLayer(context.engine(), request, context.recipe(), Arithmetic(),
                                 context.cancellation()));
    NormForwardDesc norm;
    norm.x = operands.x;
    norm.gamma = gamma;
    norm.out = returned || !context.recipe().is_delayed() ? DType::kBF16 : DType::kF32;
    QG_ASSIGN_OR_RETURN(const NormForwardResult normed,
                        context.reference().NormForward(norm, context.cancellation()));
    QG_ASSIGN_OR_RETURN(const Tensor one, Tensor::FromScalar(1.0f));
    QuantizeArguments arguments;
    if (context.recipe().is_delayed()) arguments.scale = one;
    QG_ASSIGN_OR_RETURN(
        const QuantizedTensor x,
        ExpectedQuantization(normed.y, context.recipe().QuantizerFor(TensorRole::kInput),
                             {true, false}, arguments));
    QG_ASSIGN_OR_RETURN(
        const QuantizedTensor weight,
        ExpectedQuantization(operands.weight, context.recipe().QuantizerFor(TensorRole::kWeight),
                             {true, false}, arguments));
    GemmDesc desc;
    desc.a = OperandOf(*x.rowwise);
    desc.b = OperandOf(*weight.rowwise);
    desc.out_dtype = DType::kBF16;
    desc.use_split_accumulator = context.recipe().UsesSplitAccumulator(GemmRole::kFprop);
    QG_ASSIGN_OR_RETURN(const GemmResult expected,
                        context.reference().Gemm(desc, context.cancellation()));
    y[returned] = expected.d;
    QG_RETURN_IF_ERROR(context.ExpectSameBits(returned ? "y beside norm_out" : "y",
                                              result.outputs[0].tensor, expected.d));
  }
  QG_ASSIGN_OR_RETURN(const ParityReport parity,
                      context.reference().CompareBits(y[0], y[1], context.cancellation()));
  context.Expect(parity.equal != context.recipe().is_delayed(), "y of the two paths",
                 parity.equal ? "equal" : "different", parity.equal ? "different" : "equal");
  return absl::OkStatus();
}

// ---- A step that fails

/// Fails one GEMM: the `number`-th that starts after FailGemm.
class FailingEngine final : public ForwardingEngine {
 public:
  explicit FailingEngine(Engine& engine) : ForwardingEngine(engine) {}
  void FailGemm(int number) { remaining_ = number; }

  absl::StatusOr<StartedGemm> StartGemm(const GemmDesc& desc,
                                        const Cancellation* cancellation) override {
    if (remaining_ > 0 && --remaining_ == 0) return absl::ResourceExhaustedError("no memory");
    return ForwardingEngine::StartGemm(desc, cancellation);
  }

 private:
  int remaining_ = 0;
};

absl::Status CheckFailedStep(ScenarioContext& context) {
  FailingEngine failing(context.engine());
  ScenarioContext on_failing(
      {failing, context.reference(), context.faults(), context.cancellation()}, context.recipe());
  QG_ASSIGN_OR_RETURN(const auto training,
                      ComparedTraining::Open(on_failing, TwoLayerSpec(context.recipe()), 50));
  for (int64_t step = 0; step < 3; ++step) {
    on_failing.SetStep(step);
    ForwardStep forward;
    QG_ASSIGN_OR_RETURN(const Tensor x, training->MakeX(700 + step, 16.0f));
    QG_ASSIGN_OR_RETURN(forward.x, context.ToEngine(x));
    failing.FailGemm(2);  // Fails fc2's GEMM, after fc1's has succeeded.
    const absl::Status status =
        training->session().Forward(forward, context.cancellation()).status();
    on_failing.ExpectCode("a forward without memory", status, absl::StatusCode::kResourceExhausted);
    QG_RETURN_IF_ERROR(training->TrainStep(step));
  }
  context.Absorb(on_failing);
  return absl::OkStatus();
}

// ---- Engines

absl::Status CheckEngines(ScenarioContext& context) {
  const std::string device = context.engine().Describe().id;
  if (!absl::StartsWith(device, "cuda")) {
    context.LeaveOut(absl::StrCat("needs a CUDA device; this engine is ", device));
    return absl::OkStatus();
  }
  QG_ASSIGN_OR_RETURN(const auto parameters, MakeParameters(context, 50));
  const SessionSpec spec = TwoLayerSpec(context.recipe());
  QG_ASSIGN_OR_RETURN(auto subject, OneRankSession::Open(context.engine(), spec, parameters,
                                                         context.cancellation(), context.faults()));
  QG_ASSIGN_OR_RETURN(auto reference, OneRankSession::Open(context.reference(), spec, parameters,
                                                           context.cancellation()));
  for (uint64_t step = 0; step < 5; ++step) {
    context.SetStep(static_cast<int64_t>(step));
    ForwardStep forward;
    QG_ASSIGN_OR_RETURN(
        forward.x, context.Generate(Distribution::kNormal, 800 + step, DType::kBF16, {32, 32}));
    QG_ASSIGN_OR_RETURN(const Tensor dy, context.Generate(Distribution::kNormal, 900 + step,
                                                          DType::kBF16, {32, 32}, 0x1p-6f));
    for (const bool is_forward : {true, false}) {
      const auto run = [&](OneRankSession& session) {
        return is_forward ? session.Forward(forward, context.cancellation())
                          : session.Backward({"0", dy}, context.cancellation());
      };
      QG_ASSIGN_OR_RETURN(const SessionStepResult on_cuda, run(*subject));
      QG_ASSIGN_OR_RETURN(const SessionStepResult on_cpu, run(*reference));
      QG_RETURN_IF_ERROR(ExpectSameOutputs(context, "", OutputsOf(on_cuda), OutputsOf(on_cpu)));
    }
    QG_RETURN_IF_ERROR(subject->Optimize({}, context.cancellation()).status());
    QG_RETURN_IF_ERROR(reference->Optimize({}, context.cancellation()).status());
    QG_ASSIGN_OR_RETURN(const auto of_cuda, subject->Describe(context.cancellation()));
    QG_ASSIGN_OR_RETURN(const auto of_cpu, reference->Describe(context.cancellation()));
    context.ExpectEqual("tensors of the state", static_cast<int64_t>(of_cuda.size()),
                        static_cast<int64_t>(of_cpu.size()));
    for (size_t i = 0; i < of_cpu.size() && i < of_cuda.size(); ++i) {
      context.ExpectSameText(absl::StrCat("state ", of_cpu[i].name), of_cuda[i].fingerprint.Hex(),
                             of_cpu[i].fingerprint.Hex());
    }
  }
  return absl::OkStatus();
}

// ---- Faults around the engine

bool IsExpertInput(const QuantizeCall& call) {
  return call.source.columns() == kExpertInputs && call.source.rows() != kExpertOutputs &&
         call.quantizer.rowwise.format == QuantizerFormat::kFp8Tensor;
}

/// Scales the input of every expert by the amax of the first expert's.
EngineAlterations ExpertsShareAmax() {
  auto first = std::make_shared<Tensor>();
  return {
      .quantize = [first](Engine& engine, QuantizeCall call) -> absl::StatusOr<QuantizedTensor> {
        if (!IsExpertInput(call)) return call.On(engine);
        if (!first->has_value()) {
          QG_ASSIGN_OR_RETURN(const Tensor source, engine.ToHost(call.source, nullptr));
          QG_ASSIGN_OR_RETURN(*first, Tensor::FromScalar(ExpectedAmax(source)));
        }
        call.arguments.group_amax_rowwise = *first;
        return call.On(engine);
      }};
}

/// Scales the input of an expert by the amax of the expert before it.
EngineAlterations ScaleOfExpertBefore() {
  auto last = std::make_shared<Tensor>();
  return {.quantize = [last](Engine& engine, QuantizeCall call) -> absl::StatusOr<QuantizedTensor> {
    if (!IsExpertInput(call)) return call.On(engine);
    QG_ASSIGN_OR_RETURN(const Tensor source, engine.ToHost(call.source, nullptr));
    QG_ASSIGN_OR_RETURN(Tensor amax, Tensor::FromScalar(ExpectedAmax(source)));
    call.arguments.group_amax_rowwise = std::exchange(*last, std::move(amax));
    return call.On(engine);
  }};
}

EngineAlterations ExpertsShareRandomNumbers() {
  return {.quantize = [](Engine& engine, QuantizeCall call) {
    call.arguments.call_id %= 3;
    return call.On(engine);
  }};
}

/// A kernel that has E4M3 alone: it reads the bytes of E5M2 codes in mxfp8 blocks, which only
/// gradients have, as E4M3.
EngineAlterations E5M2AsE4M3() {
  return {.gemm = [](Engine& engine, GemmDesc desc,
                     const Cancellation* cancellation) -> absl::StatusOr<GemmResult> {
    Tensor& codes = desc.a.data;
    if (desc.a.scaling == ScaleMode::kMx32 && codes.dtype() == DType::kF8E5M2) {
      QG_ASSIGN_OR_RETURN(codes, codes.Reinterpret(DType::kF8E4M3, codes.shape()));
    }
    return engine.Gemm(desc, cancellation);
  }};
}

/// Quantizes the tensor after an empty one with an amax of 448, that is with scale 1.
EngineAlterations EmptyLeavesAmax() {
  auto is_left = std::make_shared<bool>(false);
  return {
      .quantize = [is_left](Engine& engine, QuantizeCall call) -> absl::StatusOr<QuantizedTensor> {
        if (call.quantizer.rowwise.format == QuantizerFormat::kFp8Tensor && *is_left) {
          QG_ASSIGN_OR_RETURN(call.arguments.group_amax_rowwise, Tensor::FromScalar(448.0f));
        }
        *is_left = call.source.element_count() == 0;
        return call.On(engine);
      }};
}

EngineAlterations NormRoundedFirst() {
  return {
      .norm_forward = [](Engine& engine, NormForwardDesc desc,
                         const Cancellation* cancellation) -> absl::StatusOr<NormForwardResult> {
        const DType out = std::exchange(desc.out, DType::kBF16);
        QG_ASSIGN_OR_RETURN(NormForwardResult result, engine.NormForward(desc, cancellation));
        QG_ASSIGN_OR_RETURN(result.y, engine.Cast(result.y, out, cancellation));
        return result;
      }};
}

// ---- Operands that are given as codes

// x is given as rowwise codes, other ones in every step, of a format whose columnwise codes are
// their transpose. wgrad must read those of the step's own x.
absl::Status CheckDerivedCodes(ScenarioContext& context) {
  const Recipe& recipe = context.recipe();
  const LayerSpec linear;
  LayerState state;
  for (int64_t step = 0; step < 3; ++step) {
    context.SetStep(step);
    QG_ASSIGN_OR_RETURN(const LinearOperands operands,
                        MakeLinearOperands(context, DType::kBF16, 32, 64, 128, 500 + step));
    QG_ASSIGN_OR_RETURN(
        QuantizedTensor codes,
        context.reference().Quantize(operands.x, recipe.QuantizerFor(TensorRole::kInput),
                                     {true, false}, {}, context.cancellation()));
    QG_ASSIGN_OR_RETURN(const Tensor values,
                        context.reference().Dequantize(codes, Usage::kRowwise, DType::kBF16,
                                                       context.cancellation()));
    for (Tensor* const part : TensorsOf(codes)) {
      if (!part->has_value()) continue;
      QG_ASSIGN_OR_RETURN(*part, context.ToEngine(*part));
    }
    QG_ASSIGN_OR_RETURN(state.parameters["weight"].value, context.ToEngine(operands.weight));
    QG_ASSIGN_OR_RETURN(state.parameters["bias"].value, context.ToEngine(operands.bias));
    QG_ASSIGN_OR_RETURN(const Tensor x, context.ToEngine(values));
    QG_ASSIGN_OR_RETURN(const Tensor grad_output, context.ToEngine(operands.grad_output));
    StepRecorder recorder(context.engine(), Arithmetic(), context.cancellation());
    recorder.SeedFaults(context.faults());
    const StepOptions options{.recipe = recipe, .seed = operands.seed};
    QG_ASSIGN_OR_RETURN(ForwardResult forward,
                        ForwardLayer(recorder, linear, state, StepOperand(x, codes), options));
    QG_ASSIGN_OR_RETURN(
        const BackwardResult backward,
        BackwardLayer(recorder, linear, state, std::move(forward.saved), grad_output));
    NamedOutputs outputs = {{"y", forward.y}, {"dx", backward.dx}};
    for (const NamedTensor& gradient : backward.gradients) outputs[gradient.name] = gradient.tensor;
    QG_ASSIGN_OR_RETURN(const NamedOutputs expected,
                        ExpectedLinear(context.reference(), operands, recipe));
    QG_RETURN_IF_ERROR(ExpectSameOutputs(context, "", outputs, expected));
  }
  return absl::OkStatus();
}

}  // namespace

ScenarioGroup LayerScenarios() {
  const std::vector<std::string> modes = {"bf16",
                                          "fp8_current",
                                          "fp8_current:backward_override=high_precision",
                                          "mxfp8",
                                          "mxfp8:backward_override=high_precision",
                                          "mxfp8:backward_override=dequantized",
                                          "fp8_block:backward_override=dequantized",
                                          "nvfp4",
                                          "nvfp4:backward_override=high_precision",
                                          "nvfp4:backward_override=dequantized",
                                          "fp8_rowwise"};
  ScenarioGroup group;
  group.scenarios.push_back(
      {.name = "gradients-asked-for-come-back",
       .invariant = "Each of the 8 combinations of what requires a gradient saves what it needs "
                    "and gives what was asked for.",
       .criterion = "Names of outputs and saved operands by the table of the modes; values "
                    "bit-equal to a step by hand.",
       .bug_classes = {8},
       .faults = {kFaultRequiresGradSwapped},
       .recipes = modes,
       .run = &CheckRequiresGrad});
  group.scenarios.push_back(
      {.name = "frozen-weight-keeps-bias-gradient",
       .invariant = "The bias gradient does not depend on the weight's.",
       .criterion = "db of a frozen weight bit-equal to pairwise sums of grad_output, in every "
                    "mode.",
       .bug_classes = {9},
       .faults = {kFaultBiasGradientLeftToWgrad},
       .recipes = modes,
       .run = &CheckFrozenWeight});
  group.scenarios.push_back(
      {.name = "delayed-scaling-refuses-overrides",
       .invariant = "A backward override under delayed scaling is refused, not dropped.",
       .criterion =
           "INVALID_ARGUMENT for both overrides no later than at the first forward, OK for "
           "none.",
       .bug_classes = {10},
       .faults = {kFaultOverrideIgnoredUnderDelayed},
       .recipes = {"fp8_delayed"},
       .run = &CheckDelayedRefusal});
  group.scenarios.push_back(
      {.name = "grouped-equals-separate-linears",
       .invariant = "A grouped layer is a linear layer per expert, each with its own scales and "
                    "random numbers.",
       .criterion = "y, dx, dw and db of unequal experts bit-equal to linear steps by hand.",
       .bug_classes = {52, 59},
       .faults = {"experts-share-amax", "experts-share-random-numbers", "e5m2-read-as-e4m3",
                  "dequantized-reads-original"},
       .recipes = {"fp8_current", "nvfp4", "bf16", "fp8_block", "mxfp8", "mxfp8:fp8_format=hybrid",
                   "mxfp8:backward_override=dequantized", "fp8_rowwise"},
       .run = &CheckSeparateLinears});
  group.scenarios.push_back({.name = "permuted-experts-permute-outputs",
                             .invariant = "What an expert gives does not depend on its place.",
                             .criterion = "Every expert's outputs bit-equal in both orders.",
                             .faults = {"scale-of-expert-before"},
                             .recipes = {"fp8_current", "fp8_block", "mxfp8",
                                         "nvfp4:disable_stochastic_rounding=true", "fp8_rowwise"},
                             .run = &CheckPermutation});
  group.scenarios.push_back(
      {.name = "empty-expert-changes-nothing",
       .invariant = "An expert without rows leaves the others as they are, and has zero gradients.",
       .criterion = "The others' outputs bit-equal with and without it; its dw and db are +0.",
       .bug_classes = {39},
       .faults = {"empty-tensor-leaves-amax"},
       .recipes = {"fp8_current", "fp8_block", "mxfp8", "nvfp4:disable_stochastic_rounding=true",
                   "fp8_rowwise"},
       .run = &CheckEmptyExpert});
  group.scenarios.push_back(
      {.name = "norm-rounded-as-its-path-says",
       .invariant = "Delayed scaling quantizes the norm's fp32 result, and the rounded one where "
                    "the norm's output is returned; other recipes always the rounded one.",
       .criterion =
           "y bit-equal to norm, quantization and GEMM by hand on both paths, which differ "
           "under delayed scaling alone.",
       .bug_classes = {34},
       .faults = {"norm-rounded-before-quantization"},
       .recipes = {"fp8_delayed", "fp8_current", "mxfp8"},
       .run = &CheckNormRounding});
  group.scenarios.push_back(
      {.name = "failed-step-changes-nothing",
       .invariant = "A step that fails half way leaves the session as it was.",
       .criterion = "Outputs of the steps after bit-equal to a network by hand that never took it.",
       .bug_classes = {38},
       .faults = {kFaultFailedStepKeptInPart},
       .recipes = {"nvfp4", "fp8_delayed:amax_history_len=3"},
       .run = &CheckFailedStep});
  group.scenarios.push_back(
      {.name = "derived-codes-follow-rowwise",
       .invariant =
           "Columnwise codes that are derived from the rowwise codes of an operand are those "
           "of the codes that the step was given.",
       .criterion = "Outputs of three steps, each of other rowwise codes of x, bit-equal to a step "
                    "by hand that quantizes x itself.",
       .faults = {kFaultDerivedCodesKept},
       .recipes = {"fp8_current", "fp8_block:x_block_dim=2,w_block_dim=1,grad_block_dim=1"},
       .run = &CheckDerivedCodes});
  group.scenarios.push_back(
      {.name = "cpu-equals-cuda",
       .invariant = "The CUDA engine gives the bits of the CPU engine.",
       .criterion = "Outputs of five training steps bit-equal, fingerprints of the whole state "
                    "equal.",
       .faults = {"ties-away-from-zero"},
       .recipes = {"mxfp8", "bf16", "fp8_current", "fp8_delayed:amax_history_len=3", "fp8_block",
                   "nvfp4", "fp8_rowwise"},
       .run = &CheckEngines});
  group.faults = {
      InCode(kFaultRequiresGradSwapped,
             "Takes what x requires for what the weight requires, and the other way round.", 8),
      InCode(kFaultBiasGradientLeftToWgrad,
             "Leaves the bias gradient to the weight's GEMM under a backward override.", 9),
      InCode(kFaultOverrideIgnoredUnderDelayed, "Drops a backward override under delayed scaling.",
             10),
      InCode(kFaultDerivedCodesKept,
             "Keeps columnwise codes that were derived for an earlier step's operand."),
      InCode(kFaultFailedStepKeptInPart, "Keeps what a forward that fails had done.", 38),
      {"experts-share-amax", "Scales every expert's input by the first expert's amax.", 0,
       &ExpertsShareAmax},
      {"scale-of-expert-before", "Scales an expert's input by the amax of the expert before.", 0,
       &ScaleOfExpertBefore},
      {"experts-share-random-numbers", "Draws the same random numbers for every expert.", 0,
       &ExpertsShareRandomNumbers},
      {"e5m2-read-as-e4m3", "Reads the E5M2 codes of mxfp8 gradients as E4M3.", 52, &E5M2AsE4M3},
      {"empty-tensor-leaves-amax", "Lets an empty tensor leave its amax to the next.", 39,
       &EmptyLeavesAmax},
      {"norm-rounded-before-quantization", "Rounds the norm's result to bf16 on every path.", 34,
       &NormRoundedFirst},
  };
  return group;
}

}  // namespace quantgate
