# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#
# Build rules of the house: layered libraries, BPF objects, tests.
#
#   sluice_library(NAME FLOOR n [DEPS ...] [LINK ...])   src/NAME/*.cpp, src/NAME/*/*.cpp -> target sluice_NAME
#   sluice_bpf_object(TARGET SOURCE OUTPUT [OPTION...])  clang -target bpf, rebuilt when a header changes
#   sluice_test(NAME SOURCES ... [LINK ...] [LABELS ...] [PRIVILEGED] [TIER quick|full])
#
# FLOOR is the storey of docs/architecture.md: a library may depend only on libraries of a lower floor, checked here, and by
# the include scan in tests/lint.
include(CMakeParseArguments)

set_property(GLOBAL PROPERTY SLUICE_FLOORS "")

function(sluice_library name)
  cmake_parse_arguments(A "" "FLOOR" "DEPS;LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp
       ${CMAKE_SOURCE_DIR}/src/${name}/*/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
  if(sources)
    add_library(sluice_${name} STATIC ${sources})
    set(scope PUBLIC)
  else()  # headers only
    add_library(sluice_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(sluice_${name} ${scope} ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include
                             ${CMAKE_SOURCE_DIR}/bpf/include)
  set_property(GLOBAL PROPERTY SLUICE_FLOOR_${name} ${A_FLOOR})
  foreach(dep ${A_DEPS})
    get_property(floor GLOBAL PROPERTY SLUICE_FLOOR_${dep})
    if(NOT DEFINED floor OR "${floor}" STREQUAL "")
      message(FATAL_ERROR "sluice_library(${name}): ${dep} is not declared before it")
    endif()
    if(NOT floor LESS A_FLOOR)
      message(FATAL_ERROR "sluice_library(${name}): floor ${A_FLOOR} may not use ${dep} on floor ${floor}: arrows only run down")
    endif()
    target_link_libraries(sluice_${name} ${scope} sluice_${dep})
  endforeach()
  target_link_libraries(sluice_${name} ${scope} ${A_LINK} sluice_flags)
endfunction()

string(TOLOWER "${CMAKE_SYSTEM_PROCESSOR}" _arch)
if(_arch STREQUAL "x86_64")
  set(SLUICE_BPF_ARCH x86)
elseif(_arch STREQUAL "aarch64")
  set(SLUICE_BPF_ARCH arm64)
else()
  message(FATAL_ERROR "no vmlinux.h for ${CMAKE_SYSTEM_PROCESSOR}; add one with tools/vmlinux")
endif()
find_program(SLUICE_BPF_CLANG NAMES clang-19 REQUIRED)

function(sluice_bpf_object target source output)
  get_filename_component(dir ${output} DIRECTORY)
  file(MAKE_DIRECTORY ${dir})
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${SLUICE_BPF_CLANG} -g -O2 -target bpf -mcpu=v3 -D__TARGET_ARCH_${SLUICE_BPF_ARCH} -Wall -Wextra -Werror
            -Wno-unused-parameter -Wno-missing-declarations -fdebug-prefix-map=${CMAKE_SOURCE_DIR}=.
            -I${CMAKE_SOURCE_DIR}/bpf/include -I${CMAKE_SOURCE_DIR}/bpf/include/vmlinux/${SLUICE_BPF_ARCH}
            ${ARGN} -MD -MF ${output}.d -MT ${output} -c ${CMAKE_SOURCE_DIR}/${source} -o ${output}
    DEPENDS ${CMAKE_SOURCE_DIR}/${source}
    DEPFILE ${output}.d
    COMMENT "BPF ${source}"
    VERBATIM)
  add_custom_target(${target} ALL DEPENDS ${output})
endfunction()

# A bundle is a folder with bundle.yaml and one .bpf.c of the folder's name; the build lays it out as it is installed:
# ${CMAKE_BINARY_DIR}/bundles/<name>/<version>/{bundle.yaml,*.o}.
function(sluice_bundle folder)
  get_filename_component(name ${folder} NAME)
  file(STRINGS ${CMAKE_SOURCE_DIR}/${folder}/bundle.yaml version_line REGEX "^version:")
  string(REGEX REPLACE "^version:[ ]*\"?([0-9.]+)\"?.*" "\\1" version "${version_line}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/bundle.yaml)
  set(out ${CMAKE_BINARY_DIR}/bundles/${name}/${version})
  file(GLOB sources RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.bpf.c)
  foreach(source ${sources})
    get_filename_component(stem ${source} NAME_WLE)
    sluice_bpf_object(bundle_${name}_${stem} ${source} ${out}/${stem}.o)
  endforeach()
  configure_file(${CMAKE_SOURCE_DIR}/${folder}/bundle.yaml ${out}/bundle.yaml COPYONLY)
endfunction()

function(sluice_test name)
  cmake_parse_arguments(A "PRIVILEGED" "TIER" "SOURCES;LINK;LABELS;ARGS" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE ${A_LINK} GTest::gmock GTest::gtest GTest::gtest_main sluice_flags)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE SLUICE_BUILD_DIR="${CMAKE_BINARY_DIR}" SLUICE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name} ${A_ARGS})
  if(NOT A_TIER)
    set(A_TIER quick)
  endif()
  if(SLUICE_SANITIZE STREQUAL thread)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT_MODIFICATION
                         "TSAN_OPTIONS=set:halt_on_error=1")
  endif()
  set(labels ${A_LABELS} ${A_TIER})
  if(A_PRIVILEGED)
    list(APPEND labels privileged)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
  # No TIMEOUT: whoever runs them knows how fast the machine is (./dev test, tests/vm/suite.sh).
  set_tests_properties(${name} PROPERTIES LABELS "${labels}")
endfunction()
