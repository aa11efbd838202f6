// Conversions of reports to messages. The tensors of outputs are left to OutputWriter.
#pragma once

#include "kernels/compare/error_report.h"
#include "kernels/compare/parity_report.h"
#include "kernels/validate/diagnosis/diagnosis.h"
#include "kernels/validate/run/run.h"
#include "quantgate/v1/report.pb.h"

namespace quantgate {

v1::ElementPair ElementPairToProto(const ElementPair& pair);
v1::ParityReport ParityReportToProto(const ParityReport& report);
v1::ErrorReport ErrorReportToProto(const ErrorReport& report);
v1::BoundCheck BoundCheckToProto(const BoundCheck& check);
v1::SavedOperand SavedOperandToProto(const SavedOperand& saved);
v1::SavedBytes SavedBytesToProto(const SavedSize& size);
v1::GemmLine GemmLineToProto(const VariantReport::GemmLine& line);
v1::QuantizationRecord QuantizationRecordToProto(const QuantizationRecord& record);
v1::RankReport RankReportToProto(const VariantReport::RankReport& report);
/// Converts all but the tensor and the bounds.
v1::OutputReport OutputReportToProto(const OutputReport& report);
void AddBounds(const OutputReport& report, v1::OutputReport& proto);
/// Converts all but outputs, state, and the fields that AddEnd adds.
v1::VariantReport VariantReportToProto(const VariantReport& report);
/// Adds error budgets and stages, which are known once the variant has ended.
void AddEnd(const VariantReport& report, v1::VariantReport& proto);
v1::PairSummary PairSummaryToProto(const PairSummary& pair);
v1::Verdict VerdictToProto(const Verdict& verdict);
v1::Diagnosis DiagnosisToProto(const Diagnosis& diagnosis);

}  // namespace quantgate
