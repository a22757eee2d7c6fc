// Filling a batch document by document.
#include "data/batch.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/tensor.h"

namespace redline::data {

void Batch::clear() {
  restart();
  finish();
}

bool Batch::append(std::span<const std::int32_t> document, std::int32_t target_of_last, std::int64_t source) {
  if (!add(document, target_of_last, source)) return false;
  std::fill(doc_offsets.begin() + documents, doc_offsets.end(), static_cast<std::int32_t>(real_tokens));
  return true;
}

void Batch::restart() {
  sources.clear();
  documents = real_tokens = pairs = score_pairs = 0;
  doc_offsets[0] = 0;
}

bool Batch::add(std::span<const std::int32_t> document, std::int32_t target_of_last, std::int64_t source) {
  const auto length = static_cast<std::int64_t>(document.size());
  REDLINE_CHECK(length > 0, "a document has at least one token");
  if (length > room() || documents == shape.documents()) return false;

  const auto target_of = [](std::int32_t next) { return is_context(next) ? kNoTarget : next; };
  const auto first = targets.begin() + real_tokens, last = first + length - 1;
  std::ranges::transform(document, tokens.begin() + real_tokens, token_id);
  std::ranges::transform(document.subspan(1), first, target_of);
  *last = target_of(target_of_last);
  std::iota(positions.begin() + real_tokens, positions.begin() + real_tokens + length, 0);

  ++documents;
  sources.push_back(source);
  real_tokens += length;
  pairs += length - std::count(first, last + 1, kNoTarget);
  score_pairs += length * (length + 1) / 2;
  doc_offsets[static_cast<std::size_t>(documents)] = static_cast<std::int32_t>(real_tokens);
  return true;
}

std::int64_t Batch::pieces(std::int64_t longest) const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(documents); ++i)
    sum += (doc_offsets[i + 1] - doc_offsets[i] + longest - 1) / longest;
  return sum;
}

// Longer pieces are never more, so the length is found by halves; uncut documents fit.
std::int64_t Batch::shortest_cut(std::int64_t least) const {
  std::int64_t first = least, last = std::max(least, shape.tokens());
  while (first < last) {
    const std::int64_t middle = std::midpoint(first, last);
    if (pieces(middle) > shape.documents())
      first = middle + 1;
    else
      last = middle;
  }
  return first;
}

// From the last document on, so that no offset is written before it was read.
void Batch::cut_documents(std::int64_t longest) {
  const auto offset = [&](std::int64_t i) -> std::int32_t& { return doc_offsets[static_cast<std::size_t>(i)]; };
  const auto pieces_of = [&](std::int64_t i) { return (offset(i + 1) - offset(i) + longest - 1) / longest; };
  const std::int64_t all = pieces(longest);
  if (all == documents) return;
  REDLINE_CHECK(all <= shape.documents(), "{} documents of at most {} tokens, and room for {}", all, longest,
                shape.documents());
  sources.resize(static_cast<std::size_t>(all));
  score_pairs = 0;
  std::int64_t to = all;
  for (std::int64_t i = documents - 1; i >= 0; --i) {
    const std::int64_t first = offset(i), last = offset(i + 1), source = sources[static_cast<std::size_t>(i)];
    for (std::int64_t piece = pieces_of(i) - 1; piece >= 0; --piece) {
      const std::int64_t begin = first + piece * longest, end = std::min(begin + longest, last), length = end - begin;
      std::iota(positions.begin() + begin, positions.begin() + end, 0);
      score_pairs += length * (length + 1) / 2;
      offset(to) = static_cast<std::int32_t>(end);
      sources[static_cast<std::size_t>(--to)] = source;
    }
  }
  documents = all;
}

TokenCounts Batch::part(std::int64_t index, std::int64_t of) const {
  TokenCounts c{.first = shape.tokens() / of * index, .tokens = shape.tokens() / of};
  c.real_tokens = std::clamp<std::int64_t>(real_tokens - c.first, 0, c.tokens);
  const auto begin = targets.begin() + c.first;
  c.pairs = of == 1 ? pairs : c.real_tokens - std::count(begin, begin + c.real_tokens, kNoTarget);
  return c;
}

double Batch::pairs_within(std::int64_t window) const {
  if (window == kNoWindow) return static_cast<double>(score_pairs);
  double sum = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(documents); ++i)
    sum += kept_pairs(static_cast<double>(doc_offsets[i + 1] - doc_offsets[i]), window);
  return sum;
}

void Batch::finish() {
  std::fill(tokens.begin() + real_tokens, tokens.end(), 0);
  std::fill(targets.begin() + real_tokens, targets.end(), kNoTarget);
  std::fill(positions.begin() + real_tokens, positions.end(), 0);
  std::fill(doc_offsets.begin() + documents, doc_offsets.end(), static_cast<std::int32_t>(real_tokens));
}

}  // namespace redline::data
