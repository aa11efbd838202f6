# The CUDA engine: built where the CUDA Toolkit is found (QUANTGATE_CUDA=AUTO), or demanded (ON). Sets QUANTGATE_HAS_CUDA.
set(QUANTGATE_HAS_CUDA FALSE)

# The CUDA engine is a module that is loaded at run time; what it links of ours must be fit for a shared object. Without
# CUDA as well: the compiler's cache serves both builds, and the quick start's objects serve the tests.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

if(NOT QUANTGATE_CUDA STREQUAL "OFF")
  find_package(CUDAToolkit QUIET)
  if(TARGET CUDA::cudart_static AND TARGET CUDA::cublasLt AND CUDAToolkit_NVCC_EXECUTABLE)
    # The kernels use Hopper's own instructions, which compute_90a alone has.
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 90a-real)
    endif()
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
    enable_language(CUDA)
    set(QUANTGATE_HAS_CUDA TRUE)
    # CMake 3.25 does not know that this compiler has C++20.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    if(CCACHE_PROGRAM)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
    endif()
  elseif(QUANTGATE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "QUANTGATE_CUDA=ON, but no CUDA Toolkit with nvcc and cuBLASLt was found. Install it from NVIDIA (it is no "
      "package of the distribution), say where it is with -DCUDAToolkit_ROOT=DIRECTORY, or configure with -DQUANTGATE_CUDA=OFF")
  endif()
endif()
if(NOT QUANTGATE_HAS_CUDA)
  return()
endif()

# Floating point as in the C++ sources.
set(QUANTGATE_CUDA_OPTIONS -fmad=false --expt-relaxed-constexpr -Xcompiler=-ffp-contract=off)

# quantgate_cuda_library(NAME SOURCES ... DEPS ...): host sources and kernels of one folder.
function(quantgate_cuda_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_compile_options(${name} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${QUANTGATE_COMPILE_OPTIONS}>"
    "$<$<COMPILE_LANGUAGE:CUDA>:${QUANTGATE_CUDA_OPTIONS}>")
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} CUDA::cudart_static)
  # Several host sources at once, and each kernel source alone: names in those are their own.
  set(device_sources ${ARG_SOURCES})
  list(FILTER device_sources INCLUDE REGEX "\\.cu$")
  set_source_files_properties(${device_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  quantgate_one_shot(${name})
endfunction()

# quantgate_cuda_test(NAME SOURCES ... DEPS ...): a test that needs a device. It is labelled cuda; where there is no device it
# is left out and counted, never passed (deploy/test.sh). A one-shot build leaves it to the target device_tests, since it is
# often one of a machine without a device; a bundle has it (cmake/bundle.cmake). One that needs two devices is labelled cuda2,
# by its name NAME_cuda2_test, which says so in a bundle too (tests/hardware/run_cuda_tests.sh).
function(quantgate_cuda_test name)
  if(name MATCHES "_cuda2_test$")
    quantgate_test(${name} ${ARGN} LABELS cuda2)
  else()
    quantgate_test(${name} ${ARGN} LABELS cuda)
  endif()
  set_property(GLOBAL APPEND PROPERTY QUANTGATE_DEVICE_PROGRAMS ${name})
  set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ${QUANTGATE_ONE_SHOT})
endfunction()
