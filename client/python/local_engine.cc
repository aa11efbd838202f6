// quantgate._engine.LocalEngine: quantize, dequantize, gemm and generate on an engine of this
// process, without messages: a small call costs little more than the engine's own time.
#include "client/python/local_engine.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/python/host_tensor.h"
#include "client/python/messages.h"
#include "client/python/status.h"
#include "kernels/base/nested_split.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/bound/error_bound.h"
#include "kernels/quantize/quantized_outline.h"
#include "kernels/validate/diagnosis/gemm_hypotheses.h"
#include "kernels/validate/gemm_plan.h"
#include "kernels/validate/quantize_plan.h"
#include "server/device/device.h"
#include "server/runs/memory_guard.h"
#include "server/wire/convert_recipe.h"
#include "server/wire/convert_report.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/quantized_parts.h"
#include "server/wire/request_fields.h"

namespace nb = nanobind;

namespace quantgate::python {
namespace {

/// From so many multiplications, or bytes read, on, which take about a tenth of a second, a call is
/// worth a thread that can be ended.
constexpr double kLongWork = 1 << 27;

/// A recipe that was read once, for the many tensors that follow.
struct ParsedRecipe {
  Recipe recipe;
};

ParsedRecipe ParseRecipe(const std::string& name,
                         const std::vector<std::pair<std::string, std::string>>& knobs) {
  v1::Recipe proto;
  proto.set_name(name);
  for (const auto& [knob, value] : knobs) (*proto.mutable_knobs())[knob] = value;
  return {ValueOf(RecipeFromProto(proto, "recipe"))};
}

using NamedTensors = std::vector<std::pair<std::string, HostTensor>>;

/// What Engine.Quantize answers, with its messages made where they are asked for.
struct Quantization {
  QuantizeResult result;
  ScaleLayout layout = ScaleLayout::kLogical;
  DType source_dtype = DType::kF32;
  NamedTensors tensors;  ///< Every part, in memory of its own or of the caller's.
  double seconds = 0;    ///< Of the engine, without what is done around it.

  std::string Record() const { return JsonTextOf(QuantizationRecordToProto(result.record)); }
  nb::bytes Description() const {
    return BytesOf(QuantizedDescriptionToProto(result.quantized, layout));
  }
};

absl::StatusOr<GemmLayout> LayoutOf(const std::string& name) {
  if (name == "tn") return GemmLayout::kTN;
  if (name == "nn") return GemmLayout::kNN;
  if (name == "nt") return GemmLayout::kNT;
  return Refuse("layout", Printable(name), "must be tn, nn or nt");
}

struct GemmAnswer {
  HostTensor d;
  HostTensor amax;  ///< Absent but for FP8 outputs.
  std::string arithmetic, text, note;
  double seconds = 0;
};

struct BoundAnswer {
  HostTensor ratios;  ///< f64 [m][n].
  HostTensor exact;   ///< f32 [m][n], before d_scale.
  std::string derivation;
};

std::string OutField(const std::string& part) { return absl::StrCat("out['", part, "']"); }

/// The memory of a caller's for a result of this type; bytes are taken for any dtype of one byte.
absl::StatusOr<Tensor> Fitting(const std::string& field, const Tensor& out, const Tensor& result) {
  const bool is_bytes = out.dtype() == DType::kU8 && DTypeBytes(result.dtype()) == 1;
  if (out.shape() != result.shape() || (out.dtype() != result.dtype() && !is_bytes)) {
    return Refuse(field, TensorText(out), absl::StrCat("must be ", TensorText(result)));
  }
  return out.Reinterpret(result.dtype(), result.shape());
}

/// Memory of `out` for the codes of a direction, of the dtype that they will have if bytes were
/// given; absent where there is none.
Tensor CodesOf(const NamedTensors& out, const char* part, DType element) {
  for (const auto& [name, given] : out) {
    if (name != part || given.is_on_device()) continue;
    if (given.tensor.dtype() != DType::kU8 || DTypeBytes(element) != 1) return given.tensor;
    return given.tensor.Reinterpret(element, given.tensor.shape()).value_or(Tensor());
  }
  return {};
}

/// The engine that "cuda" means: that of the first device.
std::string DeviceName(const std::string& device) { return device == "cuda" ? "cuda:0" : device; }

class LocalEngine {
 public:
  LocalEngine(const std::string& device, int threads) {
    CpuEngineOptions cpu;
    if (threads > 0) cpu.threads = threads;
    const std::string name = DeviceName(device);
    engine_ = std::move(ValueOf(MakeEngines({&name, 1}, cpu)).front());
    if (engine_->RunsAhead()) (void)absl::SimpleAtoi(name.substr(5), &ordinal_);  // "cuda:N".
  }

  /// Of the CUDA device; -1 for the CPU.
  int ordinal() const { return ordinal_; }
  uintptr_t stream() const { return engine_->StreamHandle(); }

  /// Copies `source` to memory of the caller's, of as many bytes, and waits for it.
  void Copy(const HostTensor& source, const HostTensor& to) {
    Run(static_cast<double>(source.tensor.byte_size()), [&](const Cancellation& cancellation) {
      return Deliver(source.tensor, to.tensor, &cancellation);
    });
  }
  HostTensor ToHost(const HostTensor& source) {
    HostTensor copy;
    Run(static_cast<double>(source.tensor.byte_size()),
        [&](const Cancellation& cancellation) -> absl::Status {
          QG_ASSIGN_OR_RETURN(copy.tensor, engine_->ToHost(source.tensor, &cancellation));
          return absl::OkStatus();
        });
    return copy;
  }

  /// `out`: memory for the parts by their names; exactly those that there are. `on_device`: parts
  /// without such memory stay where the engine has them.
  Quantization Quantize(const HostTensor& source, const ParsedRecipe& recipe,
                        const std::string& role, bool rowwise, bool columnwise, uint64_t seed,
                        const nb::object& scale, const nb::object& amax_history,
                        const std::string& scale_layout, const std::optional<NamedTensors>& out,
                        bool on_device) {
    const auto parsed_role = ParseTensorRole(role);
    if (!parsed_role.ok()) {
      throw StatusError{Refuse("role", Printable(role), "must be input, weight or grad_output")};
    }
    QuantizeRequest request{
        .source = source.tensor,
        .state = {TensorOrNone(scale), TensorOrNone(amax_history)},
        .recipe = recipe.recipe,
        .role = *parsed_role,
        .usages = {rowwise, columnwise},
        .seed = seed,
        .scale_layout = ValueOf(ScaleLayoutFromName(scale_layout, "scale_layout"))};
    if (out.has_value()) {
      const Quantizer& quantizer = request.recipe.QuantizerFor(request.role);
      request.rowwise_codes = CodesOf(*out, "rowwise_data", quantizer.rowwise.element);
      request.columnwise_codes = CodesOf(*out, "columnwise_data", quantizer.columnwise.element);
    }
    Quantization answer;
    answer.layout = request.scale_layout;
    answer.source_dtype = source.tensor.dtype();
    Run(static_cast<double>(source.tensor.byte_size()),
        [&](const Cancellation& cancellation) -> absl::Status {
          // The state of delayed scaling is a few numbers that the host looks at.
          DelayedScalingState& state = request.state;
          QG_ASSIGN_OR_RETURN(state.scale, engine_->ToHost(state.scale, &cancellation));
          QG_ASSIGN_OR_RETURN(state.amax_history,
                              engine_->ToHost(state.amax_history, &cancellation));
          const std::map<std::string, Tensor> given = {{"scale", state.scale},
                                                       {"amax_history", state.amax_history}};
          QG_ASSIGN_OR_RETURN(const QuantizePlan checked, QuantizePlan::Create(std::move(request)));
          QG_ASSIGN_OR_RETURN(
              const QuantizePlan plan,
              checked.WithTensors([&](const std::string& slot) -> absl::StatusOr<Tensor> {
                if (slot != "tensor") return given.at(slot);
                return OnEngine(source, &cancellation);
              }));
          const std::unique_ptr<Stopwatch> stopwatch = engine_->StartStopwatch();
          QG_ASSIGN_OR_RETURN(answer.result, plan.Run(*engine_, &cancellation));
          QG_RETURN_IF_ERROR(stopwatch->Stop());
          QG_ASSIGN_OR_RETURN(answer.seconds, stopwatch->Seconds());
          return HandOver(plan.request().source, out, on_device, &cancellation, answer);
        });
    return answer;
  }

  HostTensor Dequantize(const NamedTensors& tensors, std::string usage,
                        const std::string& out_dtype, const nb::bytes& description,
                        const nb::object& out, bool on_device) {
    std::map<std::string, Tensor> parts;
    std::map<std::string, const HostTensor*> given;
    double bytes = 0;
    for (const auto& [name, tensor] : tensors) {
      parts[name] = tensor.tensor;
      given[name] = &tensor;
      bytes += static_cast<double>(tensor.tensor.byte_size());
    }
    if (usage.empty()) usage = parts.contains("rowwise_data") ? "rowwise" : "columnwise";
    if (usage != "rowwise" && usage != "columnwise") {
      throw StatusError{Refuse("usage", Printable(usage), "must be rowwise or columnwise")};
    }
    DequantizeRequest request;
    request.usage = usage == "rowwise" ? Usage::kRowwise : Usage::kColumnwise;
    request.out_dtype = DTypeOf(out_dtype, "out_dtype");
    if (!IsHighPrecision(request.out_dtype)) {
      throw StatusError{Refuse("out_dtype", Printable(out_dtype), "must be f32, bf16 or f16")};
    }
    if (!parts.contains(usage + "_data")) {
      throw StatusError{RefuseAbsent(PartField(request.usage, "data"), "the codes are needed")};
    }
    for (const QuantizedPart& part : kQuantizedParts) {
      const auto found = parts.find(part.name);
      if (part.usage == request.usage && found != parts.end()) {
        request.parts.*part.member = found->second;
      }
    }
    v1::QuantizedDescription proto;
    ParseInto(description, proto);
    request.description = ValueOf(QuantizedDescriptionFromProto(proto, request.usage));
    const Tensor memory = TensorOrNone(out);
    HostTensor values;
    Run(bytes, [&](const Cancellation& cancellation) -> absl::Status {
      QG_ASSIGN_OR_RETURN(const DequantizePlan checked, DequantizePlan::Create(std::move(request)));
      if (memory.has_value()) {
        QG_ASSIGN_OR_RETURN(const Tensor outline,
                            OutlineTensor(checked.out_dtype(), checked.shape()));
        QG_RETURN_IF_ERROR(Fitting("out", memory, outline).status());
      }
      QG_ASSIGN_OR_RETURN(const DequantizePlan plan,
                          checked.WithTensors([&](const std::string& slot) {
                            return OnEngine(*given.at(PartOfSlot(slot)), &cancellation);
                          }));
      QG_ASSIGN_OR_RETURN(Tensor made, plan.Run(*engine_, &cancellation));
      if (memory.has_value()) return Deliver(made, memory, &cancellation);
      std::vector<Tensor> others;
      for (const auto& [name, part] : parts) others.push_back(part);
      QG_ASSIGN_OR_RETURN(made, OfItsOwn(std::move(made), others));
      QG_ASSIGN_OR_RETURN(values, Placed(std::move(made), on_device, &cancellation));
      return absl::OkStatus();
    });
    if (memory.has_value()) values = nb::cast<HostTensor&>(out);
    return values;
  }

  /// `slots`: the tensors by the names of GemmPlan's slots.
  GemmAnswer Gemm(const NamedTensors& slots, const std::string& layout,
                  const std::string& arithmetic, const std::string& out_dtype, float alpha,
                  float beta, bool in_place, const std::pair<std::string, std::string>& scalings,
                  const std::pair<std::string, std::string>& groups,
                  const std::pair<int, int>& e4m3_max, const nb::object& out, bool on_device) {
    const PlannedGemm planned = PlanOf(slots, layout, arithmetic, out_dtype, alpha, beta, in_place,
                                       scalings, groups, e4m3_max);
    const GemmPlan& checked = planned.plan;
    const Tensor given_d = TensorOrNone(out);
    const GemmShape& shape = checked.shape();
    if (given_d.has_value() && (given_d.dtype() != checked.desc().out_dtype ||
                                given_d.shape() != Shape{shape.m, shape.n})) {
      throw StatusError{
          Refuse("out", TensorText(given_d),
                 absl::StrCat("must be ", std::string(DTypeName(checked.desc().out_dtype)), "[",
                              shape.m, "x", shape.n, "]"))};
    }
    GemmAnswer answer;
    Run(static_cast<double>(shape.m) * static_cast<double>(shape.n) * static_cast<double>(shape.k),
        [&](const Cancellation& cancellation) -> absl::Status {
          QG_ASSIGN_OR_RETURN(const GemmPlan loaded,
                              checked.WithTensors([&](const std::string& slot) {
                                return OnEngine(planned.slots.at(slot), &cancellation);
                              }));
          QG_ASSIGN_OR_RETURN(const GemmPlan plan, loaded.Dequantized(*engine_, &cancellation));
          GemmDesc desc = plan.desc();
          if (given_d.has_value() && IsEngineMemory(given_d)) desc.d = given_d;
          const std::unique_ptr<Stopwatch> stopwatch = engine_->StartStopwatch();
          QG_ASSIGN_OR_RETURN(GemmResult result, engine_->Gemm(desc, &cancellation));
          QG_RETURN_IF_ERROR(stopwatch->Stop());
          QG_ASSIGN_OR_RETURN(answer.seconds, stopwatch->Seconds());
          answer.arithmetic = result.arithmetic.ToString();
          answer.note = result.note;
          answer.text = GemmText(plan.desc());
          QG_ASSIGN_OR_RETURN(answer.amax,
                              Placed(std::move(result.amax), on_device, &cancellation));
          if (given_d.has_value()) return Deliver(result.d, given_d, &cancellation);
          QG_ASSIGN_OR_RETURN(answer.d, Placed(std::move(result.d), on_device, &cancellation));
          return absl::OkStatus();
        });
    if (given_d.has_value()) answer.d = nb::cast<HostTensor&>(out);
    return answer;
  }

  /// The share of its bound that each output of `d` has, and the exact result (error_bound.h).
  /// UNIMPLEMENTED on another engine than the CPU's.
  BoundAnswer GemmBound(const NamedTensors& slots, const HostTensor& d, const std::string& layout,
                        const std::string& arithmetic, float alpha, float beta, bool in_place,
                        const std::pair<std::string, std::string>& scalings,
                        const std::pair<std::string, std::string>& groups,
                        const std::pair<int, int>& e4m3_max) {
    const PlannedGemm planned =
        PlanOf(slots, layout, arithmetic, std::string(DTypeName(d.tensor.dtype())), alpha, beta,
               in_place, scalings, groups, e4m3_max);
    const GemmShape& shape = planned.plan.shape();
    BoundAnswer answer;
    Run(static_cast<double>(shape.m) * static_cast<double>(shape.n) * static_cast<double>(shape.k),
        [&](const Cancellation& cancellation) -> absl::Status {
          QG_ASSIGN_OR_RETURN(const GemmPlan plan, OnCpu(planned, cancellation));
          GemmDesc exact = plan.desc();
          exact.arithmetic = Arithmetic{ArithmeticFamily::kExact};
          exact.out_dtype = DType::kF32;
          exact.d_scale = Tensor();
          QG_ASSIGN_OR_RETURN(GemmResult truth, engine_->Gemm(exact, &cancellation));
          answer.exact.tensor = truth.d;
          ExecutionContext context;
          context.cancellation = &cancellation;
          QG_ASSIGN_OR_RETURN(BoundRatios found,
                              RatiosToBound(plan.desc(), d.tensor, truth.d, context));
          answer.ratios.tensor = found.ratios;
          answer.derivation = found.bound.derivation;
          return absl::OkStatus();
        });
    return answer;
  }

  /// JSON of a Diagnosis of `d`, which is no result of this GEMM (gemm_hypotheses.h): looks no
  /// longer than `seconds`.
  std::string DiagnoseGemm(const NamedTensors& slots, const HostTensor& d,
                           const std::string& layout, float alpha, float beta, bool in_place,
                           const std::pair<std::string, std::string>& scalings,
                           const std::pair<std::string, std::string>& groups,
                           const std::pair<int, int>& e4m3_max, double seconds) {
    const PlannedGemm planned =
        PlanOf(slots, layout, "fp32", std::string(DTypeName(d.tensor.dtype())), alpha, beta,
               in_place, scalings, groups, e4m3_max);
    const GemmShape& shape = planned.plan.shape();
    if (d.tensor.shape() != Shape{shape.m, shape.n}) {
      throw StatusError{Refuse("d", TensorText(d.tensor),
                               absl::StrCat("the GEMM's output is ", shape.m, "x", shape.n))};
    }
    Diagnosis diagnosis;
    Run(kLongWork, [&](const Cancellation& cancellation) -> absl::Status {
      QG_ASSIGN_OR_RETURN(const GemmPlan plan, OnCpu(planned, cancellation));
      QG_ASSIGN_OR_RETURN(diagnosis,
                          quantgate::DiagnoseGemm(plan.desc(), d.tensor,
                                                  DiagnosisBudget::Of(absl::Seconds(seconds))));
      return absl::OkStatus();
    });
    return JsonTextOf(DiagnosisToProto(diagnosis));
  }

  HostTensor Generate(const std::string& distribution, const std::vector<int64_t>& shape,
                      const std::string& dtype, uint64_t seed, float scale) {
    GeneratorSpec spec;
    const auto parsed = ParseDistribution(distribution);
    if (!parsed.ok()) throw StatusError{AsField("distribution", parsed.status())};
    spec.distribution = *parsed;
    spec.seed = seed;
    spec.dtype = DTypeOf(dtype, "dtype");
    spec.shape = shape;
    spec.scale = scale;
    const int64_t count = ValueOf(CheckedElementCount(shape, spec.dtype, "shape"));
    Tensor tensor;
    Run(static_cast<double>(count), [&](const Cancellation& cancellation) -> absl::Status {
      QG_ASSIGN_OR_RETURN(tensor, engine_->Generate(spec, &cancellation));
      QG_ASSIGN_OR_RETURN(tensor, engine_->ToHost(tensor, &cancellation));
      return absl::OkStatus();
    });
    return {tensor};
  }

 private:
  struct PlannedGemm {
    GemmPlan plan;
    std::map<std::string, HostTensor> slots;  ///< By the names of the plan's slots.
  };
  static PlannedGemm PlanOf(const NamedTensors& slots, const std::string& layout,
                            const std::string& arithmetic, const std::string& out_dtype,
                            float alpha, float beta, bool in_place,
                            const std::pair<std::string, std::string>& scalings,
                            const std::pair<std::string, std::string>& groups,
                            const std::pair<int, int>& e4m3_max) {
    std::map<std::string, HostTensor> tensors(slots.begin(), slots.end());
    GemmRequest request;
    request.layout = ValueOf(LayoutOf(layout));
    request.arithmetic =
        ValueOf(ParsedName(Arithmetic::Parse, arithmetic, "arithmetic", Arithmetic()));
    request.alpha = alpha;
    request.beta = beta;
    request.in_place = in_place;
    request.out_dtype = DTypeOf(out_dtype, "out_dtype");
    if (!IsHighPrecision(request.out_dtype) && !IsFp8(request.out_dtype)) {
      throw StatusError{
          Refuse("out_dtype", Printable(out_dtype), "must be f32, bf16, f16, f8_e4m3 or f8_e5m2")};
    }
    SetOperand("a", tensors, scalings.first, groups.first, e4m3_max.first, request.a);
    SetOperand("b", tensors, scalings.second, groups.second, e4m3_max.second, request.b);
    request.c = Find(tensors, "c");
    request.bias = Find(tensors, "bias");
    request.d_scale = Find(tensors, "d_scale");
    return {ValueOf(GemmPlan::Create(std::move(request))), std::move(tensors)};
  }

  /// The operands as the CPU engine multiplies them. UNIMPLEMENTED on another engine.
  absl::StatusOr<GemmPlan> OnCpu(const PlannedGemm& planned, const Cancellation& cancellation) {
    if (engine_->Describe().id != "cpu") {
      return absl::UnimplementedError("only the CPU engine looks into results of GEMMs");
    }
    QG_ASSIGN_OR_RETURN(const GemmPlan loaded,
                        planned.plan.WithTensors([&](const std::string& slot) {
                          return OnEngine(planned.slots.at(slot), &cancellation);
                        }));
    return loaded.Dequantized(*engine_, &cancellation);
  }

  static Tensor Find(const std::map<std::string, HostTensor>& tensors, const std::string& slot) {
    const auto found = tensors.find(slot);
    return found == tensors.end() ? Tensor() : found->second.tensor;
  }

  static void SetOperand(const std::string& name, const std::map<std::string, HostTensor>& tensors,
                         const std::string& scaling, const std::string& group, int e4m3_max,
                         GemmOperandRequest& operand) {
    operand.data = Find(tensors, name + ".tensor");
    operand.scale_inv = Find(tensors, name + ".scale_inv");
    operand.amax = Find(tensors, name + ".amax");
    operand.zero_point = Find(tensors, name + ".zero_point");
    if (!group.empty()) {
      const auto parsed = ParseGroup(group);
      if (!parsed.ok()) throw StatusError{WithinField(name, parsed.status())};
      operand.group = *parsed;
    }
    if (e4m3_max != 0) operand.e4m3_max = e4m3_max;
    if (scaling.empty()) return;
    const auto mode = ParseScaleMode(scaling);
    if (!mode.ok()) {
      throw StatusError{
          Refuse(name + ".scaling", Printable(scaling),
                 "must be none, tensor, outer, 1x128, 128x128, mx32 or nv16, or of 32, 64 or 256 "
                 "as 1x32 and 32x32")};
    }
    operand.scaling = *mode;
  }

  /// The tensor as the engine's operations read it. Their loads of many elements at once need
  /// memory that is aligned as CUDA gives it, which a view in the middle of an allocation is not.
  absl::StatusOr<Tensor> OnEngine(const HostTensor& given, const Cancellation* cancellation) {
    if (given.is_on_device() && given.ordinal != ordinal_) {
      return Refuse("device", absl::StrCat("cuda:", given.ordinal),
                    "the engine is on another device");
    }
    if (given.is_on_device() && !IsEngineMemory(given.tensor)) return engine_->Import(given.tensor);
    return engine_->ToDevice(given.tensor, cancellation);
  }

  /// Whether the engine can write to this memory at once.
  bool IsEngineMemory(const Tensor& tensor) const {
    if (!engine_->RunsAhead()) return true;
    return tensor.space() == MemorySpace::kDevice &&
           reinterpret_cast<uintptr_t>(tensor.data()) % kDeviceAlignment == 0;
  }

  /// Puts a result into memory of the caller's, of as many bytes, unless it is there already.
  absl::Status Deliver(const Tensor& result, Tensor to, const Cancellation* cancellation) {
    if (to.byte_size() == 0 || std::as_const(to).data() == result.data()) return absl::OkStatus();
    const bool is_of_engine = !engine_->RunsAhead() || to.space() == MemorySpace::kDevice;
    if (is_of_engine) return engine_->Copy(result, to, 0);
    QG_ASSIGN_OR_RETURN(const Tensor host, engine_->ToHost(result, cancellation));
    std::memcpy(to.data(), host.data(), host.byte_size());
    return absl::OkStatus();
  }

  /// The result itself, or a copy where it is the memory of one of `others`, as what no operation
  /// has changed is: two arrays of Python never share memory that one of them can write.
  absl::StatusOr<Tensor> OfItsOwn(Tensor result, const std::vector<Tensor>& others) {
    for (const Tensor& other : others) {
      if (!other.has_value() || other.data() != std::as_const(result).data()) continue;
      if (result.byte_size() == 0) continue;
      QG_ASSIGN_OR_RETURN(const Tensor copy, engine_->Allocate(result.dtype(), result.shape()));
      QG_RETURN_IF_ERROR(engine_->Copy(result, copy, 0));
      return copy;
    }
    return result;
  }

  absl::StatusOr<HostTensor> Placed(Tensor result, bool on_device,
                                    const Cancellation* cancellation) {
    if (on_device) {
      QG_ASSIGN_OR_RETURN(const Tensor placed, engine_->ToDevice(result, cancellation));
      return HostTensor{placed, ordinal_};
    }
    QG_ASSIGN_OR_RETURN(const Tensor placed, engine_->ToHost(result, cancellation));
    return HostTensor{placed};
  }

  /// Puts the parts of a quantized tensor where they are wanted.
  absl::Status HandOver(const Tensor& source, const std::optional<NamedTensors>& out,
                        bool on_device, const Cancellation* cancellation, Quantization& answer) {
    std::vector<NamedTensor> parts = PartsOf(answer.result.quantized);
    if (answer.result.amax_history.has_value()) {
      parts.push_back({kAmaxHistoryPart, answer.result.amax_history});
    }
    if (!out.has_value()) {
      std::vector<Tensor> others = {source};
      for (NamedTensor& part : parts) {
        QG_ASSIGN_OR_RETURN(part.tensor, OfItsOwn(std::move(part.tensor), others));
        others.push_back(part.tensor);
        QG_ASSIGN_OR_RETURN(HostTensor placed,
                            Placed(std::move(part.tensor), on_device, cancellation));
        answer.tensors.emplace_back(part.name, std::move(placed));
      }
      return absl::OkStatus();
    }
    std::map<std::string, const HostTensor*> memory;
    for (const auto& [name, tensor] : *out) memory[name] = &tensor;
    std::vector<std::string> names;
    for (const NamedTensor& part : parts) names.push_back(part.name);
    const std::string rule = absl::StrCat("must be exactly ", absl::StrJoin(names, ", "));
    for (const NamedTensor& part : parts) {
      const auto found = memory.find(part.name);
      if (found == memory.end()) return Refuse(OutField(part.name), "absent", rule);
      QG_ASSIGN_OR_RETURN(Tensor to,
                          Fitting(OutField(part.name), found->second->tensor, part.tensor));
      answer.tensors.emplace_back(part.name, HostTensor{std::move(to), found->second->ordinal});
      memory.erase(found);
    }
    if (!memory.empty()) return Refuse(OutField(memory.begin()->first), "given", rule);
    for (size_t i = 0; i < parts.size(); ++i) {
      QG_RETURN_IF_ERROR(Deliver(parts[i].tensor, answer.tensors[i].second.tensor, cancellation));
    }
    return absl::OkStatus();
  }

  void Run(double work, absl::FunctionRef<absl::Status(const Cancellation&)> body) {
    Cancellation cancellation;
    ThrowIfError(WithoutGil(
        work >= kLongWork,
        [&] {
          if (process_ != getpid() && engine_->RunsAhead()) {
            return RefusePrecondition(
                "device", absl::StrCat("cuda:", ordinal_),
                "a process that was forked cannot use the GPU engine of its parent: start it by "
                "spawn");
          }
          absl::Status status = GuardMemory([&] { return body(cancellation); });
          // The caller may free or change what it gave as soon as the call has ended, however.
          if (engine_->RunsAhead()) status.Update(engine_->Finish());
          return status;
        },
        [&] { cancellation.Cancel(); }));
  }

  static constexpr uintptr_t kDeviceAlignment = 256;  // That of CudaDevice::Allocate.

  int ordinal_ = -1;
  const pid_t process_ = getpid();
  std::unique_ptr<Engine> engine_;
};

}  // namespace

void BindLocalEngine(nb::module_& module) {
  nb::class_<ParsedRecipe>(module, "ParsedRecipe")
      .def_prop_ro("name", [](const ParsedRecipe& self) { return self.recipe.name(); })
      .def_prop_ro("text", [](const ParsedRecipe& self) { return self.recipe.ShortText(); })
      .def_prop_ro("digest", [](const ParsedRecipe& self) { return self.recipe.Digest(); });
  module.def(
      "split_knobs",
      [](const std::string& text) {
        std::vector<std::string> parts;
        for (const std::string_view part : SplitOutsideJson(text, ',')) parts.emplace_back(part);
        return parts;
      },
      nb::arg("text"));
  module.def("parse_recipe", &ParseRecipe, nb::arg("name"), nb::arg("knobs"));
  nb::class_<Quantization>(module, "Quantization")
      .def_ro("tensors", &Quantization::tensors)
      .def_ro("seconds", &Quantization::seconds)
      .def("record", &Quantization::Record)
      .def("description", &Quantization::Description)
      .def_prop_ro("shape", [](const Quantization& self) { return self.result.quantized.shape; })
      .def_prop_ro("source_dtype", [](const Quantization& self) {
        return std::string(DTypeName(self.source_dtype));
      });
  nb::class_<GemmAnswer>(module, "GemmAnswer")
      .def_ro("d", &GemmAnswer::d)
      .def_prop_ro("amax",
                   [](const GemmAnswer& self) -> nb::object {
                     if (!self.amax.tensor.has_value()) return nb::none();
                     return nb::cast(self.amax);
                   })
      .def_ro("arithmetic", &GemmAnswer::arithmetic)
      .def_ro("text", &GemmAnswer::text)
      .def_ro("note", &GemmAnswer::note)
      .def_ro("seconds", &GemmAnswer::seconds);
  nb::class_<BoundAnswer>(module, "BoundAnswer")
      .def_ro("ratios", &BoundAnswer::ratios)
      .def_ro("exact", &BoundAnswer::exact)
      .def_ro("derivation", &BoundAnswer::derivation);
  nb::class_<LocalEngine>(module, "LocalEngine")
      .def(nb::init<const std::string&, int>(), nb::arg("device"), nb::arg("threads"))
      .def("quantize", &LocalEngine::Quantize, nb::arg("source"), nb::arg("recipe"),
           nb::arg("role"), nb::arg("rowwise"), nb::arg("columnwise"), nb::arg("seed"),
           nb::arg("scale").none(), nb::arg("amax_history").none(), nb::arg("scale_layout"),
           nb::arg("out").none(), nb::arg("on_device"))
      .def("dequantize", &LocalEngine::Dequantize, nb::arg("tensors"), nb::arg("usage"),
           nb::arg("out_dtype"), nb::arg("description"), nb::arg("out").none(),
           nb::arg("on_device"))
      .def("gemm", &LocalEngine::Gemm, nb::arg("slots"), nb::arg("layout"), nb::arg("arithmetic"),
           nb::arg("out_dtype"), nb::arg("alpha"), nb::arg("beta"), nb::arg("in_place"),
           nb::arg("scalings"), nb::arg("groups"), nb::arg("e4m3_max"), nb::arg("out").none(),
           nb::arg("on_device"))
      .def("gemm_bound", &LocalEngine::GemmBound, nb::arg("slots"), nb::arg("d"), nb::arg("layout"),
           nb::arg("arithmetic"), nb::arg("alpha"), nb::arg("beta"), nb::arg("in_place"),
           nb::arg("scalings"), nb::arg("groups"), nb::arg("e4m3_max"))
      .def("diagnose_gemm", &LocalEngine::DiagnoseGemm, nb::arg("slots"), nb::arg("d"),
           nb::arg("layout"), nb::arg("alpha"), nb::arg("beta"), nb::arg("in_place"),
           nb::arg("scalings"), nb::arg("groups"), nb::arg("e4m3_max"), nb::arg("seconds"))
      .def_prop_ro("ordinal", &LocalEngine::ordinal)
      .def_prop_ro("stream", &LocalEngine::stream)
      .def("copy", &LocalEngine::Copy, nb::arg("source"), nb::arg("to"))
      .def("to_host", &LocalEngine::ToHost, nb::arg("tensor"))
      .def("generate", &LocalEngine::Generate, nb::arg("distribution"), nb::arg("shape"),
           nb::arg("dtype"), nb::arg("seed"), nb::arg("scale"));
}

}  // namespace quantgate::python
