# What `make install` puts under its prefix: the program, the presets, the manual page, completions for three shells.
# The pages come from the program's own tables (`redline man`, `redline completion`), after it is linked.

set(pages "${CMAKE_BINARY_DIR}/pages")
add_custom_command(
  OUTPUT "${pages}/redline.1" "${pages}/redline.bash" "${pages}/_redline" "${pages}/redline.fish"
  COMMAND "${CMAKE_COMMAND}" -E make_directory "${pages}"
  COMMAND redline man > "${pages}/redline.1"
  COMMAND redline completion bash > "${pages}/redline.bash"
  COMMAND redline completion zsh > "${pages}/_redline"
  COMMAND redline completion fish > "${pages}/redline.fish"
  DEPENDS redline
  COMMENT "Writing the manual page and the completions"
  VERBATIM)
add_custom_target(redline_pages ALL DEPENDS "${pages}/redline.1")

# Libraries are looked for beside the program first, where packages put theirs. An installation from source also finds
# them where they lie now; tools/package.py cuts that off. In a wheel the program lies in site-packages/redline/bin, and
# NVIDIA's wheels have their libraries in folders beside: paths of their own, which LD_LIBRARY_PATH does not change.
set(library_folders "$ORIGIN/../lib/redline")
if(REDLINE_WHEEL)
  foreach(folder cu13 cudnn nccl)
    list(APPEND library_folders "$ORIGIN/../../nvidia/${folder}/lib")
  endforeach()
endif()
string(REPLACE ";" ":" wheel_folders "${library_folders}")
set(REDLINE_WHEEL_FOLDERS "${wheel_folders}" CACHE INTERNAL "Where the program of a package looks for libraries")
set_target_properties(redline PROPERTIES
  INSTALL_RPATH "${library_folders};${CMAKE_BUILD_RPATH}" INSTALL_RPATH_USE_LINK_PATH ON)

install(TARGETS redline RUNTIME DESTINATION bin)
if(redline_parquet_enabled)
  # With the libraries of a wheel, which would go with its folder.
  install(TARGETS redline_parquet LIBRARY DESTINATION lib/redline)
  install(FILES ${redline_parquet_libraries} DESTINATION lib/redline)
endif()
install(FILES ${config_files} DESTINATION share/redline/configs)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/CHANGELOG.md" DESTINATION share/doc/redline)
install(FILES "${pages}/redline.1" DESTINATION share/man/man1)
install(FILES "${pages}/redline.bash" DESTINATION share/bash-completion/completions RENAME redline)
install(FILES "${pages}/_redline" DESTINATION share/zsh/site-functions)
install(FILES "${pages}/redline.fish" DESTINATION share/fish/vendor_completions.d)
