// A batch: packed documents, the native form. Everything about masks, positions, loss weights and FLOPs comes from
// doc_offsets and from nowhere else.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace redline::data {

constexpr std::int32_t kNoTarget = -1;

// A token that is context only, such as one of a question, has its sign bit set until it is in a batch: the model sees
// it, and it is no target. In a batch all tokens are plain ids.
constexpr std::int32_t kContextBit = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t as_context(std::int32_t id) { return id | kContextBit; }
constexpr bool is_context(std::int32_t token) { return token < 0; }
constexpr std::int32_t token_id(std::int32_t token) { return token & ~kContextBit; }

// The capacity of a batch. It is fixed for a run, so that one lowered program serves every batch.
struct BatchShape {
  std::int64_t rows = 0, seq_len = 0, max_segments = 0;
  std::int64_t tokens() const { return rows * seq_len; }
  std::int64_t documents() const { return rows * max_segments; }
  bool operator==(const BatchShape&) const = default;
};

// A stretch of a batch's tokens, and what it holds.
struct TokenCounts {
  std::int64_t first = 0, tokens = 0, real_tokens = 0, pairs = 0;
};

// Documents stand back to back from token 0, and all padding is one tail: document i is tokens
// [doc_offsets[i], doc_offsets[i+1]); unused entries of doc_offsets repeat the end of the last document. A piece of a
// document longer than a row counts as a document, and its last token's target is the token that follows in the source.
struct Batch {
  explicit Batch(BatchShape s)
      : shape(s),
        tokens(static_cast<std::size_t>(s.tokens())),
        targets(static_cast<std::size_t>(s.tokens()), kNoTarget),
        positions(static_cast<std::size_t>(s.tokens())),
        doc_offsets(static_cast<std::size_t>(s.documents()) + 1) {
    sources.reserve(static_cast<std::size_t>(s.documents()));
  }

  BatchShape shape;
  std::vector<std::int32_t> tokens;       // [n]; 0 in the tail
  std::vector<std::int32_t> targets;      // [n]; the next token, or kNoTarget where none is learned
  std::vector<std::int32_t> positions;    // [n]; counted from the document's start; 0 in the tail
  std::vector<std::int32_t> doc_offsets;  // [capacity + 1]
  std::vector<std::int64_t> sources;      // [documents]; which document of the source each is (a piece of)

  std::int64_t documents = 0;    // used entries
  std::int64_t real_tokens = 0;  // tokens that belong to a document: doc_offsets[documents]
  std::int64_t pairs = 0;        // real (token, target) pairs: the loss is their mean
  std::int64_t score_pairs = 0;  // sum of len * (len + 1) / 2: (query, key) pairs that a mask without window keeps

  // Empties the batch; append() adds one document (or piece) while there is room for its tokens and for one more. Its
  // tokens may be context.
  void clear();
  bool append(std::span<const std::int32_t> document, std::int32_t target_of_last = kNoTarget, std::int64_t source = 0);
  // The same for many documents, with the tail written once: restart(), add() for each, finish(). In between, entries
  // after the last document are not defined.
  void restart();
  bool add(std::span<const std::int32_t> document, std::int32_t target_of_last, std::int64_t source);
  void finish();
  // Documents longer than this become several: the positions of each begin anew, and tokens and targets stay. There
  // must be room for as many (PackerSettings::cut_later).
  void cut_documents(std::int64_t longest);
  // The documents that there would be then; and the least length, of at least so many tokens, that there is room for.
  std::int64_t pieces(std::int64_t longest) const;
  std::int64_t shortest_cut(std::int64_t least) const;
  // (query, key) pairs that a mask of that window keeps (base/tensor.h).
  double pairs_within(std::int64_t window) const;
  // One of so many stretches of equal length; documents may cross their edges.
  TokenCounts part(std::int64_t index, std::int64_t of) const;
  std::int64_t room() const { return shape.tokens() - real_tokens; }
  // Whether every row is one document: no other batch has as many pairs.
  bool full_rows() const { return score_pairs == shape.rows * (shape.seq_len * (shape.seq_len + 1) / 2); }
};

}  // namespace redline::data
