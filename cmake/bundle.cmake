# What `cmake --install` puts in place, and the target `bundle`: quantgate-VERSION-ARCHITECTURE.tar.xz, a folder that runs
# wherever it is unpacked. It has the programs and the shared libraries that they need beyond the C library's; a build with
# CUDA adds the module, the programs that need a device and the files that they read. Of CUDA the host needs the driver and
# cuBLASLt.

# Found by programs through an RPATH and no RUNPATH: only the former also serves the libraries' own needs, which the
# distribution's files say nothing about, and a host's LD_LIBRARY_PATH cannot put other versions before them.
function(quantgate_bundled_program)
  foreach(program IN LISTS ARGN)
    target_link_options(${program} PRIVATE LINKER:--disable-new-dtags)
    # Also where it is built: in place of it CMake would leave room for it by empty entries, which are the folder that
    # the program happens to be started in.
    set_target_properties(${program} PROPERTIES INSTALL_RPATH "\$ORIGIN/../lib" BUILD_WITH_INSTALL_RPATH ON)
  endforeach()
endfunction()

# The C library is the system's; the driver, cuBLASLt and NCCL are the GPU host's.
set(bundle_excluded
  PRE_EXCLUDE_REGEXES
    "^ld-linux" "^lib(c|m|mvec|dl|rt|pthread|resolv|util|anl|nsl)\\.so" "^lib(cuda|cublas|cublasLt|nccl|nvrtc)\\.so")

quantgate_bundled_program(quantgate quantgated)
install(TARGETS quantgate quantgated RUNTIME_DEPENDENCY_SET program_libraries
  RUNTIME DESTINATION bin COMPONENT programs)
install(FILES data/bytegpt_block1.safetensors DESTINATION data COMPONENT programs)
install(FILES README.md DESTINATION . COMPONENT programs)
install(DIRECTORY docs DESTINATION . COMPONENT programs)
set(bundle_needs quantgate quantgated)
set(bundle_components programs)

if(QUANTGATE_HAS_CUDA)
  # RUNPATH here: LD_LIBRARY_PATH goes before it, so that another cuBLASLt can be put under test.
  set_target_properties(quantgate_cuda PROPERTIES INSTALL_RPATH
    "\$ORIGIN:/usr/local/cuda/lib64:/usr/local/cuda/targets/x86_64-linux/lib")
  install(TARGETS quantgate_cuda RUNTIME_DEPENDENCY_SET program_libraries
    LIBRARY DESTINATION lib COMPONENT programs)
  list(APPEND bundle_needs quantgate_cuda)
endif()
install(RUNTIME_DEPENDENCY_SET program_libraries ${bundle_excluded} LIBRARY DESTINATION lib COMPONENT programs)

# Only by name: an ordinary installation has no tests. What is installed is built with all, so that a one-shot build, which
# leaves these programs to the target device_tests, has no bundle of them.
get_property(device_programs GLOBAL PROPERTY QUANTGATE_DEVICE_PROGRAMS)
get_property(device_benchmarks GLOBAL PROPERTY QUANTGATE_DEVICE_BENCHMARKS)
add_custom_target(device_tests DEPENDS ${device_programs} ${device_benchmarks})
if(device_programs AND NOT QUANTGATE_ONE_SHOT)
  quantgate_bundled_program(${device_programs} ${device_benchmarks})
  install(TARGETS ${device_programs} RUNTIME_DEPENDENCY_SET test_libraries
    RUNTIME DESTINATION tests COMPONENT device_tests EXCLUDE_FROM_ALL OPTIONAL)
  if(device_benchmarks)
    install(TARGETS ${device_benchmarks} RUNTIME_DEPENDENCY_SET test_libraries
      RUNTIME DESTINATION bench COMPONENT device_tests EXCLUDE_FROM_ALL OPTIONAL)
  endif()
  install(RUNTIME_DEPENDENCY_SET test_libraries ${bundle_excluded}
    LIBRARY DESTINATION lib COMPONENT device_tests EXCLUDE_FROM_ALL)
  install(DIRECTORY tests/data DESTINATION tests COMPONENT device_tests EXCLUDE_FROM_ALL)
  install(PROGRAMS tests/hardware/run_cuda_tests.sh DESTINATION . COMPONENT device_tests EXCLUDE_FROM_ALL)
  list(APPEND bundle_needs device_tests)
  list(APPEND bundle_components device_tests)
endif()

set(bundle_name quantgate-${PROJECT_VERSION}-${CMAKE_SYSTEM_PROCESSOR})
set(bundle_commands COMMAND ${CMAKE_COMMAND} -E rm -rf ${bundle_name})
foreach(component IN LISTS bundle_components)
  list(APPEND bundle_commands COMMAND ${CMAKE_COMMAND} --install . --strip --component ${component} --prefix ${bundle_name})
endforeach()
add_custom_target(bundle ${bundle_commands}
  COMMAND ${CMAKE_SOURCE_DIR}/deploy/check_bundle.sh ${bundle_name}
  COMMAND ${CMAKE_COMMAND} -E tar cJf ${bundle_name}.tar.xz ${bundle_name}
  WORKING_DIRECTORY ${CMAKE_BINARY_DIR} VERBATIM)
add_dependencies(bundle ${bundle_needs})
