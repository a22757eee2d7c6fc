# One static library a room: redline_<room>, linked to every room on a lower floor. `redline_rooms` lists them all. A
# room's cuda/ folders are built when CUDA is, and its no_cuda.cpp files when it is not; never both. The same holds for
# cuda/cudnn/ and no_cudnn.cpp, for dist/mpi/ and no_mpi.cpp, and for dist/nccl/ and no_nccl.cpp. The Parquet module is
# a library of its own (Parquet.cmake).

# Files as bytes inside the program: embed_files(<output variable> <function that gives them> <files>).
function(embed_files variable function)
  string(REGEX REPLACE "^.*::" "" name "${function}")
  set(output "${CMAKE_BINARY_DIR}/generated/${name}.cpp")
  add_custom_command(
    OUTPUT "${output}"
    COMMAND "${CMAKE_COMMAND}" "-DOUTPUT=${output}" "-DFUNCTION=${function}" -P "${PROJECT_SOURCE_DIR}/cmake/EmbedFiles.cmake" -- ${ARGN}
    DEPENDS ${ARGN} "${PROJECT_SOURCE_DIR}/cmake/EmbedFiles.cmake"
    COMMENT "Embedding files as ${function}"
    VERBATIM)
  set(${variable} "${output}" PARENT_SCOPE)
endfunction()
file(GLOB config_files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/configs/*.toml")
list(SORT config_files)
embed_files(embedded_configs redline::config::embedded_configs ${config_files})  # declared in src/config/load.h
set(page_files page.html page_plots.js page_content.js page_follow.js)
list(TRANSFORM page_files PREPEND "${PROJECT_SOURCE_DIR}/src/report/")
embed_files(embedded_page redline::report::page_files ${page_files})  # declared in src/report/page.cpp
set(case_files config.json model.safetensors oracle.safetensors)
list(TRANSFORM case_files PREPEND "${PROJECT_SOURCE_DIR}/src/infer/check_case/")
embed_files(embedded_case redline::infer::check_case ${case_files})  # declared in src/infer/verify.h

# Asked anew by every build, since a tag is no file that CMake could watch; written only when it changes.
set(version_file "${CMAKE_BINARY_DIR}/generated/version.cpp")
add_custom_target(redline_version
  COMMAND "${CMAKE_COMMAND}" "-DSOURCE=${PROJECT_SOURCE_DIR}" "-DVERSION=${PROJECT_VERSION}" "-DOUTPUT=${version_file}"
          -P "${PROJECT_SOURCE_DIR}/cmake/WriteVersion.cmake"
  BYPRODUCTS "${version_file}"
  COMMENT "Asking git for the version"
  VERBATIM)

# Attention by cuDNN builds plans at the start and launches them. The templates of its frontend take 28 s to compile,
# and 72 s with -O3.
set_source_files_properties("${PROJECT_SOURCE_DIR}/src/ops/cuda/cudnn/attention_cudnn.cpp"
  PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O1>")

# The same bits of every normal in every build, on processors and cards: products and sums are rounded one by one.
set_source_files_properties("${PROJECT_SOURCE_DIR}/src/base/random.cpp" PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
set_source_files_properties("${PROJECT_SOURCE_DIR}/src/device/cuda/draw.cu" PROPERTIES COMPILE_OPTIONS -fmad=false)

set(redline_rooms)
set(lower_rooms)
foreach(floor IN LISTS redline_floors)
  string(REPLACE " " ";" rooms "${floor}")
  set(this_floor)
  foreach(room IN LISTS rooms)
    set(folder "${PROJECT_SOURCE_DIR}/src/${room}")
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${folder}/*.cpp")
    file(GLOB_RECURSE kernels CONFIGURE_DEPENDS "${folder}/*.cu")
    if(redline_cuda_enabled)
      list(FILTER sources EXCLUDE REGEX "/no_cuda\\.cpp$")
      if(redline_cudnn_enabled)
        list(FILTER sources EXCLUDE REGEX "/no_cudnn\\.cpp$")
      else()
        list(FILTER sources EXCLUDE REGEX "/cuda/cudnn/")
      endif()
    else()
      list(FILTER sources EXCLUDE REGEX "/src/${room}/(.*/)?cuda/")
      set(kernels)
    endif()
    foreach(engine mpi nccl)
      if(redline_${engine}_enabled)
        list(FILTER sources EXCLUDE REGEX "/no_${engine}\\.cpp$")
      else()
        list(FILTER sources EXCLUDE REGEX "/src/dist/${engine}/")
        list(FILTER kernels EXCLUDE REGEX "/src/dist/${engine}/")
      endif()
    endforeach()
    list(REMOVE_ITEM sources "${PROJECT_SOURCE_DIR}/src/cli/main.cpp" "${PROJECT_SOURCE_DIR}/src/data/parquet/module.cpp")
    if(room STREQUAL "base")
      list(APPEND sources "${CMAKE_BINARY_DIR}/generated/left_out.cpp")  # written by LeftOut.cmake
    elseif(room STREQUAL "config")
      list(APPEND sources "${embedded_configs}")
    elseif(room STREQUAL "infer")
      list(APPEND sources "${embedded_case}")
    elseif(room STREQUAL "report")
      list(APPEND sources "${embedded_page}")
    elseif(room STREQUAL "cli")
      list(APPEND sources "${version_file}")
    endif()
    if(NOT sources AND NOT kernels)
      continue()
    endif()

    add_library(redline_${room} STATIC ${sources} ${kernels})
    redline_unity(redline_${room})
    target_link_libraries(redline_${room} PUBLIC ${lower_rooms} redline_settings)
    if(room MATCHES "^(cli|config|perf|program|report|train)$")  # no work of theirs is long: a fifth less to compile
      target_compile_options(redline_${room} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
    endif()
    if(redline_cuda_enabled)
      target_link_libraries(redline_${room} PUBLIC ${redline_cuda_libraries})
    endif()
    if(room STREQUAL "device" AND redline_cuda_enabled)
      list(JOIN CMAKE_CUDA_ARCHITECTURES " " archs)
      target_compile_definitions(redline_device PRIVATE REDLINE_CUDA_ARCHS="${archs}")
    endif()
    if(room STREQUAL "dist" AND redline_mpi_enabled)
      target_link_libraries(redline_dist PRIVATE MPI::MPI_CXX)
    endif()
    if(room STREQUAL "dist" AND redline_nccl_enabled)
      target_include_directories(redline_dist SYSTEM PRIVATE "${REDLINE_NCCL_INCLUDE}")
    endif()
    if(room STREQUAL "cli")
      add_dependencies(redline_cli redline_version)
    endif()
    list(APPEND this_floor redline_${room})
  endforeach()
  # The linker reads archives from left to right, so the higher floors come first.
  list(PREPEND lower_rooms ${this_floor})
endforeach()
set(redline_rooms ${lower_rooms})
