# `redline_settings`: what every target of this project compiles with. The warnings and host flags are for C++ files
# only: nvcc would not know them.

add_library(redline_settings INTERFACE)
target_include_directories(redline_settings INTERFACE "${PROJECT_SOURCE_DIR}/src")
target_link_libraries(redline_settings INTERFACE redline_dependencies)

# Never -ffast-math: the checks for NaN and infinity must hold. These three alone let loops with sqrt and
# multiply-adds become vector code.
set(cxx_flags -fno-math-errno -fno-trapping-math -ffp-contract=fast -fopenmp-simd)
list(APPEND cxx_flags -Wall -Wextra -Wpedantic -Wshadow)

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND cxx_flags -Wno-restrict)  # GCC 12 sees overlaps in std::string's operator+ that are not there
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND cxx_flags --param=ggc-min-heapsize=524288)  # KiB before it looks for garbage: 6% of the time, 150 MB more
endif()

if(REDLINE_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND cxx_flags -Wno-subobject-linkage)  # it takes the batches of Unity.cmake for headers
endif()

if(REDLINE_WERROR)
  list(APPEND cxx_flags -Werror)
endif()

if(REDLINE_NATIVE)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)")
    list(APPEND cxx_flags -mcpu=native)
  else()
    list(APPEND cxx_flags -march=native)
  endif()
endif()

if(REDLINE_SANITIZE STREQUAL "address")
  list(APPEND cxx_flags -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(redline_settings INTERFACE -fsanitize=address,undefined)
elseif(REDLINE_SANITIZE STREQUAL "thread")
  list(APPEND cxx_flags -fsanitize=thread -fno-omit-frame-pointer)
  target_link_options(redline_settings INTERFACE -fsanitize=thread)
elseif(NOT REDLINE_SANITIZE STREQUAL "")
  message(FATAL_ERROR "redline: REDLINE_SANITIZE is \"${REDLINE_SANITIZE}\"; it may be empty, address or thread.")
endif()

target_compile_options(redline_settings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${cxx_flags}>")
