// The verdict of a report as JUnit XML.
#pragma once

#include <string>

#include "server/report/junit.h"
#include "server/report/report_document.h"

namespace quantgate {

/// A test case for each tensor that verify or diff compared; for run and compare one, which fails
/// as the criterion does that was stated. Failures are there exactly where the verdict fails.
std::string ReportJunit(const ReportDocument& document, const JunitRun& run);

}  // namespace quantgate
