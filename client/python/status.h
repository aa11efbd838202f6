// Errors of the engine as Python's exceptions, and work that Ctrl-C can end.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/execution.h"

namespace quantgate::python {

/// Thrown where a status is an error; becomes the exception that quantgate._errors.from_status
/// gives.
struct StatusError {
  absl::Status status;
};

inline void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) throw StatusError{status};
}
template <typename Value>
Value ValueOf(absl::StatusOr<Value> value) {
  ThrowIfError(value.status());
  return *std::move(value);
}

/// Tells nanobind of StatusError.
void RegisterErrors(nanobind::module_& module);

/// Does `work` without the GIL. Where `is_long`, on another thread, while this one looks for
/// signals: one that Python makes an exception of calls `cancel`, and is thrown once the work has
/// ended. Otherwise the work is too short to be ended. FAILED_PRECONDITION in a process that was
/// forked while such work was under way.
absl::Status WithoutGil(bool is_long, absl::FunctionRef<absl::Status()> work,
                        absl::FunctionRef<void()> cancel);

/// The status of a Python exception that was caught: that of a quantgate.Error, else INTERNAL with
/// its text.
absl::Status StatusOfException(nanobind::python_error& error);

}  // namespace quantgate::python
