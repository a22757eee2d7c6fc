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
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)  # tests are compiled more often than they are run
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
  if(TARGET redline)
    add_dependencies(${target} redline)
  endif()
  gtest_discover_tests(${target} TEST_PREFIX "${folder}/" DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600)
endforeach()

# Ranks that mpirun starts (tests/dist/mpi_test.cpp); without MPI those tests are skipped.
if(redline_mpi_enabled)
  add_executable(tests_dist_mpi "${PROJECT_SOURCE_DIR}/tests/dist/mpi/ranks.cpp")
  target_link_libraries(tests_dist_mpi PRIVATE redline_dist redline_settings)
  target_compile_definitions(tests_dist PRIVATE
    REDLINE_MPIRUN="${MPIEXEC_EXECUTABLE}" REDLINE_MPI_RANKS="$<TARGET_FILE:tests_dist_mpi>")
  add_dependencies(tests_dist tests_dist_mpi)
  target_compile_definitions(tests_end_to_end PRIVATE REDLINE_MPIRUN="${MPIEXEC_EXECUTABLE}")
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
if(Python3_Interpreter_FOUND)
  add_test(NAME tools/check_floors COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tools/check_floors.py")
  add_test(NAME tools/check_floors_test COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tools/check_floors_test.py")
  # Installs this build, makes its packages without the libraries of cards, and runs what lies there.
  if(REDLINE_SANITIZE STREQUAL "")  # nobody packs the sanitizers' libraries
    add_test(NAME tools/package_test COMMAND Python3::Interpreter -B "${PROJECT_SOURCE_DIR}/tools/package_test.py" "${CMAKE_BINARY_DIR}")
    set_tests_properties(tools/package_test PROPERTIES TIMEOUT 600)
  endif()
  # docs/results.md shows what bench/results holds.
  add_test(NAME bench/make_tables COMMAND Python3::Interpreter -B "${PROJECT_SOURCE_DIR}/bench/make_tables.py" --check)
  add_test(NAME bench/make_tables_test COMMAND Python3::Interpreter -B "${PROJECT_SOURCE_DIR}/bench/make_tables_test.py")
  add_test(NAME bench/fp8_parity_test COMMAND Python3::Interpreter -B "${PROJECT_SOURCE_DIR}/bench/fp8_parity_test.py")
  add_test(NAME bench/time_to_loss_test COMMAND Python3::Interpreter -B "${PROJECT_SOURCE_DIR}/bench/time_to_loss_test.py")
  # The soak test itself is a command (CONTRIBUTING.md); here only: it finds the faults of planted programs.
  add_test(NAME soak/soak_test COMMAND Python3::Interpreter -B "${PROJECT_SOURCE_DIR}/tests/soak/soak_test.py"
           "${CMAKE_BINARY_DIR}/redline")
  set_tests_properties(soak/soak_test PROPERTIES TIMEOUT 600)
  # Compares with the Hugging Face and sentencepiece packages, which it installs into the build folder; 77 is "no pip".
  add_test(NAME interop/tokenizers COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/interop/tokenizers_interop.py"
           "${CMAKE_BINARY_DIR}/redline" "${CMAKE_BINARY_DIR}/interop")
  add_test(NAME interop/safetensors COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/interop/safetensors_interop.py"
           "${CMAKE_BINARY_DIR}/redline" "${CMAKE_BINARY_DIR}/interop/safetensors")
  # 77 is "no torch" as well.
  add_test(NAME interop/transformers COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/interop/transformers_interop.py"
           "${CMAKE_BINARY_DIR}/redline" "${CMAKE_BINARY_DIR}/interop/transformers")
  # The real TensorBoard reads what redline writes; a browser shows the report.
  add_test(NAME interop/tensorboard COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/interop/tensorboard_interop.py"
           "${CMAKE_BINARY_DIR}/redline" "${CMAKE_BINARY_DIR}/interop_tensorboard")
  add_test(NAME interop/report COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/interop/report_interop.py"
           "${CMAKE_BINARY_DIR}/redline" "${CMAKE_BINARY_DIR}/interop_report")
  # The real wandb (offline) and MLflow take a run; llama.cpp's converter takes exports (77 where LLAMA_CPP names none).
  add_test(NAME interop/track COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/interop/track_interop.py"
           "${CMAKE_BINARY_DIR}/redline" "${CMAKE_BINARY_DIR}/interop_track")
  add_test(NAME interop/gguf COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/interop/gguf_interop.py"
           "${CMAKE_BINARY_DIR}/redline" "${CMAKE_BINARY_DIR}/interop_gguf")
  # pyarrow writes, redline reads; the package is the one that the module was built with, where it is (77: no module).
  add_test(NAME interop/parquet COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/interop/parquet_interop.py"
           "${CMAKE_BINARY_DIR}/redline" "${CMAKE_BINARY_DIR}/interop_parquet" "${PROJECT_SOURCE_DIR}/.cache/pyarrow")
  # Conversations against transformers' apply_chat_template.
  add_test(NAME interop/chat COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/interop/chat_interop.py"
           "${CMAKE_BINARY_DIR}/redline" "${CMAKE_BINARY_DIR}/interop_chat")
  set_tests_properties(interop/tokenizers interop/safetensors interop/transformers interop/tensorboard interop/report
    interop/track interop/gguf interop/parquet interop/chat PROPERTIES
    SKIP_RETURN_CODE 77 TIMEOUT 600 ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
endif()
