// Ranks on CPUs over MPI. It moves parts; the sums are ours, over ranks one after the other from rank 0 on, so that
// all_reduce and reduce_shards have the same bits and a run repeats. MPI_Allreduce adds in an order of its own, and
// takes two to four times as long.
#include "dist/group.h"

#include <mpi.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/shards.h"
#include "base/small_floats.h"
#include "dist/control.h"

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

template <class T>
MPI_Datatype type_of() {
  if constexpr (std::is_same_v<T, float>)
    return MPI_FLOAT;
  else if constexpr (std::is_same_v<T, double>)
    return MPI_DOUBLE;
  else
    return MPI_UINT16_T;
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

float wide(std::uint16_t bf16) { return f32_from_bf16(bf16); }
float wide(float x) { return x; }
double wide(double x) { return x; }

// Elements [0, n) of the sum over `parts`, one a rank, given to take(i, sum) block by block: a destination may be one
// of the parts, and it is written only after it was read.
template <class From, class Sum, class Take>
void fold(const std::vector<const From*>& parts, std::int64_t n, const Take& take) {
  constexpr std::int64_t kBlock = 1024;
  Sum sum[kBlock];
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t count = begin + kBlock < n ? kBlock : n - begin;
    for (std::int64_t i = 0; i < count; ++i) sum[i] = wide(parts[0][begin + i]);
    for (std::size_t rank = 1; rank < parts.size(); ++rank) {
      const From* const part = parts[rank] + begin;
      for (std::int64_t i = 0; i < count; ++i) sum[i] += wide(part[i]);
    }
    take(begin, sum, count);
  }
}

// Memory for parts of other ranks, which wait there for their turn in the sum.
constexpr std::int64_t kStagingBytes = std::int64_t{2} << 20;
constexpr int kTag = 21;

// The parts of [0, n) by rank: even shares.
std::vector<Range> even_parts(std::int64_t n, int ranks) {
  std::vector<Range> parts;
  const std::int64_t share = (n + ranks - 1) / ranks;
  for (int r = 0; r < ranks; ++r) parts.push_back({std::min(n, r * share), std::min(n, (r + 1) * share)});
  return parts;
}
// The parts of an array that is shared out, counted from `begin`.
std::vector<Range> owned_parts(const Shards& shards, std::int64_t begin, std::int64_t n) {
  std::vector<Range> parts;
  for (int r = 0; r < shards.ranks; ++r) {
    const Range part = owned_part(shards, r, begin, begin + n);
    parts.push_back({part.begin - begin, part.end - begin});
  }
  return parts;
}

class MpiGroup final : public Group {
 public:
  explicit MpiGroup(Control& control) : control_(control), name_(library_name()) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  ~MpiGroup() override {
    // Waits for the others, who may never come where an error is on its way out.
    if (std::uncaught_exceptions() == 0 && !control_.ended()) MPI_Finalize();
  }

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  std::string engine() const override { return name_; }

  void run(const AllReduce<Tensor>& op, void*) override {
    count();
    const Tensor& data = op.data;
    if (op.largest) {  // whose order does not matter
      REDLINE_CHECK(data.dtype == DType::f32 && data.elements() <= INT_MAX, "all_reduce: the largest of {}",
                    name_of(data.dtype));
      REDLINE_MPI(MPI_Iallreduce(MPI_IN_PLACE, data.f32(), static_cast<int>(data.elements()), MPI_FLOAT, MPI_MAX,
                                 MPI_COMM_WORLD, request()));
      return wait();
    }
    const std::vector<Range> parts = even_parts(data.elements(), ranks_);
    if (op.wire.present()) {
      REDLINE_CHECK(data.dtype == DType::f32 && op.wire.dtype == DType::bf16, "all_reduce: f32 data travel as bf16");
      std::uint16_t* const wire = op.wire.as<std::uint16_t>();
      cast(data.f32(), wire, data.elements());
      std::uint16_t* const own = wire + parts[own_index()].begin;
      reduce<std::uint16_t, float>(wire, parts,
                                   [&](std::int64_t at, const float* sum, std::int64_t n) { cast(sum, own + at, n); });
      gather<std::uint16_t>(wire, own, parts);
      for (std::int64_t i = 0; i < data.elements(); ++i) data.f32()[i] = f32_from_bf16(wire[i]);
    } else if (data.dtype == DType::f64) {
      reduce_and_gather(data.as<double>(), parts);
    } else {
      REDLINE_CHECK(data.dtype == DType::f32, "all_reduce: {} cannot be added", name_of(data.dtype));
      reduce_and_gather(data.f32(), parts);
    }
  }

  void run(const ReduceShards<Tensor>& op, void*) override {
    count();
    REDLINE_CHECK(op.data.dtype == DType::f32 && op.shards.ranks == ranks_,
                  "reduce_shards: {} in {} shards on {} ranks", name_of(op.data.dtype), op.shards.ranks, ranks_);
    float* const data = op.data.f32();
    const std::vector<Range> parts = owned_parts(op.shards, op.begin, op.data.elements());
    const Range own = parts[own_index()];
    REDLINE_CHECK(op.in_place || op.shard.elements() == (own.empty() ? 0 : own.elements()),
                  "reduce_shards: a shard of {} elements for a part of {}", op.shard.elements(), own.elements());
    float* const to = op.in_place ? data + own.begin : op.shard.f32();
    const auto take = [&](std::int64_t at, const float* sum, std::int64_t n) {
      if (op.accumulate)
        for (std::int64_t i = 0; i < n; ++i) to[at + i] += sum[i];
      else
        std::copy(sum, sum + n, to + at);
    };
    if (op.wire.present()) {
      REDLINE_CHECK(op.wire.dtype == DType::bf16, "reduce_shards: data travel as bf16 or as they are");
      cast(data, op.wire.as<std::uint16_t>(), op.data.elements());
      reduce<std::uint16_t, float>(op.wire.as<std::uint16_t>(), parts, take);
    } else {
      reduce<float, float>(data, parts, take);
    }
  }

  void run(const GatherShards<Tensor>& op, void*) override {
    count();
    REDLINE_CHECK(op.shards.ranks == ranks_, "gather_shards: {} shards on {} ranks", op.shards.ranks, ranks_);
    const std::vector<Range> parts = owned_parts(op.shards, op.begin, op.data.elements());
    const Range own = parts[own_index()];
    REDLINE_CHECK(op.in_place || (op.shard.elements() == (own.empty() ? 0 : own.elements()) &&
                                  (own.empty() || op.shard.dtype == op.data.dtype)),
                  "gather_shards: a shard of {} elements for a part of {}", op.shard.elements(), own.elements());
    switch (size_of(op.data.dtype)) {
      case 8: return gather_from(op, op.data.as<double>(), parts);
      case 4: return gather_from(op, op.data.f32(), parts);
      case 2: return gather_from(op, op.data.as<std::uint16_t>(), parts);
      default: fail_machine("gather_shards: no engine for elements of {}", name_of(op.data.dtype));
    }
  }

 private:
  std::size_t own_index() const { return static_cast<std::size_t>(rank_); }
  void count() { control_.collective(++collectives_); }
  static void cast(const float* from, std::uint16_t* to, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = bf16_from_f32(from[i]);
  }

  // Rank r gets every rank's elements of parts[r] and takes their sum.
  template <class From, class Sum, class Take>
  void reduce(const From* data, const std::vector<Range>& parts, const Take& take) {
    const std::int64_t chunk =
        std::max<std::int64_t>(1, kStagingBytes / (static_cast<std::int64_t>(sizeof(From)) * ranks_));
    std::int64_t longest = 0;
    for (const Range& part : parts) longest = std::max(longest, part.elements());
    staging_.resize(
        static_cast<std::size_t>(std::min(chunk, longest) * ranks_ * static_cast<std::int64_t>(sizeof(From))));
    auto* const staging = reinterpret_cast<From*>(staging_.data());
    const Range own = parts[own_index()];
    for (std::int64_t begin = 0; begin < longest; begin += chunk) {
      const auto piece = [&](const Range& part) { return std::clamp<std::int64_t>(part.elements() - begin, 0, chunk); };
      const std::int64_t mine = piece(own);
      std::vector<const From*> sources(static_cast<std::size_t>(ranks_));
      for (int step = 0; step < ranks_; ++step) {  // each begins with its neighbour, so that none is asked by all
        const int from = (rank_ + ranks_ - step) % ranks_, to = (rank_ + step) % ranks_;
        const Range& part = parts[static_cast<std::size_t>(to)];
        if (step == 0) {
          sources[own_index()] = data + own.begin + begin;
          continue;
        }
        From* const arrives = staging + from * std::min(chunk, longest);
        sources[static_cast<std::size_t>(from)] = arrives;
        if (mine > 0)
          REDLINE_MPI(
              MPI_Irecv(arrives, static_cast<int>(mine), type_of<From>(), from, kTag, MPI_COMM_WORLD, request()));
        if (piece(part) > 0)
          REDLINE_MPI(MPI_Isend(data + part.begin + begin, static_cast<int>(piece(part)), type_of<From>(), to, kTag,
                                MPI_COMM_WORLD, request()));
      }
      wait();
      fold<From, Sum>(sources, mine,
                      [&](std::int64_t at, const Sum* sum, std::int64_t n) { take(begin + at, sum, n); });
    }
  }

  // Everybody gets parts[r] of data from rank r, whose own stands at `own`.
  template <class T>
  void gather(T* data, const T* own, const std::vector<Range>& parts) {
    std::vector<int> counts, begins;
    for (const Range& part : parts) {
      REDLINE_CHECK(part.end <= INT_MAX, "a collective of {} elements is too large for MPI", part.end);
      counts.push_back(static_cast<int>(part.empty() ? 0 : part.elements()));
      begins.push_back(static_cast<int>(part.empty() ? 0 : part.begin));
    }
    const bool in_place = own == data + parts[own_index()].begin;
    REDLINE_MPI(MPI_Iallgatherv(in_place ? MPI_IN_PLACE : own, counts[own_index()], type_of<T>(), data, counts.data(),
                                begins.data(), type_of<T>(), MPI_COMM_WORLD, request()));
    wait();
  }
  template <class T>
  void gather_from(const GatherShards<Tensor>& op, T* data, const std::vector<Range>& parts) {
    gather(data, op.in_place ? data + parts[own_index()].begin : op.shard.as<T>(), parts);
  }
  template <class T>
  void reduce_and_gather(T* data, const std::vector<Range>& parts) {
    T* const own = data + parts[own_index()].begin;
    reduce<T, T>(data, parts,
                 [&](std::int64_t at, const T* sum, std::int64_t n) { std::copy(sum, sum + n, own + at); });
    gather<T>(data, own, parts);
  }

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
  std::string name_;
  int rank_ = 0, ranks_ = 1;
  std::int64_t collectives_ = 0;
  std::vector<std::byte> staging_;
  std::vector<MPI_Request> requests_;
};

}  // namespace

EngineStatus mpi_status() { return {true, library_name(), ""}; }

std::unique_ptr<Group> open_mpi(Control& control) {
  int begun = 0, provided = 0, ranks = 0, rank = 0;
  MPI_Initialized(&begun);
  REDLINE_CHECK(!begun, "MPI can be opened once a process");
  // The calls come from one thread at a time, which is not the one that opens.
  REDLINE_MPI(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided));
  REDLINE_MPI(MPI_Comm_size(MPI_COMM_WORLD, &ranks));
  REDLINE_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  const Place& place = control.place();
  if (ranks != place.ranks || rank != place.rank)
    fail_user(
        "ranks on CPUs are started by mpirun: this is rank {} of {} by {}, and rank {} of {} for {}; use redline "
        "launch, or "
        "the mpirun of the MPI that redline was built with",
        place.rank, place.ranks, place.launcher.empty() ? "nobody" : place.launcher, rank, ranks, library_name());
  if (provided < MPI_THREAD_SERIALIZED)
    fail_user("{} was built without support for threads, which ranks on CPUs need", library_name());
  return std::make_unique<MpiGroup>(control);
}

}  // namespace redline::dist
