# One Google Benchmark executable for each bench/<name>_bench.cpp.

redline_find_config(benchmark benchmark::benchmark_main libbenchmark-dev)
file(GLOB bench_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/bench/*_bench.cpp")
foreach(source IN LISTS bench_sources)
  get_filename_component(name "${source}" NAME_WE)
  add_executable(${name} "${source}")
  target_link_libraries(${name} PRIVATE ${redline_rooms} redline_settings benchmark::benchmark_main)
endforeach()
