// Split patterns through PCRE2. A pattern is untrusted: how long and in how much memory it may match is bounded.
#include "data/tokenizer/pcre2_split.h"

#include <algorithm>
#include <limits>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "data/tokenizer/family_split.h"
#include "data/tokenizer/onig_pattern.h"
#include "io/json.h"

namespace redline::data {
namespace {

template <class T, void (*free_it)(T*)>
struct Freed {
  void operator()(T* it) const { free_it(it); }
};
using CodeHandle = std::unique_ptr<pcre2_code, Freed<pcre2_code, pcre2_code_free>>;
using DataHandle = std::unique_ptr<pcre2_match_data, Freed<pcre2_match_data, pcre2_match_data_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Freed<pcre2_compile_context, pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freed<pcre2_match_context, pcre2_match_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Freed<pcre2_jit_stack, pcre2_jit_stack_free>>;

constexpr std::size_t kJitStackBytes = 4 << 20;
constexpr std::uint32_t kHeapKib = 64 << 10;       // of the matcher without JIT
constexpr std::size_t kLongestPattern = 16 << 10;  // the families' have 100 to 400 bytes
constexpr std::uint32_t kMatchLimit = 10'000'000;  // backtracks in one search: PCRE2's own default

std::string message_of(int code) {
  char text[256] = {};
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
  return text;
}

class Pcre2Splitter final : public Splitter {
 public:
  Pcre2Splitter(const pcre2_code* code, const std::string& where)
      : code_(code),
        where_(where),
        data_(pcre2_match_data_create_from_pattern(code, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr)) {
    if (!data_ || !context_ || !stack_) throw std::bad_alloc();
    pcre2_set_match_limit(context_.get(), kMatchLimit);
    pcre2_set_heap_limit(context_.get(), kHeapKib);
    pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
  }

  Match next(std::string_view text, std::size_t from) override {
    const int found = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                  PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data_.get(), context_.get());
    if (found == PCRE2_ERROR_NOMATCH) return {text.size(), text.size()};
    if (found == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
    if (found < 0)
      fail_user("{}: the split pattern cannot be matched at byte {} of a text of {} bytes: {}", where_, from,
                text.size(), message_of(found));
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data_.get());
    return {ends[0], ends[1]};
  }

 private:
  const pcre2_code* code_;
  const std::string& where_;
  DataHandle data_;
  MatchContext context_;
  JitStack stack_;
};

class Pcre2Split final : public SplitPattern {
 public:
  Pcre2Split(const std::string& pattern, std::string where) : where_(std::move(where)) {
    const CompileContext context(pcre2_compile_context_create(nullptr));
    if (!context) throw std::bad_alloc();
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_MULTILINE,
                              &error, &offset, context.get()));
    if (!code_) fail_user("{}: the split pattern does not compile: {}", where_, message_of(error));
    std::uint32_t empty = 0;
    pcre2_pattern_info(code_.get(), PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty != 0) fail_user("{}: the split pattern can match nothing at all, which redline does not support", where_);
    // Without JIT (a processor it does not know) PCRE2 interprets: slower, and the same pieces.
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
  }
  std::unique_ptr<Splitter> splitter() const override { return std::make_unique<Pcre2Splitter>(code_.get(), where_); }

 private:
  std::string where_;
  CodeHandle code_;
};

}  // namespace

std::unique_ptr<SplitPattern> raw_pcre2_split(const std::string& pattern, std::string where) {
  return std::make_unique<Pcre2Split>(pattern, std::move(where));
}

std::unique_ptr<SplitPattern> compile_pcre2_split(std::string_view pattern, std::string where) {
  if (pattern.size() > kLongestPattern)
    fail_user("{}: the split pattern has {} bytes; redline takes up to {}", where, pattern.size(), kLongestPattern);
  const std::string translated = pcre2_pattern(pattern, where);  // before `where` is given away
  return raw_pcre2_split(translated, std::move(where));
}

std::unique_ptr<SplitPattern> compile_split(std::string_view pattern, std::string where) {
  if (auto family = family_split(pattern)) return family;
  return compile_pcre2_split(pattern, std::move(where));
}

}  // namespace redline::data
