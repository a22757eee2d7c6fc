// Filling a batch document by document.
#include "data/batch.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

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

  std::ranges::copy(document, tokens.begin() + real_tokens);
  std::ranges::copy(document.subspan(1), targets.begin() + real_tokens);
  targets[static_cast<std::size_t>(real_tokens + length - 1)] = target_of_last;
  std::iota(positions.begin() + real_tokens, positions.begin() + real_tokens + length, 0);

  ++documents;
  sources.push_back(source);
  real_tokens += length;
  pairs += target_of_last == kNoTarget ? length - 1 : length;
  score_pairs += length * (length + 1) / 2;
  doc_offsets[static_cast<std::size_t>(documents)] = static_cast<std::int32_t>(real_tokens);
  return true;
}

void Batch::finish() {
  std::fill(tokens.begin() + real_tokens, tokens.end(), 0);
  std::fill(targets.begin() + real_tokens, targets.end(), kNoTarget);
  std::fill(positions.begin() + real_tokens, positions.end(), 0);
  std::fill(doc_offsets.begin() + documents, doc_offsets.end(), static_cast<std::int32_t>(real_tokens));
}

}  // namespace redline::data
