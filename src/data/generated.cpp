// A ping document reads
//   <begin><source>10.66.12.8<target>10.21.130.77<size>56
//   <time>4711<sequence>1<ttl>57<rtt>12.3<time>4712<sequence>2<lost>...<received>11<end>
// in one line. Only integers are computed with, so every machine writes the same bytes.
#include "data/generated.h"

#include <array>
#include <charconv>
#include <mutex>
#include <string_view>

#include "base/error.h"
#include "base/random.h"
#include "data/tokenizer/tokenizer.h"

namespace redline::data {
namespace {

enum Role : std::int32_t {
  kEnd = kEndOfDocument,
  kBegin,
  kSource,
  kTarget,
  kTime,
  kRtt,
  kTtl,
  kSequence,
  kLost,
  kSize,
  kReceived
};
static_assert(kReceived + 1 == kPingVocabulary);

constexpr std::uint64_t kWorldStream = std::uint64_t{1} << 62;     // documents are streams by themselves: [0, 2^62)
constexpr std::uint64_t kHeldOutStreams = std::uint64_t{1} << 63;  // and [2^63, 2^63 + 2^62)
constexpr std::uint64_t kSeedOfPing = 0x70696E67ull;               // "ping": apart from other uses of the same seed

// The most tokens of a document, at 64 equal steps of probability: log-normal with its tail folded at 1024, as
// measured logs are. Documents end at the last probe that fits, so their mean is 200.
constexpr std::array<std::uint16_t, 65> kLengths = {
    64,  64,  64,  64,  64,  67,  72,  76,  81,  84,  88,  92,  96,  99,  103, 107, 110, 114, 117, 121, 125, 128,
    132, 136, 139, 143, 147, 151, 155, 159, 163, 168, 172, 177, 181, 186, 191, 196, 201, 207, 212, 218, 224, 231,
    237, 245, 252, 260, 268, 277, 287, 298, 309, 321, 335, 350, 368, 387, 411, 438, 473, 520, 588, 713, 1024};

constexpr std::array<std::uint32_t, 4> kSizes = {56, 64, 512, 1400};              // bytes of payload
constexpr std::array<std::uint32_t, 8> kIntervals = {1, 1, 1, 2, 5, 10, 30, 60};  // seconds between probes

// A uniform word to [0, n).
constexpr std::uint32_t below(std::uint32_t word, std::uint32_t n) {
  return static_cast<std::uint32_t>(std::uint64_t{word} * n >> 32);
}

constexpr std::uint32_t integer_root(std::uint32_t x) {
  std::uint32_t root = 0;
  for (std::uint32_t bit = 1u << 15; bit != 0; bit >>= 1) {
    if ((root | bit) * (root | bit) <= x) root |= bit;
  }
  return root;
}

struct Host {
  std::array<std::uint8_t, 3> address;  // after 10.
  std::int32_t x, y;                    // where it stands: round-trip times follow from it
};

constexpr std::uint32_t kRegions = 8, kSubnets = 5, kHosts = 10;  // subnets of a region, hosts of a subnet
constexpr std::uint32_t kWorldSize = kRegions * kSubnets * kHosts;

// Octets are drawn from disjoint stretches, so addresses differ by construction.
std::array<Host, kWorldSize> build_world(std::uint64_t seed) {
  const Random random(seed, kWorldStream);
  std::uint64_t draws = 0;
  const auto draw = [&](std::uint32_t n) { return below(random.words(draws++)[0], n); };
  const auto offset = [&](std::uint32_t reach) {
    return static_cast<std::int32_t>(draw(2 * reach + 1)) - static_cast<std::int32_t>(reach);
  };
  std::array<Host, kWorldSize> world{};
  std::size_t next = 0;
  for (std::uint32_t region = 0; region < kRegions; ++region) {
    const auto first = static_cast<std::uint8_t>(8 + region * 29 + draw(29));
    const std::int32_t region_x = static_cast<std::int32_t>(draw(4096)),
                       region_y = static_cast<std::int32_t>(draw(4096));
    for (std::uint32_t subnet = 0; subnet < kSubnets; ++subnet) {
      const auto second = static_cast<std::uint8_t>(subnet * 50 + draw(50));
      const std::int32_t x = region_x + offset(300), y = region_y + offset(300);
      for (std::uint32_t host = 0; host < kHosts; ++host) {
        const auto third = static_cast<std::uint8_t>(1 + host * 25 + draw(25));
        world[next++] = {{first, second, third}, x + offset(40), y + offset(40)};
      }
    }
  }
  return world;
}

class TokenWriter {
 public:
  explicit TokenWriter(std::int32_t* at) : begin_(at), at_(at) {}
  void put(std::int32_t token) { *at_++ = token; }
  void number(std::uint32_t value) {
    std::array<std::int32_t, 10> digits;
    std::size_t count = 0;
    do digits[count++] = static_cast<std::int32_t>('0' + value % 10);
    while ((value /= 10) != 0);
    while (count != 0) put(digits[--count]);
  }
  void field(Role role, std::uint32_t value) {
    put(role);
    number(value);
  }
  void address(Role role, const Host& host) {
    put(role);
    number(10);
    for (const std::uint8_t octet : host.address) {
      put('.');
      number(octet);
    }
  }
  std::int64_t length() const { return at_ - begin_; }

 private:
  std::int32_t* begin_;
  std::int32_t* at_;
};

// A probe and the closing <received>N<end> at their longest; a probe is only begun while both fit.
constexpr std::int64_t kLongestProbe = 1 + 6 + 1 + 3 + 1 + 2 + 1 + 5, kLongestEnd = 1 + 3 + 1;

// Counted up when the same seed gives other documents than before: checkpoints hold what they were trained on.
constexpr std::uint64_t kPingFormat = 1;

class Ping final : public DocumentSource {
 public:
  Ping(std::int64_t seed, std::int64_t documents, Part part)
      : seed_(static_cast<std::uint64_t>(seed) ^ kSeedOfPing),
        documents_(documents),
        part_(part),
        world_(build_world(seed_)) {}

  std::string name() const override { return "ping (generated)"; }
  std::int64_t documents() const override { return documents_; }
  std::int64_t vocabulary() const override { return kPingVocabulary; }
  std::uint64_t fingerprint() const override {
    return Random(seed_, kPingFormat).bits(static_cast<std::uint64_t>(documents_));
  }
  std::uint64_t order_seed() const override { return seed_; }
  std::string decode(const std::vector<std::int32_t>& tokens) const override {
    return ping_vocabulary().decode(tokens);
  }
  std::vector<std::int32_t> encode(const std::string& text) const override { return ping_vocabulary().encode(text); }
  std::optional<std::int32_t> end_token() const override { return kEndOfDocument; }

  void read(std::int64_t index, std::vector<std::int32_t>& tokens) const override {
    REDLINE_CHECK(index >= 0 && (documents_ == 0 || index < documents_), "no document {} among {}", index, documents_);
    tokens.resize(static_cast<std::size_t>(kPingLongestDocument));
    TokenWriter out(tokens.data());
    write(Random(seed_, static_cast<std::uint64_t>(index) | (part_ == Part::held_out ? kHeldOutStreams : 0)), out);
    tokens.resize(static_cast<std::size_t>(out.length()));
  }

  // Only writing a document tells its length, and whoever orders pieces asks for many: two bytes a document are kept.
  std::int64_t length(std::int64_t index) const override {
    if (documents_ == 0) return DocumentSource::length(index);
    std::call_once(measured_, [&] {
      for (std::int64_t i = 0; i < documents_; ++i)
        lengths_.push_back(static_cast<std::uint16_t>(DocumentSource::length(i)));
    });
    return lengths_.at(static_cast<std::size_t>(index));
  }

 private:
  void write(const Random& random, TokenWriter& out) const {
    const auto who = random.words(0), how = random.words(1);
    const std::uint32_t from = some_host(who[0]);
    const std::uint32_t other = some_host(who[1]), to = other == from ? (from + 1) % kWorldSize : other;
    const Host &source = world_[from], &target = world_[to];
    const std::uint32_t size = kSizes[how[0] >> 30], interval = kIntervals[how[1] >> 29];
    const std::uint32_t loss = how[2] >> 28 == 0 ? 64 : 4;  // in 256: one link in sixteen is bad
    const std::int64_t longest = drawn_length(who[3]);

    const std::int32_t dx = source.x - target.x, dy = source.y - target.y;
    const std::uint32_t distance = integer_root(static_cast<std::uint32_t>(dx * dx + dy * dy));
    const std::uint32_t base = 4 + distance / 16 + size / 128;  // tenths of a millisecond
    const std::uint32_t ttl = 63 - distance / 256;

    out.put(kBegin);
    out.address(kSource, source);
    out.address(kTarget, target);
    out.field(kSize, size);
    std::uint32_t time = start_time(who[2], from, to), received = 0;
    for (std::uint32_t sequence = 1; sequence == 1 || out.length() + kLongestProbe + kLongestEnd <= longest;
         ++sequence) {
      const auto chance = random.words(1 + sequence);
      out.field(kTime, time);
      out.field(kSequence, sequence);
      if ((chance[0] & 255) < loss) {
        out.put(kLost);
      } else {
        const bool slow = (chance[0] >> 8 & 15) == 0;
        const std::uint32_t rtt = base + below(chance[1], slow ? 3 + base / 4 : 3);
        out.field(kTtl, ttl);
        out.field(kRtt, rtt / 10);
        out.put('.');
        out.number(rtt % 10);
        ++received;
      }
      time += interval + ((chance[0] >> 12 & 15) == 0 ? 1 : 0);
    }
    out.field(kReceived, received);
    out.put(kEnd);
  }

  // Low numbers are drawn more often, so that pairs recur.
  static std::uint32_t some_host(std::uint32_t word) { return below(below(word, word), kWorldSize); }

  static std::int64_t drawn_length(std::uint32_t word) {
    const std::uint32_t step = word >> 26, part = word & ((1u << 26) - 1);
    return kLengths[step] + ((static_cast<std::int64_t>(kLengths[step + 1]) - kLengths[step]) * part >> 26);
  }

  // A second of the day. One in sixteen of all (source, target, second) is the held-out part's: the next that is this
  // part's is taken, and since all three are written out, no document can be in both parts.
  std::uint32_t start_time(std::uint32_t word, std::uint32_t from, std::uint32_t to) const {
    std::uint32_t second = below(word, 86400);
    const auto held_out = [&] {
      std::uint64_t mixed = ((std::uint64_t{from} << 32 | to) * 0x9E3779B97F4A7C15ull) ^ second;
      mixed = (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9ull;
      return mixed >> 60 == 0;
    };
    while (held_out() != (part_ == Part::held_out)) ++second;
    return second;
  }

  std::uint64_t seed_;
  std::int64_t documents_;
  Part part_;
  std::array<Host, kWorldSize> world_;
  mutable std::once_flag measured_;
  mutable std::vector<std::uint16_t> lengths_;
};

// Documents of uniform tokens, as many as whole rows have, 2^16 or more, and the target of the last: the loader cuts
// them into full rows, every token of which has a target.
constexpr std::int64_t kRandomLength = 1 << 16;
constexpr std::string_view kRandomPrefix = "random:";

class RandomTokens final : public DocumentSource {
 public:
  RandomTokens(std::uint64_t seed, std::int64_t vocabulary, std::int64_t row)
      : seed_(seed), vocabulary_(vocabulary), length_((kRandomLength + row - 1) / row * row + 1) {}

  std::string name() const override { return fmt::format("random tokens below {}", vocabulary_); }
  std::int64_t documents() const override { return 0; }
  std::int64_t vocabulary() const override { return vocabulary_; }
  std::uint64_t fingerprint() const override {
    const std::uint64_t bits = Random(seed_, 0).bits(static_cast<std::uint64_t>(vocabulary_));
    return bits ^ static_cast<std::uint64_t>(length_ - kRandomLength - 1);
  }
  void read(std::int64_t index, std::vector<std::int32_t>& tokens) const override {
    tokens.clear();
    append(index, 0, length_, tokens);
  }
  void append(std::int64_t index, std::int64_t begin, std::int64_t count,
              std::vector<std::int32_t>& tokens) const override {
    const Random random(seed_, static_cast<std::uint64_t>(index));
    std::array<std::uint32_t, 4> words{};
    for (std::int64_t i = begin; i < begin + count; ++i) {
      if (i == begin || i % 4 == 0) words = random.words(static_cast<std::uint64_t>(i / 4));
      // The high half of the product: uniform without a division.
      tokens.push_back(static_cast<std::int32_t>(
          (std::uint64_t{words[static_cast<std::size_t>(i % 4)]} * static_cast<std::uint64_t>(vocabulary_)) >> 32));
    }
  }
  std::int64_t length(std::int64_t) const override { return length_; }
  std::string decode(const std::vector<std::int32_t>& tokens) const override {
    return fmt::format("{}", fmt::join(tokens, " "));
  }
  std::vector<std::int32_t> encode(const std::string&) const override { fail_user("random tokens stand for no text"); }

 private:
  std::uint64_t seed_;
  std::int64_t vocabulary_, length_;
};

}  // namespace

std::unique_ptr<DocumentSource> make_ping(std::int64_t seed, std::int64_t documents, Part part) {
  return std::make_unique<Ping>(seed, documents, part);
}

std::unique_ptr<DocumentSource> make_random_tokens(std::int64_t seed, std::int64_t vocabulary, std::int64_t row) {
  return std::make_unique<RandomTokens>(static_cast<std::uint64_t>(seed), vocabulary, row > 0 ? row : kRandomLength);
}

std::optional<std::int64_t> random_vocabulary(const std::string& name, const std::string& key) {
  if (!name.starts_with(kRandomPrefix)) return {};
  const char *begin = name.data() + kRandomPrefix.size(), *end = name.data() + name.size();
  std::int64_t vocabulary = 0;
  const auto [stop, error] = std::from_chars(begin, end, vocabulary);
  if (error != std::errc() || stop != end || vocabulary < 1 || vocabulary > (1 << 24))
    fail_user("{}: \"{}\" must be random:VOCABULARY, a number from 1 to 2^24", key, name);
  return vocabulary;
}

}  // namespace redline::data
