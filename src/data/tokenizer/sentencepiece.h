// A sentencepiece .model (LLaMA-2) through libsentencepiece.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer/tokenizer.h"

namespace redline::data {

std::shared_ptr<const Tokenizer> sentencepiece_tokenizer(std::string_view model, const std::string& name);

}  // namespace redline::data
