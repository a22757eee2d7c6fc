// One of several ranks (tests/dist/cpu_group_test.cpp): collectives between CPUs, over the engine that its word names,
// against sums that every rank takes by itself. Exit status 1 and one line for what is wrong.
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/small_floats.h"
#include "dist/control.h"
#include "dist/cpu_group.h"

namespace redline::dist {
namespace {

int g_wrong = 0;

template <class T>
void expect_same(const std::string& what, const T* is, const T* expected, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i)
    if (std::memcmp(is + i, expected + i, sizeof(T)) != 0) {
      std::fprintf(stderr, "%s: element %ld is %.9g, not %.9g\n", what.c_str(), static_cast<long>(i),
                   static_cast<double>(is[i]), static_cast<double>(expected[i]));
      ++g_wrong;
      return;
    }
}

Tensor view(std::vector<float>& v) { return {v.data(), DType::f32, {static_cast<std::int64_t>(v.size())}}; }
Tensor view(std::vector<double>& v) { return {v.data(), DType::f64, {static_cast<std::int64_t>(v.size())}}; }
Tensor view(std::vector<std::uint8_t>& v) { return {v.data(), DType::e4m3, {static_cast<std::int64_t>(v.size())}}; }
Tensor view(std::vector<std::uint16_t>& v) { return {v.data(), DType::bf16, {static_cast<std::int64_t>(v.size())}}; }

// What rank `rank` brings: numbers of many sizes, so that another order of the sum has other bits.
template <class T>
std::vector<T> brought(int rank, std::int64_t n) {
  std::vector<T> values(static_cast<std::size_t>(n));
  std::uint64_t state = 77 + static_cast<std::uint64_t>(rank);
  for (T& v : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    v = static_cast<T>((static_cast<double>(state >> 11) * 1e-9 - 4e6) * static_cast<double>(1 << (state >> 5 & 15)));
  }
  return values;
}

// The sum of what ranks brought: of neighbours, then of pairs of them, and so on.
template <class T>
std::vector<T> sum_of(const std::vector<int>& ranks, std::int64_t n, bool bf16 = false) {
  std::vector<std::vector<T>> left;
  for (const int rank : ranks) {
    left.push_back(brought<T>(rank, n));
    for (T& x : left.back())
      if (bf16) x = static_cast<T>(f32_from_bf16(bf16_from_f32(static_cast<float>(x))));
  }
  while (left.size() > 1) {
    std::vector<std::vector<T>> pairs;
    for (std::size_t r = 0; r < left.size(); r += 2) {
      pairs.push_back(left[r]);
      if (r + 1 == left.size()) continue;
      for (std::size_t i = 0; i < left[r].size(); ++i) pairs.back()[i] += left[r + 1][i];
    }
    left = std::move(pairs);
  }
  return left[0];
}
// So many ranks that are so far apart, `rank` among them.
std::vector<int> members(int rank, int many, int apart = 1) {
  std::vector<int> ranks;
  for (int i = 0; i < many; ++i) ranks.push_back((apart > 1 ? rank % apart : rank / many * many) + i * apart);
  return ranks;
}

void check_all_reduce(Group& g, std::int64_t n, int apart) {
  const std::vector<int> ranks = members(g.rank(), g.ranks() / apart, apart);
  const auto where = [&](const char* what) { return fmt::format("all_reduce {} {}, {} apart", what, n, apart); };
  auto singles = brought<float>(g.rank(), n);
  g.run(AllReduce<Tensor>{view(singles), {}, false, apart}, nullptr);
  expect_same(where("f32"), singles.data(), sum_of<float>(ranks, n).data(), n);

  auto doubles = brought<double>(g.rank(), n);
  g.run(AllReduce<Tensor>{view(doubles), {}, false, apart}, nullptr);
  expect_same(where("f64"), doubles.data(), sum_of<double>(ranks, n).data(), n);

  auto most = brought<float>(g.rank(), n), largest = brought<float>(ranks[0], n);
  for (const int rank : ranks) {
    const auto theirs = brought<float>(rank, n);
    for (std::size_t i = 0; i < largest.size(); ++i) largest[i] = std::max(largest[i], theirs[i]);
  }
  g.run(AllReduce<Tensor>{view(most), {}, true, apart}, nullptr);
  expect_same(where("the largest of"), most.data(), largest.data(), n);

  auto rounded = brought<float>(g.rank(), n);
  std::vector<std::uint16_t> wire(rounded.size());
  g.run(AllReduce<Tensor>{view(rounded), view(wire), false, apart}, nullptr);
  auto expected = sum_of<float>(ranks, n, true);
  for (float& x : expected) x = f32_from_bf16(bf16_from_f32(x));
  expect_same(where("bf16"), rounded.data(), expected.data(), n);
}

// A sum within groups and then between them is the sum of all. Where a rank has nothing, none that it adds up with has.
void check_copies(Group& g, int holders, std::int64_t n) {
  const Shards shards{n, holders};
  const Range own = shards.part(g.rank() % holders);
  auto data = brought<float>(g.rank(), n);
  g.run(ReduceShards<Tensor>{view(data), {}, {}, shards, 0, false, true}, nullptr);
  const Tensor mine = own.empty() ? Tensor{} : Tensor{data.data() + own.begin, DType::f32, {own.elements()}};
  g.run(AllReduce<Tensor>{mine, {}, false, holders}, nullptr);
  g.run(GatherShards<Tensor>{{}, view(data), shards, 0, true}, nullptr);
  std::vector<float> sum = sum_of<float>(members(g.rank(), g.ranks()), n);
  if ((holders & (holders - 1)) != 0) return;  // another order
  expect_same(fmt::format("copies of {} among {}", n, holders), data.data(), sum.data(), n);
}

// A bucket [begin, begin + n) of an array of `all` elements, of which so many ranks hold a copy: some own nothing of
// it, or little.
void check_shards(Group& g, std::int64_t all, std::int64_t begin, std::int64_t n, int holders) {
  const Shards shards{all, holders};
  const std::vector<int> ranks = members(g.rank(), holders);
  const Range part = owned_part(shards, g.rank() % holders, begin, begin + n);
  const std::int64_t own = part.elements(), at = part.begin - begin;
  const auto where = [&](const char* what) {
    return fmt::format("{} {}+{} of {} on {}", what, begin, n, all, holders);
  };
  for (const bool bf16 : {false, true}) {
    const std::vector<float> sum = sum_of<float>(ranks, n, bf16);
    std::vector<std::uint16_t> wire(bf16 ? static_cast<std::size_t>(n) : 0);
    const Tensor travels = bf16 ? view(wire) : Tensor{};

    auto data = brought<float>(g.rank(), n);
    g.run(ReduceShards<Tensor>{view(data), {}, travels, shards, begin, false, true}, nullptr);
    expect_same(where("reduce_shards in place"), data.data() + at, sum.data() + at, own);

    for (const bool accumulate : {false, true}) {
      data = brought<float>(g.rank(), n);
      std::vector<float> shard(static_cast<std::size_t>(own), 0.25f), expected(shard);
      for (std::size_t i = 0; i < shard.size(); ++i)
        expected[i] =
            accumulate ? 0.25f + sum[static_cast<std::size_t>(at) + i] : sum[static_cast<std::size_t>(at) + i];
      const Tensor to = own > 0 ? view(shard) : Tensor{};
      g.run(ReduceShards<Tensor>{view(data), to, travels, shards, begin, accumulate, false}, nullptr);
      expect_same(where(accumulate ? "reduce_shards +=" : "reduce_shards ="), shard.data(), expected.data(), own);
    }
  }

  const auto whole = brought<float>(99, n);
  std::vector<float> data(static_cast<std::size_t>(n), -1);
  std::copy(whole.begin() + at, whole.begin() + at + own, data.begin() + at);
  g.run(GatherShards<Tensor>{{}, view(data), shards, begin, true}, nullptr);
  expect_same(where("gather_shards in place"), data.data(), whole.data(), n);

  std::vector<std::uint16_t> small(static_cast<std::size_t>(n)), shard;
  for (std::size_t i = 0; i < small.size(); ++i) small[i] = bf16_from_f32(whole[i]);
  const auto expected = small;
  shard.assign(small.begin() + at, small.begin() + at + own);
  std::fill(small.begin(), small.end(), std::uint16_t{7});
  g.run(GatherShards<Tensor>{own > 0 ? view(shard) : Tensor{}, view(small), shards, begin, false}, nullptr);
  expect_same(where("gather_shards bf16"), small.data(), expected.data(), n);

  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(n), 7), eight;
  for (const std::uint16_t x : expected) eight.push_back(static_cast<std::uint8_t>(x));
  std::copy(eight.begin() + at, eight.begin() + at + own, bytes.begin() + at);
  g.run(GatherShards<Tensor>{{}, view(bytes), shards, begin, true}, nullptr);
  expect_same(where("gather_shards fp8"), bytes.data(), eight.data(), n);
}

// Within groups of ranks: block r of each is for rank r of its group.
void check_all_to_all(Group& g, int among, std::int64_t n) {
  const int first = g.rank() / among * among;
  const auto block = [&](int from, int to) { return brought<float>(100 * from + to, n); };
  std::vector<float> from, expected, to(static_cast<std::size_t>(among * n), -1);
  for (int r = first; r < first + among; ++r) {
    const std::vector<float> given = block(g.rank(), r), got = block(r, g.rank());
    from.insert(from.end(), given.begin(), given.end());
    expected.insert(expected.end(), got.begin(), got.end());
  }
  g.run(AllToAll<Tensor>{view(from), view(to), among}, nullptr);
  expect_same(fmt::format("all_to_all of {} among {}", n, among), to.data(), expected.data(), among * n);
}

int check_all(const std::string& engine) {
  const auto control = Control::join(place_of_process(), {"test", 60, {}, {}, {}});
  const auto group = engine == "mpi"   ? open_mpi(*control)
                     : engine == "tcp" ? open_tcp(*control)
                                       : open_shared_memory(*control);
  if (group->rank() != control->place().rank || group->ranks() != control->place().ranks) return 3;
  for (int among = group->ranks(); among >= 1; --among) {
    if (group->ranks() % among != 0) continue;
    const int apart = group->ranks() / among;
    for (const std::int64_t n : {1, 2, 3, 5, 1037, 100'003}) check_all_reduce(*group, n, apart);
    check_all_reduce(*group, 1'300'001, apart);  // several rounds through the staging memory
    check_shards(*group, 300'003, 0, 300'003, among);
    check_shards(*group, 300'003, 0, 500, among);            // rank 0's alone
    check_shards(*group, 300'003, 299'900, 103, among);      // the last rank's alone
    check_shards(*group, 300'003, 100'001, 100'101, among);  // borders of shards lie inside, and nothing is even
    check_shards(*group, 300, 0, 300, among);                // the last rank's: a shard has whole blocks
    check_shards(*group, 2'000'000, 200'000, 1'500'000, among);
    for (const std::int64_t n : {300, 100'003, 1'300'001}) check_copies(*group, among, n);
    for (const std::int64_t n : {1, 1037, 700'001}) check_all_to_all(*group, among, n);
  }
  const std::string wrong = std::to_string(g_wrong);
  for (const std::string& of_rank : control->all_gather(wrong))
    if (of_rank != "0") g_wrong = 1;
  control->goodbye();
  if (group->rank() == 0) std::printf("%s, %d ranks\n", group->engine().c_str(), group->ranks());
  return g_wrong ? 1 : 0;
}

}  // namespace
}  // namespace redline::dist

int main(int count, char** words) {
  try {
    return redline::dist::check_all(count > 1 ? words[1] : "");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 4;
  }
}
