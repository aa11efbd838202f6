# QUANTGATE_ONE_SHOT: how the scripts in deploy/ build a fresh checkout. Most of a source's time goes into headers; this
# way a library's sources are compiled several at once, and after the engine's common headers, compiled once.

# For tests, whatever the option is where their own libraries are.
set(QUANTGATE_ONE_SHOT_TESTS ${QUANTGATE_ONE_SHOT})

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

cmake_host_system_information(RESULT QUANTGATE_CORES QUERY NUMBER_OF_LOGICAL_CORES)

# quantgate_one_shot(NAME): for a library. A unit for each core, since every unit reads the headers anew; at least 12
# sources in one, and at most 32, which take 1.3 GB of memory to compile. CMake compiles sources with options of their
# own alone; they take no precompiled headers either, which are good for one set of options only.
function(quantgate_one_shot name)
  if(NOT QUANTGATE_ONE_SHOT)
    return()
  endif()
  get_target_property(sources ${name} SOURCES)
  list(LENGTH sources count)
  math(EXPR batch "(${count} + ${QUANTGATE_CORES} - 1) / ${QUANTGATE_CORES}")
  if(batch LESS 12)
    set(batch 12)
  elseif(batch GREATER 32)
    set(batch 32)
  endif()
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
  if(QUANTGATE_SHARED_HEADERS STREQUAL "")
    return()
  endif()
  target_precompile_headers(${name} REUSE_FROM ${QUANTGATE_SHARED_HEADERS})
  foreach(source IN LISTS sources)
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    if(options)
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()

# quantgate_one_shot_test(NAME): for a test. Its programs are small and many: most of the work is in GoogleTest's headers
# and ours, and in making the tests' own code fast, which nobody waits for.
function(quantgate_one_shot_test name)
  if(NOT QUANTGATE_ONE_SHOT_TESTS)
    return()
  endif()
  if(NOT TARGET quantgate_test_headers)
    add_library(quantgate_test_headers OBJECT ${CMAKE_BINARY_DIR}/no_source.cc)
    set_target_properties(quantgate_test_headers PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(quantgate_test_headers PRIVATE ${QUANTGATE_COMPILE_OPTIONS} -O1 -pthread)
    target_link_libraries(quantgate_test_headers PRIVATE absl::status absl::statusor absl::strings GTest::gmock)
    target_precompile_headers(quantgate_test_headers PRIVATE
      <gmock/gmock.h> <gtest/gtest.h> <algorithm> <map> <string> <vector> <absl/strings/str_cat.h>
      [["kernels/base/execution.h"]] [["kernels/tensor/tensor.h"]])
  endif()
  # As the headers were compiled: GCC takes them under equal options only, and -fPIE and -fPIC differ.
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1> $<$<COMPILE_LANGUAGE:CXX>:-pthread>)
  target_precompile_headers(${name} REUSE_FROM quantgate_test_headers)
endfunction()
