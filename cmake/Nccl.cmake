# Looks for NCCL's header and says in one line whether ranks on cards are built. Sets redline_nccl_enabled and
# REDLINE_NCCL_INCLUDE. The library
# itself is loaded at run time; where it lies beside the header, the program looks there too.

set(redline_nccl_enabled OFF)
if(redline_cuda_enabled)
  set(nccl_hints)
  foreach(folder IN LISTS site_packages)  # of Cudnn.cmake
    list(APPEND nccl_hints "${folder}/nvidia/nccl/include")
  endforeach()
  find_path(REDLINE_NCCL_INCLUDE nccl.h HINTS ENV NCCL_HOME ${CUDAToolkit_INCLUDE_DIRS} ${nccl_hints} PATH_SUFFIXES include)
  mark_as_advanced(REDLINE_NCCL_INCLUDE)
  if(REDLINE_NCCL_INCLUDE)
    set(redline_nccl_enabled ON)
    file(STRINGS "${REDLINE_NCCL_INCLUDE}/nccl.h" lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
    string(REGEX MATCHALL "[0-9]+" version "${lines}")
    list(JOIN version "." version)
    get_filename_component(nccl_folder "${REDLINE_NCCL_INCLUDE}/../lib" ABSOLUTE)
    if(EXISTS "${nccl_folder}/libnccl.so.2")
      list(APPEND CMAKE_BUILD_RPATH "${nccl_folder}")
    endif()
    message(STATUS "ranks on cards: on (header of NCCL ${version})")
  else()
    message(STATUS "ranks on cards: off (nccl.h was not found)")
    redline_left_out("ranks on cards" "nccl.h was not found" "a run uses one card" ON_CARDS)
  endif()
else()
  message(STATUS "ranks on cards: off (no CUDA backend)")
endif()
