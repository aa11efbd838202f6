# One way to declare a library, a program and a test, so that flags are the same everywhere.

# Floating point is part of the interface: no contraction, no fast math, anywhere.
set(QUANTGATE_COMPILE_OPTIONS -Wall -Wextra -Wno-unused-parameter -ffp-contract=off)

# quantgate_library(NAME SOURCES ... DEPS ...)
function(quantgate_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_compile_options(${name} PRIVATE ${QUANTGATE_COMPILE_OPTIONS})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
  quantgate_one_shot(${name})
endfunction()

# quantgate_program(NAME SOURCES ... DEPS ...)
function(quantgate_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_compile_options(${name} PRIVATE ${QUANTGATE_COMPILE_OPTIONS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
endfunction()

# quantgate_test(NAME SOURCES ... DEPS ... LABELS ... [HAS_EXHAUSTIVE]): one program, run as one ctest entry. Tests of a
# folder that need the same are one program: their headers are most of the work. HAS_EXHAUSTIVE: one with more cases than a
# run of all tests has time for (tests/base/exhaustive.h) is a second entry NAME_exhaustive, labelled exhaustive, which runs all.
# Test data is found through QUANTGATE_SOURCE_DIR, by what a bundle has through tests/base/repository_file.h.
function(quantgate_test name)
  cmake_parse_arguments(ARG "HAS_EXHAUSTIVE" "" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_compile_options(${name} PRIVATE ${QUANTGATE_COMPILE_OPTIONS})
  target_compile_definitions(${name} PRIVATE QUANTGATE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  quantgate_file_namespaces(${name})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  quantgate_one_shot_test(${name})
  add_test(NAME ${name} COMMAND ${name})
  if(ARG_LABELS)
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}")
  endif()
  if(ARG_HAS_EXHAUSTIVE)
    add_test(NAME ${name}_exhaustive COMMAND ${name})
    set_tests_properties(${name}_exhaustive PROPERTIES
      ENVIRONMENT QUANTGATE_EXHAUSTIVE=1 LABELS exhaustive TIMEOUT 3600)
  endif()
endfunction()

# quantgate_test_library(NAME SOURCES ... DEPS ...): what several tests share, compiled once.
function(quantgate_test_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC EXCLUDE_FROM_ALL ${ARG_SOURCES})
  target_compile_options(${name} PRIVATE ${QUANTGATE_COMPILE_OPTIONS})
  target_compile_definitions(${name} PRIVATE QUANTGATE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} GTest::gmock)
  quantgate_one_shot_test(${name})
endfunction()

# quantgate_benchmark(NAME SOURCES ... DEPS ...): Google Benchmark program under build/*/bench.
function(quantgate_benchmark name)
  if(NOT QUANTGATE_BENCHMARKS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_compile_options(${name} PRIVATE ${QUANTGATE_COMPILE_OPTIONS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} benchmark::benchmark_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  if(name MATCHES "cuda")
    set_property(GLOBAL APPEND PROPERTY QUANTGATE_DEVICE_BENCHMARKS ${name})
  endif()
endfunction()
