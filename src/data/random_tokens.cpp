// Documents of 2^16 uniform tokens and the target of the last: the loader cuts them into full rows, every token of
// which has a target.
#include "data/random_tokens.h"

#include <array>
#include <charconv>

#include "base/error.h"
#include "base/random.h"

namespace redline::data {
namespace {

constexpr std::int64_t kLength = (1 << 16) + 1;
constexpr std::string_view kPrefix = "random:";

class RandomTokens final : public DocumentSource {
 public:
  RandomTokens(std::uint64_t seed, std::int64_t vocabulary) : seed_(seed), vocabulary_(vocabulary) {}

  std::string name() const override { return fmt::format("random tokens below {}", vocabulary_); }
  std::int64_t documents() const override { return 0; }
  std::int64_t vocabulary() const override { return vocabulary_; }
  std::uint64_t fingerprint() const override { return Random(seed_, 0).bits(static_cast<std::uint64_t>(vocabulary_)); }
  void read(std::int64_t index, std::vector<std::int32_t>& tokens) const override {
    tokens.clear();
    append(index, 0, kLength, tokens);
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
  std::int64_t length(std::int64_t) const override { return kLength; }
  std::string decode(const std::vector<std::int32_t>& tokens) const override {
    return fmt::format("{}", fmt::join(tokens, " "));
  }
  std::vector<std::int32_t> encode(const std::string&) const override { fail_user("random tokens stand for no text"); }

 private:
  std::uint64_t seed_;
  std::int64_t vocabulary_;
};

}  // namespace

std::unique_ptr<DocumentSource> make_random_tokens(std::int64_t seed, std::int64_t vocabulary) {
  return std::make_unique<RandomTokens>(static_cast<std::uint64_t>(seed), vocabulary);
}

std::optional<std::int64_t> random_vocabulary(const std::string& name, const std::string& key) {
  if (!name.starts_with(kPrefix)) return {};
  const char *begin = name.data() + kPrefix.size(), *end = name.data() + name.size();
  std::int64_t vocabulary = 0;
  const auto [stop, error] = std::from_chars(begin, end, vocabulary);
  if (error != std::errc() || stop != end || vocabulary < 1 || vocabulary > (1 << 30))
    fail_user("{}: \"{}\" must be random:VOCABULARY, a number from 1 to 2^30", key, name);
  return vocabulary;
}

}  // namespace redline::data
