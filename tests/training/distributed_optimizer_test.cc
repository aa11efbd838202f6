// Masters and moments divided over ranks, against one rank with all of them, and checkpoints that
// go on with another number of ranks.
#include "kernels/training/distributed_optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/tensor/scratch_file.h"
#include "tests/training/shard_fixture.h"

namespace quantgate {
namespace {

using Delayed = std::map<std::string, DelayedScalingState>;

const Shape kWeightShape = {96, 64}, kBiasShape = {96};

/// Two weights and a bias in one flat buffer: most fragments begin within a row.
std::vector<DistributedParameter> ParametersOf(const Quantizer& quantizer, int ranks) {
  const Shape shapes[] = {kWeightShape, kBiasShape, kWeightShape};
  const std::vector<ShardBounds> bounds = FlatBounds(shapes, ranks, 2);
  std::vector<DistributedParameter> parameters = {
      {.name = "fc1.weight", .shape = kWeightShape, .bounds = bounds[0], .is_quantized = true},
      {.name = "fc1.bias", .shape = kBiasShape, .bounds = bounds[1]},
      {.name = "fc2.weight", .shape = kWeightShape, .bounds = bounds[2], .is_quantized = true}};
  for (DistributedParameter& parameter : parameters) parameter.quantizer = quantizer;
  return parameters;
}

std::map<std::string, Tensor> Values() {
  return {{"fc1.weight", TroubledWeight(1, DType::kBF16, kWeightShape)},
          {"fc1.bias", Generated(Distribution::kNormal, 2, DType::kBF16, kBiasShape)},
          {"fc2.weight", TroubledWeight(3, DType::kBF16, kWeightShape)}};
}

/// Of one rank in one step.
std::map<std::string, Tensor> GradientsOf(int step, int rank) {
  const uint64_t seed = 1000 + 100 * static_cast<uint64_t>(step) + 10 * static_cast<uint64_t>(rank);
  return {{"fc1.weight", Generated(Distribution::kNormal, seed, DType::kBF16, kWeightShape)},
          {"fc1.bias", Generated(Distribution::kNormal, seed + 1, DType::kBF16, kBiasShape)},
          {"fc2.weight", Generated(Distribution::kNormal, seed + 2, DType::kBF16, kWeightShape)}};
}

DistributedOptimizerSpec SpecOf(OptimizerSpec::Kind kind, Requantization requantization) {
  DistributedOptimizerSpec spec;
  spec.optimizer.kind = kind;
  spec.optimizer.adam.learning_rate = 0.05f;
  spec.optimizer.sgd.learning_rate = 0.05f;
  spec.optimizer.sgd.momentum = 0.9f;
  spec.requantization = requantization;
  return spec;
}

bool IsDelayed(const Quantizer& quantizer) {
  return quantizer.rowwise.scaling == Scaling::kDelayed;
}

Delayed FreshStates(const Quantizer& quantizer) {
  if (!IsDelayed(quantizer)) return {};
  return {{"fc1.weight", *FreshDelayedScaling(4)}, {"fc2.weight", *FreshDelayedScaling(4)}};
}

/// Delayed scaling's update between steps.
absl::Status UpdateStates(Engine& engine, Delayed& delayed) {
  for (auto& [name, state] : delayed) {
    QG_ASSIGN_OR_RETURN(state, engine.UpdateScale(state, {.amax_history_len = 4}, 448.0f));
  }
  return absl::OkStatus();
}

// ---- one rank

/// Everything whole, by the operations themselves.
class Alone {
 public:
  Alone(const Quantizer& quantizer, DistributedOptimizerSpec spec)
      : quantizer_(quantizer), spec_(std::move(spec)), delayed_(FreshStates(quantizer)) {
    for (const auto& [name, value] : Values()) {
      masters_[name] = *CastTensor(value, DType::kF32, {});
      m_[name] = v_[name] = Generated(Distribution::kAllZero, 0, DType::kF32, value.shape());
      Quantize(name, value);
    }
  }

  void Step(const std::map<std::string, Tensor>& gradients) {
    ASSERT_TRUE(UpdateStates(*engine_, delayed_).ok());
    ++steps_;
    for (const auto& [name, gradient] : gradients) {
      if (spec_.optimizer.kind == OptimizerSpec::Kind::kAdam) {
        const AdamResult adam = *AdamStepCpu(
            {masters_[name], gradient, m_[name], v_[name], spec_.optimizer.adam, steps_}, {});
        masters_[name] = adam.master;
        m_[name] = adam.m;
        v_[name] = adam.v;
      } else {
        const Tensor momentum = steps_ == 1 ? Tensor() : m_[name];
        const SgdResult sgd =
            *SgdStepCpu({masters_[name], gradient, momentum, spec_.optimizer.sgd}, {});
        masters_[name] = sgd.master;
        m_[name] = sgd.momentum;
      }
      const Tensor bf16 = *CastTensor(masters_[name], DType::kBF16, {});
      const bool is_direct = spec_.requantization == Requantization::kFromF32 && name != "fc1.bias";
      Quantize(name, is_direct ? masters_[name] : bf16);
    }
  }

  void ExpectSame(const DistributedOptimizer& subject, const Delayed& delayed) const {
    EXPECT_TRUE(SameBits(subject.parameters().at("fc1.bias").value, values_.at("fc1.bias")));
    for (const char* name : {"fc1.weight", "fc2.weight"}) {
      SCOPED_TRACE(name);
      ExpectSameQuantized(subject.parameters().at(name).quantized, quantized_.at(name));
    }
    ASSERT_EQ(delayed.size(), delayed_.size());
    for (const auto& [name, state] : delayed) {
      EXPECT_TRUE(SameBits(state.scale, delayed_.at(name).scale));
      EXPECT_TRUE(SameBits(state.amax_history, delayed_.at(name).amax_history));
    }
  }

 private:
  void Quantize(const std::string& name, const Tensor& source) {
    if (name == "fc1.bias") {
      values_[name] = source;
      return;
    }
    QuantizeArguments arguments;
    if (IsDelayed(quantizer_)) arguments.scale = delayed_.at(name).scale;
    QuantizedTensor quantized = *QuantizeCpu(source, quantizer_, {true, true}, arguments, {});
    quantized.source_dtype = DType::kBF16;
    if (IsDelayed(quantizer_)) {
      delayed_[name] = *engine_->NoteCast(delayed_.at(name), quantized.rowwise->amax);
    }
    quantized_[name] = std::move(quantized);
  }

  const std::unique_ptr<Engine> engine_ = MakeCpuEngine({.threads = 1});
  const Quantizer quantizer_;
  const DistributedOptimizerSpec spec_;
  Delayed delayed_;
  std::map<std::string, Tensor> masters_, m_, v_, values_;
  std::map<std::string, QuantizedTensor> quantized_;
  int64_t steps_ = 0;
};

/// The sum of all ranks' gradients, from rank 0 on in fp32.
std::map<std::string, Tensor> SummedGradients(int step, int ranks) {
  std::map<std::string, std::vector<Tensor>> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const auto& [name, gradient] : GradientsOf(step, rank)) parts[name].push_back(gradient);
  }
  std::map<std::string, Tensor> sums;
  for (const auto& [name, of_ranks] : parts) {
    sums[name] = *OrderedSumCpu(of_ranks, SumAccumulation::kF32, DType::kBF16, {});
  }
  return sums;
}

absl::Status StepOnce(const GatherContext& context, int step, DistributedOptimizer& optimizer,
                      Delayed& delayed) {
  QG_RETURN_IF_ERROR(UpdateStates(context.engine, delayed));
  return optimizer.Step(context, GradientsOf(step, context.group.rank()), delayed);
}

std::vector<WeightRule> OptimizerRules() {
  std::vector<WeightRule> rules = WeightRules();
  QuantizerSpec delayed = Fp8Tensor();
  delayed.scaling = Scaling::kDelayed;
  rules.push_back({"delayed", delayed});
  return rules;
}

TEST(DistributedOptimizer, HasTheBitsOfOneRank) {
  for (const WeightRule& rule : OptimizerRules()) {
    for (const auto kind : {OptimizerSpec::Kind::kAdam, OptimizerSpec::Kind::kSgd}) {
      const Requantization requantization = kind == OptimizerSpec::Kind::kAdam
                                                ? Requantization::kThroughBf16
                                                : Requantization::kFromF32;
      const DistributedOptimizerSpec spec = SpecOf(kind, requantization);
      for (const int ranks : {1, 3, 4}) {
        SCOPED_TRACE(absl::StrCat(rule.name, " on ", ranks));
        Alone alone(rule.quantizer, spec);
        for (int step = 0; step < 3; ++step) alone.Step(SummedGradients(step, ranks));
        const absl::Status status =
            OnRanks(ranks, [&](const GatherContext& context) -> absl::Status {
              Delayed delayed = FreshStates(rule.quantizer);
              QG_ASSIGN_OR_RETURN(
                  DistributedOptimizer optimizer,
                  DistributedOptimizer::Create(context, spec, ParametersOf(rule.quantizer, ranks),
                                               Values(), delayed));
              for (int step = 0; step < 3; ++step) {
                QG_RETURN_IF_ERROR(StepOnce(context, step, optimizer, delayed));
              }
              alone.ExpectSame(optimizer, delayed);
              return absl::OkStatus();
            });
        EXPECT_TRUE(status.ok()) << status;
      }
    }
  }
}

// ---- checkpoints

/// Written to disk and read again.
TensorFile ThroughDisk(const TensorFile& file, int index) {
  const std::string path = ::testing::TempDir() + absl::StrCat("shard_", index, ".safetensors");
  EXPECT_TRUE(WriteSafetensors(path, file.tensors, file.metadata).ok());
  return *ReadSafetensors(path);
}

/// Restored from `files` on `ranks` ranks; after `steps` more steps of gradients of rank 0's alone
/// (so that the sum is the same on any number of ranks), what each writes.
std::vector<TensorFile> GoOn(const std::vector<TensorFile>& files, const Quantizer& quantizer,
                             const DistributedOptimizerSpec& spec, int ranks, int steps) {
  const auto checkpoint = ShardCheckpoint::Open(files, {});
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  std::vector<TensorFile> written(static_cast<size_t>(ranks));
  const absl::Status status = OnRanks(ranks, [&](const GatherContext& context) -> absl::Status {
    Delayed delayed;
    QG_ASSIGN_OR_RETURN(DistributedOptimizer optimizer,
                        DistributedOptimizer::Restore(context, spec, ParametersOf(quantizer, ranks),
                                                      *checkpoint, delayed));
    for (int step = 0; step < steps; ++step) {
      std::map<std::string, Tensor> gradients = GradientsOf(50 + step, 0);
      for (auto& [name, gradient] : gradients) {
        if (context.group.rank() == 0) continue;
        gradient = Generated(Distribution::kAllZero, 0, DType::kBF16, gradient.shape());
      }
      QG_RETURN_IF_ERROR(optimizer.Step(context, gradients, delayed));
    }
    QG_ASSIGN_OR_RETURN(written[static_cast<size_t>(context.group.rank())],
                        optimizer.Checkpoint(context, delayed));
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return written;
}

void ExpectSameFiles(const std::vector<TensorFile>& subject,
                     const std::vector<TensorFile>& reference) {
  ASSERT_EQ(subject.size(), reference.size());
  for (size_t rank = 0; rank < subject.size(); ++rank) {
    EXPECT_EQ(subject[rank].metadata, reference[rank].metadata);
    ASSERT_EQ(subject[rank].tensors.size(), reference[rank].tensors.size());
    for (size_t i = 0; i < subject[rank].tensors.size(); ++i) {
      EXPECT_EQ(subject[rank].tensors[i].name, reference[rank].tensors[i].name);
      EXPECT_TRUE(SameBits(subject[rank].tensors[i].tensor, reference[rank].tensors[i].tensor))
          << subject[rank].tensors[i].name;
    }
  }
}

TEST(DistributedOptimizer, CheckpointsGoFrom4RanksTo2To1AndBack) {
  for (const WeightRule& rule : OptimizerRules()) {
    SCOPED_TRACE(rule.name);
    const DistributedOptimizerSpec spec =
        SpecOf(OptimizerSpec::Kind::kAdam, Requantization::kThroughBf16);
    std::vector<TensorFile> first(4);
    const absl::Status status = OnRanks(4, [&](const GatherContext& context) -> absl::Status {
      Delayed delayed = FreshStates(rule.quantizer);
      QG_ASSIGN_OR_RETURN(DistributedOptimizer optimizer,
                          DistributedOptimizer::Create(
                              context, spec, ParametersOf(rule.quantizer, 4), Values(), delayed));
      for (int step = 0; step < 2; ++step) {
        QG_RETURN_IF_ERROR(StepOnce(context, step, optimizer, delayed));
      }
      QG_ASSIGN_OR_RETURN(first[static_cast<size_t>(context.group.rank())],
                          optimizer.Checkpoint(context, delayed));
      return absl::OkStatus();
    });
    ASSERT_TRUE(status.ok()) << status;
    std::vector<TensorFile> files = first;
    for (size_t i = 0; i < files.size(); ++i) files[i] = ThroughDisk(files[i], static_cast<int>(i));
    std::reverse(files.begin(), files.end());  // In whichever order a folder lists them.
    const std::vector<TensorFile> two = GoOn(files, rule.quantizer, spec, 2, 0);
    const std::vector<TensorFile> one = GoOn(two, rule.quantizer, spec, 1, 0);
    ExpectSameFiles(GoOn(one, rule.quantizer, spec, 4, 0), first);
    // And trains on alike, from whichever.
    const std::vector<TensorFile> further = GoOn(first, rule.quantizer, spec, 4, 2);
    const std::vector<TensorFile> further_alone = GoOn(one, rule.quantizer, spec, 1, 2);
    ExpectSameFiles(GoOn(further_alone, rule.quantizer, spec, 4, 0), further);
  }
}

TEST(ShardCheckpoint, RefusesFilesThatDoNotMakeAWhole) {
  const Tensor part = *Tensor::Allocate(DType::kU8, {2, 3});
  const auto file = [&](int rank, int ranks, int64_t begin, int64_t total) {
    const ShardPart one = {"w", part, begin, total};
    return MakeShardFile(rank, ranks, {&one, 1}, {{"steps", "1"}});
  };
  const auto refusal = [](const std::vector<TensorFile>& files) {
    return std::string(ShardCheckpoint::Open(files, {}).status().message());
  };
  EXPECT_EQ(refusal({file(1, 2, 2, 4), file(0, 2, 0, 4)}), "");
  EXPECT_EQ(refusal({}), "checkpoint of shards: no files");
  EXPECT_EQ(refusal({file(0, 2, 0, 4)}), "checkpoint of shards: no file of rank 1 of 2");
  EXPECT_EQ(refusal({file(0, 2, 0, 4), file(0, 2, 2, 4)}),
            "checkpoint of shards: a file of rank 0 of 2; each rank of 2 has one file");
  EXPECT_EQ(refusal({file(0, 2, 0, 4), file(1, 2, 1, 4)}),
            "checkpoint of shards: w: a part begins at row 1, where the one before it ends at 2");
  EXPECT_EQ(refusal({file(0, 2, 0, 5), file(1, 2, 2, 5)}),
            "checkpoint of shards: w: parts end at row 4 of 5");
  TensorFile other = file(1, 2, 2, 4);
  other.metadata["steps"] = "2";
  EXPECT_EQ(refusal({file(0, 2, 0, 4), other}),
            "checkpoint of shards: the files of ranks say different things beside their shards: "
            "rank 1");
  other = file(1, 2, 2, 4);
  other.metadata["quantgate.shard"] = "{\"rank\": -1, \"ranks\": 2}";
  EXPECT_EQ(refusal({other}),
            "checkpoint of shards: shard.rank must be an integer from 0 to 65536");
  const auto good = ShardCheckpoint::Open(std::vector<TensorFile>{file(0, 1, 0, 2)}, {});
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good->Rows("w", 1, 2).status().message(),
            "checkpoint of shards: w: 2 rows from 1 on, of 2");
  EXPECT_EQ(good->Whole("v").status().message(), "checkpoint of shards: no tensor v");
}

TEST(ShardBounds, AreEvenAndInOrder) {
  EXPECT_EQ(EvenBounds(512, 3, 128), (ShardBounds{0, 256, 384, 512}));
  EXPECT_EQ(EvenBounds(200, 4, 128), (ShardBounds{0, 128, 200, 200, 200}));
  const Shape shapes[] = {{3, 3}, {1}, {4}};
  const std::vector<ShardBounds> flat = FlatBounds(shapes, 4, 2);
  EXPECT_EQ(flat[0], (ShardBounds{0, 4, 8, 9, 9}));
  EXPECT_EQ(flat[1], (ShardBounds{0, 0, 0, 1, 1}));
  EXPECT_EQ(flat[2], (ShardBounds{0, 0, 0, 2, 4}));
}

}  // namespace
}  // namespace quantgate
