# One GoogleTest executable a folder of tests/: tests_<folder>, its tests named <folder>/Suite.Name in ctest.
# A room's tests link that room and the floors under it; any other folder (end to end) links everything. Tests under a
# cuda/ folder are built when CUDA is, and skip themselves on a machine without a card.

include(GoogleTest)
redline_find_config(GTest GTest::gtest_main libgtest-dev)

# What tests of several rooms share. An archive: a low room's tests take from it only what they use.
file(GLOB testing_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/testing/*.cpp")
list(FILTER testing_sources EXCLUDE REGEX "_test\\.cpp$")
if(testing_sources)
  set_source_files_properties("${PROJECT_SOURCE_DIR}/tests/testing/paths.cpp" PROPERTIES
    COMPILE_DEFINITIONS "REDLINE_BINARY=\"${CMAKE_BINARY_DIR}/redline\";REDLINE_SOURCE_DIR=\"${PROJECT_SOURCE_DIR}\"")
  add_library(redline_testing STATIC ${testing_sources})
  redline_unity(redline_testing)
  target_include_directories(redline_testing PUBLIC "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(redline_testing PUBLIC redline_settings GTest::gtest)
endif()

file(GLOB test_folders CONFIGURE_DEPENDS LIST_DIRECTORIES true RELATIVE "${PROJECT_SOURCE_DIR}/tests" "${PROJECT_SOURCE_DIR}/tests/*")
string(REPLACE " " ";" all_rooms "${redline_floors}")
foreach(folder IN LISTS test_folders)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/${folder}/*_test.cpp")
  if(NOT redline_cuda_enabled)
    list(FILTER sources EXCLUDE REGEX "/tests/${folder}/(.*/)?cuda/")
  endif()
  if(NOT sources)
    continue()
  endif()
  set(target tests_${folder})
  add_executable(${target} ${sources})
  redline_unity(${target})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(${target} PRIVATE GTest::gtest_main)
  # Tests are compiled more often than they are run: -O0 takes a quarter less than -O1. Those of numbers compute much.
  if(folder MATCHES "^(ops|optim|model)$")
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  else()
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release,RelWithDebInfo>:-O0>)
  endif()
  if(testing_sources)
    target_link_libraries(${target} PRIVATE redline_testing)
  endif()
  if(TARGET redline_${folder} AND folder IN_LIST all_rooms)
    target_link_libraries(${target} PRIVATE redline_${folder} redline_settings)
  elseif(folder IN_LIST all_rooms)
    target_link_libraries(${target} PRIVATE redline_settings)  # a room of headers only
  else()
    target_link_libraries(${target} PRIVATE ${redline_rooms} redline_settings)
  endif()
  if(TARGET redline AND folder MATCHES "^(cli|end_to_end)$")  # these run the program itself
    add_dependencies(${target} redline)
  endif()
  if(TARGET redline_parquet AND folder STREQUAL "data")
    add_dependencies(${target} redline_parquet)
  endif()
  set(filter "*")
  if(folder STREQUAL "program" AND redline_cuda_enabled)  # has tests that take all of a card's memory
    set(filter "-AloneOnCard.*")
    gtest_discover_tests(${target} TEST_PREFIX "${folder}/" TEST_FILTER "AloneOnCard.*" DISCOVERY_TIMEOUT 60
      PROPERTIES TIMEOUT 600 RUN_SERIAL ON)
  endif()
  gtest_discover_tests(${target} TEST_PREFIX "${folder}/" TEST_FILTER "${filter}" DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT 600)
endforeach()

# Ranks on CPUs (tests/dist/cpu_group_test.cpp); over MPI where it is built.
add_executable(tests_dist_cpu "${PROJECT_SOURCE_DIR}/tests/dist/cpu/ranks.cpp")
target_link_libraries(tests_dist_cpu PRIVATE redline_dist redline_settings)
target_compile_definitions(tests_dist PRIVATE REDLINE_CPU_RANKS="$<TARGET_FILE:tests_dist_cpu>")
add_dependencies(tests_dist tests_dist_cpu)
if(redline_mpi_enabled)
  target_compile_definitions(tests_dist PRIVATE REDLINE_MPIRUN="${MPIEXEC_EXECUTABLE}")
endif()

# Ranks on a card (tests/dist/cuda/nccl_test.cpp).
if(redline_nccl_enabled)
  add_executable(tests_dist_nccl "${PROJECT_SOURCE_DIR}/tests/dist/nccl/ranks.cpp")
  target_link_libraries(tests_dist_nccl PRIVATE redline_dist redline_settings)
  target_compile_definitions(tests_dist PRIVATE REDLINE_NCCL_RANKS="$<TARGET_FILE:tests_dist_nccl>")
  add_dependencies(tests_dist tests_dist_nccl)
endif()

# Stands in for the driver's libnvidia-ml.so.1.
add_library(redline_fake_nvml MODULE "${PROJECT_SOURCE_DIR}/tests/device/fake_nvml/fake_nvml.cpp")
target_link_libraries(redline_fake_nvml PRIVATE redline_settings)
target_compile_definitions(tests_device PRIVATE REDLINE_FAKE_NVML="$<TARGET_FILE:redline_fake_nvml>")
add_dependencies(tests_device redline_fake_nvml)

find_package(Python3 QUIET COMPONENTS Interpreter)
if(NOT Python3_Interpreter_FOUND)
  return()
endif()

# python_test(<name> <script> <words of its command>): exit status 77 is "skipped", with a line that says why.
function(python_test name script)
  add_test(NAME ${name} COMMAND Python3::Interpreter -B "${PROJECT_SOURCE_DIR}/${script}" ${ARGN})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600 ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
endfunction()

foreach(tool check_floors check_lines check_links)
  python_test(tools/${tool}_test tools/${tool}_test.py)
endforeach()
foreach(script make_tables fp8_parity time_to_loss long_run)
  python_test(bench/${script}_test bench/${script}_test.py)
endforeach()
# Installs this build, makes its packages without the libraries of cards, and runs what lies there.
if(REDLINE_SANITIZE STREQUAL "")  # the sanitizers' libraries cannot be packed
  python_test(tools/package_test tools/package_test.py "${CMAKE_BINARY_DIR}")
endif()

set(program "${CMAKE_BINARY_DIR}/redline")
python_test(python/redline_test tests/python/redline_test.py "${program}")
# The soak test itself is a command (CONTRIBUTING.md); here only: it finds the faults of planted programs.
python_test(soak/soak_test tests/soak/soak_test.py "${program}")
python_test(bench/claims_test bench/claims_test.py "${program}")
python_test(bench/network_table bench/network_table.py --check "${program}")
python_test(docs/commands_test tests/docs/commands_test.py "${program}")

# Ranks on several machines, which are network namespaces, as the launchers of others start them.
foreach(launcher two_machines torchrun slurm nccl)
  python_test(ranks/${launcher} tests/ranks/${launcher}.py "${program}" "${CMAKE_BINARY_DIR}/ranks/${launcher}")
endforeach()
set_tests_properties(ranks/two_machines ranks/torchrun ranks/slurm ranks/nccl PROPERTIES RUN_SERIAL ON)

# Real clients of what redline reads and writes. Each gets its packages into an environment in a folder of its own, and is
# skipped where no registry of packages answers: Hugging Face's tokenizers and sentencepiece, safetensors, transformers
# (with torch, where the interpreter has it; `config` attacks config.json, `families` draws models, and both need it),
# apply_chat_template, TensorBoard, wandb (offline) and MLflow, llama.cpp's converter (where LLAMA_CPP names one), pyarrow
# (the one that the module was built with), and a browser for the report.
foreach(client tokenizers safetensors transformers config families chat tensorboard report track gguf)
  python_test(interop/${client} tests/interop/${client}_interop.py "${program}" "${CMAKE_BINARY_DIR}/interop/${client}")
endforeach()
python_test(interop/parquet tests/interop/parquet_interop.py "${program}" "${CMAKE_BINARY_DIR}/interop/parquet"
  "${PROJECT_SOURCE_DIR}/.cache/pyarrow")
