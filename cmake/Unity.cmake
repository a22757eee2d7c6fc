# redline_unity(<target>): the sources of a folder are compiled together, in batches. A header is then parsed once a batch
# and not once a file, which is most of the time. With REDLINE_UNITY=OFF every file is compiled by itself; a file may
# rely on nothing that another one of its batch includes, and the preset `single` shows that.

set(REDLINE_BATCH_BYTES 60000 CACHE STRING "Source bytes that are compiled together, about")
mark_as_advanced(REDLINE_BATCH_BYTES)

function(redline_unity target)
  if(NOT REDLINE_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  list(TRANSFORM sources REPLACE "/([^/]*)$" "/ \\1")  # a folder's own files stand before those of its folders
  list(SORT sources)
  list(TRANSFORM sources REPLACE "/ ([^/]*)$" "/\\1")
  set(batch 0)
  set(bytes 0)
  set(last_folder "")
  foreach(source IN LISTS sources)
    get_source_file_property(options "${source}" COMPILE_OPTIONS)
    get_source_file_property(definitions "${source}" COMPILE_DEFINITIONS)
    get_source_file_property(generated "${source}" GENERATED)
    if(options OR definitions OR generated OR NOT EXISTS "${source}")  # a file with flags of its own stays alone
      continue()
    endif()
    get_filename_component(folder "${source}" DIRECTORY)
    file(SIZE "${source}" size)
    math(EXPR bytes "${bytes} + ${size}")
    if(NOT folder STREQUAL last_folder OR bytes GREATER REDLINE_BATCH_BYTES)
      math(EXPR batch "${batch} + 1")
      set(bytes ${size})
    endif()
    set(last_folder "${folder}")
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${target}_${batch}")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
