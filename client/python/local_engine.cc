// quantgate._engine.LocalEngine: quantize, dequantize, gemm and generate on an engine of this
// process, without messages: a small call costs little more than the engine's own time.
#include "client/python/local_engine.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/python/host_tensor.h"
#include "client/python/messages.h"
#include "client/python/status.h"
#include "kernels/base/nested_split.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/bound/error_bound.h"
#include "kernels/validate/diagnosis/gemm_hypotheses.h"
#include "kernels/validate/gemm_plan.h"
#include "kernels/validate/quantize_plan.h"
#include "server/device/device.h"
#include "server/wire/convert_recipe.h"
#include "server/wire/convert_report.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/quantized_parts.h"
#include "server/wire/request_fields.h"

namespace nb = nanobind;

namespace quantgate::python {
namespace {

/// From so many multiplications, or bytes read, on, a call is worth a thread that can be ended.
constexpr double kLongWork = 1 << 22;

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

/// What Engine.Quantize answers, with its messages made where they are asked for.
struct Quantization {
  QuantizeResult result;
  ScaleLayout layout;
  DType source_dtype;

  std::vector<std::pair<std::string, HostTensor>> Tensors() const {
    std::vector<std::pair<std::string, HostTensor>> tensors;
    for (NamedTensor& part : PartsOf(result.quantized)) {
      tensors.emplace_back(part.name, HostTensor{std::move(part.tensor)});
    }
    if (result.amax_history.has_value()) {
      tensors.emplace_back(kAmaxHistoryPart, HostTensor{result.amax_history});
    }
    return tensors;
  }
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

class LocalEngine {
 public:
  LocalEngine(const std::string& device, int threads) {
    CpuEngineOptions cpu;
    if (threads > 0) cpu.threads = threads;
    engine_ = std::move(ValueOf(MakeEngines({&device, 1}, cpu)).front());
  }

  Quantization Quantize(const HostTensor& source, const ParsedRecipe& recipe,
                        const std::string& role, bool rowwise, bool columnwise, uint64_t seed,
                        const nb::object& scale, const nb::object& amax_history,
                        const std::string& scale_layout) {
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
    const std::map<std::string, Tensor> state = {{"scale", request.state.scale},
                                                 {"amax_history", request.state.amax_history}};
    Quantization answer{{}, request.scale_layout, source.tensor.dtype()};
    Run(static_cast<double>(source.tensor.byte_size()),
        [&](const Cancellation& cancellation) -> absl::Status {
          QG_ASSIGN_OR_RETURN(const QuantizePlan checked, QuantizePlan::Create(std::move(request)));
          QG_ASSIGN_OR_RETURN(
              const QuantizePlan plan,
              checked.WithTensors([&](const std::string& slot) -> absl::StatusOr<Tensor> {
                if (slot != "tensor") return state.at(slot);
                return engine_->ToDevice(source.tensor, &cancellation);
              }));
          QG_ASSIGN_OR_RETURN(answer.result, plan.Run(*engine_, &cancellation));
          for (Tensor* tensor : TensorsOf(answer.result.quantized)) {
            QG_ASSIGN_OR_RETURN(*tensor, engine_->ToHost(*tensor, &cancellation));
          }
          QG_ASSIGN_OR_RETURN(answer.result.amax_history,
                              engine_->ToHost(answer.result.amax_history, &cancellation));
          return absl::OkStatus();
        });
    return answer;
  }

  HostTensor Dequantize(const std::vector<std::pair<std::string, HostTensor>>& tensors,
                        std::string usage, const std::string& out_dtype,
                        const nb::bytes& description) {
    std::map<std::string, Tensor> parts;
    double bytes = 0;
    for (const auto& [name, tensor] : tensors) {
      parts[name] = tensor.tensor;
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
    Tensor values;
    Run(bytes, [&](const Cancellation& cancellation) -> absl::Status {
      QG_ASSIGN_OR_RETURN(const DequantizePlan checked, DequantizePlan::Create(std::move(request)));
      QG_ASSIGN_OR_RETURN(const DequantizePlan plan,
                          checked.WithTensors([&](const std::string& slot) {
                            return engine_->ToDevice(parts.at(PartOfSlot(slot)), &cancellation);
                          }));
      QG_ASSIGN_OR_RETURN(values, plan.Run(*engine_, &cancellation));
      QG_ASSIGN_OR_RETURN(values, engine_->ToHost(values, &cancellation));
      return absl::OkStatus();
    });
    return {values};
  }

  /// `slots`: the tensors by the names of GemmPlan's slots.
  GemmAnswer Gemm(const std::vector<std::pair<std::string, HostTensor>>& slots,
                  const std::string& layout, const std::string& arithmetic,
                  const std::string& out_dtype, float alpha, float beta, bool in_place,
                  const std::pair<std::string, std::string>& scalings,
                  const std::pair<std::string, std::string>& groups,
                  const std::pair<int, int>& e4m3_max, const nb::object& out) {
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
                                return engine_->ToDevice(planned.tensors.at(slot), &cancellation);
                              }));
          QG_ASSIGN_OR_RETURN(const GemmPlan plan, loaded.Dequantized(*engine_, &cancellation));
          GemmDesc desc = plan.desc();
          // What the CPU engine computes goes where it is wanted, and what another one does is
          // copied there.
          const bool is_written_at_once = given_d.has_value() && engine_->Describe().id == "cpu";
          if (is_written_at_once) desc.d = given_d;
          const std::unique_ptr<Stopwatch> stopwatch = engine_->StartStopwatch();
          QG_ASSIGN_OR_RETURN(GemmResult result, engine_->Gemm(desc, &cancellation));
          QG_RETURN_IF_ERROR(stopwatch->Stop());
          QG_ASSIGN_OR_RETURN(answer.seconds, stopwatch->Seconds());
          answer.arithmetic = result.arithmetic.ToString();
          answer.note = result.note;
          answer.text = GemmText(plan.desc());
          QG_ASSIGN_OR_RETURN(answer.amax.tensor, engine_->ToHost(result.amax, &cancellation));
          QG_ASSIGN_OR_RETURN(answer.d.tensor, engine_->ToHost(result.d, &cancellation));
          if (given_d.has_value() && !is_written_at_once) {
            std::memcpy(Tensor(given_d).data(), std::as_const(answer.d.tensor).data(),
                        given_d.byte_size());
          }
          return absl::OkStatus();
        });
    return answer;
  }

  /// The share of its bound that each output of `d` has, and the exact result (error_bound.h).
  /// UNIMPLEMENTED on another engine than the CPU's.
  BoundAnswer GemmBound(const std::vector<std::pair<std::string, HostTensor>>& slots,
                        const HostTensor& d, const std::string& layout,
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
  std::string DiagnoseGemm(const std::vector<std::pair<std::string, HostTensor>>& slots,
                           const HostTensor& d, const std::string& layout, float alpha, float beta,
                           bool in_place, const std::pair<std::string, std::string>& scalings,
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
    std::map<std::string, Tensor> tensors;  ///< By the names of the plan's slots.
  };
  static PlannedGemm PlanOf(const std::vector<std::pair<std::string, HostTensor>>& slots,
                            const std::string& layout, const std::string& arithmetic,
                            const std::string& out_dtype, float alpha, float beta, bool in_place,
                            const std::pair<std::string, std::string>& scalings,
                            const std::pair<std::string, std::string>& groups,
                            const std::pair<int, int>& e4m3_max) {
    std::map<std::string, Tensor> tensors;
    for (const auto& [slot, tensor] : slots) tensors[slot] = tensor.tensor;
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
    QG_ASSIGN_OR_RETURN(
        const GemmPlan loaded,
        planned.plan.WithTensors([&](const std::string& slot) -> absl::StatusOr<Tensor> {
          return planned.tensors.at(slot);
        }));
    return loaded.Dequantized(*engine_, &cancellation);
  }

  static Tensor Find(const std::map<std::string, Tensor>& tensors, const std::string& slot) {
    const auto found = tensors.find(slot);
    return found == tensors.end() ? Tensor() : found->second;
  }

  static void SetOperand(const std::string& name, const std::map<std::string, Tensor>& tensors,
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

  void Run(double work, absl::FunctionRef<absl::Status(const Cancellation&)> body) {
    Cancellation cancellation;
    ThrowIfError(WithoutGil(
        work >= kLongWork, [&] { return body(cancellation); }, [&] { cancellation.Cancel(); }));
  }

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
      .def("tensors", &Quantization::Tensors)
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
           nb::arg("scale").none(), nb::arg("amax_history").none(), nb::arg("scale_layout"))
      .def("dequantize", &LocalEngine::Dequantize, nb::arg("tensors"), nb::arg("usage"),
           nb::arg("out_dtype"), nb::arg("description"))
      .def("gemm", &LocalEngine::Gemm, nb::arg("slots"), nb::arg("layout"), nb::arg("arithmetic"),
           nb::arg("out_dtype"), nb::arg("alpha"), nb::arg("beta"), nb::arg("in_place"),
           nb::arg("scalings"), nb::arg("groups"), nb::arg("e4m3_max"), nb::arg("out").none())
      .def("gemm_bound", &LocalEngine::GemmBound, nb::arg("slots"), nb::arg("d"), nb::arg("layout"),
           nb::arg("arithmetic"), nb::arg("alpha"), nb::arg("beta"), nb::arg("in_place"),
           nb::arg("scalings"), nb::arg("groups"), nb::arg("e4m3_max"))
      .def("diagnose_gemm", &LocalEngine::DiagnoseGemm, nb::arg("slots"), nb::arg("d"),
           nb::arg("layout"), nb::arg("alpha"), nb::arg("beta"), nb::arg("in_place"),
           nb::arg("scalings"), nb::arg("groups"), nb::arg("e4m3_max"), nb::arg("seconds"))
      .def("generate", &LocalEngine::Generate, nb::arg("distribution"), nb::arg("shape"),
           nb::arg("dtype"), nb::arg("seed"), nb::arg("scale"));
}

}  // namespace quantgate::python
