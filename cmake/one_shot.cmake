# QUANTGATE_ONE_SHOT: how the scripts in deploy/ build a fresh checkout. Most of a source's time goes into headers; this
# way a library's sources are compiled several at once, and after the engine's common headers, compiled once.

# For tests, whatever the option is where their own libraries are.
set(QUANTGATE_ONE_SHOT_TESTS ${QUANTGATE_ONE_SHOT})

if(QUANTGATE_ONE_SHOT AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # It looks for memory to use again once it has 128 MB, and with headers as large as these finds little: a tenth of the time.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=524288>)
  # Hundreds of small programs, each with dozens of shared libraries: a third of the default linker's time. Not wherever it
  # is: some toolchains keep their libraries where only the default linker finds them.
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=gold QUANTGATE_LINKS_WITH_GOLD)
  if(QUANTGATE_LINKS_WITH_GOLD)
    # It would export names of its own from a module.
    add_link_options($<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-fuse-ld=gold>)
  endif()
endif()

# quantgate_engine_headers(NAME OPTIONS...): the engine's common headers, compiled with these options beside the usual.
function(quantgate_engine_headers name)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/no_source.cc CONTENT "")
  add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/no_source.cc)
  target_compile_options(${name} PRIVATE ${QUANTGATE_COMPILE_OPTIONS} ${ARGN})
  target_link_libraries(${name}
    PRIVATE absl::status absl::statusor absl::strings absl::time absl::function_ref)
  target_precompile_headers(${name} PRIVATE
    <algorithm> <array> <bit> <cmath> <cstdint> <cstring> <functional> <limits> <map> <memory> <mutex> <optional> <set>
    <span> <string> <string_view> <utility> <variant> <vector>
    <absl/functional/function_ref.h> <absl/status/status.h> <absl/status/statusor.h> <absl/strings/str_cat.h>
    <absl/strings/str_format.h> <absl/strings/str_join.h> <absl/time/time.h>
    [["kernels/base/execution.h"]] [["kernels/tensor/tensor.h"]])
endfunction()

# The target whose precompiled headers this folder's libraries take; empty for none. Those are good for one set of options:
# GCC takes them under another level of optimisation too, but then compiles less well, so there are some of -O3.
set(QUANTGATE_SHARED_HEADERS "")
if(QUANTGATE_ONE_SHOT)
  set(QUANTGATE_SHARED_HEADERS quantgate_common_headers)
  quantgate_engine_headers(quantgate_common_headers)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # Others name and take the compiled file otherwise.
    quantgate_engine_headers(quantgate_loop_headers ${QUANTGATE_LOOP_OPTIONS})
  endif()
endif()

cmake_host_system_information(RESULT QUANTGATE_CORES QUERY NUMBER_OF_LOGICAL_CORES)

# quantgate_one_shot(NAME): for a library. A unit for each core, since every unit reads the headers anew; at least 12
# sources in one, and at most 32, which take 1.4 GB of memory to compile. CMake compiles sources with options of their
# own alone; they take precompiled headers where there are some of these options.
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
  set(headers ${CMAKE_BINARY_DIR}/CMakeFiles/quantgate_loop_headers.dir/cmake_pch.hxx)
  foreach(source IN LISTS sources)
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    if(options)
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
    if(TARGET quantgate_loop_headers AND options STREQUAL QUANTGATE_LOOP_OPTIONS)
      set_source_files_properties(${source} PROPERTIES
        COMPILE_OPTIONS "${options};-Winvalid-pch;-include;${headers}" OBJECT_DEPENDS ${headers}.gch)
    endif()
  endforeach()
endfunction()

# What a test is compiled with, its headers too. GCC takes compiled headers under equal options only, and -fPIE and -fPIC
# differ. -Og takes a fifth less time than -O1; of tests that compute nothing themselves -O0 a quarter less again.
set(QUANTGATE_TEST_LEVEL -Og)
function(quantgate_one_shot_test_options name)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:${QUANTGATE_TEST_LEVEL}> $<$<COMPILE_LANGUAGE:CXX>:-pthread>)
endfunction()

# quantgate_test_headers(NAME DEPS ... HEADERS ...): headers that the tests declared after this in the same folder include,
# beside those that every test includes; compiled once.
function(quantgate_test_headers name)
  if(NOT QUANTGATE_ONE_SHOT_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "DEPS;HEADERS" ${ARGN})
  add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/no_source.cc)
  target_compile_options(${name} PRIVATE ${QUANTGATE_COMPILE_OPTIONS})
  target_link_libraries(${name} PRIVATE absl::status absl::statusor absl::strings GTest::gmock ${ARG_DEPS})
  quantgate_one_shot_test_options(${name})
  target_precompile_headers(${name} PRIVATE
    <gmock/gmock.h> <gtest/gtest.h> <algorithm> <map> <string> <vector> <absl/strings/str_cat.h>
    [["kernels/base/execution.h"]] [["kernels/tensor/tensor.h"]] ${ARG_HEADERS})
  set(QUANTGATE_TEST_HEADERS ${name} PARENT_SCOPE)
endfunction()

# quantgate_file_namespaces(NAME): a test's source has its own things in `namespace QG_TEST_FILE`, which is a namespace without
# a name, but a name for each source where the sources of a program are compiled at once.
function(quantgate_file_namespaces name)
  target_compile_definitions(${name} PRIVATE QG_TEST_FILE=)
  if(QUANTGATE_ONE_SHOT_TESTS)
    set_target_properties(${name} PROPERTIES
      UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0 UNITY_BUILD_UNIQUE_ID QG_TEST_FILE)
  endif()
endfunction()

# quantgate_one_shot_test(NAME): for a test, or what tests share. Its programs are small and many: most of the work is in
# GoogleTest's headers and ours, and in making the tests' own code fast, which nobody waits for.
function(quantgate_one_shot_test name)
  if(QUANTGATE_ONE_SHOT_TESTS)
    quantgate_one_shot_test_options(${name})
    target_precompile_headers(${name} REUSE_FROM ${QUANTGATE_TEST_HEADERS})
  endif()
endfunction()
