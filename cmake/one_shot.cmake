# QUANTGATE_ONE_SHOT: how the scripts in deploy/ build a fresh checkout. Most of a source's time goes into headers; this
# way a library's sources are compiled several at once, and after the engine's common headers, compiled once.

# The target whose precompiled headers this folder's libraries take; empty for none.
set(QUANTGATE_SHARED_HEADERS "")
if(QUANTGATE_ONE_SHOT)
  set(QUANTGATE_SHARED_HEADERS quantgate_common_headers)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/no_source.cc CONTENT "")
  add_library(quantgate_common_headers OBJECT ${CMAKE_BINARY_DIR}/no_source.cc)
  target_compile_options(quantgate_common_headers PRIVATE ${QUANTGATE_COMPILE_OPTIONS})
  target_link_libraries(quantgate_common_headers
    PRIVATE absl::status absl::statusor absl::strings absl::time absl::function_ref)
  target_precompile_headers(quantgate_common_headers PRIVATE
    <algorithm> <array> <bit> <cmath> <cstdint> <cstring> <functional> <limits> <map> <memory> <mutex> <optional> <set>
    <span> <string> <string_view> <utility> <variant> <vector>
    <absl/functional/function_ref.h> <absl/status/status.h> <absl/status/statusor.h> <absl/strings/str_cat.h>
    <absl/strings/str_format.h> <absl/strings/str_join.h> <absl/time/time.h>
    [["kernels/base/execution.h"]] [["kernels/tensor/tensor.h"]])
endif()

# quantgate_one_shot(NAME): for a library. CMake compiles sources with options of their own alone; they take no
# precompiled headers either, which are good for one set of options only.
function(quantgate_one_shot name)
  if(NOT QUANTGATE_ONE_SHOT)
    return()
  endif()
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
  if(QUANTGATE_SHARED_HEADERS STREQUAL "")
    return()
  endif()
  target_precompile_headers(${name} REUSE_FROM ${QUANTGATE_SHARED_HEADERS})
  get_target_property(sources ${name} SOURCES)
  foreach(source IN LISTS sources)
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    if(options)
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()
