// One of several ranks on a card (tests/dist/cuda/nccl_test.cpp): collectives over NCCL of small whole numbers, whose
// sums are exact in any order, in fp32 and bf16, queued as they are and captured in a graph. Exit status 1 and one line
// for what is wrong.
#include <cstdio>
#include <functional>
#include <vector>

#include "base/small_floats.h"
#include "device/cuda/device.h"
#include "dist/control.h"
#include "dist/group.h"

namespace redline::dist {
namespace {

int g_wrong = 0;

// What rank `rank` brings as element i: from -15 to 15.
float brought(int rank, std::int64_t i) { return static_cast<float>((i * 7 + rank * 11) % 31 - 15); }
// So many ranks that are so far apart, `rank` among them.
std::vector<int> members(int rank, int many, int apart = 1) {
  std::vector<int> ranks;
  for (int i = 0; i < many; ++i) ranks.push_back((apart > 1 ? rank % apart : rank / many * many) + i * apart);
  return ranks;
}
float sum_of(const std::vector<int>& ranks, std::int64_t i) {
  float sum = 0;
  for (const int r : ranks) sum += brought(r, i);
  return sum;
}

class Card {
 public:
  explicit Card(device::CudaDevice& device) : device_(device) {}
  cudaStream_t stream() const { return device_.launch().stream; }

  // An array on the card; element i is value(i).
  template <class T>
  struct Array {
    std::unique_ptr<device::Buffer> buffer;
    Tensor tensor;
  };
  template <class T, class Value>
  Array<T> make(DType dtype, std::int64_t n, const Value& value) {
    std::vector<T> host;
    for (std::int64_t i = 0; i < n; ++i) host.push_back(static_cast<T>(value(i)));
    Array<T> array{device_.allocate(std::max<std::int64_t>(1, n) * static_cast<std::int64_t>(sizeof(T))), {}};
    if (n > 0) array.tensor = {array.buffer->data(), dtype, {n}};
    device_.copy_in(array.buffer->data(), host.data(), n * static_cast<std::int64_t>(sizeof(T)));
    return array;
  }
  template <class Value>
  Array<float> floats(std::int64_t n, const Value& value) {
    return make<float>(DType::f32, n, value);
  }

  template <class T, class Value>
  void expect(const std::string& what, const Array<T>& array, std::int64_t begin, std::int64_t n, const Value& value) {
    std::vector<T> host(static_cast<std::size_t>(n));
    device_.copy_out(host.data(), array.buffer->data() + begin * static_cast<std::int64_t>(sizeof(T)),
                     n * static_cast<std::int64_t>(sizeof(T)));
    device_.wait();
    for (std::int64_t i = 0; i < n; ++i)
      if (host[static_cast<std::size_t>(i)] != static_cast<T>(value(begin + i))) {
        std::fprintf(stderr, "%s: element %ld is %g, not %g\n", what.c_str(), static_cast<long>(begin + i),
                     static_cast<double>(host[static_cast<std::size_t>(i)]), static_cast<double>(value(begin + i)));
        ++g_wrong;
        return;
      }
  }

 private:
  device::CudaDevice& device_;
};

// Runs a collective as programs do: queued, or as a graph that was captured.
void run(bool captured, cudaStream_t stream, const std::function<void()>& collective) {
  if (!captured) return collective();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  REDLINE_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  collective();
  REDLINE_CUDA(cudaStreamEndCapture(stream, &graph));
  const device::cuda::Graph owned(graph);
  REDLINE_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  const device::cuda::GraphExec owned_exec(exec);
  REDLINE_CUDA(cudaGraphLaunch(exec, stream));
  REDLINE_CUDA(cudaStreamSynchronize(stream));
}

void check_all_reduce(Group& g, Card& card, std::int64_t n, int apart, bool captured) {
  const std::vector<int> ranks = members(g.rank(), g.ranks() / apart, apart);
  const auto mine = [&](std::int64_t i) { return brought(g.rank(), i); };
  const auto sum = [&](std::int64_t i) { return sum_of(ranks, i); };
  const auto largest = [&](std::int64_t i) {
    float most = brought(ranks[0], i);
    for (const int rank : ranks) most = std::max(most, static_cast<float>(brought(rank, i)));
    return most;
  };
  const auto singles = card.floats(n, mine), rounded = card.floats(n, mine), most = card.floats(n, mine);
  const auto doubles = card.make<double>(DType::f64, n, mine);
  const auto wire = card.make<std::uint16_t>(DType::bf16, n, [](std::int64_t) { return 0; });
  run(captured, card.stream(), [&] {
    g.run(AllReduce<Tensor>{singles.tensor, {}, false, apart}, card.stream());
    g.run(AllReduce<Tensor>{doubles.tensor, {}, false, apart}, card.stream());
    g.run(AllReduce<Tensor>{rounded.tensor, wire.tensor, false, apart}, card.stream());
    g.run(AllReduce<Tensor>{most.tensor, {}, true, apart}, card.stream());
    if (apart > 1) g.run(AllReduce<Tensor>{{}, {}, false, apart}, card.stream());  // of nothing
  });
  card.expect("all_reduce f32", singles, 0, n, sum);
  card.expect("all_reduce f64", doubles, 0, n, sum);
  card.expect("all_reduce bf16", rounded, 0, n, sum);
  card.expect("all_reduce, the largest", most, 0, n, largest);
}

void check_shards(Group& g, Card& card, std::int64_t all, std::int64_t begin, std::int64_t n, int holders,
                  bool captured) {
  const Shards shards{all, holders};
  const std::vector<int> ranks = members(g.rank(), holders);
  const Range part = owned_part(shards, g.rank() % holders, begin, begin + n);
  const std::int64_t own = part.elements(), at = part.begin - begin;
  const auto mine = [&](std::int64_t i) { return brought(g.rank(), i); };
  const auto sum = [&](std::int64_t i) { return sum_of(ranks, i); };
  for (const bool bf16 : {false, true}) {
    const auto wire = card.make<std::uint16_t>(DType::bf16, bf16 ? n : 0, [](std::int64_t) { return 0; });
    const auto data = card.floats(n, mine);
    run(captured, card.stream(), [&] {
      g.run(ReduceShards<Tensor>{data.tensor, {}, wire.tensor, shards, begin, false, true}, card.stream());
    });
    card.expect("reduce_shards in place", data, at, own, sum);
    for (const bool accumulate : {false, true}) {
      const auto again = card.floats(n, mine);
      const auto shard = card.floats(own, [](std::int64_t) { return 2.0f; });
      run(captured, card.stream(), [&] {
        g.run(ReduceShards<Tensor>{again.tensor, shard.tensor, wire.tensor, shards, begin, accumulate, false},
              card.stream());
      });
      card.expect("reduce_shards out of place", shard, 0, own,
                  [&](std::int64_t i) { return sum(at + i) + (accumulate ? 2.0f : 0.0f); });
    }
  }
  const auto inside =
      card.floats(n, [&](std::int64_t i) { return i >= at && i < at + own ? static_cast<float>(i % 1000) : -1.0f; });
  const auto apart = card.floats(n, [](std::int64_t) { return -1.0f; });
  const auto shard = card.floats(own, [&](std::int64_t i) { return static_cast<float>((at + i) % 1000); });
  run(captured, card.stream(), [&] {
    g.run(GatherShards<Tensor>{{}, inside.tensor, shards, begin, true}, card.stream());
    g.run(GatherShards<Tensor>{shard.tensor, apart.tensor, shards, begin, false}, card.stream());
  });
  const auto whole = [](std::int64_t i) { return static_cast<float>(i % 1000); };
  card.expect("gather_shards in place", inside, 0, n, whole);
  card.expect("gather_shards out of place", apart, 0, n, whole);
}

// Within groups of ranks: block r of each is for rank r of its group.
void check_all_to_all(Group& g, Card& card, int among, std::int64_t n, bool captured) {
  const int first = g.rank() / among * among;
  const auto given = [&](int from, int to, std::int64_t i) { return brought(from + 3 * to, i); };
  const auto from =
      card.floats(among * n, [&](std::int64_t i) { return given(g.rank(), first + static_cast<int>(i / n), i % n); });
  const auto to = card.floats(among * n, [](std::int64_t) { return -99.0f; });
  run(captured, card.stream(), [&] { g.run(AllToAll<Tensor>{from.tensor, to.tensor, among}, card.stream()); });
  card.expect("all_to_all", to, 0, among * n,
              [&](std::int64_t i) { return given(first + static_cast<int>(i / n), g.rank(), i % n); });
}

int check_all() {
  const Place place = place_of_process();
  take_own_card(place);
  const auto control = Control::join(place, {"test", 60, {}, {}, {}});
  const auto device = device::open_cuda();
  auto& cuda = static_cast<device::CudaDevice&>(*device);
  Card card(cuda);
  const auto group = open_nccl(*device, *control);
  for (const bool captured : {false, true}) {
    for (int among = group->ranks(); among >= 1; --among) {
      if (group->ranks() % among != 0) continue;
      const int apart = group->ranks() / among;
      for (const std::int64_t n : {1, 1037, 300'001}) check_all_reduce(*group, card, n, apart, captured);
      check_shards(*group, card, 300'003, 0, 300'003, among, captured);
      check_shards(*group, card, 300'003, 100'001, 100'101, among, captured);  // borders of shards lie inside
      check_shards(*group, card, 300'003, 0, 500, among, captured);            // the first one's alone
      check_all_to_all(*group, card, among, 100'003, captured);
    }
  }
  for (const std::string& of_rank : control->all_gather(std::to_string(g_wrong)))
    if (of_rank != "0") g_wrong = 1;
  control->goodbye();
  if (group->rank() == 0) std::printf("%s, %d ranks\n", group->engine().c_str(), group->ranks());
  return g_wrong ? 1 : 0;
}

}  // namespace
}  // namespace redline::dist

int main() {
  try {
    return redline::dist::check_all();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 4;
  }
}
