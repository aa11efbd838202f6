#include "tests/client/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

extern char** environ;

namespace quantgate {
namespace {

std::vector<std::string> EnvironmentOf(const ProcessEnvironment& changes) {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string variable = *entry;
    if (!changes.contains(variable.substr(0, variable.find('=')))) variables.push_back(variable);
  }
  for (const auto& [name, value] : changes) {
    if (!value.empty()) variables.push_back(name + "=" + value);
  }
  return variables;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// Reads both pipes as they fill, so that neither blocks the program.
void Drain(int out, int err, ProcessResult& result) {
  pollfd pipes[2] = {{out, POLLIN, 0}, {err, POLLIN, 0}};
  std::string* texts[2] = {&result.out, &result.err};
  char buffer[65536];
  while (pipes[0].fd >= 0 || pipes[1].fd >= 0) {
    if (poll(pipes, 2, -1) < 0) continue;
    for (int i = 0; i < 2; ++i) {
      if (pipes[i].fd < 0 || pipes[i].revents == 0) continue;
      const ssize_t count = read(pipes[i].fd, buffer, sizeof(buffer));
      if (count > 0) {
        texts[i]->append(buffer, static_cast<size_t>(count));
      } else {
        pipes[i].fd = -1;
      }
    }
  }
}

int ExitCodeOf(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string LineOf(int descriptor) {
  std::string line;
  for (char c; read(descriptor, &c, 1) == 1 && c != '\n';) line += c;
  return line;
}

}  // namespace

BackgroundProcess::BackgroundProcess(const std::vector<std::string>& arguments,
                                     const ProcessEnvironment& environment) {
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) return;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_adddup2(&actions, err[1], 2);
  std::vector<std::string> argv = arguments;
  std::vector<std::string> envp = EnvironmentOf(environment);
  if (posix_spawn(&pid_, arguments[0].c_str(), &actions, nullptr, Pointers(argv).data(),
                  Pointers(envp).data()) != 0) {
    pid_ = -1;
  }
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(err[1]);
  out_ = out[0];
  err_ = err[0];
}

BackgroundProcess::~BackgroundProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (out_ >= 0) close(out_);
  if (err_ >= 0) close(err_);
}

std::string BackgroundProcess::ReadLine() { return LineOf(out_); }

std::string BackgroundProcess::ReadErrorLine() { return LineOf(err_); }

void BackgroundProcess::Signal(int signal) {
  if (pid_ > 0) kill(pid_, signal);
}

int BackgroundProcess::ThreadCount() const {
  siginfo_t ended{};
  waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT);
  if (ended.si_pid == pid_) return 0;
  const std::filesystem::directory_iterator threads("/proc/" + std::to_string(pid_) + "/task");
  return static_cast<int>(std::distance(begin(threads), end(threads)));
}

ProcessResult BackgroundProcess::Wait() {
  ProcessResult result;
  if (pid_ <= 0) return result;
  Drain(out_, err_, result);
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  result.exit_code = ExitCodeOf(status);
  return result;
}

ProcessResult RunProcess(const std::vector<std::string>& arguments,
                         const ProcessEnvironment& environment) {
  return BackgroundProcess(arguments, environment).Wait();
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace quantgate
