// GuardMemory: a call that is refused memory or a thread fails, and the server goes on.
#pragma once

#include <new>
#include <string>
#include <system_error>

#include "absl/status/status.h"

namespace quantgate {

/// Returns `body()`, an absl::Status or StatusOr, or RESOURCE_EXHAUSTED where the system refuses
/// `body` memory or a thread, which the standard library reports by throwing. Objects that outlive
/// the call, such as the maps of a store, are changed by noexcept functions only: a throw would
/// leave half of a change, which Abseil's maps do not survive. Such a throw, and one where not even
/// the status can be had, ends the process (server/process_memory.h): a caller relies on being
/// told.
template <typename Body>
auto GuardMemory(Body&& body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(std::string("no thread could be had: ") + error.what());
  }
}

}  // namespace quantgate
