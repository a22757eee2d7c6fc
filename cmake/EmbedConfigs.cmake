# Run at build time: cmake -DOUTPUT=file.cpp -P EmbedConfigs.cmake -- a.toml b.toml ...
# Writes the files as arrays of bytes, so that any content survives.

set(files)
set(past_separator OFF)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE ${last})
  if(past_separator)
    list(APPEND files "${CMAKE_ARGV${i}}")
  elseif(CMAKE_ARGV${i} STREQUAL "--")
    set(past_separator ON)
  endif()
endforeach()

set(arrays "")
set(entries "")
set(count 0)
foreach(file IN LISTS files)
  get_filename_component(name "${file}" NAME_WLE)
  file(READ "${file}" hex HEX)
  string(LENGTH "${hex}" size)
  math(EXPR size "${size} / 2")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${hex}")
  string(APPEND arrays "// ${name}.toml\nconstexpr char kFile${count}[] = {${bytes}'\\0'};\n")
  string(APPEND entries "    EmbeddedFile{\"${name}\", std::string_view(kFile${count}, ${size})},\n")
  math(EXPR count "${count} + 1")
endforeach()

file(WRITE "${OUTPUT}" "// Generated from configs/*.toml by cmake/EmbedConfigs.cmake; changes here are lost.
#include <array>
#include <span>
#include <string_view>

#include \"config/presets.h\"

namespace redline::config {
namespace {

${arrays}
constexpr std::array<EmbeddedFile, ${count}> kFiles = {
${entries}};

}  // namespace

std::span<const EmbeddedFile> embedded_configs() { return kFiles; }

}  // namespace redline::config
")
