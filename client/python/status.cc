#include "client/python/status.h"

#include <nanobind/stl/string.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "client/status.h"
#include "kernels/base/refusal.h"

namespace nb = nanobind;

namespace quantgate::python {
namespace {

/// How long an interrupt may wait to be seen.
constexpr std::chrono::milliseconds kSignalInterval{50};

/// Field, value and rule: what a server's error carries, or what this process refused.
Refusal PartsOfError(const absl::Status& status) {
  Refusal parts;
  if (const std::optional<v1::ErrorDetail> detail = ErrorDetailOf(status)) {
    parts.field = detail->field();
    parts.value = detail->value();
    parts.rule = detail->rule();
  } else if (const std::optional<Refusal> refusal = RefusalOf(status)) {
    parts = *refusal;
  }
  return parts;
}

nb::object Errors() { return nb::module_::import_("quantgate._errors"); }

void SetPythonError(const absl::Status& status) {
  const Refusal parts = PartsOfError(status);
  const nb::object error = Errors().attr("make")(
      absl::StatusCodeToString(status.code()), std::string(status.message()).c_str(),
      parts.field.c_str(), parts.value.c_str(), parts.rule.c_str());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
}

}  // namespace

void RegisterErrors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const StatusError& error) {
      SetPythonError(error.status);
    }
  });
}

absl::Status WithoutGil(bool is_long, absl::FunctionRef<absl::Status()> work,
                        absl::FunctionRef<void()> cancel) {
  if (!is_long) {
    const nb::gil_scoped_release released;
    return work();
  }
  std::mutex mutex;
  std::condition_variable is_done;
  std::optional<absl::Status> result;
  std::exception_ptr thrown;  // Such as std::bad_alloc, which is the caller's to see.
  bool was_interrupted = false;
  {
    const nb::gil_scoped_release released;
    std::thread worker([&] {
      absl::Status status;
      try {
        status = work();
      } catch (...) {
        thrown = std::current_exception();
      }
      const std::lock_guard lock(mutex);
      result = std::move(status);
      is_done.notify_all();
    });
    std::unique_lock lock(mutex);
    while (!is_done.wait_for(lock, kSignalInterval, [&] { return result.has_value(); })) {
      if (was_interrupted) continue;
      lock.unlock();
      {
        const nb::gil_scoped_acquire acquired;
        was_interrupted = PyErr_CheckSignals() != 0;
        if (was_interrupted) PyErr_Clear();
      }
      if (was_interrupted) cancel();
      lock.lock();
    }
    lock.unlock();
    worker.join();
  }
  if (was_interrupted) {
    PyErr_SetNone(PyExc_KeyboardInterrupt);
    throw nb::python_error();
  }
  if (thrown) std::rethrow_exception(thrown);
  return *std::move(result);
}

absl::Status StatusOfException(nb::python_error& error) {
  const nb::object value = nb::borrow(error.value());
  if (nb::isinstance(value, Errors().attr("Error"))) {
    absl::Status status(static_cast<absl::StatusCode>(nb::cast<int>(value.attr("number"))),
                        nb::cast<std::string>(value.attr("message")));
    const auto detail = nb::cast<nb::bytes>(value.attr("detail"));
    if (detail.size() > 0) SetErrorDetail(std::string(detail.c_str(), detail.size()), status);
    return status;
  }
  return absl::InternalError(error.what());
}

}  // namespace quantgate::python
