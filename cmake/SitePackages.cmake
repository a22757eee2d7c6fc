# `site_packages`: the folders of the Python packages that python3 finds, of which some bring headers and libraries
# along.

set(site_packages)
find_program(REDLINE_PYTHON NAMES python3)
mark_as_advanced(REDLINE_PYTHON)
if(REDLINE_PYTHON)
  execute_process(
    COMMAND "${REDLINE_PYTHON}" -c "import site, sysconfig; print(';'.join([sysconfig.get_path('purelib'), *site.getsitepackages(), site.getusersitepackages()]))"
    OUTPUT_VARIABLE site_packages OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
