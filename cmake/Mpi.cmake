# Looks for MPI, through which ranks on CPUs of several machines exchange tensors, and says in one line whether it is built. Sets
# redline_mpi_enabled; MPI::MPI_CXX is what to link, and MPIEXEC_EXECUTABLE starts ranks in tests.

set(redline_mpi_enabled OFF)
set(MPI_CXX_SKIP_MPICXX ON)  # the C interface is all that is used
if(REDLINE_MPI)
  find_package(MPI QUIET COMPONENTS CXX)
endif()
if(NOT REDLINE_MPI)
  message(STATUS "ranks on CPUs of several machines: off (REDLINE_MPI is OFF)")
elseif(MPI_CXX_FOUND)
  set(redline_mpi_enabled ON)
  message(STATUS "ranks on CPUs of several machines: on (MPI ${MPI_CXX_VERSION}, ${MPIEXEC_EXECUTABLE})")
else()
  message(STATUS "ranks on CPUs of several machines: off (MPI was not found; apt-get install libopenmpi-dev openmpi-bin)")
  redline_left_out("ranks on CPUs of several machines" "MPI was not found (libopenmpi-dev, openmpi-bin)" "a CPU run has the ranks of one machine")
endif()
