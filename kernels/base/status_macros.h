// Early return on a failed absl::Status or absl::StatusOr.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define QG_RETURN_IF_ERROR(expr)                                            \
  do {                                                                      \
    if (absl::Status qg_status = (expr); !qg_status.ok()) return qg_status; \
  } while (false)

#define QG_STATUS_CONCAT_INNER(a, b) a##b
#define QG_STATUS_CONCAT(a, b) QG_STATUS_CONCAT_INNER(a, b)

/// QG_ASSIGN_OR_RETURN(auto value, Call()): declares `value`, or returns the status of Call().
#define QG_ASSIGN_OR_RETURN(lhs, expr) \
  QG_ASSIGN_OR_RETURN_INNER(QG_STATUS_CONCAT(qg_status_or_, __LINE__), lhs, expr)
#define QG_ASSIGN_OR_RETURN_INNER(status_or, lhs, expr)      \
  auto status_or = (expr);                                   \
  if (!status_or.ok()) return std::move(status_or).status(); \
  lhs = *std::move(status_or)
