# Looks for Arrow's C++ library, builds the Parquet module (redline-parquet.so) with it and says in one line whether.
# The library is a system package, or stands inside the Python package pyarrow: that of tools/setup.sh, else that of
# python3. Sets redline_parquet_enabled, and redline_parquet_libraries to the files of a wheel, which an installation
# brings along.

set(redline_parquet_enabled OFF)
set(redline_parquet_libraries)
set(parquet_link)
set(parquet_include)
set(parquet_definitions)
set(parquet_reason "REDLINE_PARQUET is OFF")

if(REDLINE_PARQUET)
  set(parquet_reason "Arrow's C++ library was not found; tools/setup.sh gets it, or pip install pyarrow")
  pkg_check_modules(parquet QUIET IMPORTED_TARGET parquet arrow)
  if(TARGET PkgConfig::parquet)
    set(parquet_link PkgConfig::parquet)
    set(parquet_from "Arrow ${parquet_arrow_VERSION}, a system package")
  else()
    include(SitePackages)
    foreach(folder IN ITEMS "${PROJECT_SOURCE_DIR}/.cache/pyarrow" LISTS site_packages)
      # A wheel's libraries have their soname for a name, and no other.
      file(GLOB parquet_library "${folder}/pyarrow/libparquet.so.*")
      file(GLOB arrow_library "${folder}/pyarrow/libarrow.so.*")
      if(parquet_library AND arrow_library AND EXISTS "${folder}/pyarrow/include/parquet/file_reader.h")
        set(redline_parquet_libraries ${parquet_library} ${arrow_library})
        set(parquet_link ${redline_parquet_libraries})
        set(parquet_include "${folder}/pyarrow/include")
        string(REGEX REPLACE "^.*\\.so\\." "" version "${arrow_library}")
        set(parquet_from "libarrow.so.${version} of ${folder}/pyarrow")
        break()
      endif()
    endforeach()
  endif()

  if(parquet_link)
    # Wheels of old were built with the strings of GCC 4; the compiler's own come first. A library of a version that the
    # module does not fit is left alone.
    set(parquet_module "${PROJECT_SOURCE_DIR}/src/data/parquet/module.cpp")
    set(parquet_reason "the module does not compile with ${parquet_from}; see parquet_try/ in the build folder")
    file(SHA1 "${parquet_module}" parquet_hash)
    string(SHA1 parquet_hash "${parquet_hash} ${parquet_from}")
    string(SUBSTRING "${parquet_hash}" 0 8 parquet_hash)
    file(WRITE "${CMAKE_BINARY_DIR}/parquet_try/main.cpp" "int main() {}\n")
    foreach(abi 1 0)
      try_compile(REDLINE_PARQUET_COMPILES_${parquet_hash}_${abi} "${CMAKE_BINARY_DIR}/parquet_try"
        SOURCES "${parquet_module}" "${CMAKE_BINARY_DIR}/parquet_try/main.cpp"
        CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${parquet_include};${PROJECT_SOURCE_DIR}/src"
        COMPILE_DEFINITIONS -D_GLIBCXX_USE_CXX11_ABI=${abi}
        LINK_LIBRARIES ${parquet_link}
        CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
        OUTPUT_VARIABLE parquet_try)
      if(parquet_try)
        file(WRITE "${CMAKE_BINARY_DIR}/parquet_try/abi_${abi}.log" "${parquet_try}")
      endif()
      if(REDLINE_PARQUET_COMPILES_${parquet_hash}_${abi})
        set(redline_parquet_enabled ON)
        set(parquet_definitions _GLIBCXX_USE_CXX11_ABI=${abi})
        break()
      endif()
    endforeach()
  endif()
endif()

if(redline_parquet_enabled)
  # Not redline_settings: the module links Arrow alone. Beside the program it is found; in lib/redline, too.
  add_library(redline_parquet MODULE "${parquet_module}")
  target_include_directories(redline_parquet PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_include_directories(redline_parquet SYSTEM PRIVATE ${parquet_include})
  target_link_libraries(redline_parquet PRIVATE ${parquet_link})
  target_compile_definitions(redline_parquet PRIVATE ${parquet_definitions})
  target_compile_options(redline_parquet PRIVATE -Wall -Wextra -Wshadow $<$<BOOL:${REDLINE_WERROR}>:-Werror>)
  set_target_properties(redline_parquet PROPERTIES
    PREFIX "" OUTPUT_NAME redline-parquet CXX_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}"
    INSTALL_RPATH "$ORIGIN")
  message(STATUS "Parquet: on (${parquet_from})")
else()
  message(STATUS "Parquet: off (${parquet_reason})")
  if(REDLINE_PARQUET)
    redline_left_out("Parquet" "${parquet_reason}" "files of Parquet cannot be read")
  endif()
endif()
