// New tokens are decoded together with those before them, and the text of those is cut off again.
#include "infer/text_stream.h"

#include <algorithm>

namespace redline::infer {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // what an incomplete character is decoded to
constexpr std::size_t kContext = 8;                        // tokens, of what stands before

// How much of the end of `text` may be the beginning of `stop`.
std::size_t begun(std::string_view text, std::string_view stop) {
  for (std::size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n)
    if (text.ends_with(stop.substr(0, n))) return n;
  return 0;
}

}  // namespace

TextStream::TextStream(Decode decode, std::span<const std::int32_t> before, std::vector<std::string> stops)
    : decode_(std::move(decode)),
      tokens_(before.end() - static_cast<std::ptrdiff_t>(std::min(before.size(), kContext)), before.end()),
      known_(tokens_.size()),
      stops_(std::move(stops)) {
  std::erase(stops_, "");
}

std::string TextStream::push(std::int32_t token) {
  if (stopped_) return {};
  tokens_.push_back(token);
  const std::string before = decode_(std::span(tokens_).first(known_)), all = decode_(tokens_);
  if (all.ends_with(kReplacement) || all.size() < before.size()) return {};
  // Of the tokens that were known one is enough from here on: what is new has it as its neighbour.
  if (known_ > kContext) tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(known_ - 1));
  known_ = tokens_.size();
  add(std::string_view(all).substr(before.size()));
  std::size_t held = 0;
  for (const std::string& stop : stops_) held = std::max(held, begun(waiting_, stop));
  return give(stopped_ ? waiting_.size() : waiting_.size() - held);
}

std::string TextStream::finish() {
  if (!stopped_ && known_ < tokens_.size()) {
    const std::string before = decode_(std::span(tokens_).first(known_)), all = decode_(tokens_);
    known_ = tokens_.size();
    if (all.size() > before.size()) add(std::string_view(all).substr(before.size()));
  }
  return give(waiting_.size());
}

void TextStream::add(std::string_view more) {
  waiting_ += more;
  std::size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, waiting_.find(stop));
  if (end == std::string::npos) return;
  waiting_.resize(end);
  stopped_ = true;
}

std::string TextStream::give(std::size_t end) {
  std::string sure = waiting_.substr(0, end);
  waiting_.erase(0, end);
  text_ += sure;
  return sure;
}

}  // namespace redline::infer
