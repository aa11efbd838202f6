#include "client/cli/exit.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

namespace quantgate {

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
      return kExitUsage;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return kExitPermission;
    case absl::StatusCode::kResourceExhausted:
      return kExitExhausted;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitDeadline;
    case absl::StatusCode::kCancelled:
      return kExitCancelled;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kUnknown:
    default:
      return kExitService;
  }
}

namespace {

std::atomic<bool> interrupted{false};

struct Action {
  std::mutex mutex;
  std::function<void()> run;
};

Action& TheAction() {
  static Action* action = new Action;  // Outlives the detached thread.
  return *action;
}

void OnBusError(int, siginfo_t* info, void*) {
  // Anything else is a fault of this program: the default action, restored by SA_RESETHAND, follows
  // when the instruction is repeated.
  if (info->si_code != BUS_ADRERR) return;
  constexpr char kText[] =
      "quantgate: DATA_LOSS: a tensor file became shorter, or unreadable, while it was read\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText, sizeof(kText) - 1);
  _exit(kExitService);
}

}  // namespace

void ExitWhenMappedFilesShrink() {
  struct sigaction action = {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO | SA_RESETHAND;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

void StartInterruptThread() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals] {
    for (;;) {
      int signal = 0;
      if (sigwait(&signals, &signal) != 0) continue;
      if (interrupted.exchange(true)) _exit(kExitCancelled);
      const std::lock_guard<std::mutex> lock(TheAction().mutex);
      if (TheAction().run) TheAction().run();
    }
  }).detach();
}

void SetInterruptAction(std::function<void()> on_interrupt) {
  const std::lock_guard<std::mutex> lock(TheAction().mutex);
  TheAction().run = std::move(on_interrupt);
  if (interrupted && TheAction().run) TheAction().run();
}

bool WasInterrupted() { return interrupted; }

}  // namespace quantgate
