// What the batches of a configuration hold: padding, by the lengths of its own documents. They are packed as training
// would pack them; no token is kept, and no device is touched.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/config.h"

namespace redline::perf {

// A row of a batch in the mean. By default it is one document.
struct Filling {
  double documents = 1;    // of a row
  double length = 0;       // of equal documents with as many pairs of attention; 0: a row's
  double utilisation = 1;  // real tokens over token slots
};

// The documents of a micro-batch, all of one length.
struct Documents {
  double count = 0, length = 0;
};
Documents documents_of(std::int64_t rows, std::int64_t seq_len, const Filling& filling);

// Rows that are not full, beside those that would be: data.packing pads, or data.max_segments closes batches before.
struct Filled {
  std::string source;          // "ping (generated), 20000 documents"
  std::int64_t documents = 0;  // that were looked at
  Filling own, packed;         // as it is, and as mended() has it
  std::int64_t segments = 0;   // the data.max_segments that fills rows; 0: data.packing = "pack" does
  std::string problem;         // why data.train cannot tell; the rest says nothing then

  std::string set() const;                                    // "data.packing=pack", "data.max_segments=256"
  config::Config mended(const config::Config& config) const;  // with that set
  std::string cause(const config::Config& config) const;      // "data.packing = "pad"", or what the other one does
  bool known() const { return problem.empty(); }
};

// Nothing where the rows are filled anyway, nor where "pack" or "stream" cannot be looked at. At most some 20,000
// documents are read: of documents by index a sample, of text the first ones.
std::optional<Filled> filled(const config::Config& config);
// What plans count: full rows where nothing is known.
Filling filling_of(const std::optional<Filled>& filled);

}  // namespace redline::perf
