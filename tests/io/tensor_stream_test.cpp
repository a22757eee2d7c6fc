// Streams of tensors: every element arrives once, converted as a whole tensor would be, whatever windows and pieces cut
// it into; a file that is not the one of its hash is refused; who waits hears how far it is.
#include "io/tensor_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "base/random.h"
#include "io/manifest.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::io {
namespace {

using redline::testing::says;

// Halves of every kind in tensors of odd sizes; together several windows, and none of them begins at an even address of
// one.
class Streams : public ::testing::Test {
 protected:
  Streams() {
    const Random random(1, 2);
    std::vector<TensorToWrite> tensors;
    std::int64_t n = 0;
    for (const std::int64_t elements :
         {std::int64_t{1}, std::int64_t{3}, kStreamWindow / 2 + 77, std::int64_t{524289}, std::int64_t{5}}) {
      std::vector<std::uint16_t>& v = data_.emplace_back(static_cast<std::size_t>(elements));
      for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<std::uint16_t>((i * 2654435761u) >> 7);
      tensors.push_back(
          {fmt::format("t{}", n++), n % 2 ? DType::bf16 : DType::f16, {elements}, std::as_bytes(std::span(v))});
    }
    hash_ = write_safetensors(real_files(), temp_ / "f", tensors, {});
    reader_ = std::make_unique<SafetensorsReader>(temp_ / "f");
    for (const StoredTensor& t : reader_->tensors()) wanted_.push_back(&t);
  }

  // Everything as floats, from a stream with that many threads; in one window where progress is heard.
  std::vector<std::vector<float>> stream(int threads, FileHashes hashes,
                                         const std::function<void(std::uint64_t)>& progress = {}) {
    ThreadPool pool(threads);
    std::vector<std::vector<float>> out;
    for (const StoredTensor* t : wanted_) out.emplace_back(static_cast<std::size_t>(t->elements()));
    std::vector<std::int64_t> done(wanted_.size());
    stream_tensors(
        {*reader_, wanted_, std::move(hashes), pool, progress ? kLongStreamWindow : kStreamWindow, progress, finite_},
        [&](const TensorPiece& p) {
          return PiecePlace{reinterpret_cast<std::byte*>(out[p.index].data() + p.first), DType::f32};
        },
        [&](std::span<const TensorPiece> pieces) {
          ++windows_;
          for (const TensorPiece& p : pieces) EXPECT_EQ(std::exchange(done[p.index], p.first + p.count), p.first);
        });
    for (std::size_t i = 0; i < done.size(); ++i) EXPECT_EQ(done[i], wanted_[i]->elements());
    return out;
  }

  FileHashes whole(std::uint64_t hash) const { return {{0, reader_->file().bytes().size(), hex64(hash)}}; }

  testing::TempFolder temp_;
  std::vector<std::vector<std::uint16_t>> data_;
  std::unique_ptr<SafetensorsReader> reader_;
  std::vector<const StoredTensor*> wanted_;
  std::uint64_t hash_ = 0;
  int windows_ = 0;
  bool finite_ = false;  // of all kinds of halves some are not
};

TEST_F(Streams, EveryElementArrivesOnceOnAnyNumberOfThreads) {
  for (const int threads : {1, 3}) {
    const auto out = stream(threads, whole(hash_));
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      const std::vector<float> whole = wanted_[i]->to_f32();
      EXPECT_EQ(std::memcmp(out[i].data(), whole.data(), whole.size() * sizeof(float)), 0) << i;
    }
  }
}

// A window of a slow disk may take long: who waits hears of its parts, and may have enough.
TEST_F(Streams, TellsTheCallerWhatIsReadWithinAWindowAndEndsWhenItThrows) {
  std::vector<std::uint64_t> read;
  stream(1, whole(hash_), [&](std::uint64_t bytes) {
    EXPECT_EQ(windows_, 0);
    read.push_back(bytes);
  });
  EXPECT_EQ(windows_, 1);
  EXPECT_GT(read.size(), 5u);
  EXPECT_TRUE(std::ranges::is_sorted(read));
  EXPECT_EQ(read.back(), reader_->file().bytes().size());
  for (const int threads : {1, 3}) EXPECT_THROW(stream(threads, whole(hash_), [](std::uint64_t) { throw 7; }), int);
}

TEST_F(Streams, TensorsThatNobodyWantsArePassedOver) {
  wanted_ = {wanted_[1], wanted_[3]};
  EXPECT_EQ(stream(2, {})[1].size(), 524289u);
}

// Some as they are, some as floats, all back to back: what is converted need not stand where a float would.
TEST_F(Streams, EachPieceHasATypeOfItsOwn) {
  ThreadPool pool(2);
  const auto type_of = [](std::size_t i) { return i % 2 ? DType::f16 : DType::f32; };
  std::vector<std::size_t> begins;
  std::size_t bytes = 1;
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    begins.push_back(bytes);
    bytes += static_cast<std::size_t>(wanted_[i]->elements()) * size_of(type_of(i));
  }
  std::vector<std::byte> out(bytes);
  stream_tensors(
      {.file = *reader_, .wanted = wanted_, .pool = pool, .finite = false},
      [&](const TensorPiece& p) {
        const DType dtype = type_of(p.index);
        return PiecePlace{out.data() + begins[p.index] + static_cast<std::size_t>(p.first) * size_of(dtype), dtype};
      },
      [](std::span<const TensorPiece>) {});
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    const std::vector<float> floats = wanted_[i]->to_f32();
    const void* const whole = i % 2 ? static_cast<const void*>(wanted_[i]->bytes.data()) : floats.data();
    EXPECT_EQ(std::memcmp(out.data() + begins[i], whole, floats.size() * size_of(type_of(i))), 0) << i;
  }
}

TEST_F(Streams, WhatIsNotFiniteIsCountedAndItsTensorNamed) {
  finite_ = true;
  std::int64_t bad = 0;
  for (const std::uint16_t bits : data_[2]) bad += (bits & 0x7f80) == 0x7f80;
  ASSERT_GT(bad, 0);
  wanted_ = {wanted_[1], wanted_[2], wanted_[3]};
  EXPECT_TRUE(says(
      testing::error_of([&] { stream(2, {}); }),
      {(temp_ / "f").string(), fmt::format("{} of the {} numbers of \"t2\"", bad, data_[2].size()), "1 other tensor"}));
}

TEST(StoredTensor, NaNAndInfinityOfEveryType) {
  const auto count = [](DType dtype, auto... bits) {
    const std::array values = {bits...};
    return StoredTensor{"t", dtype, {}, {}}.not_finite(std::as_bytes(std::span(values)));
  };
  using U16 = std::uint16_t;
  EXPECT_EQ(count(DType::f32, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u, 0x7f7fffffu, 0x80000000u), 4);
  EXPECT_EQ(count(DType::bf16, U16{0x7f80}, U16{0xffc0}, U16{0x7f7f}, U16{0}, U16{0x3f80}), 2);
  EXPECT_EQ(count(DType::f16, U16{0x7c00}, U16{0xfe00}, U16{0x7bff}, U16{0x8001}), 2);
  EXPECT_EQ(count(DType::f64, std::uint64_t{0x7ff0000000000000}, std::uint64_t{0x7fefffffffffffff}), 1);
}

TEST_F(Streams, AnotherHashIsAUserErrorThatNamesTheFile) {
  EXPECT_TRUE(says(testing::error_of([&] { stream(2, whole(hash_ ^ 1)); }), {(temp_ / "f").string() + " has changed"}));
}

// Three ranks that each want a part of the tensors, cut anywhere, of a file that others wrote in their own stretches:
// every element arrives on one of them, every byte is held against its hash on one of them, and hardly more is read.
class SharedStreams : public Streams {
 protected:
  static constexpr std::int64_t kRanks = 3;

  // Elements of all tensors back to back, in the order of the file, cut into equal parts.
  std::vector<ElementRange> parts_of(std::int64_t rank) const {
    std::int64_t all = 0, at = 0;
    for (const StoredTensor* t : wanted_) all += t->elements();
    const std::int64_t begin = rank * all / kRanks, end = (rank + 1) * all / kRanks;
    std::vector<ElementRange> parts;
    for (const StoredTensor* t : wanted_) {
      const std::int64_t from = std::max(at, begin), to = std::min(at + t->elements(), end);
      parts.push_back(from < to ? ElementRange{from - at, to - from} : ElementRange{});
      at += t->elements();
    }
    return parts;
  }

  FileHashes hashes_of(std::vector<std::uint64_t> cuts) const {
    const std::span<const std::byte> bytes = reader_->file().bytes();
    cuts.push_back(bytes.size());
    FileHashes hashes;
    std::uint64_t at = 0;
    for (const std::uint64_t cut : cuts) {
      hashes.push_back({at, cut, hex64(hash64(bytes.subspan(at, cut - at)))});
      at = cut;
    }
    return hashes;
  }

  // What is wrong on each rank; nothing where all is well. `out_` has what arrived.
  std::vector<std::string> stream_all(const FileHashes& hashes) {
    std::vector<std::string> problems;
    out_.clear();
    for (const StoredTensor* t : wanted_) out_.emplace_back(static_cast<std::size_t>(t->elements()), -1.f);
    read_ = 0;
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      ThreadPool pool(2);
      const std::vector<ElementRange> parts = parts_of(rank);
      const TensorStream s{.file = *reader_,
                           .wanted = wanted_,
                           .hashes = hashes,
                           .pool = pool,
                           .finite = false,
                           .parts = parts,
                           .rest = rank == 0};
      try {
        read_ += stream_bytes(s);
        stream_tensors(
            s,
            [&](const TensorPiece& p) {
              EXPECT_GE(p.first, parts[p.index].first);
              EXPECT_LE(p.first + p.count, parts[p.index].first + parts[p.index].count);
              return PiecePlace{reinterpret_cast<std::byte*>(out_[p.index].data() + p.first), DType::f32};
            },
            [](std::span<const TensorPiece>) {});
        problems.emplace_back();
      } catch (const UserError& e) {
        problems.emplace_back(e.what());
      }
    }
    return problems;
  }

  std::vector<std::vector<float>> out_;
  std::uint64_t read_ = 0;
};

TEST_F(SharedStreams, EveryElementArrivesAndEveryStretchIsHeldOnce) {
  const std::uint64_t size = reader_->file().bytes().size();
  const auto even = [](std::uint64_t at) { return at / 8 * 8; };
  const std::vector<std::vector<std::uint64_t>> cuts = {
      {}, {even(size / 2)}, {even(size / 3), even(2 * size / 3)}, {64, even(size / 7), even(size / 7) + 8, size - 10}};
  for (const std::vector<std::uint64_t>& cut : cuts) {
    const FileHashes hashes = hashes_of(cut);
    EXPECT_EQ(stream_all(hashes), std::vector<std::string>(kRanks));
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      const std::vector<float> whole = wanted_[i]->to_f32();
      EXPECT_EQ(std::memcmp(out_[i].data(), whole.data(), whole.size() * sizeof(float)), 0) << i;
    }
    EXPECT_GE(read_, size);
    EXPECT_LE(read_, 2 * size);
    for (std::size_t wrong = 0; wrong < hashes.size(); ++wrong) {
      FileHashes other = hashes;
      other[wrong].xxh3 = hex64(1);
      std::vector<std::string> problems = stream_all(other);
      std::erase(problems, "");
      ASSERT_EQ(problems.size(), 1u) << "one rank holds it";
      EXPECT_TRUE(says(problems[0], {changed_in_words(other, {wrong})}));
    }
  }
  stream_all({});
  EXPECT_LT(read_, size) << "without hashes nobody reads the header again";
}

TEST_F(SharedStreams, AStretchThatCutsANumberIsRefused) {
  const std::uint64_t tensor = static_cast<std::uint64_t>(wanted_[2]->bytes.data() - reader_->file().bytes().data());
  std::vector<std::string> problems = stream_all(hashes_of({tensor + 7}));
  std::erase(problems, "");
  ASSERT_FALSE(problems.empty());
  EXPECT_TRUE(says(problems[0], {"cuts a number of \"t2\" in two"}));
}

}  // namespace
}  // namespace redline::io
