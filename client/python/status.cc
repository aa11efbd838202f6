#include "client/python/status.h"

#include <nanobind/stl/string.h>
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/status.h"
#include "kernels/base/refusal.h"

namespace nb = nanobind;

namespace quantgate::python {
namespace {

/// How long an interrupt may wait to be seen.
constexpr std::chrono::milliseconds kSignalInterval{50};

class CallUnderWay;

/// A thread that does the work of long calls, one at a time. It never ends, so that TBB's workers
/// know it from call to call.
class Worker {
 public:
  Worker() {
    std::thread([this] { Work(); }).detach();
  }
  void Do(absl::FunctionRef<void()> task) {
    const std::lock_guard lock(mutex_);
    task_.emplace(task);
    has_task_.notify_one();
  }

 private:
  void Work() {
    std::unique_lock lock(mutex_);
    while (true) {
      has_task_.wait(lock, [this] { return task_.has_value(); });
      const absl::FunctionRef<void()> task = *task_;
      task_.reset();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable has_task_;
  std::optional<absl::FunctionRef<void()>> task_;
};

/// The calls of this process that are under way, for threads that have the GIL.
struct Calls {
  std::set<CallUnderWay*> under_way;
  std::vector<Worker*> idle;  ///< Those without work.
  /// That of the thread which ends the interpreter.
  std::optional<std::thread::id> ending;
  /// Where another thread has a call while the process forks, what it has locked stays locked in
  /// the child for ever.
  bool was_forked_during_call = false;

  static Calls& Get() {
    static Calls& calls = *new Calls;  // Never destroyed: threads may outlive static objects.
    return calls;
  }
  /// Gives the GIL to others for a moment.
  static void LetOthers() {
    const nb::gil_scoped_release released;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
};

/// One of them. Created and destroyed with the GIL.
class CallUnderWay {
 public:
  explicit CallUnderWay(absl::FunctionRef<void()> cancel) : cancel_(cancel) {
    Calls::Get().under_way.insert(this);
  }
  ~CallUnderWay() {
    while (is_being_cancelled_) Calls::LetOthers();
    Calls::Get().under_way.erase(this);
    if (worker_ != nullptr) Calls::Get().idle.push_back(worker_);
  }
  CallUnderWay(const CallUnderWay&) = delete;
  CallUnderWay& operator=(const CallUnderWay&) = delete;

  /// A worker for this call alone.
  Worker& worker() {
    if (worker_ != nullptr) return *worker_;
    std::vector<Worker*>& idle = Calls::Get().idle;
    if (idle.empty()) {
      worker_ = new Worker;
    } else {
      worker_ = idle.back();
      idle.pop_back();
    }
    return *worker_;
  }

  void Cancel() {
    is_being_cancelled_ = true;
    cancel_();  // May let other threads have the GIL meanwhile.
    is_being_cancelled_ = false;
  }

 private:
  const absl::FunctionRef<void()> cancel_;
  bool is_being_cancelled_ = false;
  Worker* worker_ = nullptr;  ///< Null where the call needs none.
};

/// In the child, which has none of the parent's other threads.
void NoteFork() {
  Calls::Get().idle.clear();
  if (!Calls::Get().under_way.empty()) Calls::Get().was_forked_during_call = true;
}

/// Ends all calls before the interpreter ends: it ends the threads that then ask for the GIL, in
/// the middle of what they do.
void EndCalls() {
  Calls& calls = Calls::Get();
  if (calls.was_forked_during_call) return;
  calls.ending = std::this_thread::get_id();
  for (CallUnderWay* const call : std::vector(calls.under_way.begin(), calls.under_way.end())) {
    if (calls.under_way.contains(call)) call->Cancel();
  }
  while (!calls.under_way.empty()) Calls::LetOthers();
}

/// Keeps a thread that has, or makes, a call while another one ends the interpreter, to which it
/// must not return.
void StayWhereEnding() {
  const Calls& calls = Calls::Get();
  if (!calls.ending.has_value() || *calls.ending == std::this_thread::get_id()) return;
  const nb::gil_scoped_release released;
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

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
  pthread_atfork(nullptr, nullptr, &NoteFork);
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&EndCalls));
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
  if (Calls::Get().was_forked_during_call) {
    return RefusePrecondition(
        "process", absl::StrCat(getpid()),
        "it was forked while another thread had a call under way, whose locks "
        "it keeps: fork between calls, or start it by spawn");
  }
  StayWhereEnding();
  std::optional<CallUnderWay> under_way(std::in_place, cancel);
  if (!is_long) {
    absl::Status status;
    {
      const nb::gil_scoped_release released;
      status = work();
    }
    under_way.reset();
    StayWhereEnding();
    return status;
  }
  std::mutex mutex;
  std::condition_variable is_done;
  std::optional<absl::Status> result;
  std::exception_ptr thrown;  // Such as std::bad_alloc, which is the caller's to see.
  bool was_interrupted = false;
  const auto do_work = [&] {
    absl::Status status;
    try {
      status = work();
    } catch (...) {
      thrown = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    result = std::move(status);
    is_done.notify_all();
  };
  Worker& worker = under_way->worker();
  {
    const nb::gil_scoped_release released;
    worker.Do(do_work);
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
  }
  under_way.reset();
  StayWhereEnding();
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
