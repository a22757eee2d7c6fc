// Reads the parts of a tokenizer.json in the order a text meets them: normalizer, added tokens, pre-tokenizer, model,
// post-processor, decoder.
#include "data/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/split.h"
#include "data/tokenizer/unicode.h"
#include "data/utf8.h"
#include "io/json.h"

namespace redline::data {
namespace {

using io::Json;

// The member, or null where it is missing.
const Json* member_of(const Json& object, std::string_view key) {
  for (const auto& [name, value] : object.get_ref<const Json::object_t&>())
    if (name == key) return &value;
  return nullptr;
}

// There, and not null.
bool is_set(const Json& object, std::string_view key) {
  const Json* value = member_of(object, key);
  return value != nullptr && !value->is_null();
}

void check_object(const Json& value, std::string_view what, const std::string& file) {
  if (!value.is_object()) fail_user("{}: {} must be an object, not {}", file, what, value.type_name());
}

// Refuses members but these: another one would be an unknown feature.
void check_members(const Json& object, std::initializer_list<std::string_view> known, std::string_view what,
                   const std::string& file) {
  for (const auto& [name, value] : object.get_ref<const Json::object_t&>())
    if (std::ranges::find(known, name) == known.end())
      fail_user("{}: {} has the setting {}, which redline does not support", file, what, io::in_quotes(name));
}

std::string type_of(const Json& object, std::string_view what, const std::string& file) {
  check_object(object, what, file);
  const Json* type = member_of(object, "type");
  if (type == nullptr || !type->is_string()) fail_user("{}: {} does not say its \"type\"", file, what);
  return type->get<std::string>();
}

constexpr int kDeepest = 20;  // of sequences within sequences
constexpr std::size_t kMostStages = 100;
constexpr std::size_t kLongestAddedToken = 4096;  // bytes
constexpr std::int64_t kSpareIds = 100'000;       // ids may have gaps, but not such that tables by id outgrow the file

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

// The pre-tokenizer as stages, the last of which is the ByteLevel one. A UserError names what is not supported.
std::vector<SplitStage> split_stages(const Json& pre_tokenizer, const std::string& file) {
  std::vector<SplitStage> stages;
  bool done = false;
  add_stages(pre_tokenizer, file, 0, stages, done);
  if (!done) fail_user("{}: the pre-tokenizer has no ByteLevel; redline reads byte-level BPE alone", file);
  return stages;
}

class Reader {
 public:
  Reader(const Json& root, const std::string& file) : root_(root), file_(file) {}

  TokenizerJson read() {
    check_object(root_, "a tokenizer.json", file_);
    check_members(root_,
                  {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                   "decoder", "model"},
                  "it", file_);
    for (const char* feature : {"truncation", "padding"})
      if (is_set(root_, feature))
        fail_user("{}: \"{}\" is set, which redline does not support; set it to null", file_, feature);
    if (is_set(root_, "normalizer")) read_normalizer(*member_of(root_, "normalizer"), 0);
    if (!is_set(root_, "model")) fail_user("{}: the \"model\" is missing", file_);
    read_model(*member_of(root_, "model"));
    if (!is_set(root_, "pre_tokenizer"))
      fail_user("{}: it has no pre-tokenizer; redline reads byte-level BPE, which needs ByteLevel", file_);
    t_.stages = split_stages(*member_of(root_, "pre_tokenizer"), file_);
    if (is_set(root_, "decoder")) read_decoder(*member_of(root_, "decoder"), 0);
    if (is_set(root_, "added_tokens")) read_added(*member_of(root_, "added_tokens"));
    if (is_set(root_, "post_processor")) read_post_processor(*member_of(root_, "post_processor"), 0);
    return std::move(t_);
  }

 private:
  const Json& members_of(const Json& sequence, const char* key) const {
    const Json* list = member_of(sequence, key);
    if (list == nullptr || !list->is_array()) fail_user("{}: a Sequence needs its list of \"{}\"", file_, key);
    return *list;
  }

  void read_normalizer(const Json& object, int depth) {
    const std::string type = type_of(object, "a normalizer", file_);
    if (type == "Sequence" && depth < kDeepest) {
      for (const Json& one : members_of(object, "normalizers")) read_normalizer(one, depth + 1);
    } else if (type == "NFC") {
      t_.nfc = true;
    } else {
      fail_user("{}: the normalizer {} is not supported; it may be NFC", file_, io::in_quotes(type));
    }
  }

  // Encoding adds no tokens around a text. Those that stand before one are kept: documents and prompts begin with them.
  void read_post_processor(const Json& object, int depth) {
    const std::string type = type_of(object, "a post_processor", file_);
    if (type == "Sequence" && depth < kDeepest) {
      for (const Json& one : members_of(object, "processors")) read_post_processor(one, depth + 1);
    } else if (type == "TemplateProcessing") {
      read_template(object);
    } else if (type == "RobertaProcessing" || type == "BertProcessing") {
      read_pair(object, "cls");
    } else if (type != "ByteLevel") {
      fail_user("{}: the post-processor {} is not supported", file_, io::in_quotes(type));
    }
  }

  void read_template(const Json& object) {
    const Json* pieces = member_of(object, "single");
    if (pieces == nullptr || !pieces->is_array())
      fail_user("{}: a TemplateProcessing needs its list of \"single\"", file_);
    std::vector<std::int32_t> before;
    for (const Json& piece : *pieces) {
      check_object(piece, "a piece of the template", file_);
      const Json* special = member_of(piece, "SpecialToken");
      if (special == nullptr) break;  // the text itself: what follows it would end what is to go on
      add_ids(object, io::string_at(*special, "id", file_), before);
    }
    put_before(before);
  }

  // A later processor stands around what the ones before it made.
  void put_before(const std::vector<std::int32_t>& ids) {
    t_.beginning.insert(t_.beginning.begin(), ids.begin(), ids.end());
  }

  // "cls": ["<s>", 0] stands before a text.
  void read_pair(const Json& object, const char* key) {
    const Json* pair = member_of(object, key);
    if (pair == nullptr || !pair->is_array() || pair->size() != 2 || !(*pair)[0].is_string())
      fail_user("{}: the post-processor's \"{}\" must be a token with its id", file_, key);
    put_before({known_id((*pair)[1], (*pair)[0].get<std::string>())});
  }

  std::int32_t known_id(const Json& id, const std::string& name) const {
    const bool known =
        id.is_number_unsigned() && id.get<std::uint64_t>() < t_.has_id.size() && t_.has_id[id.get<std::size_t>()];
    if (!known)
      fail_user("{}: the template's token {} has an id that is not in the vocabulary", file_, io::in_quotes(name));
    return id.get<std::int32_t>();
  }

  void add_ids(const Json& object, const std::string& name, std::vector<std::int32_t>& to) const {
    const Json* specials = member_of(object, "special_tokens");
    const Json* entry = specials != nullptr && specials->is_object() ? member_of(*specials, name) : nullptr;
    const Json* ids = entry != nullptr && entry->is_object() ? member_of(*entry, "ids") : nullptr;
    if (ids == nullptr || !ids->is_array())
      fail_user("{}: the template's token {} has no \"ids\" among its special_tokens", file_, io::in_quotes(name));
    for (const Json& id : *ids) to.push_back(known_id(id, name));
  }

  void read_decoder(const Json& object, int depth) {
    const std::string type = type_of(object, "a decoder", file_);
    if (type == "Sequence" && depth < kDeepest) {
      for (const Json& one : members_of(object, "decoders")) {
        if (t_.decodes) fail_user("{}: a decoder after ByteLevel is not supported", file_);
        read_decoder(one, depth + 1);
      }
    } else if (type == "ByteLevel") {
      t_.decodes = true;
    } else {
      fail_user("{}: the decoder {} is not supported; it may be ByteLevel", file_, io::in_quotes(type));
    }
  }

  void refuse_if(bool refused, std::string_view feature) const {
    if (refused) fail_user("{}: the model's {} is not supported", file_, feature);
  }

  void read_model(const Json& model) {
    check_object(model, "the model", file_);
    if (is_set(model, "type") || !is_set(model, "merges")) {
      const std::string type = type_of(model, "the model", file_);
      if (type != "BPE")
        fail_user("{}: the model {} is not supported; redline reads byte-level BPE", file_, io::in_quotes(type));
    }
    check_members(model,
                  {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                   "byte_fallback", "ignore_merges", "vocab", "merges"},
                  "the model", file_);
    const auto set_text = [&](const char* key) {
      return is_set(model, key) && !io::string_at(model, key, file_).empty();
    };
    refuse_if(is_set(model, "dropout") && io::number_at(model, "dropout", file_) != 0, "\"dropout\"");
    refuse_if(set_text("continuing_subword_prefix"), "\"continuing_subword_prefix\"");
    refuse_if(set_text("end_of_word_suffix"), "\"end_of_word_suffix\"");
    t_.model.ignore_merges = io::boolean_or(model, "ignore_merges", false, file_);
    t_.model.fuse_unknown = io::boolean_or(model, "fuse_unk", false, file_);
    read_vocabulary(model);
    const bool all_bytes = std::ranges::find(t_.model.byte_ids, -1) == t_.model.byte_ids.end();
    if (!all_bytes) {  // else there is nothing unknown
      refuse_if(io::boolean_or(model, "byte_fallback", false, file_),
                "\"byte_fallback\" with bytes left out of the vocabulary");
      if (is_set(model, "unk_token")) {
        const std::string unknown = io::string_at(model, "unk_token", file_);
        t_.model.unknown = tokens_.find(unknown);
        if (t_.model.unknown < 0)
          fail_user("{}: the \"unk_token\" {} is not in the vocabulary", file_, io::in_quotes(unknown));
      }
    }
    read_merges(model);
  }

  void read_vocabulary(const Json& model) {
    const Json* vocabulary = member_of(model, "vocab");
    if (vocabulary == nullptr || !vocabulary->is_object())
      fail_user("{}: the model needs its \"vocab\" as an object", file_);
    const auto& entries = vocabulary->get_ref<const Json::object_t&>();
    vocabulary_ = static_cast<std::int64_t>(entries.size());
    tokens_ = TokenTable(entries.size());
    t_.model.byte_ids.fill(-1);
    for (const auto& [token, id_value] : entries) {
      const std::int32_t id = id_of(id_value, token, vocabulary_ * 2 + kSpareIds);
      place(id);
      if (t_.has_id[static_cast<std::size_t>(id)])
        fail_user("{}: the id {} is there twice, the second time for {}", file_, id, io::in_quotes(token));
      t_.has_id[static_cast<std::size_t>(id)] = true;
      tokens_.set(token, id);
      const auto bytes = bytes_of_token(token);
      t_.text_of_id[static_cast<std::size_t>(id)] = bytes ? *bytes : token;
      if (bytes && bytes->size() == 1) t_.model.byte_ids[static_cast<unsigned char>(bytes->front())] = id;
    }
    if (!t_.model.ignore_merges) return;
    t_.model_tokens = t_.text_of_id;
    t_.model.tokens = TokenTable(entries.size());
    for (const auto& [token, id_value] : entries) {
      const auto id = id_value.get<std::int32_t>();
      const std::string& text = t_.model_tokens[static_cast<std::size_t>(id)];
      if (bytes_of_token(token) && !text.empty()) t_.model.tokens.set(text, id);
    }
  }

  std::int32_t id_of(const Json& value, const std::string& token, std::int64_t end) const {
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<std::uint64_t>() > (1u << 30)))
      fail_user("{}: the id of {} must be a whole number below 2^30", file_, io::in_quotes(token));
    const std::int64_t id = value.get<std::int64_t>();
    if (id < 0 || id >= end)
      fail_user("{}: the id {} of {} is out of range for a vocabulary of {} tokens", file_, id, io::in_quotes(token),
                vocabulary_);
    return static_cast<std::int32_t>(id);
  }

  void place(std::int32_t id) {
    const auto size = static_cast<std::size_t>(id) + 1;
    if (t_.has_id.size() >= size) return;
    t_.has_id.resize(size);
    t_.text_of_id.resize(size);
  }

  void read_merges(const Json& model) {
    const Json* merges = member_of(model, "merges");
    if (merges == nullptr || !merges->is_array()) fail_user("{}: the model needs its \"merges\" as a list", file_);
    t_.model.merges = MergeTable(merges->size());
    std::uint32_t rank = 0;
    std::string joined;
    for (const Json& merge : *merges) {
      std::string_view left, right;
      if (merge.is_string()) {
        const std::string& text = merge.get_ref<const std::string&>();
        if (text.starts_with("#version")) continue;
        const std::size_t space = text.find(' ');
        if (space == text.npos || text.find(' ', space + 1) != text.npos) fail_merge(rank);
        left = std::string_view(text).substr(0, space);
        right = std::string_view(text).substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get_ref<const std::string&>();
        right = merge[1].get_ref<const std::string&>();
      } else {
        fail_merge(rank);
      }
      joined.assign(left).append(right);
      const auto find = [&](std::string_view token) {
        const std::int32_t id = tokens_.find(token);
        if (id < 0)
          fail_user("{}: merge {} needs the token {}, which is not in the vocabulary", file_, rank,
                    io::in_quotes(token));
        return id;
      };
      const std::int32_t left_id = find(left), right_id = find(right);
      t_.model.merges.set(left_id, right_id, {rank++, find(joined)});
    }
  }
  [[noreturn]] void fail_merge(std::uint32_t rank) const {
    fail_user("{}: merge {} is not of the form \"left right\" or [\"left\", \"right\"]", file_, rank);
  }

  void read_added(const Json& list) {
    if (!list.is_array()) fail_user("{}: \"added_tokens\" must be a list", file_);
    std::vector<AddedToken> added;
    std::vector<std::string> contents;
    // Tokens unknown to the model are numbered after its vocabulary, in the order of the file, whatever "id" says.
    std::int64_t next_id = vocabulary_;
    TokenTable seen(list.size());
    contents.reserve(list.size());
    for (const Json& entry : list) {
      check_object(entry, "an added token", file_);
      check_members(entry, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"},
                    "an added token", file_);
      AddedToken token;
      token.content = io::string_at(entry, "content", file_);
      token.special = io::boolean_at(entry, "special", file_);
      token.single_word = io::boolean_at(entry, "single_word", file_);
      token.lstrip = io::boolean_at(entry, "lstrip", file_);
      token.rstrip = io::boolean_at(entry, "rstrip", file_);
      token.normalized = io::boolean_at(entry, "normalized", file_);
      const std::string name = io::in_quotes(token.content);
      if (token.content.empty() || token.content.size() > kLongestAddedToken)
        fail_user("{}: an added token has {} bytes; it may have 1 to {}", file_, token.content.size(),
                  kLongestAddedToken);
      token.id = id_of(*id_member(entry, name), token.content,
                       vocabulary_ * 2 + kSpareIds + static_cast<std::int64_t>(list.size()));
      contents.push_back(token.content);
      if (!seen.set(contents.back(), token.id)) fail_user("{}: the added token {} is there twice", file_, name);
      const std::int32_t known = tokens_.find(token.content);
      const std::int64_t expected = known >= 0 ? known : next_id++;
      if (token.id != expected)
        fail_user("{}: the added token {} has the id {}, but its place in the vocabulary is {}", file_, name, token.id,
                  expected);
      added.push_back(std::move(token));
    }
    for (AddedToken& token : added) keep_added(std::move(token));
    check_different(t_.normalized_added);
  }

  const Json* id_member(const Json& entry, const std::string& name) const {
    const Json* id = member_of(entry, "id");
    if (id == nullptr) fail_user("{}: the added token {} has no \"id\"", file_, name);
    return id;
  }

  void keep_added(AddedToken token) {
    if (token.normalized && t_.nfc) {
      std::string scratch;
      token.content = std::string(to_nfc(token.content, scratch));
    }
    place(token.id);
    t_.has_id[static_cast<std::size_t>(token.id)] = true;
    const auto bytes = bytes_of_token(token.content);
    t_.text_of_id[static_cast<std::size_t>(token.id)] = bytes ? *bytes : token.content;
    (token.normalized ? t_.normalized_added : t_.raw_added).push_back(std::move(token));
  }

  void check_different(const std::vector<AddedToken>& added) const {
    TokenTable seen(added.size());
    for (const AddedToken& token : added)
      if (!seen.set(token.content, token.id))
        fail_user("{}: two added tokens are {} once normalized", file_, io::in_quotes(token.content));
  }

  const Json& root_;
  const std::string& file_;
  TokenizerJson t_;
  TokenTable tokens_;  // as written in the file
  std::int64_t vocabulary_ = 0;
};

}  // namespace

std::int32_t TokenizerJson::id_of(std::string_view content) const {
  for (const auto* added : {&raw_added, &normalized_added})
    for (const AddedToken& token : *added)
      if (token.content == content) return token.id;
  return -1;
}

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& file) {
  const Json root = io::parse_json(text, file);
  return Reader(root, file).read();
}

}  // namespace redline::data
