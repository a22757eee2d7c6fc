# One static library a room: redline_<room>, linked to every room on a lower floor. `redline_rooms` lists them all.
# A room's cuda/ folders are built when CUDA is, and its no_cuda.cpp files when it is not; never both. The same holds for
# cuda/cudnn/ and no_cudnn.cpp.

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
embed_files(embedded_configs redline::config::embedded_configs ${config_files})  # declared in src/config/presets.h
set(page_files page.html page_plots.js page_content.js)
list(TRANSFORM page_files PREPEND "${PROJECT_SOURCE_DIR}/src/report/")
embed_files(embedded_page redline::report::page_files ${page_files})  # declared in src/report/page.cpp

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
    list(REMOVE_ITEM sources "${PROJECT_SOURCE_DIR}/src/cli/main.cpp")
    if(room STREQUAL "config")
      list(APPEND sources "${embedded_configs}")
    elseif(room STREQUAL "report")
      list(APPEND sources "${embedded_page}")
    endif()
    if(NOT sources AND NOT kernels)
      continue()
    endif()

    add_library(redline_${room} STATIC ${sources} ${kernels})
    target_link_libraries(redline_${room} PUBLIC ${lower_rooms} redline_settings)
    if(redline_cuda_enabled)
      target_link_libraries(redline_${room} PUBLIC ${redline_cuda_libraries})
    endif()
    if(room STREQUAL "cli")
      target_compile_definitions(redline_cli PRIVATE REDLINE_VERSION="${PROJECT_VERSION}")
    endif()
    list(APPEND this_floor redline_${room})
  endforeach()
  # The linker reads archives from left to right, so the higher floors come first.
  list(PREPEND lower_rooms ${this_floor})
endforeach()
set(redline_rooms ${lower_rooms})
