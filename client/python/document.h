// quantgate._engine.Document, TraceDocument and ScenarioDocument: reports with their texts, JSON
// and pages, which are those of the commands.
#pragma once

#include <nanobind/nanobind.h>

#include <map>
#include <utility>
#include <vector>

#include "quantgate/v1/scenarios_service.pb.h"
#include "quantgate/v1/tensor.pb.h"
#include "server/report/report_document.h"
#include "server/report/trace_report.h"

namespace quantgate::python {

struct Document {
  ReportDocument report;
};

/// A trace that was played.
struct TraceDocument {
  TraceReport report;
  /// What each step of each variant gave, where outputs were kept; both count from 0.
  std::map<std::pair<int, int>, std::vector<v1::NamedTensor>> outputs;
};

/// A run of scenarios, with its events but the last.
struct ScenarioDocument {
  std::vector<v1::ScenarioEvent> events;
  v1::ScenarioRunFinished finished;
};

void BindDocuments(nanobind::module_& module);

}  // namespace quantgate::python
