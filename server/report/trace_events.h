// TraceEvents: the report of a trace from the events of its run (Sessions.RunTrace).
#pragma once

#include <string>

#include "quantgate/v1/engine_service.pb.h"
#include "server/report/trace_report.h"

namespace quantgate {

/// The comparison as other reports have it, without names of its sides.
SubjectComparison SubjectComparisonOf(const v1::StepComparison& comparison);

class TraceEvents {
 public:
  /// Takes the events of a run, each once and in their order; ignores those of no trace.
  void Take(const v1::RunEvent& event);
  /// Steps of all variants that were taken, and that the trace has.
  int64_t taken() const { return taken_; }
  int64_t count() const { return count_; }
  /// The report, without its command, of the run that ended with `report`. Called once.
  TraceReport Finish(const v1::RunReport& report);

 private:
  void TakeStep(const v1::TraceStep& step);
  /// `label` is the variant's before the step.
  void TakeNotes(const v1::TraceStep& step, const std::string& label);
  TraceTensor TensorOf(const v1::TraceStep& step, const v1::StepComparison& comparison,
                       const std::string& subject, const std::string& reference) const;

  TraceReport report_;
  int64_t taken_ = 0;
  int64_t count_ = 0;
};

}  // namespace quantgate
