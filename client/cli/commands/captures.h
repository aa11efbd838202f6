// What verify and diff have in common where they read captures of training steps.
#pragma once

#include <set>
#include <string>

#include "client/capture.h"
#include "client/capture_report.h"
#include "client/cli/options/invocation.h"

namespace quantgate {

/// Draws the captured calls on the progress bar.
inline CaptureProgress CaptureProgressOf(Invocation& invocation) {
  return [&invocation](const std::string& what, int64_t done, int64_t count) {
    invocation.progress().Update(what, done, count);
  };
}

/// The files of a capture, so that no report overwrites them.
inline std::set<std::string> FilesOf(const Capture& capture) {
  std::set<std::string> files(capture.manifests.begin(), capture.manifests.end());
  for (const CapturedCall& call : capture.calls) files.insert(PathOf(capture, call));
  return files;
}

}  // namespace quantgate
