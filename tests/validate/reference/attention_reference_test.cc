// Attention's references: values against fp64 loops with the C library's exp, the engine's results
// within their bounds under several arithmetics, and wrong results outside of them.
#include "kernels/validate/reference/attention_reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/ops/elementwise/elementwise.h"
#include "kernels/ops/reduction/ordered_reduction.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Kind = OperationCall::Kind;

constexpr Kind kKinds[] = {Kind::kAttention, Kind::kAttentionDq, Kind::kAttentionDk,
                           Kind::kAttentionDv};

/// Two batches or groups of three query heads, unless told otherwise.
struct Setting {
  DType dtype = DType::kBF16;
  std::string arithmetic = "sm90";
  AttentionMask mask = AttentionMask::kCausal;
  int64_t groups = 2, heads_per_group = 3, positions = 19, columns = 16;
  Distribution distribution = Distribution::kNormal;
};

OperationCall CallOf(const Setting& setting) {
  OperationCall call;
  AttentionCall& attention = call.attention;
  attention.heads_per_group = setting.heads_per_group;
  attention.heads = Generated(
      setting.distribution, 1, setting.dtype,
      {setting.groups * (setting.heads_per_group + 2), setting.positions, setting.columns});
  attention.scale = 0.25f;
  attention.mask = setting.mask;
  attention.arithmetic = *Arithmetic::Parse(setting.arithmetic);
  call.gradient =
      Generated(setting.distribution, 2, setting.dtype,
                {setting.groups * setting.heads_per_group, setting.positions, setting.columns});
  return call;
}

/// Something that a layer might get wrong.
struct Faults {
  std::function<void(SoftmaxDesc&)> before_softmax = [](SoftmaxDesc&) {};
  std::function<void(SoftmaxResult&)> after_softmax = [](SoftmaxResult&) {};
  std::function<void(SoftmaxBackwardDesc&)> before_gradient = [](SoftmaxBackwardDesc&) {};
  bool forgets_head = false;
};

Tensor Matrix(const Tensor& tensor, int64_t index) {
  const Tensor one = *tensor.RowRange(index, 1);
  return *one.Reinterpret(one.dtype(), {one.shape()[1], one.shape()[2]});
}

Tensor Multiply(const OperationCall& call, const Tensor& a, const Tensor& b, GemmLayout layout) {
  GemmDesc desc;
  desc.a.data = a;
  desc.b.data = b;
  desc.layout = layout;
  desc.arithmetic = call.attention.arithmetic;
  desc.out_dtype = a.dtype();
  return GemmCpu(desc, {})->d;
}

/// The operations of a layer, one head at a time, in the order of kKinds.
std::vector<Tensor> ResultsOf(const OperationCall& call, const Faults& faults = {}) {
  const AttentionCall& attention = call.attention;
  const int64_t per_group = attention.heads_per_group;
  const int64_t groups = attention.heads.shape()[0] / (per_group + 2);
  const DType dtype = attention.heads.dtype();
  std::vector<Tensor> context, dq, dk, dv;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t first = group * (per_group + 2);
    const Tensor k = Matrix(attention.heads, first + per_group);
    const Tensor v = Matrix(attention.heads, first + per_group + 1);
    std::vector<Tensor> dk_parts, dv_parts;
    for (int64_t r = 0; r < per_group; ++r) {
      const Tensor q = Matrix(attention.heads, first + r);
      const Tensor gradient = Matrix(call.gradient, group * per_group + r);
      SoftmaxDesc forward = {Multiply(call, q, k, GemmLayout::kTN), attention.scale,
                             attention.mask};
      faults.before_softmax(forward);
      SoftmaxResult p = *SoftmaxForwardCpu(forward, {});
      faults.after_softmax(p);
      context.push_back(Multiply(call, p.rounded, v, GemmLayout::kNN));
      SoftmaxBackwardDesc backward = {Multiply(call, gradient, v, GemmLayout::kTN), p.probabilities,
                                      attention.scale, attention.mask};
      faults.before_gradient(backward);
      const Tensor slopes = *SoftmaxBackwardCpu(backward, {});
      dq.push_back(Multiply(call, slopes, k, GemmLayout::kNN));
      if (faults.forgets_head && r == 1) continue;
      dk_parts.push_back(Multiply(call, slopes, q, GemmLayout::kNT));
      dv_parts.push_back(Multiply(call, p.rounded, gradient, GemmLayout::kNT));
    }
    dk.push_back(*OrderedSumCpu(dk_parts, SumAccumulation::kF32, dtype, {}));
    dv.push_back(*OrderedSumCpu(dv_parts, SumAccumulation::kF32, dtype, {}));
  }
  std::vector<Tensor> results;
  for (const std::vector<Tensor>* parts : {&context, &dq, &dk, &dv}) {
    const Tensor whole = *ConcatenateRowsCpu(*parts, {});
    results.push_back(*whole.Reinterpret(
        dtype,
        {static_cast<int64_t>(parts->size()), whole.rows() / std::ssize(*parts), whole.columns()}));
  }
  return results;
}

OperationReference ReferenceOf(OperationCall call, Kind kind) {
  call.kind = kind;
  const auto engine = MakeCpuEngine({});
  const auto reference =
      EvaluateOperations(*engine, {&call, 1}, call.attention.heads.dtype(), nullptr);
  EXPECT_TRUE(reference.ok()) << reference.status();
  return *reference;
}

std::string TextOf(const Setting& setting, Kind kind) {
  return setting.arithmetic + " " + std::string(DTypeName(setting.dtype)) + " " +
         std::string(AttentionMaskName(setting.mask)) + " " + std::to_string(setting.positions) +
         " positions, kind " + std::to_string(static_cast<int>(kind));
}

std::vector<Setting> Settings() {
  std::vector<Setting> settings;
  for (const AttentionMask mask : {AttentionMask::kNone, AttentionMask::kCausal}) {
    for (const auto& [dtype, arithmetic] :
         {std::pair(DType::kBF16, "sm90"), std::pair(DType::kF16, "sm90"),
          std::pair(DType::kF32, "sm90"), std::pair(DType::kF32, "fp32"),
          std::pair(DType::kBF16, "fp32"), std::pair(DType::kF32, "exact"),
          std::pair(DType::kBF16, "exact"), std::pair(DType::kF16, "sm80"),
          std::pair(DType::kBF16, "sm90:splitk=2")}) {
      settings.push_back({dtype, arithmetic, mask});
      settings.push_back({dtype, arithmetic, mask, 1, 1, 64, 32});
    }
  }
  return settings;
}

TEST(AttentionReference, ResultsStayWithinTheirBounds) {
  for (const Setting& setting : Settings()) {
    const OperationCall call = CallOf(setting);
    const std::vector<Tensor> results = ResultsOf(call);
    for (size_t i = 0; i < std::size(kKinds); ++i) {
      SCOPED_TRACE(TextOf(setting, kKinds[i]));
      const OperationReference reference = ReferenceOf(call, kKinds[i]);
      ASSERT_EQ(reference.value.shape(), results[i].shape());
      const BoundCheck check = *CheckOperationBound(reference, results[i], nullptr);
      EXPECT_TRUE(check.pass) << check.worst_ratio << " in " << check.violation_count;
      // A bound that nothing comes near says nothing.
      EXPECT_GT(check.worst_ratio, 0x1p-8);
      EXPECT_NE(check.bound.derivation.find("GEMMs of length"), std::string::npos);
    }
  }
}

// Scores whose roundings are wider than probabilities, and operands below the normal numbers.
TEST(AttentionReference, BoundsHoldForEveryDistribution) {
  for (const Distribution distribution : AllDistributions()) {
    for (const auto& [dtype, arithmetic] :
         {std::pair(DType::kBF16, "sm90"), std::pair(DType::kF16, "sm90"),
          std::pair(DType::kF32, "fp32")}) {
      const Setting setting = {
          .dtype = dtype, .arithmetic = arithmetic, .distribution = distribution};
      OperationCall call = CallOf(setting);
      for (const float scale : {0.25f, 20.0f, -3.0f}) {
        call.attention.scale = scale;
        const std::vector<Tensor> results = ResultsOf(call);
        for (size_t i = 0; i < std::size(kKinds); ++i) {
          SCOPED_TRACE(TextOf(setting, kKinds[i]) + " " +
                       std::string(DistributionName(distribution)) + " " + std::to_string(scale));
          const OperationReference reference = ReferenceOf(call, kKinds[i]);
          const BoundCheck check = *CheckOperationBound(reference, results[i], nullptr);
          EXPECT_TRUE(check.pass) << check.worst_ratio << " in " << check.violation_count;
          if (scale != 0.25f) continue;  // The others overflow f16 here and there.
          const double* errors = reference.error.as<double>();
          EXPECT_FALSE(std::any_of(errors, errors + reference.error.element_count(),
                                   [](double error) { return std::isinf(error); }));
        }
      }
    }
  }
}

/// Attention in fp64 from q, k, v and the gradient, in plain loops.
struct PlainAttention {
  std::vector<double> context, dq, dk, dv;

  PlainAttention(const OperationCall& call, const Setting& setting) {
    const std::vector<float> heads = ToValues(call.attention.heads);
    const std::vector<float> gradients = ToValues(call.gradient);
    const int64_t s = setting.positions, d = setting.columns, per_group = setting.heads_per_group;
    const int64_t size = s * d;
    context.resize(setting.groups * per_group * size);
    dq.resize(context.size());
    dk.resize(setting.groups * size);
    dv.resize(dk.size());
    for (int64_t head = 0; head < setting.groups * per_group; ++head) {
      const int64_t group = head / per_group;
      const float* q = heads.data() + (group * (per_group + 2) + head % per_group) * size;
      const float* k = heads.data() + (group * (per_group + 2) + per_group) * size;
      const float* v = k + size;
      const float* g = gradients.data() + head * size;
      for (int64_t i = 0; i < s; ++i) {
        const int64_t taken = setting.mask == AttentionMask::kCausal ? i + 1 : s;
        std::vector<double> p(taken), dp(taken);
        double sum = 0, along = 0;
        for (int64_t j = 0; j < taken; ++j) {
          for (int64_t c = 0; c < d; ++c) {
            p[j] += static_cast<double>(q[i * d + c]) * k[j * d + c];
            dp[j] += static_cast<double>(g[i * d + c]) * v[j * d + c];
          }
          p[j] = std::exp(p[j] * call.attention.scale);
          sum += p[j];
        }
        for (int64_t j = 0; j < taken; ++j) {
          p[j] /= sum;
          along += p[j] * dp[j];
        }
        for (int64_t j = 0; j < taken; ++j) {
          const double slope = (dp[j] - along) * p[j] * call.attention.scale;
          for (int64_t c = 0; c < d; ++c) {
            context[head * size + i * d + c] += p[j] * v[j * d + c];
            dq[head * size + i * d + c] += slope * k[j * d + c];
            dk[group * size + j * d + c] += slope * q[i * d + c];
            dv[group * size + j * d + c] += p[j] * g[i * d + c];
          }
        }
      }
    }
  }
};

TEST(AttentionReference, ValuesAreThoseOfPlainLoops) {
  for (const AttentionMask mask : {AttentionMask::kNone, AttentionMask::kCausal}) {
    const Setting setting = {.dtype = DType::kF32, .arithmetic = "fp32", .mask = mask};
    const OperationCall call = CallOf(setting);
    const PlainAttention plain(call, setting);
    const std::vector<double>* expected[] = {&plain.context, &plain.dq, &plain.dk, &plain.dv};
    for (size_t kind = 0; kind < std::size(kKinds); ++kind) {
      const OperationReference reference = ReferenceOf(call, kKinds[kind]);
      ASSERT_EQ(reference.value.element_count(), std::ssize(*expected[kind]));
      for (int64_t i = 0; i < reference.value.element_count(); ++i) {
        // As in operation_reference_test.cc: of 2^-24 of each operation fp64 errs by 2^-53.
        EXPECT_LE(std::fabs(reference.value.as<double>()[i] - (*expected[kind])[i]),
                  reference.error.as<double>()[i] * 0x1p-26)
            << TextOf(setting, kKinds[kind]) << " element " << i;
      }
    }
  }
}

/// How many elements of each kind lie outside of their bounds with a fault.
std::vector<int64_t> ViolationsWith(const Setting& setting, const Faults& faults) {
  const OperationCall call = CallOf(setting);
  const std::vector<Tensor> results = ResultsOf(call, faults);
  std::vector<int64_t> violations;
  for (size_t i = 0; i < std::size(kKinds); ++i) {
    violations.push_back(
        CheckOperationBound(ReferenceOf(call, kKinds[i]), results[i], nullptr)->violation_count);
  }
  return violations;
}

TEST(AttentionReference, AForgottenScaleIsOutside) {
  for (const Setting& setting : {Setting{}, Setting{.dtype = DType::kF16},
                                 Setting{.dtype = DType::kF32, .arithmetic = "fp32"}}) {
    Faults faults;
    faults.before_softmax = [](SoftmaxDesc& desc) { desc.scale = 1; };
    for (const int64_t count : ViolationsWith(setting, faults)) EXPECT_GT(count, 0);
    faults = {};
    faults.before_gradient = [](SoftmaxBackwardDesc& desc) { desc.scale = 1; };
    const std::vector<int64_t> violations = ViolationsWith(setting, faults);
    EXPECT_EQ(violations[0], 0);
    EXPECT_GT(violations[1], 0);
    EXPECT_GT(violations[2], 0);
    EXPECT_EQ(violations[3], 0);
  }
}

TEST(AttentionReference, AMaskThatIsOffByOneIsOutside) {
  // One key more at the end of every row but the last: the mask of one query later.
  const auto shift = [](const Tensor& tensor, bool is_result) {
    const int64_t s = tensor.columns();
    std::vector<float> values = ToValues(tensor);
    std::vector<float> moved(values.size());
    for (int64_t i = 0; i < s; ++i) {
      const int64_t from = is_result ? std::min(i + 1, s - 1) : std::max<int64_t>(i - 1, 0);
      for (int64_t j = 0; j < s; ++j) moved[i * s + j] = values[from * s + j];
    }
    return FromValues(tensor.dtype(), tensor.shape(), moved);
  };
  for (const Setting& setting : {Setting{}, Setting{.dtype = DType::kF16},
                                 Setting{.dtype = DType::kF32, .arithmetic = "fp32"}}) {
    Faults faults;
    // Row i is computed where row i + 1 stands, whose mask takes one key more.
    faults.before_softmax = [&](SoftmaxDesc& desc) { desc.scores = shift(desc.scores, false); };
    faults.after_softmax = [&](SoftmaxResult& result) {
      result.probabilities = shift(result.probabilities, true);
      result.rounded = shift(result.rounded, true);
    };
    const std::vector<int64_t> violations = ViolationsWith(setting, faults);
    for (const size_t kind : {0, 1, 3}) EXPECT_GT(violations[kind], 0) << kind;
    // No mask at all.
    faults = {};
    faults.before_softmax = [](SoftmaxDesc& desc) { desc.mask = AttentionMask::kNone; };
    faults.before_gradient = [](SoftmaxBackwardDesc& desc) { desc.mask = AttentionMask::kNone; };
    for (const int64_t count : ViolationsWith(setting, faults)) EXPECT_GT(count, 0);
  }
}

TEST(AttentionReference, ATermThatASumDropsIsOutside) {
  for (const Setting& setting :
       {Setting{.dtype = DType::kF32, .arithmetic = "fp32"}, Setting{.dtype = DType::kF16}}) {
    Faults faults;
    // Rows whose sum lacks the first term: probabilities too large by its part.
    faults.after_softmax = [](SoftmaxResult& result) {
      std::vector<float> values = ToValues(result.probabilities);
      const int64_t s = result.probabilities.columns();
      for (int64_t i = 1; i < s; ++i) {
        const float rest = 1 - values[i * s];
        for (int64_t j = 0; j < s; ++j) values[i * s + j] /= rest;
      }
      const Shape shape = result.probabilities.shape();
      result.probabilities = FromValues(DType::kF32, shape, values);
      result.rounded = FromValues(result.rounded.dtype(), shape, values);
    };
    for (const int64_t count : ViolationsWith(setting, faults)) EXPECT_GT(count, 0);
    faults = {};
    faults.forgets_head = true;
    const std::vector<int64_t> violations = ViolationsWith(setting, faults);
    EXPECT_EQ(violations[0] + violations[1], 0);
    EXPECT_GT(violations[2], 0);
    EXPECT_GT(violations[3], 0);
  }
}

// A NaN in a query, a value and a gradient: what they reach is NaN, and a number there is no
// result.
TEST(AttentionReference, ANumberIsNotNotANumber) {
  OperationCall call = CallOf({.dtype = DType::kF32, .arithmetic = "fp32"});
  const int64_t s = 19, d = 16;
  call.attention.heads.as<float>()[(1 * s + 7) * d + 3] = NAN;             // Query head 1.
  call.attention.heads.as<float>()[((5 + 4) * s + 2) * d + 5] = INFINITY;  // The second value head.
  call.gradient.as<float>()[(2 * s + 11) * d] = NAN;
  const std::vector<Tensor> results = ResultsOf(call);
  for (size_t i = 0; i < std::size(kKinds); ++i) {
    SCOPED_TRACE(i);
    const OperationReference reference = ReferenceOf(call, kKinds[i]);
    EXPECT_EQ(CheckOperationBound(reference, results[i], nullptr)->violation_count, 0);
    std::vector<float> values = ToValues(results[i]);
    int64_t count = 0;
    for (float& value : values) {
      if (!std::isnan(value)) continue;
      ++count;
      value = 0;
    }
    EXPECT_GT(count, 0);
    const Tensor numbers = FromValues(DType::kF32, results[i].shape(), values);
    EXPECT_EQ(CheckOperationBound(reference, numbers, nullptr)->violation_count, count);
  }
}

TEST(AttentionReference, Rotations) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const bool is_backward : {false, true}) {
      OperationCall call;
      call.kind = Kind::kRotary;
      call.rotary.heads = Generated(Distribution::kNormal, 1, dtype, {8, 33, 24});
      call.rotary.table = *MakeRotaryTable(1e4f, 33, 24, dtype);
      call.rotary.period = 4;
      call.rotary.rotated = 3;
      call.rotary.is_backward = is_backward;
      const OperationReference reference = ReferenceOf(call, Kind::kRotary);
      const Tensor rotated = *RotateCpu(call.rotary, {});
      const BoundCheck check = *CheckOperationBound(reference, rotated, nullptr);
      EXPECT_TRUE(check.pass) << check.worst_ratio;
      EXPECT_GT(check.worst_ratio, 0.2);
      // The other direction, every head, and heads that lie otherwise.
      for (const std::function<void(RotaryDesc&)>& fault :
           std::vector<std::function<void(RotaryDesc&)>>{
               [](RotaryDesc& desc) { desc.is_backward = !desc.is_backward; },
               [](RotaryDesc& desc) { desc.rotated = 4; },
               [](RotaryDesc& desc) { desc.period = 3; },
               [](RotaryDesc& desc) { std::swap(desc.table.cosines, desc.table.sines); }}) {
        RotaryDesc wrong = call.rotary;
        fault(wrong);
        EXPECT_GT(CheckOperationBound(reference, *RotateCpu(wrong, {}), nullptr)->violation_count,
                  0);
      }
    }
  }
}

TEST(AttentionReference, ACancelledRotationEnds) {
  OperationCall call;
  call.kind = Kind::kRotary;
  call.rotary.heads = Generated(Distribution::kNormal, 1, DType::kBF16, {8, 33, 24});
  call.rotary.table = *MakeRotaryTable(1e4f, 33, 24, DType::kBF16);
  const auto engine = MakeCpuEngine({});
  Cancellation cancellation;
  ExecutionContext context;
  context.cancellation = &cancellation;
  EXPECT_TRUE(EvaluateRotary(*engine, call, context).ok());
  cancellation.Cancel();
  EXPECT_TRUE(absl::IsCancelled(EvaluateRotary(*engine, call, context).status()));
}

TEST(AttentionReference, NoPositions) {
  OperationCall call = CallOf({.positions = 0});
  EXPECT_EQ(ReferenceOf(call, Kind::kAttention).value.shape(), (Shape{6, 0, 16}));
  EXPECT_EQ(ReferenceOf(call, Kind::kAttentionDk).value.shape(), (Shape{2, 0, 16}));
}

TEST(AttentionReference, NeedsShapesThatFit) {
  OperationCall call = CallOf({});
  call.kind = Kind::kAttentionDq;
  const auto engine = MakeCpuEngine({});
  const auto code = [&] {
    return EvaluateOperations(*engine, {&call, 1}, DType::kBF16, nullptr).status().code();
  };
  EXPECT_EQ(code(), absl::StatusCode::kOk);
  call.attention.heads_per_group = 2;
  EXPECT_EQ(code(), absl::StatusCode::kInternal);
  call.attention.heads_per_group = 3;
  call.gradient = Tensor();
  EXPECT_EQ(code(), absl::StatusCode::kInternal);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
