// Which name means which tokenizer.
#include "data/tokenizer/tokenizer.h"

#include "base/error.h"
#include "data/tokenizer/bytes.h"

namespace redline::data {

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  encoder()->append(text, ids);
  return ids;
}

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name, std::string_view key) {
  if (auto built_in = built_in_tokenizer(name)) return built_in;
  fail_user("{}: \"{}\" is no tokenizer; it may be \"bytes\" or \"ping\"", key, name);
}

}  // namespace redline::data
