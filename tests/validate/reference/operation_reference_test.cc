// Norms, activations and sums of gradients in fp64 against 60-digit arithmetic
// (tests/vectors/operation_values.py), and the engine's fp32 results within their bounds.
#include "kernels/validate/reference/operation_reference.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

#include "kernels/ops/elementwise/elementwise.h"
#include "kernels/tensor/convert.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Kind = OperationCall::Kind;

OperationReference Evaluate(const std::vector<OperationCall>& calls, DType rounded = DType::kF32) {
  const auto engine = MakeCpuEngine({});
  const auto reference = EvaluateOperations(*engine, calls, rounded, nullptr);
  EXPECT_TRUE(reference.ok()) << reference.status();
  return *reference;
}

/// The numbers up to the next '|'.
std::vector<double> Numbers(std::istream& words) {
  std::vector<double> numbers;
  for (std::string word; words >> word && word != "|";) {
    numbers.push_back(std::strtod(word.c_str(), nullptr));
  }
  return numbers;
}

Tensor Take(const std::vector<double>& numbers, size_t& at, Shape shape) {
  Tensor tensor = *Tensor::Allocate(DType::kF32, std::move(shape));
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    tensor.as<float>()[i] = static_cast<float>(numbers[at++]);
  }
  return tensor;
}

/// A bound adds up 2^-24 of what each operation gives; fp64 rounds by 2^-53 of it, which leaves 2^3
/// for the functions.
void ExpectValues(const std::vector<OperationCall>& calls, const std::vector<double>& expected) {
  const OperationReference reference = Evaluate(calls);
  ASSERT_EQ(reference.value.element_count(), static_cast<int64_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LE(std::fabs(reference.value.as<double>()[i] - expected[i]),
              reference.error.as<double>()[i] * 0x1p-26)
        << i << ": " << reference.value.as<double>()[i] << " for " << expected[i];
  }
}

void CheckActivationLine(std::istream& line) {
  std::string kind, variant;
  OperationCall call;
  call.kind = Kind::kActivation;
  line >> kind >> variant >> call.activation.limit >> call.activation.alpha >>
      call.activation.offset;
  call.activation.kind = *ParseActivationKind(kind);
  call.activation.variant = *ParseActivationVariant(variant);
  SCOPED_TRACE(kind + " " + variant);
  const std::vector<double> given = Numbers(line);
  size_t at = 0;
  call.x = Take(given, at, {1, static_cast<int64_t>(given.size()) - 1});
  SCOPED_TRACE(given[0]);
  ExpectValues({call}, Numbers(line));
  call.kind = Kind::kActivationGradient;
  call.gradient = Take(given, at, {1, 1});
  ExpectValues({call}, Numbers(line));
}

void CheckNormLine(std::istream& line) {
  std::string kind, epsilon;
  int64_t rows = 0, columns = 0;
  OperationCall call;
  line >> kind >> call.norm.zero_centered_gamma >> epsilon >> rows >> columns;
  call.norm.kind = *ParseNormKind(kind);
  call.norm.epsilon = std::strtof(epsilon.c_str(), nullptr);
  SCOPED_TRACE(kind + " " + std::to_string(rows) + "x" + std::to_string(columns));
  const std::vector<double> given = Numbers(line);
  size_t at = 0;
  call.x = Take(given, at, {rows, columns});
  call.gamma = Take(given, at, {columns});
  const Tensor beta = Take(given, at, {columns});
  call.gradient = Take(given, at, {rows, columns});
  for (const Kind part : {Kind::kNorm, Kind::kNormDx, Kind::kNormDgamma, Kind::kNormDbeta}) {
    call.kind = part;
    const bool has_beta = part == Kind::kNorm && call.norm.kind == NormKind::kLayerNorm;
    call.beta = has_beta ? beta : Tensor();
    ExpectValues({call}, Numbers(line));
  }
}

TEST(OperationReference, EqualsSixtyDigits) {
  std::ifstream file(std::string(QUANTGATE_SOURCE_DIR) + "/tests/data/operation_values.txt");
  ASSERT_TRUE(file.is_open());
  int count = 0;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string what;
    line >> what;
    if (what == "activation") CheckActivationLine(line);
    if (what == "norm") CheckNormLine(line);
    count += what == "activation" || what == "norm";
  }
  EXPECT_EQ(count, 351);
}

/// The fp32 result lies within the bound in every element, and one that is moved out does not.
void ExpectWithinBound(const std::vector<OperationCall>& calls, const Tensor& subject) {
  const OperationReference reference = Evaluate(calls, subject.dtype());
  BoundCheck check = *CheckOperationBound(reference, subject, nullptr);
  EXPECT_TRUE(check.pass) << check.worst_ratio << " in " << check.violation_count;
  EXPECT_FALSE(check.bound.derivation.empty());
  // The middle element goes up by four times what it may.
  const int64_t middle = subject.element_count() / 2;
  std::vector<float> values = ToValues(subject);
  const double value = reference.value.as<double>()[middle];
  const double allowed = reference.error.as<double>()[middle] + std::fabs(value) * 0x1p-8 + 0x1p-14;
  values[middle] = static_cast<float>(value + 4 * allowed);
  check = *CheckOperationBound(reference, FromValues(subject.dtype(), subject.shape(), values),
                               nullptr);
  EXPECT_FALSE(check.pass);
  EXPECT_EQ(check.violation_count, 1);
}

TEST(OperationReference, FloatsStayWithinTheirBounds) {
  const ExecutionContext context;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const std::string_view name : kActivationKindNames) {
      SCOPED_TRACE(std::string(name) + " " + std::string(DTypeName(dtype)));
      OperationCall call;
      call.activation.kind = *ParseActivationKind(name);
      call.x = Generated(Distribution::kNormal, 1, dtype, {40, 64});
      call.kind = Kind::kActivation;
      const Tensor y = *ActivationForwardCpu(call.x, call.activation, dtype, context);
      ExpectWithinBound({call}, y);
      call.kind = Kind::kActivationGradient;
      call.gradient = Generated(Distribution::kNormal, 2, dtype, y.shape());
      ExpectWithinBound(
          {call}, *ActivationBackwardCpu(call.gradient, call.x, call.activation, dtype, context));
    }
  }
}

NormBackwardDesc BackwardOf(const OperationCall& call, const NormForwardResult& forward) {
  NormBackwardDesc desc;
  desc.dz = call.gradient;
  desc.x = call.x;
  desc.gamma = call.gamma;
  desc.mean = forward.mean;
  desc.rstd = forward.rstd;
  desc.options = call.norm;
  desc.wanted.dbeta = call.norm.kind == NormKind::kLayerNorm;
  return desc;
}

TEST(OperationReference, NormsStayWithinTheirBounds) {
  const ExecutionContext context;
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    for (const bool zero_centered : {false, true}) {
      OperationCall call;
      call.norm = {kind, zero_centered, 1e-5f};
      call.x = Generated(Distribution::kLogNormalOutliers, 1, DType::kBF16, {37, 200});
      call.gamma = Generated(Distribution::kNormal, 2, DType::kF32, {200});
      call.gradient = Generated(Distribution::kNormal, 4, DType::kBF16, {37, 200});
      if (kind == NormKind::kLayerNorm) {
        call.beta = Generated(Distribution::kNormal, 3, DType::kF32, {200});
      }
      const auto forward =
          *NormForwardCpu({call.x, call.gamma, call.beta, call.norm, DType::kF32}, context);
      ExpectWithinBound({call}, forward.y);
      NormBackwardDesc desc = BackwardOf(call, forward);
      const NormGradients gradients = *NormBackwardCpu(desc, context);
      call.kind = Kind::kNormDx;
      ExpectWithinBound({call}, gradients.dx);
      call.kind = Kind::kNormDgamma;
      ExpectWithinBound({call}, gradients.dgamma);
      if (kind != NormKind::kLayerNorm) continue;
      call.kind = Kind::kNormDbeta;
      ExpectWithinBound({call}, gradients.dbeta);
    }
  }
}

TEST(OperationReference, SumsOfContributionsRoundEachTerm) {
  const ExecutionContext context;
  OperationCall norm;
  norm.kind = Kind::kNormDx;
  norm.x = Generated(Distribution::kNormal, 1, DType::kBF16, {24, 64});
  norm.gamma = Generated(Distribution::kNormal, 2, DType::kBF16, {64});
  norm.gradient = Generated(Distribution::kNormal, 3, DType::kBF16, {24, 64});
  OperationCall copy, scale;
  copy.kind = Kind::kCopy;
  copy.x = Generated(Distribution::kNormal, 4, DType::kBF16, {24, 64});
  scale.kind = Kind::kScale;
  scale.factor = 0.3f;
  scale.x = copy.x;
  const auto forward =
      *NormForwardCpu({norm.x, norm.gamma, Tensor(), norm.norm, DType::kBF16}, context);
  NormBackwardDesc desc = BackwardOf(norm, forward);
  // A residual joins before the rounding,
  desc.residual = copy.x;
  norm.is_joined = true;
  ExpectWithinBound({copy, norm}, NormBackwardCpu(desc, context)->dx);
  // other terms are rounded before they are added.
  desc.residual = Tensor();
  norm.is_joined = false;
  const Tensor dx = NormBackwardCpu(desc, context)->dx;
  const Tensor scaled = *ScaleCpu(scale.x, scale.factor, DType::kBF16, context);
  const Tensor sum = *AddCpu(scaled, dx, DType::kBF16, context);
  ExpectWithinBound({scale, norm}, sum);
  ExpectWithinBound({scale, norm, copy}, *AddCpu(sum, copy.x, DType::kBF16, context));
}

TEST(OperationReference, NotANumberMustBeOne) {
  OperationCall call;
  call.kind = Kind::kScale;
  call.x = FromValues(DType::kF32, {1, 2}, {NAN, 1});
  const OperationReference reference = Evaluate({call});
  const auto check = [&](float first, float second) {
    return CheckOperationBound(reference, FromValues(DType::kF32, {1, 2}, {first, second}), nullptr)
        ->violation_count;
  };
  EXPECT_EQ(check(NAN, 1), 0);
  EXPECT_EQ(check(0, 1), 1);
  EXPECT_EQ(check(NAN, NAN), 1);
  EXPECT_EQ(check(NAN, INFINITY), 1);
  EXPECT_EQ(check(NAN, -1), 1);
}

/// What keeps to the bound of `call`, whose fp32 result is `model`, in place of the elements that
/// are not finite there.
int64_t ViolationsOf(const OperationCall& call, const Tensor& model, float in_place) {
  std::vector<float> values = ToValues(model);
  for (float& value : values) {
    if (!std::isfinite(value)) value = in_place;
  }
  return CheckOperationBound(Evaluate({call}), FromValues(DType::kF32, model.shape(), values),
                             nullptr)
      ->violation_count;
}

// One NaN in x, another in the gradient: what they reach is NaN, and a number there is no result.
TEST(OperationReference, ANumberIsNotNotANumber) {
  OperationCall call;
  call.x = Generated(Distribution::kNormal, 1, DType::kF32, {8, 16});
  call.x.as<float>()[5] = NAN;
  call.gamma = Generated(Distribution::kNormal, 2, DType::kF32, {16});
  call.gradient = Generated(Distribution::kNormal, 3, DType::kF32, {8, 16});
  call.gradient.as<float>()[3 * 16 + 7] = NAN;
  const ExecutionContext context;
  const auto forward =
      *NormForwardCpu({call.x, call.gamma, Tensor(), call.norm, DType::kF32}, context);
  const auto gradients = *NormBackwardCpu(BackwardOf(call, forward), context);
  struct Case {
    OperationCall::Kind kind;
    const Tensor* model;
    int64_t count;
  };
  for (const auto& [kind, model, count] :
       {Case{Kind::kNorm, &forward.y, 16}, Case{Kind::kNormDx, &gradients.dx, 32},
        Case{Kind::kNormDgamma, &gradients.dgamma, 16},
        Case{Kind::kNormDbeta, &gradients.dbeta, 1}}) {
    SCOPED_TRACE(static_cast<int>(kind));
    call.kind = kind;
    EXPECT_EQ(ViolationsOf(call, *model, NAN), 0);
    EXPECT_EQ(ViolationsOf(call, *model, 0), count);
  }
}

// So of an infinity: it stays one where nothing can make a NaN of it.
TEST(OperationReference, ANumberIsNoInfinity) {
  OperationCall copy, sum;
  copy.kind = Kind::kCopy;
  copy.x = FromValues(DType::kF32, {1, 4}, {1, INFINITY, -INFINITY, 2});
  sum.kind = Kind::kAdd;
  sum.x = copy.x;
  sum.addend = FromValues(DType::kF32, {1, 4}, {1, 1, 1, -2});
  struct Case {
    std::vector<OperationCall> calls;
    float first, last;
  };
  for (const auto& [calls, first, last] :
       {Case{{copy}, 1, 2}, Case{{sum}, 2, 0}, Case{{copy, sum}, 3, 2}}) {
    const OperationReference reference = Evaluate(calls, DType::kBF16);
    const auto violations = [&](float second, float third) {
      const Tensor subject = FromValues(DType::kBF16, {1, 4}, {first, second, third, last});
      return CheckOperationBound(reference, subject, nullptr)->violation_count;
    };
    EXPECT_EQ(violations(INFINITY, -INFINITY), 0);
    EXPECT_EQ(violations(INFINITY, INFINITY), 1);
    EXPECT_EQ(violations(3e38f, -INFINITY), 1);
    EXPECT_EQ(violations(NAN, 0), 2);
  }
}

TEST(OperationReference, NoRows) {
  OperationCall call;
  call.x = *Tensor::Allocate(DType::kBF16, {0, 8});
  call.gradient = call.x;
  call.gamma = Generated(Distribution::kNormal, 2, DType::kBF16, {8});
  EXPECT_EQ(Evaluate({call}).value.shape(), (Shape{0, 8}));
  call.kind = Kind::kNormDgamma;
  const OperationReference reference = Evaluate({call});
  EXPECT_EQ(reference.value.shape(), Shape{8});
  for (int i = 0; i < 8; ++i) EXPECT_EQ(reference.value.as<double>()[i], 0);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
