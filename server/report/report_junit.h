// The verdict of a report as JUnit XML.
#pragma once

#include <string>

#include "server/report/junit.h"
#include "server/report/report_document.h"

namespace quantgate {

/// One test case for each tensor that verify or diff compared. For run and compare a single test
/// case, which fails where the criterion that was stated fails. There are failures exactly where
/// the verdict fails.
std::string ReportJunit(const ReportDocument& document, const JunitRun& run);

}  // namespace quantgate
