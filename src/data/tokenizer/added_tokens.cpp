// A trie of bytes, walked from each place whose byte begins a token. Most texts hold none: looking for the first bytes
// is what counts.
#include "data/tokenizer/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "data/tokenizer/char_class.h"
#include "data/tokenizer/onig_pattern.h"
#include "data/tokenizer/pcre2_split.h"
#include "data/utf8.h"

namespace redline::data {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), nodes_(1) {
  roots_.fill(-1);
  for (std::size_t t = 0; t < tokens_.size(); ++t) {
    std::int32_t node = 0;
    for (const char c : tokens_[t].content) {
      const auto byte = static_cast<unsigned char>(c);
      std::int32_t next = child(node, byte);
      if (next < 0) {
        next = static_cast<std::int32_t>(nodes_.size());
        nodes_.emplace_back();
        auto& children = nodes_[static_cast<std::size_t>(node)].children;
        children.insert(std::ranges::upper_bound(children, std::pair(byte, std::int32_t{0})), {byte, next});
      }
      node = next;
    }
    nodes_[static_cast<std::size_t>(node)].token = static_cast<std::int32_t>(t);
  }
  for (const auto& [byte, node] : nodes_[0].children) {
    roots_[byte] = node;
    only_first_byte_ = static_cast<char>(byte);
    ++first_bytes_;
  }
  if (std::ranges::any_of(tokens_, &AddedToken::single_word)) word_ = raw_pcre2_split(pcre2_word_character(), "\\w");
}

std::int32_t AddedTokens::child(std::int32_t node, unsigned char byte) const {
  const auto& children = nodes_[static_cast<std::size_t>(node)].children;
  const auto it = std::ranges::lower_bound(children, byte, {}, [](const auto& c) { return c.first; });
  return it != children.end() && it->first == byte ? it->second : -1;
}

bool AddedTokens::find(std::string_view text, std::size_t from, Found& found) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (first_bytes_ == 1) {
      const void* at = std::memchr(text.data() + begin, only_first_byte_, text.size() - begin);
      if (at == nullptr) return false;
      begin = static_cast<std::size_t>(static_cast<const char*>(at) - text.data());
    } else {
      while (begin < text.size() && roots_[static_cast<unsigned char>(text[begin])] < 0) ++begin;
      if (begin == text.size()) return false;
    }
    std::int32_t node = roots_[static_cast<unsigned char>(text[begin])], longest = -1;
    std::size_t end = begin;
    for (std::size_t i = begin + 1; node >= 0; ++i) {
      const std::int32_t token = nodes_[static_cast<std::size_t>(node)].token;
      if (token >= 0) {
        longest = token;
        end = i;
      }
      if (i == text.size()) break;
      node = child(node, static_cast<unsigned char>(text[i]));
    }
    if (longest >= 0) {
      found = {begin, end, longest};
      return true;
    }
  }
  return false;
}

bool AddedTokens::stands_alone(std::string_view text, const Found& found) const {
  const auto is_word = [&](std::string_view character) {
    return word_->splitter()->next(character, 0).begin < character.size();
  };
  if (found.begin > 0) {
    const char* before = previous_utf8(text.data() + found.begin);
    if (is_word({before, static_cast<std::size_t>(text.data() + found.begin - before)})) return false;
  }
  if (found.end == text.size()) return true;
  return !is_word(text.substr(found.end, decode_utf8(text.data() + found.end).size));
}

void AddedTokens::split(std::string_view text, std::vector<AddedPart>& parts) const {
  std::size_t done = 0;
  Found found;
  for (std::size_t from = 0; !tokens_.empty() && find(text, from, found); from = found.end) {
    const AddedToken& token = tokens_[static_cast<std::size_t>(found.token)];
    if (token.single_word && !stands_alone(text, found)) continue;
    std::size_t begin = found.begin, end = found.end;
    if (token.lstrip) {
      while (begin > 0) {
        const char* before = previous_utf8(text.data() + begin);
        if (!is_space(decode_utf8(before).value)) break;
        begin = static_cast<std::size_t>(before - text.data());
      }
      begin = std::max(begin, done);
    }
    while (token.rstrip && end < text.size()) {
      const CodePoint c = decode_utf8(text.data() + end);
      if (!is_space(c.value)) break;
      end += c.size;
    }
    // A token that begins with white space can stand inside what the one before took along: it counts all the same.
    if (done < begin) parts.push_back({-1, text.substr(done, begin - done)});
    parts.push_back({token.id, {}});
    done = end;
  }
  if (done < text.size()) parts.push_back({-1, text.substr(done)});
}

}  // namespace redline::data
