#include "server/wire/convert_report.h"

#include <cmath>
#include <limits>

#include "server/report/element_types.h"
#include "server/wire/convert_tensor.h"

namespace quantgate {

v1::ElementPair ElementPairToProto(const ElementPair& pair) {
  v1::ElementPair proto;
  proto.mutable_coordinate()->Add(pair.coordinate.begin(), pair.coordinate.end());
  proto.set_subject(pair.subject);
  proto.set_reference(pair.reference);
  proto.set_subject_bits(pair.subject_bits);
  proto.set_reference_bits(pair.reference_bits);
  return proto;
}

namespace {

v1::HeatMapCell HeatMapCellToProto(const HeatMapCell& cell) {
  v1::HeatMapCell proto;
  proto.set_row_begin(cell.row_begin);
  proto.set_row_end(cell.row_end);
  proto.set_column_begin(cell.column_begin);
  proto.set_column_end(cell.column_end);
  proto.set_rms_error(cell.rms_error);
  proto.set_max_abs_error(cell.max_abs_error);
  return proto;
}

v1::HeatMap HeatMapToProto(const HeatMap& map) {
  v1::HeatMap proto;
  proto.set_rows(map.rows);
  proto.set_columns(map.columns);
  if (map.cells.empty()) return proto;
  for (int row = 0; row < map.rows; ++row) {
    proto.add_row_edges(map.cells[row * map.columns].row_begin);
  }
  proto.add_row_edges(map.cells.back().row_end);
  for (int column = 0; column < map.columns; ++column) {
    proto.add_column_edges(map.cells[column].column_begin);
  }
  proto.add_column_edges(map.cells.back().column_end);
  const auto count = static_cast<int>(map.cells.size());
  proto.mutable_rms_error()->Reserve(count);
  proto.mutable_max_abs_error()->Reserve(count);
  for (const HeatMapCell& cell : map.cells) {
    proto.mutable_rms_error()->AddAlreadyReserved(cell.rms_error);
    proto.mutable_max_abs_error()->AddAlreadyReserved(cell.max_abs_error);
  }
  return proto;
}

/// NaN where no element is finite on both sides, since nothing was measured then.
double SqnrDb(const ErrorReport& report) {
  const bool has_numbers =
      report.element_count == 0 || report.non_finite_count < report.element_count;
  if (!has_numbers) return std::numeric_limits<double>::quiet_NaN();
  if (report.sum_error_squared == 0) return std::numeric_limits<double>::infinity();
  return 10.0 * std::log10(report.sum_reference_squared / report.sum_error_squared);
}

v1::NearerReport NearerReportToProto(const NearerReport& report) {
  v1::NearerReport proto;
  proto.set_subject_nearer(report.subject_nearer);
  proto.set_reference_nearer(report.reference_nearer);
  proto.set_tied(report.tied);
  proto.set_subject_rms(report.subject_rms);
  proto.set_reference_rms(report.reference_rms);
  return proto;
}

v1::TensorComparison TensorComparisonToProto(const TensorComparison& comparison) {
  v1::TensorComparison proto;
  proto.set_tensor(comparison.tensor);
  proto.set_reference(comparison.reference);
  *proto.mutable_parity() = ParityReportToProto(comparison.parity);
  *proto.mutable_error() = ErrorReportToProto(comparison.error);
  if (comparison.nearer.has_value()) {
    *proto.mutable_nearer() = NearerReportToProto(*comparison.nearer);
  }
  return proto;
}

}  // namespace

v1::BoundCheck BoundCheckToProto(const BoundCheck& check) {
  v1::BoundCheck proto;
  proto.set_pass(check.pass);
  proto.set_violation_count(check.violation_count);
  proto.set_worst_ratio(check.worst_ratio);
  proto.set_factor(check.bound.factor);
  proto.set_derivation(check.bound.derivation);
  return proto;
}

v1::Diagnosis DiagnosisToProto(const Diagnosis& diagnosis) {
  v1::Diagnosis proto;
  proto.set_sentence(diagnosis.sentence);
  proto.set_is_unknown(diagnosis.is_unknown);
  for (const std::string& figure : diagnosis.figures) proto.add_figures(figure);
  for (const std::string& tried : diagnosis.tried) proto.add_tried(tried);
  for (const std::string& not_tried : diagnosis.not_tried) proto.add_not_tried(not_tried);
  proto.set_seconds(diagnosis.seconds);
  return proto;
}

v1::OutputReport OutputReportToProto(const OutputReport& report) {
  v1::OutputReport proto;
  proto.set_arithmetic(report.arithmetic);
  *proto.mutable_against_unquantized() = ErrorReportToProto(report.against_unquantized);
  *proto.mutable_against_exact() = TensorComparisonToProto(report.against_exact);
  proto.set_exact_note(report.exact_note);
  proto.set_intermediate(report.is_intermediate);
  SetElementTypes(std::string(DTypeName(report.value.dtype())), proto);
  return proto;
}

void AddBounds(const OutputReport& report, v1::OutputReport& proto) {
  if (report.bound.has_value()) *proto.mutable_bound() = BoundCheckToProto(*report.bound);
  if (report.subject_bound.has_value()) {
    *proto.mutable_subject_bound() = BoundCheckToProto(*report.subject_bound);
  }
}

v1::SavedOperand SavedOperandToProto(const SavedOperand& saved) {
  v1::SavedOperand proto;
  proto.set_name(saved.name);
  proto.set_content(saved.content);
  *proto.mutable_at_save() = FingerprintToProto(saved.at_save);
  *proto.mutable_at_use() = FingerprintToProto(saved.at_use);
  proto.set_used(saved.used);
  proto.set_format(saved.format);
  proto.set_data_bytes(saved.size.data);
  proto.set_scale_bytes(saved.size.scales);
  proto.set_counted_bytes(saved.counted.bytes());
  proto.set_held_bytes(saved.counted.held);
  return proto;
}

v1::SavedBytes SavedBytesToProto(const SavedSize& size) {
  v1::SavedBytes proto;
  proto.set_bytes(size.bytes());
  proto.set_data_bytes(size.data);
  proto.set_scale_bytes(size.scales);
  proto.set_held_bytes(size.held);
  return proto;
}

v1::GemmLine GemmLineToProto(const VariantReport::GemmLine& line) {
  v1::GemmLine proto;
  proto.set_role(line.role);
  proto.set_output(line.output);
  proto.set_text(line.text);
  proto.set_a_source(line.a_source);
  proto.set_b_source(line.b_source);
  proto.set_arithmetic(line.arithmetic);
  proto.set_algorithm(line.algorithm);
  proto.set_is_hardware(line.is_hardware);
  proto.set_note(line.note);
  return proto;
}

v1::ParityReport ParityReportToProto(const ParityReport& report) {
  v1::ParityReport proto;
  proto.set_equal(report.equal);
  proto.set_element_count(report.element_count);
  proto.set_mismatch_count(report.mismatch_count);
  if (report.mismatch_count > 0) {
    *proto.mutable_first() = ElementPairToProto(report.first);
    *proto.mutable_worst() = ElementPairToProto(report.worst);
    proto.set_worst_ulp(report.worst_ulp);
  }
  for (const UlpBucket& bucket : report.ulp_histogram) {
    v1::UlpBucket& bucket_proto = *proto.add_ulp_histogram();
    bucket_proto.set_lower(bucket.lower);
    bucket_proto.set_upper(bucket.upper);
    bucket_proto.set_count(bucket.count);
  }
  for (int subject = 0; subject < kValueClassCount; ++subject) {
    for (int reference = 0; reference < kValueClassCount; ++reference) {
      const int64_t count = report.class_confusion[subject][reference];
      if (count == 0) continue;
      v1::ClassConfusion& cell = *proto.add_class_confusion();
      cell.set_subject_class(std::string(ValueClassName(static_cast<ValueClass>(subject))));
      cell.set_reference_class(std::string(ValueClassName(static_cast<ValueClass>(reference))));
      cell.set_count(count);
    }
  }
  return proto;
}

v1::ErrorReport ErrorReportToProto(const ErrorReport& report) {
  v1::ErrorReport proto;
  proto.set_element_count(report.element_count);
  proto.set_non_finite_count(report.non_finite_count);
  proto.set_max_abs(report.max_abs);
  *proto.mutable_max_abs_at() = ElementPairToProto(report.max_abs_at);
  proto.set_mean_abs(report.mean_abs);
  proto.set_rms(report.rms);
  proto.set_max_rel(report.max_rel);
  *proto.mutable_max_rel_at() = ElementPairToProto(report.max_rel_at);
  proto.set_mean_rel(report.mean_rel);
  proto.set_bias(report.bias);
  proto.set_sqnr_db(SqnrDb(report));
  proto.set_cosine(report.cosine);
  proto.set_relative_frobenius(report.relative_frobenius);
  proto.set_saturated_count(report.saturated_count);
  proto.set_flushed_to_zero_count(report.flushed_to_zero_count);
  proto.set_subnormal_count(report.subnormal_count);
  *proto.mutable_heat_map() = HeatMapToProto(report.heat_map);
  for (const HeatMapCell& cell : report.worst_blocks) {
    *proto.add_worst_blocks() = HeatMapCellToProto(cell);
  }
  return proto;
}

v1::QuantizationRecord QuantizationRecordToProto(const QuantizationRecord& record) {
  v1::QuantizationRecord proto;
  proto.set_role(std::string(TensorRoleName(record.role)));
  proto.set_rowwise(record.usages.rowwise);
  proto.set_columnwise(record.usages.columnwise);
  proto.set_quantizer(record.quantizer);
  proto.set_tensor(record.tensor);
  proto.set_amax_group(record.amax_group);
  if (record.draw.has_value()) {
    proto.set_seed(record.draw->seed);
    proto.set_call_id(record.draw->call_id);
  }
  if (record.amax.has_value()) proto.set_amax(*record.amax);
  if (record.scale.has_value()) proto.set_scale(*record.scale);
  if (record.scale_inv.has_value()) proto.set_scale_inv(*record.scale_inv);
  if (record.amax_columnwise.has_value()) proto.set_amax_columnwise(*record.amax_columnwise);
  proto.mutable_scale_codes()->insert(record.scale_codes.begin(), record.scale_codes.end());
  v1::QuantizationCounts& counts = *proto.mutable_counts();
  counts.set_normal(record.counts.normal);
  counts.set_zero(record.counts.zero);
  counts.set_subnormal(record.counts.subnormal);
  counts.set_flushed_to_zero(record.counts.flushed_to_zero);
  counts.set_saturated(record.counts.saturated);
  counts.set_infinite(record.counts.infinite);
  counts.set_nan(record.counts.nan);
  return proto;
}

v1::BudgetTerm BudgetTermToProto(const BudgetTerm& term) {
  v1::BudgetTerm proto;
  proto.set_stage(term.stage);
  proto.set_mean(term.mean);
  proto.set_rms(term.rms);
  proto.set_max_abs(term.max_abs);
  proto.set_share(term.share);
  return proto;
}

v1::ErrorBudget ErrorBudgetToProto(const ErrorBudget& budget) {
  v1::ErrorBudget proto;
  proto.set_tensor(budget.tensor);
  proto.set_element_count(budget.element_count);
  proto.set_non_finite_count(budget.non_finite_count);
  *proto.mutable_total() = BudgetTermToProto(budget.total);
  for (const BudgetTerm& term : budget.terms) *proto.add_terms() = BudgetTermToProto(term);
  proto.set_closure(budget.closure);
  return proto;
}

namespace {

/// Adds the records that a variant on one rank and each rank of several have alike.
template <typename Report, typename Proto>
void AddRecords(const Report& report, Proto& proto) {
  for (const auto& saved : report.saved) *proto.add_saved() = SavedOperandToProto(saved);
  for (const auto& record : report.quantizations) {
    *proto.add_quantizations() = QuantizationRecordToProto(record);
  }
  for (const auto& line : report.gemms) *proto.add_gemms() = GemmLineToProto(line);
}

template <typename Report, typename Proto>
void AddStages(const Report& report, Proto& proto) {
  for (const StageTime& stage : report.stages) {
    v1::StageTime& stage_proto = *proto.add_stages();
    stage_proto.set_stage(stage.stage);
    stage_proto.set_seconds(stage.seconds);
  }
}

v1::OverlapReport OverlapReportToProto(const StageTimeline& report) {
  v1::OverlapReport proto;
  proto.set_stage(report.stage);
  for (const TaskRecord& task : report.timeline.tasks) {
    v1::OverlapTask& task_proto = *proto.add_tasks();
    task_proto.set_name(task.name);
    task_proto.set_resource(std::string(OverlapResourceName(task.resource)));
    task_proto.set_begin_seconds(task.begin_s);
    task_proto.set_end_seconds(task.end_s);
  }
  const OverlapFigures figures = FiguresOf(report.timeline);
  proto.set_total_seconds(figures.total_s);
  proto.set_compute_seconds(figures.compute_s);
  proto.set_communication_seconds(figures.communication_s);
  proto.set_exposed_seconds(figures.exposed_s);
  proto.set_idle_seconds(figures.idle_s);
  proto.set_efficiency(figures.efficiency());
  return proto;
}

}  // namespace

v1::RankReport RankReportToProto(const VariantReport::RankReport& report) {
  v1::RankReport proto;
  proto.set_rank(report.rank);
  proto.set_device(report.device);
  for (const VariantReport::RankReport::Output& output : report.outputs) {
    v1::NamedTensor& tensor = *proto.add_outputs();
    tensor.set_name(output.tensor);
    *tensor.mutable_type() = TensorTypeToProto({output.dtype, output.shape});
    *tensor.mutable_fingerprint() = FingerprintToProto(output.fingerprint);
  }
  AddRecords(report, proto);
  *proto.mutable_saved_bytes() = SavedBytesToProto(SumOf(report.saved));
  proto.set_gathered_peak_bytes(report.gathered.peak);
  proto.set_gathered_held_bytes(report.gathered.held);
  AddStages(report, proto);
  for (const StageTimeline& timeline : report.timelines) {
    *proto.add_overlaps() = OverlapReportToProto(timeline);
  }
  return proto;
}

v1::VariantReport VariantReportToProto(const VariantReport& report) {
  v1::VariantReport proto;
  proto.set_label(report.label);
  proto.set_recipe(report.recipe);
  proto.set_recipe_name(report.recipe_name);
  proto.set_recipe_digest(report.recipe_digest);
  proto.set_backward_override(report.backward_override);
  proto.set_arithmetic(report.arithmetic);
  proto.set_is_hardware(report.is_hardware);
  for (const auto& comparison : report.against_reference) {
    v1::TensorComparison& added = *proto.add_against_reference();
    added = TensorComparisonToProto(comparison);
    for (const OutputReport& output : report.outputs) {
      if (output.tensor != comparison.tensor) continue;
      const std::string dtype(DTypeName(output.value.dtype()));
      SetElementTypes(added, dtype, dtype);
    }
  }
  AddRecords(report, proto);
  SavedSize saved = SumOf(report.saved);
  for (const auto& rank : report.ranks) {
    *proto.add_ranks() = RankReportToProto(rank);
    saved.Add(SumOf(rank.saved));
  }
  *proto.mutable_saved_bytes() = SavedBytesToProto(saved);
  proto.mutable_notes()->Add(report.notes.begin(), report.notes.end());
  return proto;
}

void AddEnd(const VariantReport& report, v1::VariantReport& proto) {
  for (const ErrorBudget& budget : report.error_budgets) {
    *proto.add_error_budgets() = ErrorBudgetToProto(budget);
  }
  AddStages(report, proto);
}

v1::PairSummary PairSummaryToProto(const PairSummary& pair) {
  v1::PairSummary proto;
  proto.set_subject(pair.subject);
  proto.set_reference(pair.reference);
  proto.set_tensor(pair.tensor);
  proto.set_comparable(pair.comparable);
  proto.set_mismatch_count(pair.mismatch_count);
  proto.set_element_count(pair.element_count);
  proto.set_relative_frobenius(pair.relative_frobenius);
  return proto;
}

v1::Verdict VerdictToProto(const Verdict& verdict) {
  v1::Verdict proto;
  switch (verdict.criterion) {
    case Requirement::kNone:
      proto.set_criterion(v1::REQUIREMENT_UNSPECIFIED);
      break;
    case Requirement::kBitwise:
      proto.set_criterion(v1::REQUIREMENT_BITWISE);
      break;
    case Requirement::kBound:
      proto.set_criterion(v1::REQUIREMENT_BOUND);
      break;
  }
  proto.set_pass(verdict.pass);
  proto.set_threshold(verdict.threshold);
  proto.set_source(verdict.source);
  proto.set_found(verdict.found);
  proto.set_finding(verdict.finding);
  proto.set_non_finite(verdict.non_finite);
  proto.set_non_finite_inputs(verdict.non_finite_inputs);
  return proto;
}

}  // namespace quantgate
