// Where documents come from. A source is random access by index and a pure function of its settings, so the order of
// training and its resumption are somebody else's simple arithmetic.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/batch.h"

namespace redline::data {

class DocumentSource {
 public:
  virtual ~DocumentSource() = default;
  virtual std::string name() const = 0;         // "ping (generated)", "3 text files"
  virtual std::int64_t documents() const = 0;   // 0: endless
  virtual std::int64_t vocabulary() const = 0;  // ids are below it
  virtual void read(std::int64_t index, std::vector<std::int32_t>& tokens) const = 0;  // replaces `tokens`; never empty
  // How many tokens read() would give. Where that can be told without reading them, it is.
  virtual std::int64_t length(std::int64_t index) const;
  // The token that follows in the source when "document" `index` is a piece of a longer one; kNoTarget at a true end.
  virtual std::int32_t token_after(std::int64_t /*index*/) const { return kNoTarget; }
  virtual std::uint64_t fingerprint() const = 0;          // of the contents: other documents, another number
  virtual std::uint64_t order_seed() const { return 0; }  // of the order in which a finite source is read
  virtual std::string decode(const std::vector<std::int32_t>& tokens) const = 0;  // readable text; roles as <name>
  virtual std::vector<std::int32_t> encode(const std::string& text) const = 0;    // the inverse; <name> is a role
};

// The training documents of a configuration, and its held-out ones (data.eval, or a part of the training source that
// training never sees). Bad paths and empty files are a UserError. "ping" is the generated corpus; a file of
// that name is "./ping".
std::unique_ptr<DocumentSource> open_training_source(const config::Data& data);
std::unique_ptr<DocumentSource> open_held_out_source(const config::Data& data);

// Token ids index the embedding: a source whose vocabulary is larger than the model's is a UserError.
void require_vocabulary(const DocumentSource& source, std::int64_t model_vocab, const config::Origins& origins = {});

}  // namespace redline::data
