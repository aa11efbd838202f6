// Weights and masters divided over ranks: every rank ends with the bytes of one rank that has the
// whole.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/convert.h"
#include "kernels/training/sharding/master_weights.h"
#include "kernels/training/sharding/shard_faults.h"
#include "kernels/training/sharding/sharded_weight.h"
#include "kernels/validate/scenarios/faults/comm_faults.h"
#include "kernels/validate/scenarios/faults/faulty_engine.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/oracles/quantize_checks.h"
#include "kernels/validate/scenarios/oracles/rounding_noise.h"
#include "kernels/validate/scenarios/ranks/virtual_ranks.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

constexpr int64_t kShardedOut = 384, kShardedIn = 128, kShardBlockRows = 128;

/// fp32 values whose magnitude quadruples every 128 rows, so that each rank has an amax of its own.
absl::StatusOr<Tensor> RisingWeight(ScenarioContext& context, uint64_t seed, float scale) {
  QG_ASSIGN_OR_RETURN(Tensor weight, context.Generate(Distribution::kNormal, seed, DType::kF32,
                                                      {kShardedOut, kShardedIn}, scale));
  for (int64_t i = 0; i < weight.element_count(); ++i) {
    SetValue(
        weight, i,
        std::ldexp(ValueAt(weight, i), static_cast<int>(i / kShardedIn / kShardBlockRows) * 2));
  }
  return weight;
}

absl::StatusOr<Tensor> InBf16(const Tensor& tensor) {
  return CastTensor(tensor, DType::kBF16, ExecutionContext());
}

absl::StatusOr<Tensor> OwnRows(const Tensor& whole, const ShardBounds& bounds, int rank) {
  return TakeRows(whole, bounds[rank], bounds[rank + 1] - bounds[rank]);
}

// ---- Sharded weights

struct Gathered {
  QuantizedTensor forward, backward;
};

absl::StatusOr<QuantizedTensor> GatherToHost(const GatherContext& rank, ShardedWeight& weight,
                                             WeightPass pass) {
  QG_ASSIGN_OR_RETURN(const QuantizedTensor whole, weight.Gather(rank, pass));
  return CopiesOnHost(rank.engine, whole);
}

/// Updates the weight three times and gathers it after each. The second time it takes rows that
/// another ShardedWeight quantized.
absl::Status GatherThrice(const GatherContext& rank, const ShardedWeightSpec& spec,
                          const std::vector<Tensor>& weights, std::vector<Gathered>& gathered) {
  QG_ASSIGN_OR_RETURN(ShardedWeight weight, ShardedWeight::Create(spec, rank.group.size()));
  QG_ASSIGN_OR_RETURN(ShardedWeight elsewhere, ShardedWeight::Create(spec, rank.group.size()));
  for (size_t i = 0; i < weights.size(); ++i) {
    QG_ASSIGN_OR_RETURN(const Tensor rows, OwnRows(weights[i], spec.bounds, rank.group.rank()));
    if (i == 1) {
      QG_RETURN_IF_ERROR(elsewhere.Update(rank, rows, {}));
      QG_RETURN_IF_ERROR(weight.Replace(elsewhere.shard()));
    } else {
      QG_RETURN_IF_ERROR(weight.Update(rank, rows, {}));
    }
    Gathered& now = gathered.emplace_back();
    QG_ASSIGN_OR_RETURN(now.forward, GatherToHost(rank, weight, WeightPass::kForward));
    QG_ASSIGN_OR_RETURN(now.backward, GatherToHost(rank, weight, WeightPass::kBackward));
  }
  return absl::OkStatus();
}

absl::Status CheckGathers(ScenarioContext& context) {
  const Quantizer& quantizer = context.recipe().QuantizerFor(TensorRole::kWeight);
  std::vector<Tensor> weights;
  for (const float scale : {1.0f, 0x1p-7f, 37.0f}) {
    QG_ASSIGN_OR_RETURN(const Tensor weight, RisingWeight(context, 400 + weights.size(), scale));
    QG_ASSIGN_OR_RETURN(Tensor bf16, InBf16(weight));
    weights.push_back(std::move(bf16));
  }
  for (const int ranks : {2, 4}) {
    for (const bool reshard : {true, false}) {
      ShardedWeightSpec spec;
      spec.name = "weight";
      spec.shape = {kShardedOut, kShardedIn};
      spec.bounds = EvenBounds(kShardedOut, ranks, kShardBlockRows);
      spec.quantizer = quantizer;
      spec.reshard_after_forward = reshard;
      std::vector<std::vector<Gathered>> gathered(static_cast<size_t>(ranks));
      const bool is_done =
          RunOnRanks(context, ranks, absl::StrCat("gathers of ", ranks, " ranks"),
                     [&](const GatherContext& rank) {
                       return GatherThrice(rank, spec, weights, gathered[rank.group.rank()]);
                     });
      if (!is_done) return absl::OkStatus();
      for (size_t i = 0; i < weights.size(); ++i) {
        context.SetStep(static_cast<int64_t>(i));
        QG_ASSIGN_OR_RETURN(const QuantizedTensor expected,
                            ExpectedQuantization(weights[i], quantizer, {true, true}));
        for (int rank = 0; rank < ranks; ++rank) {
          const Gathered& own = gathered[static_cast<size_t>(rank)][i];
          const std::string name =
              absl::StrCat("weight on rank ", rank, " of ", ranks, reshard ? "" : ", kept");
          QG_RETURN_IF_ERROR(
              context.ExpectSameCopy(name + " rowwise", own.forward.rowwise, expected.rowwise));
          QG_RETURN_IF_ERROR(context.ExpectSameCopy(name + " columnwise", own.backward.columnwise,
                                                    expected.columnwise));
        }
      }
    }
  }
  return absl::OkStatus();
}

/// `weight` rounded stochastically by the quantizer of grad_output: each rank quantizes its rows,
/// and all are gathered. One result per rank; empty if a rank refuses.
absl::StatusOr<std::vector<QuantizedTensor>> DrawnByShards(ScenarioContext& context,
                                                           const Tensor& weight, int ranks,
                                                           const QuantizeArguments& arguments) {
  ShardedWeightSpec spec;
  spec.name = "weight";
  spec.shape = weight.shape();
  spec.bounds = EvenBounds(weight.shape()[0], ranks, 16);
  spec.quantizer = context.recipe().QuantizerFor(TensorRole::kGradOutput).rowwise;
  spec.usages = {true, false};
  std::vector<QuantizedTensor> wholes(static_cast<size_t>(ranks));
  const bool is_done =
      RunOnRanks(context, ranks, "gather", [&](const GatherContext& rank) -> absl::Status {
        QG_ASSIGN_OR_RETURN(ShardedWeight sharded, ShardedWeight::Create(spec, ranks));
        QG_ASSIGN_OR_RETURN(const Tensor rows, OwnRows(weight, spec.bounds, rank.group.rank()));
        QG_RETURN_IF_ERROR(sharded.Update(rank, rows, arguments));
        QG_ASSIGN_OR_RETURN(wholes[rank.group.rank()],
                            GatherToHost(rank, sharded, WeightPass::kForward));
        return absl::OkStatus();
      });
  return is_done ? wholes : std::vector<QuantizedTensor>{};
}

absl::Status CheckRandomNumbers(ScenarioContext& context) {
  QG_ASSIGN_OR_RETURN(const Tensor f32, RisingWeight(context, 410, 1.0f));
  QG_ASSIGN_OR_RETURN(const Tensor weight, InBf16(f32));
  const QuantizeArguments arguments = {.seed = 411, .call_id = 3};
  QG_ASSIGN_OR_RETURN(
      const QuantizedTensor expected,
      ExpectedQuantization(weight, context.recipe().QuantizerFor(TensorRole::kGradOutput).rowwise,
                           {true, false}, arguments));
  for (const int ranks : {2, 3, 4}) {
    QG_ASSIGN_OR_RETURN(const std::vector<QuantizedTensor> wholes,
                        DrawnByShards(context, weight, ranks, arguments));
    for (const QuantizedTensor& one : wholes) {
      QG_RETURN_IF_ERROR(context.ExpectSameCopy(absl::StrCat("weight on ", ranks, " ranks"),
                                                one.rowwise, expected.rowwise));
    }
  }
  return absl::OkStatus();
}

constexpr int kNoiseRanks = 4;

/// Codes of a tensor of kNoiseSize rows, drawn by kNoiseRanks ranks; empty if a rank refuses.
absl::StatusOr<std::vector<float>> DrawByShards(ScenarioContext& context, const Tensor& source,
                                                uint32_t call_id) {
  QG_ASSIGN_OR_RETURN(
      const std::vector<QuantizedTensor> wholes,
      DrawnByShards(context, source, kNoiseRanks, {.seed = 412, .call_id = call_id}));
  if (wholes.empty()) return std::vector<float>{};
  return NoiseCodes(*wholes[0].rowwise, Usage::kRowwise);
}

absl::Status CheckNoiseOfShards(ScenarioContext& context) {
  constexpr uint32_t kTensors = 4;
  QG_ASSIGN_OR_RETURN(const Tensor halves, TensorOfUnits([](int64_t) { return 2.5f; }));
  std::vector<std::vector<float>> draws;
  for (uint32_t call = 0; call < kTensors; ++call) {
    QG_ASSIGN_OR_RETURN(draws.emplace_back(), DrawByShards(context, halves, call));
    if (draws.back().empty()) return absl::OkStatus();
  }
  for (int64_t apart = 1; apart < kNoiseRanks; ++apart) {
    const int64_t rows = apart * kNoiseSize / kNoiseRanks;
    ExpectIndependent(context, absl::StrCat("ranks ", apart, " apart"), draws[0], draws[0],
                      [&](int64_t row, int64_t column) {
                        return row + rows < kNoiseSize ? SameElement(row + rows, column) : -1;
                      });
  }
  for (uint32_t a = 0; a < kTensors; ++a) {
    for (uint32_t b = a + 1; b < kTensors; ++b) {
      ExpectIndependent(context, absl::StrCat("tensors ", a, " and ", b), draws[a], draws[b],
                        SameElement);
    }
  }
  RungCounts counts;
  QG_ASSIGN_OR_RETURN(const Tensor rungs, counts.Source());
  for (uint32_t call = 0; call < kTensors; ++call) {
    QG_ASSIGN_OR_RETURN(const std::vector<float> codes, DrawByShards(context, rungs, call));
    if (codes.empty()) return absl::OkStatus();
    counts.Take(context, codes);
  }
  counts.Expect(context, "all ranks'");
  return absl::OkStatus();
}

// ---- Masters in fragments

/// Casts a rank's fragment of the master and returns the whole weight that all ranks make.
absl::StatusOr<QuantizedTensor> CastFragment(const GatherContext& rank, const Quantizer& quantizer,
                                             const Tensor& master, const ShardBounds& bounds,
                                             Requantization requantization) {
  QG_ASSIGN_OR_RETURN(const Tensor flat,
                      master.Reinterpret(DType::kF32, {kShardedOut * kShardedIn, 1}));
  MasterFragment fragment;
  fragment.name = "weight";
  QG_ASSIGN_OR_RETURN(fragment.master, OwnRows(flat, bounds, rank.group.rank()));
  fragment.bounds = bounds;
  fragment.shape = {kShardedOut, kShardedIn};
  fragment.quantizer = quantizer;
  QG_ASSIGN_OR_RETURN(const std::vector<QuantizedMaster> cast,
                      QuantizeMasterWeights(rank, {&fragment, 1}, requantization));
  return CopiesOnHost(rank.engine, cast[0].weight);
}

int64_t DifferingBytes(const Tensor& a, const Tensor& b) {
  int64_t differing = 0;
  for (size_t i = 0; i < a.byte_size(); ++i) differing += a.bytes()[i] != b.bytes()[i];
  return differing;
}

/// Four ranks, two of them without elements; the cuts are within rows.
absl::Status CheckFragments(ScenarioContext& context) {
  const Quantizer& quantizer = context.recipe().QuantizerFor(TensorRole::kWeight);
  QG_ASSIGN_OR_RETURN(const Tensor master, RisingWeight(context, 420, 1.0f));
  QG_ASSIGN_OR_RETURN(const Tensor rounded, InBf16(master));
  const ShardBounds bounds = {0, 0, 10122, 10122, kShardedOut * kShardedIn};
  std::vector<Tensor> codes;  // By is_direct: through bf16, then from fp32.
  for (const bool is_direct : {false, true}) {
    std::vector<QuantizedTensor> weights(4);
    const bool is_done =
        RunOnRanks(context, 4, "cast of fragments", [&](const GatherContext& rank) -> absl::Status {
          QG_ASSIGN_OR_RETURN(
              weights[rank.group.rank()],
              CastFragment(rank, quantizer, master, bounds,
                           is_direct ? Requantization::kFromF32 : Requantization::kThroughBf16));
          return absl::OkStatus();
        });
    if (!is_done) return absl::OkStatus();
    QG_ASSIGN_OR_RETURN(
        const QuantizedTensor expected,
        ExpectedQuantization(is_direct ? master : rounded, quantizer, {true, true}));
    for (const QuantizedTensor& weight : weights) {
      QG_RETURN_IF_ERROR(ExpectSameQuantization(
          context, is_direct ? "weight from fp32" : "weight through bf16", weight, expected));
    }
    codes.push_back(weights[0].rowwise->data);
  }
  context.AddNote(
      absl::StrCat("rowwise codes from fp32 and through bf16: ", DifferingBytes(codes[0], codes[1]),
                   " of ", codes[0].byte_size(), " bytes differ"));
  return absl::OkStatus();
}

/// Values up to 1.5 * 2^exponent, which each 128 rows reach: a subnormal amax, or one whose scale
/// has a subnormal inverse.
absl::StatusOr<Tensor> TinyWeight(ScenarioContext& context, int exponent) {
  QG_ASSIGN_OR_RETURN(Tensor weight, context.Generate(Distribution::kNormal, 440, DType::kF32,
                                                      {kShardedOut, kShardedIn}));
  for (int64_t i = 0; i < weight.element_count(); ++i) {
    const bool is_amax = i % (kShardBlockRows * kShardedIn) == 777;
    const float value = std::clamp(ValueAt(weight, i) * 0.5f, -1.5f, 1.5f);
    SetValue(weight, i, std::ldexp(is_amax ? 1.5f : value, exponent));
  }
  return weight;
}

void SetFlushSubnormals(Quantizer& quantizer, FlushSubnormals where) {
  quantizer.rowwise.flush_subnormals = quantizer.columnwise.flush_subnormals = where;
}

/// The same weight by the quantizer of the module and from fragments, flushing and not.
absl::Status CheckSubnormals(ScenarioContext& context) {
  const ShardBounds bounds = {0, 10122, 10122, kShardedOut * kShardedIn};
  constexpr int kRanks = 3;
  int64_t scale_bytes = 0, code_bytes = 0;
  for (const int exponent : {-127, -119, -118, -117}) {
    const std::string of = absl::StrCat("weight up to 1.5 * 2^", exponent, " of ");
    QG_ASSIGN_OR_RETURN(const Tensor master, TinyWeight(context, exponent));
    Quantizer quantizer = context.recipe().QuantizerFor(TensorRole::kWeight);
    QG_RETURN_IF_ERROR(ExpectQuantizesAsSpecified(context, absl::StrCat(of, "the module"), master,
                                                  quantizer, {true, true}));
    QG_ASSIGN_OR_RETURN(const QuantizedTensor kept,
                        ExpectedQuantization(master, quantizer, {true, true}));
    SetFlushSubnormals(quantizer, FlushSubnormals::kAlways);
    QG_ASSIGN_OR_RETURN(const QuantizedTensor flushed,
                        ExpectedQuantization(master, quantizer, {true, true}));
    scale_bytes += DifferingBytes(kept.rowwise->scale_inv, flushed.rowwise->scale_inv);
    code_bytes += DifferingBytes(kept.rowwise->data, flushed.rowwise->data);
    for (const FlushSubnormals where : {FlushSubnormals::kShardedUpdate, FlushSubnormals::kNever}) {
      SetFlushSubnormals(quantizer, where);
      std::vector<QuantizedTensor> weights(kRanks);
      const bool is_done = RunOnRanks(
          context, kRanks, "cast of fragments", [&](const GatherContext& rank) -> absl::Status {
            QG_ASSIGN_OR_RETURN(
                weights[rank.group.rank()],
                CastFragment(rank, quantizer, master, bounds, Requantization::kFromF32));
            return absl::OkStatus();
          });
      if (!is_done) return absl::OkStatus();
      const bool flushes = where == FlushSubnormals::kShardedUpdate;
      for (const QuantizedTensor& weight : weights) {
        QG_RETURN_IF_ERROR(ExpectSameQuantization(
            context, absl::StrCat(of, "fragments", flushes ? "" : ", never flushed"), weight,
            flushes ? flushed : kept));
      }
    }
  }
  context.Expect(scale_bytes > 0 && code_bytes > 0, "where the two ways part",
                 absl::StrCat(scale_bytes, " bytes of scales, ", code_bytes, " of codes"),
                 "some of both");
  context.AddNote(absl::StrCat("rowwise, of the module and of fragments: ", scale_bytes,
                               " bytes of scales and ", code_bytes, " of codes differ"));
  return absl::OkStatus();
}

EngineAlterations ModuleFlushesSubnormals() {
  return {.quantize = [](Engine& engine, QuantizeCall call) {
    for (QuantizerSpec* spec : {&call.quantizer.rowwise, &call.quantizer.columnwise}) {
      const bool makes_scales = spec->is_quantized() && spec->scaling == Scaling::kCurrent;
      if (makes_scales && spec->traits().scales != ScaleKind::kTwoLevel) {
        spec->flush_subnormals = FlushSubnormals::kAlways;
      }
    }
    return call.On(engine);
  }};
}

/// Two 4-bit codes share a byte: if two fragments meet within one, every rank must refuse the cast.
absl::Status CheckOddFragments(ScenarioContext& context) {
  const Quantizer& quantizer = context.recipe().QuantizerFor(TensorRole::kWeight);
  QG_ASSIGN_OR_RETURN(const Tensor master, RisingWeight(context, 430, 1.0f));
  const ShardBounds bounds = {0, 10123, kShardedOut * kShardedIn};
  std::vector<absl::Status> statuses(2);
  RunOnRanks(context, 2, "refusals", [&](const GatherContext& rank) {
    statuses[rank.group.rank()] =
        CastFragment(rank, quantizer, master, bounds, Requantization::kFromF32).status();
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) {
    context.ExpectCode("fragments that meet within a byte", status,
                       absl::StatusCode::kInvalidArgument);
  }
  return absl::OkStatus();
}

}  // namespace

ScenarioGroup ShardScenarios() {
  const std::vector<std::string> every_format = {"fp8_current", "fp8_block", "mxfp8", "nvfp4",
                                                 "fp8_rowwise"};
  return {
      {{"sharded-weight-gathers-whole",
        "A weight divided by rows and gathered for forward and for backward has the codes and "
        "scales of the whole, after updates and replacements too, kept between passes or not.",
        "Bit-equal to a recomputation of the whole by scalar functions, on 2 and 4 ranks.",
        {},
        {kFaultScaleOfFirstGather, kFaultDerivedColumnsKept, kFaultGatheredKeptAfterUpdate,
         kFaultShardAmaxAlone},
        every_format,
        CheckGathers},
       {"shards-draw-random-numbers-of-whole",
        "Rows rounded stochastically on their own rank have the codes of the whole rounded at "
        "once.",
        "Bit-equal to a recomputation of the whole, on 2, 3 and 4 ranks.",
        {},
        {kFaultShardCountsAlone},
        {"nvfp4:disable_rht=true"},
        CheckRandomNumbers},
       {"shards-round-without-bias",
        "Random numbers of the ranks' rows, and of several tensors, have nothing to do with each "
        "other, and an element rounds up with the probability of its distance.",
        "On 4 ranks: elements half way between codes agree in half of the pairs, of ranks and of "
        "tensors, and counts of every interval between codes are the binomial's, both within six "
        "standard deviations.",
        {},
        {kFaultShardCountsAlone, "random-bytes-shared-by-calls",
         "stochastic-rounding-off-by-one-byte", "stochastic-rounding-to-nearest"},
        {"nvfp4:disable_rht=true"},
        CheckNoiseOfShards},
       {"master-fragments-cast-whole",
        "Weights cast from fragments of fp32 masters that begin anywhere, some of them empty, are "
        "the whole weight quantized at once, from fp32 and through bf16.",
        "Bit-equal to a recomputation of the whole on all of 4 ranks; a note counts the bytes in "
        "which the two ways differ.",
        {54},
        {kFaultAmaxBeforeRounding, kFaultEmptyRankSkips, kFaultEmptyFragmentUnmeasured},
        every_format,
        CheckFragments},
       {"sharded-update-flushes-subnormals",
        "Weights with tiny amaxes, quantized by the module, keep subnormal scales; cast from "
        "fragments of fp32 masters they flush them, unless the recipe says never.",
        "Bit-equal to a recomputation by scalar functions, with subnormals and without, on all of "
        "3 ranks; the two differ in scales and in codes, and a note counts the bytes.",
        {},
        {kFaultFragmentSubnormalsKept, kFaultFragmentSubnormalsFlushed,
         "module-flushes-subnormals"},
        {"fp8_current", "fp8_current:power_2_scales=true", "fp8_block",
         "fp8_block:power_2_scales=false", "mxfp8", "mxfp8:enable_2d_quantization=true"},
        CheckSubnormals},
       {"fp4-fragments-begin-at-bytes",
        "Fragments of FP4 weights that begin within a byte are refused.",
        "INVALID_ARGUMENT on every rank.",
        {},
        {kFaultOddFragments},
        {"nvfp4"},
        CheckOddFragments}},
      {InCode(kFaultScaleOfFirstGather,
              "Refreshes the codes of a weight that is gathered again and keeps its first scale."),
       InCode(kFaultDerivedColumnsKept,
              "Keeps the columnwise codes that the first gather of a weight gave."),
       InCode(kFaultGatheredKeptAfterUpdate,
              "Keeps a gathered weight for the passes after its update."),
       InCode(kFaultShardAmaxAlone, "Scales each rank's rows by their own amax."),
       InCode(kFaultShardCountsAlone,
              "Draws random numbers as if each rank's rows were the first ones."),
       InCode(kFaultAmaxBeforeRounding,
              "Takes scales from masters that were not rounded to the weight's dtype."),
       InCode(kFaultEmptyFragmentUnmeasured,
              "Lets a rank without elements of an mxfp8 weight bring unwritten memory for its "
              "amaxes.",
              54),
       InCode(kFaultFragmentSubnormalsKept,
              "Keeps subnormal scales of weights that are cast from fragments."),
       InCode(
           kFaultFragmentSubnormalsFlushed,
           "Flushes subnormal scales of weights that are cast from fragments although the recipe "
           "says never."),
       {"module-flushes-subnormals", "Flushes subnormal scales of whole tensors.", 0,
        &ModuleFlushesSubnormals},
       InCode(kFaultOddFragments, "Gives two ranks half of a byte each, and loses one half.")}};
}

}  // namespace quantgate
