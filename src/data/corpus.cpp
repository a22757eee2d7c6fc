// The ways of a source that can do no better than read whole documents.
#include "data/corpus.h"

namespace redline::data {

void DocumentSource::append(std::int64_t index, std::int64_t begin, std::int64_t count,
                            std::vector<std::int32_t>& tokens) const {
  std::vector<std::int32_t> whole;
  read(index, whole);
  const auto from = whole.begin() + begin;
  tokens.insert(tokens.end(), from, from + count);
}

std::int64_t DocumentSource::length(std::int64_t index) const {
  std::vector<std::int32_t> tokens;
  read(index, tokens);
  return static_cast<std::int64_t>(tokens.size());
}

std::vector<std::int32_t> bytes_of_ids(const Tokenizer& tokenizer, std::optional<std::int32_t> end) {
  std::vector<std::int32_t> bytes(static_cast<std::size_t>(tokenizer.vocabulary()));
  for (std::size_t id = 0; id < bytes.size(); ++id) bytes[id] = tokenizer.text_bytes(static_cast<std::int32_t>(id));
  if (end) bytes[static_cast<std::size_t>(*end)] = 0;
  return bytes;
}

}  // namespace redline::data
