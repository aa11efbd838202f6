// quantgate._engine.Document: a report with its text, JSON and pages, which are those of the
// commands.
#pragma once

#include <nanobind/nanobind.h>

#include "server/report/report_document.h"

namespace quantgate::python {

struct Document {
  ReportDocument report;
};

void BindDocuments(nanobind::module_& module);

}  // namespace quantgate::python
