#include "kernels/layer/step_recorder.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/layer/layer_faults.h"

namespace quantgate {

std::string OperandOrigin::Text() const {
  switch (content) {
    case Content::kAsGiven:
      break;
    case Content::kCast:
      return absl::StrCat(tensor, " cast");
    case Content::kRowwiseCodes:
      return absl::StrCat(tensor, " quantized rowwise");
    case Content::kColumnwiseCodes:
      return absl::StrCat(tensor, " quantized columnwise");
    case Content::kDequantized:
      return absl::StrCat(tensor, " dequantized");
  }
  return tensor;
}

namespace {

QuantizedTensor WithoutCodes(QuantizedTensor quantized) {
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    if (quantized.copy(usage).has_value()) quantized.copy(usage)->data = Tensor();
  }
  return quantized;
}

/// Puts what the engine chose (slices of K, hardware) into a desc that left it to the engine, since
/// a bound must be that of what ran.
void SetWhatRan(const GemmResult& result, GemmDesc& desc) {
  const bool left_open =
      desc.arithmetic.any_split_k || desc.arithmetic.family == ArithmeticFamily::kAuto;
  const bool is_hardware = result.arithmetic.family == ArithmeticFamily::kCublasLt;
  if (left_open && is_hardware) desc.arithmetic = result.arithmetic;
}

/// Adds fingerprints as 128-bit numbers.
void Add(const Fingerprint& part, Fingerprint& sum) {
  sum.low += part.low;
  sum.high += part.high + (sum.low < part.low ? 1 : 0);
}

}  // namespace

absl::StatusOr<std::vector<StageTime>> TimesOf(std::span<const TimedStage> stages) {
  std::vector<StageTime> times;
  for (const TimedStage& stage : stages) {
    QG_ASSIGN_OR_RETURN(const double seconds, stage.stopwatch->Seconds());
    times.push_back({stage, seconds});
  }
  return times;
}

SavedSize SumOf(std::span<const SavedOperand> saved) {
  SavedSize sum;
  for (const SavedOperand& operand : saved) sum.Add(operand.counted);
  return sum;
}

void SetRule(const Quantizer& quantizer, const QuantizeArguments& arguments,
             QuantizationRecord& record) {
  record.quantizer = QuantizerText(quantizer);
  if (quantizer.rounds_stochastically()) record.draw = {arguments.seed, arguments.call_id};
}

StepRecorder::StepRecorder(Engine& engine, const Arithmetic& arithmetic,
                           const Cancellation* cancellation, StageObserver on_stage)
    : engine_(engine), arithmetic_(arithmetic), cancellation_(cancellation), on_stage_(on_stage) {}

absl::StatusOr<Tensor> StepRecorder::Cast(const std::string& stage, const Tensor& source,
                                          DType dtype) {
  if (source.dtype() == dtype) return source;
  return Timed({StageKind::kQuantize, stage},
               [&] { return engine_.Cast(source, dtype, cancellation_); });
}

absl::StatusOr<QuantizedTensor> StepRecorder::Quantize(const std::string& stage,
                                                       const std::string& tensor, TensorRole role,
                                                       const Tensor& source,
                                                       const Quantizer& quantizer, Usages usages,
                                                       const QuantizeArguments& arguments,
                                                       std::string amax_group) {
  QG_ASSIGN_OR_RETURN(QuantizedTensor quantized, Timed({StageKind::kQuantize, stage}, [&] {
                        return engine_.Quantize(source, quantizer, usages, arguments,
                                                cancellation_);
                      }));
  QuantizationRecord record;
  record.role = role;
  record.usages = usages;
  SetRule(quantizer, arguments, record);
  record.tensor = tensor;
  record.amax_group = std::move(amax_group);
  records_.quantizations.push_back(std::move(record));
  quantized_.push_back(WithoutCodes(quantized));
  QG_RETURN_IF_ERROR(engine_.StartSummary(quantized_.back()));
  return quantized;
}

absl::StatusOr<Tensor> StepRecorder::Gemm(const std::string& stage, GemmRecord record) {
  QG_ASSIGN_OR_RETURN(record.result, Timed({StageKind::kGemm, stage}, [&] {
                        return engine_.Gemm(record.desc, cancellation_);
                      }));
  Tensor d = record.result.d;
  QG_RETURN_IF_ERROR(RecordGemm(std::move(record), {}));
  return d;
}

absl::Status StepRecorder::Gemms(const std::string& stage, GemmRecord record,
                                 std::span<const MatrixProduct> products) {
  std::optional<StartedGemm> first;
  QG_RETURN_IF_ERROR(Timed({StageKind::kGemm, stage}, [&]() -> absl::Status {
    for (const MatrixProduct& product : products) {
      GemmDesc desc = record.desc;
      desc.a.data = product.a;
      desc.b.data = product.b;
      desc.d = product.d;
      QG_ASSIGN_OR_RETURN(StartedGemm started, engine_.StartGemm(desc, cancellation_));
      if (first.has_value()) continue;
      first = std::move(started);
      record.desc = std::move(desc);
    }
    // The note of the first, for which this may wait, is read when all have been begun.
    QG_ASSIGN_OR_RETURN(first->result.note, std::move(first->note)());
    return absl::OkStatus();
  }));
  record.result = std::move(first->result);
  record.matrices = static_cast<int64_t>(products.size());
  // A record lives as long as the step's report, longer than products that only the next operation
  // reads.
  record.result.d = record.desc.d = Tensor();
  return RecordGemm(std::move(record), {});
}

absl::Status StepRecorder::RecordGemm(GemmRecord record, StageTimeline timeline) {
  SetWhatRan(record.result, record.desc);
  records_.gemms.push_back(std::move(record));
  if (!timeline.timeline.tasks.empty()) records_.timelines.push_back(std::move(timeline));
  return absl::OkStatus();
}

void StepRecorder::SetResultCodes(const std::string& output, GemmRecord::ResultCodes codes) {
  const auto found = std::find_if(records_.gemms.rbegin(), records_.gemms.rend(),
                                  [&](const GemmRecord& gemm) { return gemm.output == output; });
  if (found != records_.gemms.rend()) found->result_codes = std::move(codes);
}

absl::StatusOr<std::vector<std::vector<Tensor>>> StepRecorder::StartFingerprints(
    const std::vector<std::vector<Tensor>>& operands) {
  std::vector<Tensor> held;
  for (const std::vector<Tensor>& parts : operands) {
    std::copy_if(parts.begin(), parts.end(), std::back_inserter(held),
                 [](const Tensor& part) { return part.has_value(); });
  }
  QG_ASSIGN_OR_RETURN(const std::vector<Tensor> started,
                      engine_.StartFingerprints(held, cancellation_));
  std::vector<std::vector<Tensor>> by_operand(operands.size());
  auto next = started.begin();
  for (size_t i = 0; i < operands.size(); ++i) {
    for (const Tensor& part : operands[i]) {
      if (part.has_value()) by_operand[i].push_back(*next++);
    }
  }
  return by_operand;
}

size_t StepRecorder::RecordOf(const SavedMarkPointer& mark) {
  const auto [found, is_new] = saved_.try_emplace(mark, records_.saved.size());
  if (!is_new) return found->second;
  SavedOperand record;
  record.name = mark->name;
  record.content = mark->content;
  record.format = mark->format;
  record.size = mark->sizes.all;
  record.counted = mark->sizes.counted;
  records_.saved.push_back(std::move(record));
  fingerprints_.push_back({found->second, &SavedOperand::at_save, mark->at_save});
  return found->second;
}

absl::StatusOr<std::vector<SavedMarkPointer>> StepRecorder::Save(
    std::span<const OperandToSave> operands) {
  std::vector<std::vector<Tensor>> parts(operands.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    for (const SavedTensor& part : operands[i].parts) parts[i].push_back(part.tensor);
  }
  QG_ASSIGN_OR_RETURN(std::vector<std::vector<Tensor>> started, StartFingerprints(parts));
  std::vector<SavedMarkPointer> marks;
  for (size_t i = 0; i < operands.size(); ++i) {
    const OperandToSave& operand = operands[i];
    for (const Tensor& tensor : operand.held) storage_.HoldAnyway(tensor);
    std::vector<SavedTensor> counted = operand.parts;
    if (faults_.Has(kFaultScalesUncounted)) {
      std::erase_if(counted, [](const SavedTensor& part) { return part.is_scale; });
    }
    if (faults_.Has(kFaultProbabilitiesUncounted) && operand.name.ends_with(" probabilities")) {
      counted.clear();
    }
    marks.push_back(
        std::make_shared<const SavedMark>(SavedMark{operand.name, operand.content, operand.format,
                                                    storage_.Add(counted), std::move(started[i])}));
    RecordOf(marks.back());
  }
  return marks;
}

absl::Status StepRecorder::Use(std::span<const UsedOperand> operands) {
  std::vector<std::vector<Tensor>> parts;
  for (const UsedOperand& operand : operands) parts.push_back(operand.parts);
  QG_ASSIGN_OR_RETURN(std::vector<std::vector<Tensor>> started, StartFingerprints(parts));
  for (size_t i = 0; i < operands.size(); ++i) {
    const size_t record = RecordOf(operands[i].mark);
    fingerprints_.push_back({record, &SavedOperand::at_use, std::move(started[i])});
    records_.saved[record].used = operands[i].is_read;
  }
  return absl::OkStatus();
}

void StepRecorder::AddNote(const std::string& note) {
  const auto& notes = records_.notes;
  if (std::find(notes.begin(), notes.end(), note) == notes.end()) records_.notes.push_back(note);
}

absl::Status StepRecorder::ReadFingerprints(StepRecords& records) {
  std::vector<Tensor> parts;
  for (const RunningFingerprint& running : fingerprints_) {
    parts.insert(parts.end(), running.parts.begin(), running.parts.end());
  }
  if (parts.empty()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const std::vector<Fingerprint> read, engine_.ReadFingerprints(parts));
  size_t next = 0;
  for (const RunningFingerprint& running : fingerprints_) {
    Fingerprint sum;
    for (size_t part = 0; part < running.parts.size(); ++part) Add(read[next++], sum);
    records.saved[running.record].*running.moment = sum;
  }
  return absl::OkStatus();
}

absl::Status StepRecorder::ReadSummaries(StepRecords& records) {
  if (quantized_.empty()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(std::vector<QuantizationSummary> summaries, engine_.Summarize(quantized_));
  for (size_t i = 0; i < quantized_.size(); ++i) {
    static_cast<QuantizationSummary&>(records.quantizations[i]) = std::move(summaries[i]);
  }
  return absl::OkStatus();
}

absl::Status StepRecorder::Read(StepRecords& records) {
  QG_RETURN_IF_ERROR(ReadFingerprints(records));
  return ReadSummaries(records);
}

absl::StatusOr<StepRecords> StepRecorder::Finish() {
  StepRecords records = TakeRecords();
  QG_RETURN_IF_ERROR(Read(records));
  return records;
}

}  // namespace quantgate
