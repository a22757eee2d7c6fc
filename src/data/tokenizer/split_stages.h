// The pre-tokenizer of a tokenizer.json as stages.
#pragma once

#include <string>
#include <vector>

#include "data/tokenizer/tokenizer_json.h"
#include "io/json_fwd.h"

namespace redline::data {

// The last stage is the ByteLevel one. A UserError that names what is not supported.
std::vector<SplitStage> split_stages(const io::Json& pre_tokenizer, const std::string& file);

}  // namespace redline::data
