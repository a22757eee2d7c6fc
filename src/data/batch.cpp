// Filling a batch document by document.
#include "data/batch.h"

#include <algorithm>

#include "base/error.h"

namespace redline::data {

void Batch::clear() {
  std::ranges::fill(tokens, 0);
  std::ranges::fill(targets, kNoTarget);
  std::ranges::fill(positions, 0);
  std::ranges::fill(doc_offsets, 0);
  sources.clear();
  documents = real_tokens = pairs = score_pairs = 0;
}

bool Batch::append(std::span<const std::int32_t> document, std::int32_t target_of_last, std::int64_t source) {
  const auto length = static_cast<std::int64_t>(document.size());
  REDLINE_CHECK(length > 0, "a document has at least one token");
  if (length > room() || documents == shape.documents()) return false;

  std::ranges::copy(document, tokens.begin() + real_tokens);
  std::ranges::copy(document.subspan(1), targets.begin() + real_tokens);
  targets[static_cast<std::size_t>(real_tokens + length - 1)] = target_of_last;
  for (std::int64_t i = 0; i < length; ++i) {
    positions[static_cast<std::size_t>(real_tokens + i)] = static_cast<std::int32_t>(i);
  }

  ++documents;
  sources.push_back(source);
  real_tokens += length;
  pairs += target_of_last == kNoTarget ? length - 1 : length;
  score_pairs += length * (length + 1) / 2;
  // All entries to the end, so that the batch is whole after every append: at 128 rows that is 16 KiB a document.
  std::fill(doc_offsets.begin() + documents, doc_offsets.end(), static_cast<std::int32_t>(real_tokens));
  return true;
}

}  // namespace redline::data
