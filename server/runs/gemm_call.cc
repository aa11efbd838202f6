#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/cublaslt/algorithm_inventory.h"
#include "server/report/element_types.h"
#include "server/runs/engine_calls.h"
#include "server/runs/output_writer.h"
#include "server/wire/convert_recipe.h"
#include "server/wire/convert_report.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/request_fields.h"

namespace quantgate {
namespace {

absl::StatusOr<GemmLayout> LayoutFromName(const std::string& name) {
  if (name.empty() || name == "tn") return GemmLayout::kTN;
  if (name == "nn") return GemmLayout::kNN;
  if (name == "nt") return GemmLayout::kNT;
  return Refuse("layout", Printable(name), "must be tn, nn or nt");
}

absl::StatusOr<DType> OutDTypeFromName(const std::string& name) {
  if (name.empty()) return DType::kF32;
  const auto dtype = ParseDType(name);
  if (dtype.ok() && (IsHighPrecision(*dtype) || IsFp8(*dtype))) return *dtype;
  return Refuse("out_dtype", Printable(name), "must be f32, bf16, f16, f8_e4m3 or f8_e5m2");
}

absl::StatusOr<SlotReferences> GemmReferences(const v1::GemmRequest& request, int64_t bytes_max) {
  const std::pair<const char*, const v1::TensorSource*> sources[] = {
      {"a.tensor", &request.a().tensor()},
      {"b.tensor", &request.b().tensor()},
      {"a.scale_inv", &request.a().scale_inv()},
      {"b.scale_inv", &request.b().scale_inv()},
      {"a.zero_point", &request.a().zero_point()},
      {"b.zero_point", &request.b().zero_point()},
      {"a.amax", &request.a().amax()},
      {"b.amax", &request.b().amax()},
      {"c", &request.c()},
      {"bias", &request.bias()},
      {"d_scale", &request.d_scale()},
  };
  SlotReferences references;
  for (const auto& [slot, source] : sources) {
    QG_RETURN_IF_ERROR(AddReference(slot, *source, bytes_max, references));
  }
  QG_RETURN_IF_ERROR(RequireTensors(references, {"a.tensor", "b.tensor"}));
  return references;
}

absl::StatusOr<GemmOperandRequest> OperandFromProto(const v1::GemmOperandSpec& proto,
                                                    const std::string& name,
                                                    const SlotReferences& references) {
  GemmOperandRequest operand;
  operand.data = OutlineOf(references, name + ".tensor");
  operand.scale_inv = OutlineOf(references, name + ".scale_inv");
  operand.amax = OutlineOf(references, name + ".amax");
  operand.zero_point = OutlineOf(references, name + ".zero_point");
  if (!proto.group().empty()) {
    const auto group = ParseGroup(proto.group());
    if (!group.ok()) return WithinField(name, group.status());
    operand.group = *group;
  }
  if (proto.e4m3_max() != 0) operand.e4m3_max = proto.e4m3_max();
  if (proto.scaling().empty()) return operand;
  const auto mode = ParseScaleMode(proto.scaling());
  if (!mode.ok()) {
    return Refuse(name + ".scaling", Printable(proto.scaling()),
                  "must be none, tensor, outer, 1x128, 128x128, mx32 or nv16, or of 32, 64 or 256 "
                  "as 1x32 and 32x32");
  }
  operand.scaling = *mode;
  return operand;
}

/// A GEMM's result and how long it took by the engine's own clock.
struct TimedGemm {
  GemmResult result;
  double seconds = 0;
};

absl::StatusOr<TimedGemm> RunTimedGemm(Engine& engine, const GemmDesc& desc,
                                       const Cancellation& cancellation) {
  const std::unique_ptr<Stopwatch> stopwatch = engine.StartStopwatch();
  TimedGemm ran;
  QG_ASSIGN_OR_RETURN(ran.result, engine.Gemm(desc, &cancellation));
  QG_RETURN_IF_ERROR(stopwatch->Stop());
  QG_ASSIGN_OR_RETURN(ran.seconds, stopwatch->Seconds());
  return ran;
}

/// The difference between two results of one GEMM.
struct ResultDifference {
  bool equal = false;  ///< Whether d and, where the output has one, amax are equal.
  int64_t mismatch_count = 0;
  std::optional<v1::ElementPair> first;
};

class AlgorithmComparison {
 public:
  AlgorithmComparison(Engine& engine, const GemmDesc& desc, const GemmResult& first,
                      const Cancellation& cancellation)
      : engine_(engine), desc_(desc), first_(first), cancellation_(cancellation) {}

  absl::Status Add(const CublasLtAlgorithm& algorithm, const GemmResult& result,
                   v1::AlgorithmResult& proto) {
    proto.set_index(algorithm.index);
    proto.set_description(algorithm.ToString());
    proto.set_arithmetic(result.arithmetic.ToString());
    QG_ASSIGN_OR_RETURN(const Fingerprint fingerprint,
                        engine_.FingerprintOf(result.d, &cancellation_));
    *proto.mutable_fingerprint() = FingerprintToProto(fingerprint);
    QG_ASSIGN_OR_RETURN(ResultDifference difference, Compare(result, first_));
    proto.set_equal_to_first(difference.equal);
    proto.set_mismatch_count(difference.mismatch_count);
    if (difference.first) *proto.mutable_first_difference() = *difference.first;

    QG_ASSIGN_OR_RETURN(const GemmResult* model, ModelResult(algorithm));
    if (model == nullptr) return absl::OkStatus();
    QG_ASSIGN_OR_RETURN(difference, Compare(result, *model));
    proto.set_model(model->arithmetic.ToString());
    proto.set_equal_to_model(difference.equal);
    proto.set_model_mismatch_count(difference.mismatch_count);
    if (difference.first) *proto.mutable_first_model_difference() = *difference.first;
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<ResultDifference> Compare(const GemmResult& subject, const GemmResult& reference) {
    QG_ASSIGN_OR_RETURN(const ParityReport parity,
                        engine_.CompareBits(subject.d, reference.d, &cancellation_));
    ResultDifference difference;
    difference.equal = parity.equal;
    difference.mismatch_count = parity.mismatch_count;
    if (parity.mismatch_count > 0) {
      difference.first = ElementPairToProto(parity.first);
      const std::string dtype(DTypeName(subject.d.dtype()));
      SetElementTypes(*difference.first, dtype, dtype);
    }
    if (!subject.amax.has_value()) return difference;
    QG_ASSIGN_OR_RETURN(const ParityReport amax,
                        engine_.CompareBits(subject.amax, reference.amax, &cancellation_));
    difference.equal = difference.equal && amax.equal;
    return difference;
  }

  /// The result of the arithmetic that models the algorithm, which algorithms with the same model
  /// share. Null where no arithmetic models it for this GEMM.
  absl::StatusOr<const GemmResult*> ModelResult(const CublasLtAlgorithm& algorithm) {
    const std::optional<Arithmetic> arithmetic = ModelOf(desc_, algorithm);
    if (!arithmetic.has_value()) return nullptr;
    const auto [place, is_new] = models_.try_emplace(arithmetic->ToString());
    if (is_new) {
      GemmDesc desc = desc_;
      desc.arithmetic = *arithmetic;
      absl::StatusOr<GemmResult> result = engine_.Gemm(desc, &cancellation_);
      if (result.ok()) {
        place->second = *std::move(result);
      } else if (!absl::IsUnimplemented(result.status())) {
        return result.status();
      }
    }
    return place->second.has_value() ? &*place->second : nullptr;
  }

  Engine& engine_;
  const GemmDesc& desc_;
  const GemmResult& first_;
  const Cancellation& cancellation_;
  std::map<std::string, std::optional<GemmResult>> models_;
};

/// Runs every algorithm that cuBLASLt's heuristic returns for `desc`, whose arithmetic is cublaslt
/// and whose result is `first`. Appends one comparison per algorithm to `response`: with the first
/// algorithm, and with the arithmetic that models it. None for m = 0, which no algorithm computes.
absl::Status CompareAlgorithms(Engine& engine, const GemmDesc& desc, const TimedGemm& first,
                               const Cancellation& cancellation, v1::GemmResponse& response) {
  QG_ASSIGN_OR_RETURN(const std::vector<CublasLtAlgorithm> algorithms,
                      engine.Algorithms(desc, &cancellation));
  AlgorithmComparison comparison(engine, desc, first.result, cancellation);
  for (const CublasLtAlgorithm& algorithm : algorithms) {
    TimedGemm ran = first;
    if (algorithm.index != 0) {
      GemmDesc one = desc;
      one.arithmetic.algorithm = algorithm.index;
      QG_ASSIGN_OR_RETURN(ran, RunTimedGemm(engine, one, cancellation));
    }
    v1::AlgorithmResult& proto = *response.add_algorithms();
    proto.set_seconds(ran.seconds);
    QG_RETURN_IF_ERROR(comparison.Add(algorithm, ran.result, proto));
  }
  return absl::OkStatus();
}

absl::Status Gemm(CallContext& context, Device& device, const GemmWork& work,
                  const Cancellation& cancellation, v1::GemmResponse& response) {
  QG_ASSIGN_OR_RETURN(const GemmPlan loaded, work.plan.WithTensors([&](const std::string& slot) {
    return context.loader.Load(work.references.at(slot), device, &cancellation);
  }));
  QG_ASSIGN_OR_RETURN(const GemmPlan plan, loaded.Dequantized(*device.engine, &cancellation));
  const GemmDesc& desc = plan.desc();
  QG_ASSIGN_OR_RETURN(const TimedGemm ran, RunTimedGemm(*device.engine, desc, cancellation));
  const GemmResult& result = ran.result;
  response.set_seconds(ran.seconds);
  response.set_arithmetic(result.arithmetic.ToString());
  response.set_note(result.note);
  response.set_text(GemmText(desc));
  const DeviceDescription description = device.description.Get();
  *response.mutable_environment() = EnvironmentToProto(std::span(&description, 1));
  if (plan.every_algorithm()) {
    QG_RETURN_IF_ERROR(CompareAlgorithms(*device.engine, desc, ran, cancellation, response));
  }
  OutputWriter writer(context.blobs, *device.engine, KeepOutputs::kLarge);
  QG_ASSIGN_OR_RETURN(Fingerprint fingerprint,
                      device.engine->FingerprintOf(result.d, &cancellation));
  QG_RETURN_IF_ERROR(writer.Write("d", result.d, fingerprint, response.mutable_d()));
  if (!result.amax.has_value()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(fingerprint, device.engine->FingerprintOf(result.amax, &cancellation));
  return writer.Write("amax", result.amax, fingerprint, response.mutable_amax());
}

}  // namespace

absl::StatusOr<GemmWork> CheckGemmRequest(CallContext& context, const v1::GemmRequest& proto) {
  GemmRequest request;
  QG_ASSIGN_OR_RETURN(request.layout, LayoutFromName(proto.layout()));
  if (!proto.arithmetic().empty()) {
    QG_ASSIGN_OR_RETURN(request.arithmetic, ParsedName(Arithmetic::Parse, proto.arithmetic(),
                                                       "arithmetic", Arithmetic()));
  }
  request.every_algorithm = proto.every_algorithm();
  request.alpha = proto.has_alpha() ? proto.alpha() : 1.0f;
  request.beta = proto.beta();
  request.in_place = proto.in_place();
  QG_ASSIGN_OR_RETURN(request.out_dtype, OutDTypeFromName(proto.out_dtype()));
  QG_ASSIGN_OR_RETURN(SlotReferences references, GemmReferences(proto, context.tensor_bytes_max));
  QG_RETURN_IF_ERROR(context.loader.Resolve(references));
  QG_ASSIGN_OR_RETURN(request.a, OperandFromProto(proto.a(), "a", references));
  QG_ASSIGN_OR_RETURN(request.b, OperandFromProto(proto.b(), "b", references));
  request.c = OutlineOf(references, "c");
  request.bias = OutlineOf(references, "bias");
  request.d_scale = OutlineOf(references, "d_scale");
  QG_ASSIGN_OR_RETURN(GemmPlan plan, GemmPlan::Create(std::move(request)));
  QG_RETURN_IF_ERROR(CheckResultBytes({plan.desc().out_dtype, {plan.shape().m, plan.shape().n}},
                                      "d", context.tensor_bytes_max));
  return GemmWork{std::move(references), std::move(plan)};
}

absl::StatusOr<DeviceWork> PrepareGemm(CallContext& context, const v1::GemmRequest& request,
                                       v1::GemmResponse& response) {
  QG_ASSIGN_OR_RETURN(GemmWork work, CheckGemmRequest(context, request));
  const absl::StatusOr<Device*> device =
      LeastLoadedWith(context.devices, std::span(&work.plan.desc().arithmetic, 1));
  if (!device.ok()) return AsField("arithmetic", device.status());
  return DeviceWork{"",
                    [&context, &response, work = std::move(work)](
                        Device& device, const Cancellation& cancellation) {
                      return Gemm(context, device, work, cancellation, response);
                    },
                    *device};
}

}  // namespace quantgate
