// What the targets of token formats do with a source that opened: read all of it, within bounds.
#pragma once

#include <memory>

#include "data/shards/token_files.h"
#include "fuzz.h"

namespace redline::fuzz {

// Every document is read once; together they are no more tokens than `most`.
inline void read_all(const data::DocumentSource& source, std::size_t most) {
  std::vector<std::int32_t> tokens;
  std::size_t total = 0;
  source.fingerprint();
  for (std::int64_t i = 0; i < source.documents(); ++i) {
    source.read(i, tokens);
    require(!tokens.empty(), "an empty document");
    for (const std::int32_t id : tokens) require(id >= 0 && id < source.vocabulary(), "an id outside the vocabulary");
    total += tokens.size();
    require(total <= most, "more tokens than bytes");
  }
}

inline void open_and_read(const std::string& path, std::size_t most, data::Part part = data::Part::all) {
  expect_user_errors([&] {
    if (const auto source =
            data::open_token_files(data::data_paths({path}, "data.train"), {"data.train", part, false, 0, {}, {}}))
      read_all(*source, most);
  });
}

}  // namespace redline::fuzz
