# One Google Benchmark executable for each bench/<name>_bench.cpp, and when CUDA is built cuda_<name>_bench for each
# bench/cuda/<name>_bench.cpp; fp8_attention_bench.cpp only where cuDNN's frontend is.

redline_find_config(benchmark benchmark::benchmark_main libbenchmark-dev)
file(GLOB bench_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/bench/*_bench.cpp")
if(redline_cuda_enabled)
  file(GLOB cuda_bench_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/bench/cuda/*_bench.cpp")
  if(NOT redline_cudnn_enabled)
    list(FILTER cuda_bench_sources EXCLUDE REGEX "/fp8_attention_bench\\.cpp$")
  endif()
  list(APPEND bench_sources ${cuda_bench_sources})
endif()
foreach(source IN LISTS bench_sources)
  get_filename_component(name "${source}" NAME_WE)
  if(source MATCHES "/bench/cuda/")
    set(name cuda_${name})
  endif()
  add_executable(${name} "${source}")
  target_link_libraries(${name} PRIVATE ${redline_rooms} redline_settings benchmark::benchmark_main)
endforeach()

# What lies between a program's kernels, where the toolkit has CUPTI to see it (bench/cuda/kernel_gaps.cpp).
if(TARGET CUDA::cupti)
  add_library(kernel_gaps SHARED "${PROJECT_SOURCE_DIR}/bench/cuda/kernel_gaps.cpp")
  target_link_libraries(kernel_gaps PRIVATE redline_settings CUDA::cupti)
endif()
