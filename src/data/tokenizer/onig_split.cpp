// Split patterns through Oniguruma, the engine of the Hugging Face library, as they are written. A pattern is untrusted:
// how long and in how much memory it may match is bounded.
#include <climits>
#include <mutex>

#include "base/error.h"
#include "data/tokenizer/onig_unicode.h"
#include "data/tokenizer/splitter.h"
#include "io/json.h"

namespace redline::data {
namespace {

constexpr std::size_t kLongestPattern = 16 << 10;            // the families' have 100 to 400 bytes
constexpr unsigned kDeepestPattern = 250;                    // the parser recurses
constexpr unsigned kMostStackEntries = 8 << 20;              // one a character of a greedy run; some 300 MB
constexpr unsigned long kMostRetries = 10'000'000;           // at one place of a text: the library's limit
constexpr unsigned long kMostRetriesInSearch = 500'000'000;  // over all places up to the next match
constexpr unsigned long kMostCalls = 1'000'000;              // of groups, \g<name>

struct FreeRegex {
  void operator()(regex_t* regex) const { onig_free(regex); }
};
struct FreeRegion {
  void operator()(OnigRegion* region) const { onig_region_free(region, 1); }
};
using Regex = std::unique_ptr<regex_t, FreeRegex>;
using Region = std::unique_ptr<OnigRegion, FreeRegion>;

const OnigUChar* bytes_of(std::string_view text) { return reinterpret_cast<const OnigUChar*>(text.data()); }

std::string message_of(int code, OnigErrorInfo* info = nullptr) {
  OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN] = {};
  const int size = info ? onig_error_code_to_str(text, code, info) : onig_error_code_to_str(text, code);
  return {reinterpret_cast<const char*>(text), static_cast<std::size_t>(size)};
}

class OnigSplitter final : public Splitter {
 public:
  OnigSplitter(regex_t* regex, const std::string& where) : regex_(regex), where_(where), region_(onig_region_new()) {
    if (!region_) throw std::bad_alloc();
  }

  Match next(std::string_view text, std::size_t from) override {
    if (text.size() > INT_MAX)
      fail_user("{}: a text of {} bytes is too long for its split pattern, which takes up to 2 GiB; cut it", where_,
                text.size());
    const OnigUChar *begin = bytes_of(text), *end = begin + text.size();
    const int found = onig_search(regex_, begin, end, begin + from, end, region_.get(), ONIG_OPTION_NONE);
    if (found == ONIG_MISMATCH) return {text.size(), text.size()};
    if (found == ONIGERR_MEMORY) throw std::bad_alloc();
    if (found < 0)
      fail_user("{}: the split pattern cannot be matched at byte {} of a text of {} bytes: {}", where_, from,
                text.size(), message_of(found));
    const Match match{static_cast<std::size_t>(region_->beg[0]), static_cast<std::size_t>(region_->end[0])};
    if (match.begin < from || match.begin >= match.end)  // empty, or moved back by \K inside a lookbehind
      fail_user("{}: the split pattern matches bytes {} to {} behind byte {} of a text, which are no piece", where_,
                match.begin, match.end, from);
    return match;
  }

 private:
  regex_t* regex_;
  const std::string& where_;
  Region region_;
};

class OnigSplit final : public SplitPattern {
 public:
  OnigSplit(std::string_view pattern, OnigSyntaxType* syntax, std::string where) : where_(std::move(where)) {
    if (pattern.size() > kLongestPattern)
      fail_user("{}: the split pattern has {} bytes; redline takes up to {}", where_, pattern.size(), kLongestPattern);
    static std::mutex compiling;  // onig_new writes to tables of the library
    const std::lock_guard lock(compiling);
    OnigEncoding encoding = &onig_utf8();
    static const int ready = [&] {
      onig_set_parse_depth_limit(kDeepestPattern);
      onig_set_match_stack_limit_size(kMostStackEntries);
      onig_set_retry_limit_in_match(kMostRetries);
      onig_set_retry_limit_in_search(kMostRetriesInSearch);
      onig_set_subexp_call_limit_in_search(kMostCalls);
      return onig_initialize(&encoding, 1);
    }();
    REDLINE_CHECK(ready == ONIG_NORMAL, "onig_initialize: {}", message_of(ready));
    regex_t* regex = nullptr;
    OnigErrorInfo info{};
    const OnigUChar* begin = bytes_of(pattern);
    const int error = onig_new(&regex, begin, begin + pattern.size(), ONIG_OPTION_NONE, encoding, syntax, &info);
    if (error == ONIGERR_MEMORY) throw std::bad_alloc();
    if (error != ONIG_NORMAL)
      fail_user("{}: the split pattern {} does not compile: {}", where_, io::in_quotes(pattern),
                message_of(error, &info));
    regex_.reset(regex);
    if (onig_match(regex, begin, begin, begin, nullptr, ONIG_OPTION_NONE) >= 0)
      fail_user("{}: the split pattern can match nothing at all, which redline does not support", where_);
  }
  std::unique_ptr<Splitter> splitter() const override { return std::make_unique<OnigSplitter>(regex_.get(), where_); }

 private:
  std::string where_;
  Regex regex_;
};

}  // namespace

std::unique_ptr<SplitPattern> compile_onig_split(std::string_view pattern, std::string where) {
  return std::make_unique<OnigSplit>(pattern, ONIG_SYNTAX_ONIGURUMA, std::move(where));
}

std::unique_ptr<SplitPattern> literal_split(std::string_view text, std::string where) {
  return std::make_unique<OnigSplit>(text, ONIG_SYNTAX_ASIS, std::move(where));
}

std::unique_ptr<SplitPattern> compile_split(std::string_view pattern, std::string where) {
  if (auto family = family_split(pattern)) return family;
  return compile_onig_split(pattern, std::move(where));
}

}  // namespace redline::data
