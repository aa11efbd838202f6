// Where memory or a thread is lacking, a call fails and not the server.
#pragma once

#include <new>
#include <string>
#include <system_error>

#include "absl/status/status.h"

namespace quantgate {

/// `body()`, an absl::Status or StatusOr. RESOURCE_EXHAUSTED where it asks for memory or a thread
/// that the system does not give: the standard library says so by throwing. What outlives the call,
/// such as the maps of a store, is changed by functions that are noexcept: half of a change would
/// stay, and Abseil's maps do not survive it. The process ends then (server/process_memory.h).
template <typename Body>
auto GuardMemory(Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(std::string("no thread could be had: ") + error.what());
  }
}

}  // namespace quantgate
