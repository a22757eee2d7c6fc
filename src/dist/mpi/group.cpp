// Parts between CPUs of several machines, over MPI.
#include <mpi.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <numeric>
#include <thread>
#include <vector>

#include "base/error.h"
#include "dist/control.h"
#include "dist/cpu_group.h"

namespace redline::dist {
namespace {

#define REDLINE_MPI(call) check((call), #call, __FILE__, __LINE__)

void check(int error, const char* call, const char* file, int line) {
  if (error == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(error, text, &length);
  fail_machine("{}:{}: {}: {}", file, line, call, std::string_view(text, static_cast<std::size_t>(length)));
}

MPI_Datatype type_of(std::size_t size) {
  return size == 8 ? MPI_UINT64_T : size == 4 ? MPI_UINT32_T : size == 2 ? MPI_UINT16_T : MPI_BYTE;
}

// "Open MPI v4.1.4, package: Debian ..." is Open MPI 4.1.4.
std::string library_name() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string name(text, static_cast<std::size_t>(length));
  name.resize(std::min(name.find_first_of(",\n"), name.size()));
  if (const std::size_t v = name.find(" v"); v != name.npos) name.erase(v + 1, 1);
  return name;
}

// Memory for parts of other ranks, which wait there for their turn in the sum.
constexpr std::size_t kStagingBytes = std::size_t{2} << 20;
constexpr int kTag = 21;

class Mpi final : public Transport {
 public:
  Mpi(Control& control, MPI_Comm comm) : control_(control), comm_(comm), name_(library_name()) {
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    REDLINE_MPI(MPI_Comm_size(comm_, &ranks_));
    REDLINE_MPI(MPI_Comm_rank(comm_, &rank_));
  }
  ~Mpi() override {
    // Waits for the others, who may never come where an error is on its way out.
    if (comm_ == MPI_COMM_WORLD && std::uncaught_exceptions() == 0 && !control_.ended()) MPI_Finalize();
  }
  std::unique_ptr<Transport> between(const std::vector<std::size_t>& members) override {
    MPI_Comm some = MPI_COMM_NULL;
    REDLINE_MPI(MPI_Comm_split(comm_, static_cast<int>(members[0]), rank_, &some));
    return std::make_unique<Mpi>(control_, some);
  }

  std::string name() const override { return name_; }
  std::size_t most_given() const override {
    return std::max<std::size_t>(kStagingBytes / static_cast<std::size_t>(ranks_) / 8 * 8, 8);
  }

  std::vector<const std::byte*> exchange(const std::vector<std::span<const std::byte>>& gives,
                                         const std::vector<std::size_t>& bytes) override {
    staging_.resize(std::reduce(bytes.begin(), bytes.end()));
    std::byte* next = staging_.data();
    std::vector<const std::byte*> gets(gives.size());
    gets[static_cast<std::size_t>(rank_)] = gives[static_cast<std::size_t>(rank_)].data();
    for (int step = 1; step < ranks_; ++step) {  // each begins with its neighbour, so that none is asked by all
      const int from = (rank_ + ranks_ - step) % ranks_, to = (rank_ + step) % ranks_;
      const auto given = gives[static_cast<std::size_t>(to)];
      const std::size_t n = bytes[static_cast<std::size_t>(from)];
      gets[static_cast<std::size_t>(from)] = next;
      if (n > 0) REDLINE_MPI(MPI_Irecv(next, static_cast<int>(n), MPI_BYTE, from, kTag, comm_, request()));
      next += n;
      if (!given.empty())
        REDLINE_MPI(MPI_Isend(given.data(), static_cast<int>(given.size()), MPI_BYTE, to, kTag, comm_, request()));
    }
    wait();
    return gets;
  }

  void share(std::byte* data, const std::byte* own, const std::vector<Range>& parts, std::size_t size) override {
    std::vector<int> counts, begins;
    for (const Range& part : parts) {
      REDLINE_CHECK(part.end <= INT_MAX, "a collective of {} elements is too large for MPI", part.end);
      counts.push_back(static_cast<int>(part.empty() ? 0 : part.elements()));
      begins.push_back(static_cast<int>(part.empty() ? 0 : part.begin));
    }
    const auto me = static_cast<std::size_t>(rank_);
    const bool in_place = own == data + static_cast<std::size_t>(parts[me].begin) * size;
    REDLINE_MPI(MPI_Iallgatherv(in_place ? MPI_IN_PLACE : own, counts[me], type_of(size), data, counts.data(),
                                begins.data(), type_of(size), comm_, request()));
    wait();
  }

 private:
  MPI_Request* request() { return &requests_.emplace_back(MPI_REQUEST_NULL); }
  // MPI waits by asking again and again; between two questions the threads that compute may have the core.
  void wait() {
    for (int done = 0; !done;) {
      REDLINE_MPI(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE));
      if (!done) std::this_thread::yield();
    }
    requests_.clear();
  }

  Control& control_;
  MPI_Comm comm_;
  int rank_ = 0, ranks_ = 0;
  std::string name_;
  std::vector<std::byte> staging_;
  std::vector<MPI_Request> requests_;
};

}  // namespace

EngineStatus mpi_status() { return {true, library_name(), ""}; }

bool started_by_mpi() {
  const auto has = [](const char* variable) { return std::getenv(variable) != nullptr; };
  return has("PMIX_RANK") || has("OMPI_COMM_WORLD_RANK") ||
         (!library_name().starts_with("Open MPI") && has("PMI_RANK"));
}

std::unique_ptr<Group> open_mpi(Control& control) {
  const Place& place = control.place();
  // A process that nobody of MPI started would end inside MPI, in words of its own.
  REDLINE_CHECK(started_by_mpi(), "{} did not start this rank for MPI", place.launcher);
  int begun = 0, provided = 0, ranks = 0, rank = 0;
  MPI_Initialized(&begun);
  REDLINE_CHECK(!begun, "MPI can be opened once a process");
  // The calls come from one thread at a time, which is not the one that opens.
  REDLINE_MPI(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided));
  REDLINE_MPI(MPI_Comm_size(MPI_COMM_WORLD, &ranks));
  REDLINE_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  if (ranks != place.ranks || rank != place.rank)
    fail_user(
        "this is rank {} of {} by {}, and rank {} of {} for {}; start the ranks with the mpirun of the MPI that "
        "redline "
        "was built with",
        place.rank, place.ranks, place.launcher, rank, ranks, library_name());
  if (provided < MPI_THREAD_SERIALIZED)
    fail_user("{} was built without support for threads, which ranks on CPUs need", library_name());
  return group_over(std::make_unique<Mpi>(control, MPI_COMM_WORLD), control);
}

}  // namespace redline::dist
