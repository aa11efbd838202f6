// Programs run as processes, for tests of what a shell sees.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace quantgate {

struct ProcessResult {
  int exit_code = -1;  ///< 128 + signal when a signal ended it.
  std::string out;
  std::string err;
};

/// Variables to set; an empty value removes one.
using ProcessEnvironment = std::map<std::string, std::string>;

/// Runs a program to its end.
ProcessResult RunProcess(const std::vector<std::string>& arguments,
                         const ProcessEnvironment& environment = {});

/// A program that runs beside the test.
class BackgroundProcess {
 public:
  BackgroundProcess(const std::vector<std::string>& arguments,
                    const ProcessEnvironment& environment = {});
  /// Kills it if it still runs.
  ~BackgroundProcess();
  BackgroundProcess(const BackgroundProcess&) = delete;
  BackgroundProcess& operator=(const BackgroundProcess&) = delete;

  /// The next line of stdout, without its end; empty at the end of the stream.
  std::string ReadLine();
  /// Of stderr; what is read is not in Wait's.
  std::string ReadErrorLine();
  void Signal(int signal);
  /// How many threads it has; 0 once it has ended.
  int ThreadCount() const;
  /// The rest of its output and its exit code.
  ProcessResult Wait();

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  int err_ = -1;
};

std::string ReadFile(const std::string& path);
void WriteFile(const std::string& path, const std::string& text);

}  // namespace quantgate
