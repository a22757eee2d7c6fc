# Finds what redline links and gathers it in `redline_dependencies`. A missing package is one error that names the
# Debian or Ubuntu package to install.

function(redline_missing what apt_package)
  message(FATAL_ERROR "redline: ${what} was not found. Install it with `apt-get install ${apt_package}`, "
                      "or run tools/setup.sh, which installs everything in packages.txt.")
endfunction()

# redline_find_config(<package> <target> <apt package>): a package with its own CMake configuration.
macro(redline_find_config package target apt_package)
  find_package(${package} QUIET)
  if(NOT TARGET ${target})
    redline_missing(${package} ${apt_package})
  endif()
endmacro()

# redline_find_pkg_config(<module> <apt package>): makes PkgConfig::<module>.
macro(redline_find_pkg_config module apt_package)
  pkg_check_modules(${module} QUIET IMPORTED_TARGET ${module})
  if(NOT TARGET PkgConfig::${module})
    redline_missing(${module} ${apt_package})
  endif()
endmacro()

find_package(PkgConfig QUIET)
if(NOT PKG_CONFIG_FOUND)
  redline_missing(pkg-config pkg-config)
endif()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
redline_find_config(fmt fmt::fmt libfmt-dev)
redline_find_config(CLI11 CLI11::CLI11 libcli11-dev)
redline_find_config(nlohmann_json nlohmann_json::nlohmann_json nlohmann-json3-dev)
redline_find_pkg_config(tomlplusplus libtomlplusplus-dev)
redline_find_pkg_config(libxxhash libxxhash-dev)
redline_find_pkg_config(openblas libopenblas-dev)
redline_find_pkg_config(libpcre2-8 libpcre2-dev)
redline_find_pkg_config(libutf8proc libutf8proc-dev)
redline_find_pkg_config(sentencepiece libsentencepiece-dev)
redline_find_pkg_config(zlib zlib1g-dev)
redline_find_pkg_config(libzstd libzstd-dev)

# The header stands in a multiarch folder on some systems; pkg-config knows it, and a search finds it where it does not.
find_path(REDLINE_CBLAS_INCLUDE cblas.h
  HINTS ${openblas_INCLUDE_DIRS} PATH_SUFFIXES openblas openblas-pthread
        ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-pthread ${CMAKE_LIBRARY_ARCHITECTURE})
mark_as_advanced(REDLINE_CBLAS_INCLUDE)
if(NOT REDLINE_CBLAS_INCLUDE)
  redline_missing(cblas.h libopenblas-dev)
endif()

add_library(redline_dependencies INTERFACE)
target_include_directories(redline_dependencies SYSTEM INTERFACE "${REDLINE_CBLAS_INCLUDE}")
target_link_libraries(redline_dependencies INTERFACE
  fmt::fmt CLI11::CLI11 nlohmann_json::nlohmann_json
  PkgConfig::tomlplusplus PkgConfig::libxxhash PkgConfig::openblas
  PkgConfig::libpcre2-8 PkgConfig::libutf8proc PkgConfig::sentencepiece PkgConfig::zlib PkgConfig::libzstd
  Threads::Threads ${CMAKE_DL_LIBS})
