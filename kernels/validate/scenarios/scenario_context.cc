#include "kernels/validate/scenarios/scenario_context.h"

#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "kernels/compare/parity_report.h"
#include "kernels/tensor/generate/generate.h"
#include "kernels/validate/scenarios/faults/faulty_engine.h"
#include "kernels/validate/scenarios/ranks/rank_places.h"

namespace quantgate {
namespace {

constexpr size_t kDifferencesKept = 8;

std::string ElementText(uint64_t bits, double value, DType dtype) {
  return absl::StrFormat("0x%0*x (%.9g)", 2 * DTypeBytes(dtype), bits, value);
}

std::string FloatText(float value) {
  return absl::StrFormat("0x%08x (%.9g)", std::bit_cast<uint32_t>(value), value);
}

std::string TextOrAbsent(const Tensor& tensor) {
  return tensor.has_value() ? TensorText(tensor) : "absent";
}

std::string CopyText(const QuantizedCopy& copy) {
  return absl::StrCat(std::string(QuantizerFormatName(copy.format)), " ",
                      std::string(DTypeName(copy.element)), " block_dim ", copy.block_dim,
                      " e4m3_max ", copy.e4m3_max, copy.hadamard ? " hadamard" : "");
}

}  // namespace

void AddPlacements(const RankPlacements& more, RankPlacements& placements) {
  for (const auto& [placement, sizes] : more) {
    placements[placement].insert(sizes.begin(), sizes.end());
  }
}

ScenarioContext::ScenarioContext(const Subjects& subjects, const Recipe& recipe)
    : subjects_(subjects), recipe_(recipe) {}

absl::StatusOr<Tensor> ScenarioContext::Generate(Distribution distribution, uint64_t seed,
                                                 DType dtype, Shape shape, float scale) {
  // The input of both sides, not an expected value.
  return quantgate::Generate({distribution, seed, dtype, std::move(shape), scale},
                             {.threads = 1, .cancellation = cancellation()});
}

absl::StatusOr<Tensor> ScenarioContext::ToEngine(const Tensor& tensor) {
  return engine().ToDevice(tensor, cancellation());
}

absl::StatusOr<Tensor> ScenarioContext::ToHost(const Tensor& tensor) {
  return engine().ToHost(tensor, cancellation());
}

CollectiveBackend ScenarioContext::RankBackend(int ranks) const {
  return subjects_.places == nullptr ? CollectiveBackend::kLocal
                                     : subjects_.places->BackendOf(ranks);
}

absl::StatusOr<std::vector<Engine*>> ScenarioContext::RankEngines(int ranks) {
  const CollectiveBackend backend = RankBackend(ranks);
  std::vector<std::unique_ptr<Engine>>& kept = rank_engines_[backend];
  std::vector<Engine*> engines;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == static_cast<int>(kept.size())) {
      std::unique_ptr<Engine> made;
      if (backend == CollectiveBackend::kNccl) {
        made = FaultyEngine::AroundAs(engine(), subjects_.places->gpu(rank));
      } else {
        QG_ASSIGN_OR_RETURN(made, engine().OpenLane(LanePriority::kNormal));
      }
      kept.push_back(std::move(made));
    }
    engines.push_back(kept[static_cast<size_t>(rank)].get());
  }
  return engines;
}

CommunicatorCache* ScenarioContext::communicators() const {
  return subjects_.places == nullptr ? nullptr : subjects_.places->communicators();
}

void ScenarioContext::NoteWorld(int ranks, RankPlacement placement) {
  rank_placements_[std::move(placement)].insert(ranks);
}

void ScenarioContext::Add(ScenarioDifference difference) {
  ++difference_count_;
  if (differences_.size() >= kDifferencesKept) return;
  difference.recipe = recipe_.ShortText();
  difference.step = step_;
  differences_.push_back(std::move(difference));
}

absl::Status ScenarioContext::ExpectSameBits(std::string_view tensor, const Tensor& subject,
                                             const Tensor& expected) {
  const std::string name(tensor);
  if (!subject.has_value() || !expected.has_value() || subject.dtype() != expected.dtype() ||
      subject.shape() != expected.shape()) {
    ExpectSameText(name, TextOrAbsent(subject), TextOrAbsent(expected));
    return absl::OkStatus();
  }
  ++checks_;
  QG_ASSIGN_OR_RETURN(const Tensor on_host, ToHost(subject));
  digest_.AddTensor(step_, tensor, on_host);
  QG_ASSIGN_OR_RETURN(const ParityReport parity,
                      reference().CompareBits(on_host, expected, cancellation()));
  if (parity.equal) return absl::OkStatus();
  const ElementPair& first = parity.first;
  Add({.tensor = name,
       .coordinate = first.coordinate,
       .subject = ElementText(first.subject_bits, first.subject, expected.dtype()),
       .expected = ElementText(first.reference_bits, first.reference, expected.dtype())});
  return absl::OkStatus();
}

absl::Status ScenarioContext::ExpectSameCopy(std::string_view tensor,
                                             const std::optional<QuantizedCopy>& subject,
                                             const std::optional<QuantizedCopy>& expected) {
  const std::string name(tensor);
  ExpectSameText(name, subject.has_value() ? CopyText(*subject) : "absent",
                 expected.has_value() ? CopyText(*expected) : "absent");
  if (!subject.has_value() || !expected.has_value()) return absl::OkStatus();
  QG_RETURN_IF_ERROR(ExpectSameBits(name + " data", subject->data, expected->data));
  QG_RETURN_IF_ERROR(ExpectSameBits(name + " scale_inv", subject->scale_inv, expected->scale_inv));
  return ExpectSameBits(name + " amax", subject->amax, expected->amax);
}

void ScenarioContext::ExpectEqual(std::string_view fact, int64_t subject, int64_t expected) {
  const std::string found = absl::StrCat(subject);
  Conclude(subject == expected, fact, found, absl::StrCat(expected), found);
}

void ScenarioContext::ExpectSameFloat(std::string_view fact, float subject, float expected) {
  const std::string found = FloatText(subject);
  Conclude(std::bit_cast<uint32_t>(subject) == std::bit_cast<uint32_t>(expected), fact, found,
           FloatText(expected), found);
}

void ScenarioContext::ExpectSameText(std::string_view fact, std::string_view subject,
                                     std::string_view expected) {
  Conclude(subject == expected, fact, subject, expected, subject);
}

void ScenarioContext::ExpectShape(std::string_view tensor, const Shape& subject,
                                  const Shape& expected) {
  ExpectSameText(std::string(tensor) + " shape", ShapeText(subject), ShapeText(expected));
}

void ScenarioContext::Expect(bool holds, std::string_view fact, std::string_view subject,
                             std::string_view expected) {
  Conclude(holds, fact, subject, expected, holds ? "holds" : "does not hold");
}

void ScenarioContext::Conclude(bool holds, std::string_view fact, std::string_view subject,
                               std::string_view expected, std::string_view digested) {
  ++checks_;
  digest_.AddFact(step_, fact, digested);
  if (holds) return;
  Add({.tensor = std::string(fact),
       .subject = std::string(subject),
       .expected = std::string(expected)});
}

void ScenarioContext::AddNote(std::string_view note) {
  notes_.push_back(absl::StrCat(recipe_.ShortText(), ": ", std::string(note)));
}

void ScenarioContext::Absorb(const ScenarioContext& other) {
  checks_ += other.checks_;
  difference_count_ += other.difference_count_;
  differences_.insert(differences_.end(), other.differences_.begin(), other.differences_.end());
  notes_.insert(notes_.end(), other.notes_.begin(), other.notes_.end());
  AddPlacements(other.rank_placements_, rank_placements_);
  digest_.AddAll("", other.digest_);
}

void ScenarioContext::ExpectCode(std::string_view call, const absl::Status& status,
                                 absl::StatusCode expected) {
  Conclude(status.code() == expected, std::string(call) + " status", status.ToString(),
           absl::StatusCodeToString(expected), absl::StatusCodeToString(status.code()));
}

}  // namespace quantgate
