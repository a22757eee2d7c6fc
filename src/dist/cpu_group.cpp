// The sums of collectives between CPUs, and the transport between ranks of one machine: memory that they share. Nothing
// listens on any network for it.
#include "dist/cpu_group.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <thread>

#include "base/error.h"
#include "base/small_floats.h"
#include "dist/connection.h"
#include "dist/control.h"
#include "dist/token.h"

namespace redline::dist {
namespace {

float wide(std::uint16_t bf16) { return f32_from_bf16(bf16); }
float wide(float x) { return x; }
double wide(double x) { return x; }

constexpr std::int64_t kFoldBlock = 1024;

// sum = elements [begin, begin + n) of all parts, added up, or the largest of them: the first 2^k and then the rest.
template <class Sum, bool kLargest, class From>
void fold_block(std::span<const From* const> parts, std::int64_t begin, std::int64_t n, Sum* sum) {
  const auto add = [&](const auto* more) {
    for (std::int64_t i = 0; i < n; ++i)
      sum[i] = kLargest ? std::max<Sum>(sum[i], wide(more[i])) : sum[i] + wide(more[i]);
  };
  const std::size_t half = parts.size() > 1 ? std::bit_floor(parts.size() - 1) : 0;
  if (half == 0) {
    for (std::int64_t i = 0; i < n; ++i) sum[i] = wide(parts[0][begin + i]);
    return;
  }
  fold_block<Sum, kLargest>(parts.first(half), begin, n, sum);
  if (parts.size() - half == 1) return add(parts[half] + begin);
  Sum rest[kFoldBlock];
  fold_block<Sum, kLargest>(parts.subspan(half), begin, n, rest);
  add(rest);
}

// Elements [0, n) of the sum over `parts`, one a rank, or of their largest, given to take(i, sum) block by block: a
// destination may be one of the parts, and it is written only after it was read.
template <class From, class Sum, bool kLargest, class Take>
void fold(const std::vector<const From*>& parts, std::int64_t n, const Take& take) {
  Sum sum[kFoldBlock];
  for (std::int64_t begin = 0; begin < n; begin += kFoldBlock) {
    const std::int64_t count = std::min(kFoldBlock, n - begin);
    fold_block<Sum, kLargest, From>(parts, begin, count, sum);
    take(begin, sum, count);
  }
}

// The parts of [0, n) by rank: even shares.
std::vector<Range> even_parts(std::int64_t n, std::size_t ranks) {
  std::vector<Range> parts;
  const auto many = static_cast<std::int64_t>(ranks), share = (n + many - 1) / many;
  for (std::int64_t r = 0; r < many; ++r) parts.push_back({std::min(n, r * share), std::min(n, (r + 1) * share)});
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

class CpuGroup final : public Group {
 public:
  CpuGroup(std::unique_ptr<Transport> transport, Control& control)
      : control_(control), rank_(control.place().rank), ranks_(control.place().ranks) {
    members_[{ranks_, 1}] = {std::move(transport), static_cast<std::size_t>(rank_), static_cast<std::size_t>(ranks_)};
  }

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  std::string engine() const override { return members_.at({ranks_, 1}).transport->name(); }

  void run(const AllReduce<Tensor>& op, void*) override {
    const Members& all = begin(ranks_ / op.apart, op.apart);
    const Tensor& data = op.data;
    if (!data.present()) return;
    const std::vector<Range> parts = even_parts(data.elements(), all.count);
    if (op.largest) {
      REDLINE_CHECK(data.dtype == DType::f32, "all_reduce: the largest of {}", name_of(data.dtype));
      reduce_and_gather<true>(all, data.f32(), parts);
    } else if (op.wire.present()) {
      REDLINE_CHECK(data.dtype == DType::f32 && op.wire.dtype == DType::bf16, "all_reduce: f32 data travel as bf16");
      std::uint16_t* const wire = op.wire.as<std::uint16_t>();
      cast(data.f32(), wire, data.elements());
      std::uint16_t* const own = wire + parts[all.own].begin;
      reduce<std::uint16_t, float>(all, wire, parts,
                                   [&](std::int64_t at, const float* sum, std::int64_t n) { cast(sum, own + at, n); });
      gather<std::uint16_t>(all, wire, own, parts);
      for (std::int64_t i = 0; i < data.elements(); ++i) data.f32()[i] = f32_from_bf16(wire[i]);
    } else if (data.dtype == DType::f64) {
      reduce_and_gather<false>(all, data.as<double>(), parts);
    } else {
      REDLINE_CHECK(data.dtype == DType::f32, "all_reduce: {} cannot be added", name_of(data.dtype));
      reduce_and_gather<false>(all, data.f32(), parts);
    }
  }

  void run(const ReduceShards<Tensor>& op, void*) override {
    const Members& all = begin(op.shards.ranks);
    REDLINE_CHECK(op.data.dtype == DType::f32, "reduce_shards: {} cannot be added", name_of(op.data.dtype));
    float* const data = op.data.f32();
    const std::vector<Range> parts = owned_parts(op.shards, op.begin, op.data.elements());
    const Range own = parts[all.own];
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
      reduce<std::uint16_t, float>(all, op.wire.as<std::uint16_t>(), parts, take);
    } else {
      reduce<float, float>(all, data, parts, take);
    }
  }

  void run(const GatherShards<Tensor>& op, void*) override {
    const Members& all = begin(op.shards.ranks);
    const std::vector<Range> parts = owned_parts(op.shards, op.begin, op.data.elements());
    const Range own = parts[all.own];
    REDLINE_CHECK(op.in_place || (op.shard.elements() == (own.empty() ? 0 : own.elements()) &&
                                  (own.empty() || op.shard.dtype == op.data.dtype)),
                  "gather_shards: a shard of {} elements for a part of {}", op.shard.elements(), own.elements());
    switch (size_of(op.data.dtype)) {
      case 8: return gather_from(all, op, op.data.as<double>(), parts);
      case 4: return gather_from(all, op, op.data.f32(), parts);
      case 2: return gather_from(all, op, op.data.as<std::uint16_t>(), parts);
      case 1: return gather_from(all, op, op.data.as<std::uint8_t>(), parts);
      default: fail_machine("gather_shards: no engine for elements of {}", name_of(op.data.dtype));
    }
  }

  void run(const AllToAll<Tensor>& op, void*) override {
    const Members& all = begin(op.among);
    const std::size_t block = static_cast<std::size_t>(op.from.bytes()) / all.count;
    const std::size_t chunk = all.transport->most_given();
    const std::byte* const from = op.from.as<std::byte>();
    for (std::size_t begin = 0; begin < block; begin += chunk) {
      const std::size_t n = std::min(chunk, block - begin);
      std::vector<std::span<const std::byte>> gives(all.count);
      for (std::size_t r = 0; r < all.count; ++r) gives[r] = {from + r * block + begin, n};
      const std::vector<const std::byte*> gets = all.transport->exchange(gives, std::vector(all.count, n));
      for (std::size_t r = 0; r < all.count; ++r) std::memcpy(op.to.as<std::byte>() + r * block + begin, gets[r], n);
    }
  }

 private:
  // The ranks of a collective.
  struct Members {
    std::unique_ptr<Transport> transport;
    std::size_t own = 0, count = 0;
  };

  // Counts a collective of so many ranks that are so far apart. The first of its kind connects them.
  const Members& begin(int many, int apart = 1) {
    control_.collective(++collectives_);
    Members& members = members_[{many, apart}];
    if (members.transport) return members;
    REDLINE_CHECK(many > 0 && ranks_ % (many * apart) == 0, "a collective of {} ranks of {}, {} apart", many, ranks_,
                  apart);
    const int first = apart > 1 ? rank_ % apart : rank_ / many * many;
    std::vector<std::size_t> of_all;
    for (int i = 0; i < many; ++i) of_all.push_back(static_cast<std::size_t>(first + i * apart));
    members = {members_.at({ranks_, 1}).transport->between(of_all), static_cast<std::size_t>((rank_ - first) / apart),
               static_cast<std::size_t>(many)};
    return members;
  }
  static void cast(const float* from, std::uint16_t* to, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = bf16_from_f32(from[i]);
  }

  // Rank r gets every rank's elements of parts[r] and takes their sum, or their largest.
  template <class From, class Sum, bool kLargest = false, class Take>
  static void reduce(const Members& all, const From* data, const std::vector<Range>& parts, const Take& take) {
    const auto chunk = static_cast<std::int64_t>(all.transport->most_given() / sizeof(From));
    std::int64_t longest = 0;
    for (const Range& part : parts) longest = std::max(longest, part.elements());
    std::vector<std::span<const std::byte>> gives(parts.size());
    std::vector<const From*> sources(parts.size());
    for (std::int64_t begin = 0; begin < longest; begin += chunk) {
      const auto piece = [&](const Range& part) {
        const std::int64_t n = std::clamp<std::int64_t>(part.elements() - begin, 0, chunk);
        return std::as_bytes(std::span(n > 0 ? data + part.begin + begin : data, static_cast<std::size_t>(n)));
      };
      std::ranges::transform(parts, gives.begin(), piece);
      const std::size_t mine = gives[all.own].size();
      const std::vector<const std::byte*> gets = all.transport->exchange(gives, std::vector(parts.size(), mine));
      std::ranges::transform(gets, sources.begin(),
                             [](const std::byte* p) { return reinterpret_cast<const From*>(p); });
      fold<From, Sum, kLargest>(sources, static_cast<std::int64_t>(mine / sizeof(From)),
                                [&](std::int64_t at, const Sum* sum, std::int64_t n) { take(begin + at, sum, n); });
    }
  }

  // Everybody gets parts[r] of data from rank r, whose own stands at `own`.
  template <class T>
  static void gather(const Members& all, T* data, const T* own, const std::vector<Range>& parts) {
    all.transport->share(reinterpret_cast<std::byte*>(data), reinterpret_cast<const std::byte*>(own), parts, sizeof(T));
  }
  template <class T>
  static void gather_from(const Members& all, const GatherShards<Tensor>& op, T* data,
                          const std::vector<Range>& parts) {
    gather(all, data, op.in_place ? data + parts[all.own].begin : op.shard.as<T>(), parts);
  }
  template <bool kLargest, class T>
  static void reduce_and_gather(const Members& all, T* data, const std::vector<Range>& parts) {
    T* const own = data + parts[all.own].begin;
    reduce<T, T, kLargest>(all, data, parts,
                           [&](std::int64_t at, const T* sum, std::int64_t n) { std::copy(sum, sum + n, own + at); });
    gather<T>(all, data, own, parts);
  }

  Control& control_;
  int rank_, ranks_;
  std::int64_t collectives_ = 0;
  std::map<std::pair<int, int>, Members> members_;  // by their number, and how far apart they are
};

// Every rank has two boxes in the shared memory, and writes into one while others may still read the other: who has
// come to a turn has read all of the turn before. So a turn takes one wait for everybody.
class SharedMemory final : public Transport {
 public:
  // Tells all members what the first one says, and returns it once all have come.
  using Tell = std::function<std::string(const std::string& words)>;

  // A file without a name: it is gone with its last user, and counts as memory wherever /dev/shm is small.
  SharedMemory(std::size_t rank, std::size_t ranks, const Tell& tell) : rank_(rank), ranks_(ranks) {
    bytes_ = kHead + ranks_ * (sizeof(Arrived) + 2 * kBox);
    const std::string mark = random_bytes(kHead);
    Descriptor file;
    std::string words;
    if (rank_ == 0) {
      file = Descriptor(::memfd_create("redline ranks", MFD_CLOEXEC));
      if (!file.open() || ::fallocate(file.number(), 0, 0, static_cast<off_t>(bytes_)) != 0)
        fail_machine("{} bytes of memory for {} ranks: {}", bytes_, ranks_, std::strerror(errno));
      map(file);
      std::memcpy(memory_, mark.data(), kHead);
      words = fmt::format("/proc/{}/fd/{}\n{}", ::getpid(), file.number(), mark);
    }
    words = tell(words);
    if (rank_ != 0) {
      const std::string path = words.substr(0, words.find('\n'));
      file = Descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC));
      struct stat about {};
      if (!file.open() || ::fstat(file.number(), &about) != 0 || about.st_size != static_cast<off_t>(bytes_))
        refuse(path, file.open() ? "another file" : std::strerror(errno));
      map(file);
      if (words.substr(path.size() + 1, kHead) != std::string_view(reinterpret_cast<const char*>(memory_), kHead))
        refuse(path, "another run's memory");
    }
    tell("");  // all have it: the first may close it
  }
  ~SharedMemory() override { ::munmap(memory_, bytes_); }

  std::string name() const override { return "shared memory"; }
  std::unique_ptr<Transport> between(const std::vector<std::size_t>& members) override {
    const auto own = static_cast<std::size_t>(std::ranges::find(members, rank_) - members.begin());
    return std::make_unique<SharedMemory>(own, members.size(), [&](const std::string& words) {
      // Everybody says something of one length, and hears the first of its own.
      std::string all(ranks_ * kMostWords, '\0'), mine = words;
      REDLINE_CHECK(words.size() <= kMostWords, "{} bytes about shared memory", words.size());
      mine.resize(kMostWords);
      std::vector<Range> parts;
      for (std::size_t r = 0; r < ranks_; ++r)
        parts.push_back({static_cast<std::int64_t>(r * kMostWords), static_cast<std::int64_t>((r + 1) * kMostWords)});
      share(reinterpret_cast<std::byte*>(all.data()), reinterpret_cast<const std::byte*>(mine.data()), parts, 1);
      const std::string said = all.substr(members[0] * kMostWords, kMostWords);
      return said;
    });
  }
  std::size_t most_given() const override { return kBox / ranks_ / kLine * kLine; }

  std::vector<const std::byte*> exchange(const std::vector<std::span<const std::byte>>& gives,
                                         const std::vector<std::size_t>&) override {
    ++turn_;
    for (std::size_t r = 0; r < ranks_; ++r)
      if (r != rank_ && !gives[r].empty()) std::memcpy(box(rank_) + r * most_given(), gives[r].data(), gives[r].size());
    wait_for_all();
    std::vector<const std::byte*> gets(ranks_);
    for (std::size_t r = 0; r < ranks_; ++r) gets[r] = r == rank_ ? gives[r].data() : box(r) + rank_ * most_given();
    return gets;
  }

  void share(std::byte* data, const std::byte* own, const std::vector<Range>& parts, std::size_t size) override {
    std::size_t longest = 0;
    for (std::size_t r = 0; r < ranks_; ++r) longest = std::max(longest, bytes_of(parts[r], size));
    std::byte* const place = data + at(parts[rank_], size);
    const std::size_t mine = bytes_of(parts[rank_], size);
    if (own != place && mine > 0) std::memmove(place, own, mine);
    for (std::size_t begin = 0; begin < longest; begin += kBox) {
      const auto piece = [&](std::size_t r) {
        const std::size_t n = bytes_of(parts[r], size);
        return begin < n ? std::min(n - begin, kBox) : std::size_t{0};
      };
      ++turn_;
      if (begin < mine) std::memcpy(box(rank_), place + begin, piece(rank_));
      wait_for_all();
      for (std::size_t r = 0; r < ranks_; ++r)
        if (r != rank_ && piece(r) > 0) std::memcpy(data + at(parts[r], size) + begin, box(r), piece(r));
    }
  }

 private:
  static constexpr std::size_t kLine = 64, kHead = 64, kMostWords = 256;
  static constexpr std::size_t kBox = std::size_t{1} << 20;
  struct alignas(kLine) Arrived {
    std::atomic<std::uint64_t> turn;
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "other processes see it");

  [[noreturn]] static void refuse(const std::string& path, std::string_view why) {
    fail_user(
        "this rank cannot share memory with others ({}: {}); ranks of one machine run as one user in one container",
        path, why);
  }
  void map(const Descriptor& file) {
    void* const memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
    if (memory == MAP_FAILED) fail_machine("{} bytes of shared memory: {}", bytes_, std::strerror(errno));
    memory_ = static_cast<std::byte*>(memory);
  }
  static std::size_t bytes_of(const Range& part, std::size_t size) {
    return part.empty() ? 0 : static_cast<std::size_t>(part.elements()) * size;
  }
  static std::size_t at(const Range& part, std::size_t size) {
    return part.empty() ? 0 : static_cast<std::size_t>(part.begin) * size;
  }
  std::atomic<std::uint64_t>& arrived(std::size_t rank) const {
    return reinterpret_cast<Arrived*>(memory_ + kHead)[rank].turn;
  }
  std::byte* box(std::size_t rank) const {  // of this turn
    return memory_ + kHead + ranks_ * sizeof(Arrived) + (2 * rank + turn_ % 2) * kBox;
  }

  // Ranks that compute may have the core meanwhile: the wait is short among ranks that keep step, and a rank that waits
  // for long (while rank 0 evaluates, say) sleeps.
  void wait_for_all() {
    constexpr int kYields = 2000;
    arrived(rank_).store(turn_, std::memory_order_release);
    for (std::size_t r = 0; r < ranks_; ++r)
      for (int tries = 0; arrived(r).load(std::memory_order_acquire) < turn_; ++tries) {
        if (tries < kYields)
          std::this_thread::yield();
        else
          std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
  }

  std::size_t rank_, ranks_, bytes_ = 0;
  std::byte* memory_ = nullptr;
  std::uint64_t turn_ = 0;
};

}  // namespace

std::unique_ptr<Group> group_over(std::unique_ptr<Transport> transport, Control& control) {
  return std::make_unique<CpuGroup>(std::move(transport), control);
}

std::unique_ptr<Group> open_shared_memory(Control& control) {
  const auto tell = [&](const std::string& words) {
    const std::string said = control.broadcast(words, "memory");
    control.barrier("memory");
    return said;
  };
  return group_over(std::make_unique<SharedMemory>(static_cast<std::size_t>(control.place().rank),
                                                   static_cast<std::size_t>(control.place().ranks), tell),
                    control);
}

std::unique_ptr<Group> open_cpu(Control& control) {
  if (control.place().one_machine()) return open_shared_memory(control);
  return mpi_status().built && started_by_mpi() ? open_mpi(control) : open_tcp(control);
}

}  // namespace redline::dist
