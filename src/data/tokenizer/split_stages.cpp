// Split, Digits, ByteLevel and sequences of them; every other pre-tokenizer is refused by name.
#include "data/tokenizer/split_stages.h"

#include "base/error.h"
#include "data/tokenizer/family_split.h"
#include "data/tokenizer/json_checks.h"
#include "data/tokenizer/pcre2_split.h"
#include "data/utf8.h"
#include "io/json.h"

namespace redline::data {
namespace {

using io::Json;

constexpr int kDeepest = 20;  // of sequences within sequences
constexpr std::size_t kMostStages = 100;

SplitBehavior behavior_of(const std::string& name, const std::string& file) {
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  fail_user("{}: the behavior {} of a Split pre-tokenizer is not supported", file, io::in_quotes(name));
}

std::shared_ptr<const SplitPattern> pattern_of(const Json& split, const std::string& file) {
  const Json* pattern = member_of(split, "pattern");
  if (pattern == nullptr || !pattern->is_object() || pattern->size() != 1 || !pattern->begin().value().is_string())
    fail_user("{}: the pattern of a Split pre-tokenizer must be {{\"Regex\": ...}} or {{\"String\": ...}}", file);
  const std::string kind = pattern->begin().key();
  const std::string text = pattern->begin().value().get<std::string>();
  if (kind == "Regex") return compile_split(text, file);
  if (kind != "String")
    fail_user("{}: the pattern {} of a Split pre-tokenizer is not supported", file, io::in_quotes(kind));
  if (text.empty() || text.size() > 1000)
    fail_user("{}: the String of a Split pre-tokenizer has {} bytes; it may have 1 to 1000", file, text.size());
  std::string literal;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode_utf8(text.data() + at);
    literal += fmt::format("\\x{{{:x}}}", c.value);
    at += c.size;
  }
  return raw_pcre2_split(literal, file);
}

void add_stages(const Json& object, const std::string& file, int depth, std::vector<SplitStage>& stages, bool& done) {
  const std::string type = type_of(object, "a pre_tokenizer", file);
  if (depth > kDeepest || stages.size() >= kMostStages) fail_user("{}: too many pre-tokenizers", file);
  if (done)
    fail_user("{}: the pre-tokenizer {} comes after ByteLevel, which redline does not support", file,
              io::in_quotes(type));
  const std::string what = fmt::format("the pre-tokenizer {}", io::in_quotes(type));
  if (type == "Sequence") {
    check_members(object, {"type", "pretokenizers"}, what, file);
    const Json* list = member_of(object, "pretokenizers");
    if (list == nullptr || !list->is_array()) fail_user("{}: a Sequence needs its list of \"pretokenizers\"", file);
    for (const Json& stage : *list) add_stages(stage, file, depth + 1, stages, done);
  } else if (type == "Split") {
    check_members(object, {"type", "pattern", "behavior", "invert"}, what, file);
    SplitStage stage;
    stage.behavior = behavior_of(io::string_at(object, "behavior", file), file);
    stage.invert = io::boolean_or(object, "invert", false, file);
    stage.pattern = pattern_of(object, file);
    stages.push_back(std::move(stage));
  } else if (type == "Digits") {
    check_members(object, {"type", "individual_digits"}, what, file);
    SplitStage stage;
    const bool single = io::boolean_or(object, "individual_digits", false, file);
    stage.behavior = single ? SplitBehavior::isolated : SplitBehavior::contiguous;
    // Rust's numbers, not Oniguruma's: these of Unicode 17 are among them.
    stage.pattern = compile_split("[\\p{N}\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]", file);
    stages.push_back(std::move(stage));
  } else if (type == "ByteLevel") {
    check_members(object, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, what, file);
    SplitStage stage;
    stage.prefix_space = io::boolean_at(object, "add_prefix_space", file);
    if (io::boolean_or(object, "use_regex", true, file)) stage.pattern = compile_split(kGpt2Pattern, file);
    stages.push_back(std::move(stage));
    done = true;
  } else {
    fail_user(
        "{}: the pre-tokenizer {} is not supported; redline reads byte-level BPE: ByteLevel, after Split or Digits "
        "where wanted",
        file, io::in_quotes(type));
  }
}

}  // namespace

std::vector<SplitStage> split_stages(const Json& pre_tokenizer, const std::string& file) {
  std::vector<SplitStage> stages;
  bool done = false;
  add_stages(pre_tokenizer, file, 0, stages, done);
  if (!done) fail_user("{}: the pre-tokenizer has no ByteLevel; redline reads byte-level BPE alone", file);
  return stages;
}

}  // namespace redline::data
