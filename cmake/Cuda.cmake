# Decides whether the CUDA backend is built, and says so in one line. Sets redline_cuda_enabled and, when it is,
# redline_cuda_libraries. REDLINE_CUDA_BUILT in the cache records the decision for scripts.

include(CheckLanguage)

set(redline_cuda_enabled OFF)
set(reason "REDLINE_CUDA is OFF")

if(NOT REDLINE_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "redline: REDLINE_CUDA is \"${REDLINE_CUDA}\"; it may be AUTO, ON or OFF.")
endif()

if(NOT REDLINE_CUDA STREQUAL "OFF")
  find_program(REDLINE_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(REDLINE_NVCC)
  if(REDLINE_NVCC)
    execute_process(COMMAND "${REDLINE_NVCC}" --version OUTPUT_VARIABLE nvcc_version ERROR_QUIET)
    string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" nvcc_version "${nvcc_version}")
    set(nvcc_version "${CMAKE_MATCH_1}")
    if(nvcc_version VERSION_LESS 12.8)
      set(reason "${REDLINE_NVCC} is version ${nvcc_version} and 12.8 is the oldest that will do")
    else()
      if(NOT DEFINED ENV{CUDACXX})
        set(ENV{CUDACXX} "${REDLINE_NVCC}")
      endif()
      if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
        set(CMAKE_CUDA_ARCHITECTURES ${REDLINE_CUDA_ARCHS})
      endif()
      check_language(CUDA)
      set(reason "${REDLINE_NVCC} does not compile a trivial program")
      if(CMAKE_CUDA_COMPILER)
        set(redline_cuda_enabled ON)
      endif()
    endif()
  else()
    set(reason "nvcc was not found")
  endif()
endif()

if(redline_cuda_enabled)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # CUDA::cudart is the shared one; two runtimes in a process do not share a context
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25.1 (Debian 12) does not know that nvcc has C++20
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  find_package(CUDAToolkit REQUIRED)
  # cuBLASLt is loaded at run time (src/ops/cuda/cublaslt.h), from where the toolkit has it or from where the loader
  # looks.
  set(redline_cuda_libraries CUDA::cudart)
  get_filename_component(cublaslt_folder "${CUDA_cublasLt_LIBRARY}" DIRECTORY)
  list(APPEND CMAKE_BUILD_RPATH "${cublaslt_folder}")
  # Line tables let Nsight show source; relaxed constexpr lets kernels call the constexpr functions of base/. fmt 9
  # takes nvcc for a compiler without constexpr, and then its checks of format strings fail.
  target_compile_options(redline_settings INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:-lineinfo;--expt-relaxed-constexpr;-DFMT_USE_CONSTEXPR=1>")
  # Kernels that use what sm_90a alone has are there to be launched only if it is among the architectures.
  set(sm90a 0)
  if("${CMAKE_CUDA_ARCHITECTURES}" MATCHES "90a")
    set(sm90a 1)
  endif()
  target_compile_options(redline_settings INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-DREDLINE_SM90A=${sm90a}>")
  include(Cudnn)
  list(JOIN CMAKE_CUDA_ARCHITECTURES ", " archs)
  message(STATUS "CUDA backend: on (nvcc ${CMAKE_CUDA_COMPILER_VERSION}, architectures ${archs})")
elseif(REDLINE_CUDA STREQUAL "ON")
  message(FATAL_ERROR "redline: REDLINE_CUDA is ON, but ${reason}. Install the CUDA toolkit, put nvcc on the PATH, or set REDLINE_CUDA=OFF.")
else()
  message(STATUS "CUDA backend: off (${reason})")
endif()
set(REDLINE_CUDA_BUILT ${redline_cuda_enabled} CACHE INTERNAL "Whether this build has the CUDA backend")
