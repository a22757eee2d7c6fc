// Byte-pair encoding: the alphabet of byte-level vocabularies, and bytes of a piece to token ids, by merging the
// neighbours of lowest rank first.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace redline::data {

std::uint32_t character_of_byte(unsigned char byte);

// The bytes that a token's characters stand for; none where one is outside the alphabet. `token` is valid UTF-8.
std::optional<std::string> bytes_of_token(std::string_view token);
std::string token_of_bytes(std::string_view bytes);

// Pairs of ids to their merges: open addressing, 16 bytes an entry.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank;
    std::int32_t id;
  };
  static constexpr std::uint32_t kNoRank = 0xffffffff;

  explicit MergeTable(std::size_t merges = 0);                   // how many will be set
  void set(std::int32_t left, std::int32_t right, Merge merge);  // the last one counts
  Merge find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = key_of(left, right);
    for (std::size_t i = slot_of(key);; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return slots_[i].merge;
      if (slots_[i].key == kEmpty) return {kNoRank, -1};
    }
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};  // ids are not negative
  struct Slot {
    std::uint64_t key = kEmpty;
    Merge merge{kNoRank, -1};
  };
  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t slot_of(std::uint64_t key) const {
    return static_cast<std::size_t>((key ^ key >> 29) * 0x9e3779b97f4a7c15u >> shift_);
  }

  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
  int shift_ = 0;
};

// Texts to ids: open addressing, over bytes that it does not own.
class TokenTable {
 public:
  explicit TokenTable(std::size_t tokens = 0);        // how many will be set
  bool set(std::string_view bytes, std::int32_t id);  // false: it is there already
  std::int32_t find(std::string_view bytes) const;    // -1: not there

 private:
  struct Slot {
    std::string_view bytes;
    std::uint32_t hash = 0;
    std::int32_t id = -1;
  };
  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
};

struct BpeModel {
  MergeTable merges;
  TokenTable tokens;                       // by their bytes; asked only with ignore_merges
  std::array<std::int32_t, 256> byte_ids;  // -1: the vocabulary has no such byte
  std::int32_t unknown = -1;               // the token of such a byte; -1: none
  bool fuse_unknown = false;               // several in a row become one
  bool ignore_merges = false;              // a piece that is a token is that token
};

// Merges for one thread. A short piece is searched for the lowest rank again and again; a long one takes a heap, so
// that a megabyte without a space takes a fraction of a second, not minutes.
class BpeMerger {
 public:
  explicit BpeMerger(const BpeModel& model) : model_(model) {}
  void append(std::string_view piece, std::vector<std::int32_t>& ids);

 private:
  void merge_short();
  void merge_long(std::vector<std::int32_t>& ids);

  const BpeModel& model_;
  std::vector<std::int32_t> symbols_;
  std::vector<MergeTable::Merge> pairs_;  // of symbols i and i + 1
  std::vector<std::int32_t> next_, previous_;
  std::vector<std::uint64_t> heap_;  // rank, then place
};

}  // namespace redline::data
