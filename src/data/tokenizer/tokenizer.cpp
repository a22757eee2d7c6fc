// Names of tokenizers and the kind that each means, the built-in kinds, and a tokenizer's files.
#include "data/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "data/tokenizer/train_bpe.h"
#include "io/json.h"

namespace redline::data {
namespace {

constexpr std::array<std::string_view, 11> kByteSpecial = {"end", "begin",    "source", "target", "time",    "rtt",
                                                           "ttl", "sequence", "lost",   "size",   "received"};

// Bytes as tokens. "bytes" takes every byte for itself, so that any text comes back; "ping" also reads <name> as a
// special token.
class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer(std::string_view name, ByteVocabulary vocabulary, bool reads_special)
      : name_(name), vocabulary_(vocabulary), reads_special_(reads_special) {}

  std::string name() const override { return name_; }
  std::int64_t vocabulary() const override { return vocabulary_.size(); }
  std::optional<std::int32_t> end_token() const override { return kEndOfDocument; }
  std::uint64_t fingerprint() const override { return hash64(name_); }
  std::string decode(std::span<const std::int32_t> ids) const override { return vocabulary_.decode(ids); }
  std::int32_t text_bytes(std::int32_t id) const override { return id < 256 ? 1 : 0; }
  std::unique_ptr<Encoder> encoder() const override { return std::make_unique<ByteEncoder>(*this); }
  bool bytewise() const override { return !reads_special_; }

 private:
  class ByteEncoder final : public Encoder {
   public:
    explicit ByteEncoder(const ByteTokenizer& tokenizer) : tokenizer_(tokenizer) {}
    void append(std::string_view text, std::vector<std::int32_t>& ids) override {
      if (tokenizer_.reads_special_) {
        const std::vector<std::int32_t> more = tokenizer_.vocabulary_.encode(text);
        ids.insert(ids.end(), more.begin(), more.end());
      } else {
        for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
      }
    }

   private:
    const ByteTokenizer& tokenizer_;
  };

  std::string name_;
  ByteVocabulary vocabulary_;
  bool reads_special_;
};

namespace fs = std::filesystem;

constexpr std::uint64_t kLargestFile = std::uint64_t{1} << 30;
constexpr const char* kAddBos = "add_bos_token";  // of tokenizer_config.json

// These close a turn of a conversation. A configuration of a chat model gives them as its end of text.
constexpr std::string_view kTurnEnds[] = {"<|im_end|>", "<|eot_id|>", "<|end_of_turn|>", "<end_of_turn>", "<|eom_id|>"};

// Those of the tokenizer_config.json beside a tokenizer. An "eos_token" that closes a turn closes no document.
TokenizerNotes notes_beside(const Path& folder) {
  const Path path = folder / kTokenizerConfig;
  if (!real_files().exists(path)) return {};
  const io::Json config = io::read_json(real_files(), path);
  if (!config.is_object()) fail_user("{}: it must hold an object", path.string());
  TokenizerNotes notes{special_token(config, "eos_token", path.string()),
                       special_token(config, "bos_token", path.string())};
  if (std::ranges::find(kTurnEnds, notes.end) != std::end(kTurnEnds)) notes.end.clear();
  if (const auto adds = config.find(kAddBos); adds != config.end() && !adds->is_null())
    notes.adds_bos = io::boolean_at(config, kAddBos, path.string());
  return notes;
}

std::shared_ptr<const Tokenizer> open_file(const Path& path, std::string_view key) {
  if (const std::uint64_t size = real_files().size(path); size > kLargestFile)
    fail_user("{}: {} has {} bytes; a tokenizer has at most 1 GiB", key, path.string(), size);
  const std::string name = path.filename().string();
  try {
    const std::string bytes = real_files().read(path);
    const bool has_notes = name == kTokenizerJson || name == kTokenizerModel;  // others' may lie beside any other name
    const TokenizerNotes notes = has_notes ? notes_beside(path.parent_path()) : TokenizerNotes();
    if (path.extension() == ".model") return sentencepiece_tokenizer(bytes, path.string(), notes);
    if (path.extension() != ".json")
      fail_user("{} is no tokenizer; its name must end in .json or .model", path.string());
    if (auto built_in = built_in_from_json(bytes)) return built_in;
    return bpe_tokenizer(bytes, path.string(), notes);
  } catch (const UserError& error) {
    fail_user("{}: {}", key, error.what());
  }
}

constexpr const char* kSpecialTokens = "special_tokens_map.json";  // of older tokenizers: says the same
constexpr const char* kCompanions[] = {kTokenizerConfig, kSpecialTokens, "added_tokens.json", "vocab.json",
                                       "merges.txt",     kChatTemplate,  "chat_template.json"};

std::string text_of(const io::Json& json) {  // a token may end inside a character
  return json.dump(2, ' ', false, io::Json::error_handler_t::replace) + "\n";
}

io::Json read_object(const TokenizerFiles& files, const char* name) {
  const auto it = files.find(name);
  io::Json json = it == files.end() ? io::Json::object() : io::parse_json(it->second, name);
  if (!json.is_object()) fail_user("the tokenizer's {} must hold an object", name);
  return json;
}

// In tokenizer_config.json, and in the file of older tokenizers where there is one.
void name_special_tokens(TokenizerFiles& files, const std::map<std::string, std::string>& tokens) {
  for (const char* name : {kTokenizerConfig, kSpecialTokens}) {
    if (!files.contains(name)) continue;
    io::Json json = read_object(files, name);
    for (const auto& [key, text] : tokens) json[key] = text;
    files[name] = text_of(json);
  }
}

}  // namespace

ByteVocabulary text_vocabulary() { return ByteVocabulary(std::span(kByteSpecial).first(1)); }
ByteVocabulary ping_vocabulary() { return ByteVocabulary(kByteSpecial); }

std::string ByteVocabulary::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const std::int32_t id : tokens) {
    if (id >= 0 && id < 256) {
      text += static_cast<char>(id);
    } else if (id >= 256 && id < size()) {
      text += fmt::format("<{}>", names_[static_cast<std::size_t>(id) - 256]);
    } else {
      text += fmt::format("<{}>", id);
    }
  }
  return text;
}

std::vector<std::int32_t> ByteVocabulary::encode(std::string_view text) const {
  std::vector<std::int32_t> tokens;
  while (!text.empty()) {
    std::int32_t id = static_cast<unsigned char>(text.front());
    std::size_t used = 1;
    for (std::size_t i = 0; text.front() == '<' && i < names_.size(); ++i) {
      const std::string_view name = names_[i];
      if (text.size() >= name.size() + 2 && text.substr(1, name.size()) == name && text[name.size() + 1] == '>') {
        id = static_cast<std::int32_t>(256 + i);
        used = name.size() + 2;
        break;
      }
    }
    tokens.push_back(id);
    text.remove_prefix(used);
  }
  return tokens;
}

std::shared_ptr<const Tokenizer> built_in_tokenizer(std::string_view name) {
  if (name == "bytes") return std::make_shared<ByteTokenizer>(name, text_vocabulary(), false);
  if (name == "ping") return std::make_shared<ByteTokenizer>(name, ping_vocabulary(), true);
  return nullptr;
}

// Each byte is a token, nothing is merged, and the special tokens stay.
std::string built_in_tokenizer_json(std::string_view name) {
  const auto tokenizer = built_in_tokenizer(name);
  REDLINE_CHECK(tokenizer, "{} is no built-in tokenizer", name);
  TrainedBpe bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.tokens.emplace_back(1, static_cast<char>(byte));
  std::vector<std::string> special;
  for (std::int32_t id = 256; id < tokenizer->vocabulary(); ++id) special.push_back(tokenizer->decode({&id, 1}));
  return tokenizer_json_of(bytes, train_families()[0], special);
}

std::shared_ptr<const Tokenizer> built_in_from_json(std::string_view json) {
  for (const char* name : {"bytes", "ping"})
    if (json == built_in_tokenizer_json(name)) return built_in_tokenizer(name);
  return nullptr;
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  encoder()->append(text, ids);
  return ids;
}

DocumentMarks document_marks(const Tokenizer& tokenizer, std::string_view bos, std::string_view key) {
  DocumentMarks marks{{}, {}, tokenizer.end_token()};
  if (bos == "none") return marks;
  marks.begin = tokenizer.beginning();
  if (bos == "auto") return marks;
  REDLINE_CHECK(bos == "always", "{} is {}", key, bos);
  if (marks.begin.empty()) {
    const std::optional<std::int32_t> token = tokenizer.bos_token();
    if (!token)
      fail_user(
          "{} is always, but the tokenizer {} has no token that begins a text; leave it at auto, or name one as "
          "bos_token in the tokenizer's {}",
          key, tokenizer.name(), kTokenizerConfig);
    marks.begin = {*token};
  }
  marks.begin_conversation = marks.begin;
  return marks;
}

std::size_t begin_with(std::span<const std::int32_t> begin, std::size_t from, std::vector<std::int32_t>& ids) {
  if (std::span(ids).subspan(from).size() >= begin.size() &&
      std::ranges::equal(begin, std::span(ids).subspan(from, begin.size())))
    return 0;
  ids.insert(ids.begin() + static_cast<std::ptrdiff_t>(from), begin.begin(), begin.end());
  return begin.size();
}

bool append_document(Encoder& encoder, std::string_view text, const DocumentMarks& marks,
                     std::vector<std::int32_t>& ids) {
  const std::size_t before = ids.size();
  encoder.append(text, ids);
  if (ids.size() == before) return false;
  begin_with(marks.begin, before, ids);
  if (marks.end) ids.push_back(*marks.end);
  return true;
}

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name, std::string_view key) {
  if (auto built_in = built_in_tokenizer(name)) return built_in;
  std::error_code ignored;
  const Path path(name);
  if (fs::is_directory(path, ignored)) {
    for (const char* file : {kTokenizerJson, kTokenizerModel})
      if (fs::exists(path / file, ignored)) return open_file(path / file, key);
    fail_user("{}: the folder {} holds neither a tokenizer.json nor a tokenizer.model", key, name);
  }
  if (!fs::exists(path, ignored))
    fail_user(
        "{}: \"{}\" is no tokenizer; it may be \"bytes\", \"ping\", a tokenizer.json, a sentencepiece .model, or a "
        "folder "
        "that holds one",
        key, name);
  if (!fs::is_regular_file(path, ignored)) fail_user("{}: {} is not a file", key, name);
  return open_file(path, key);
}

Path tokenizer_file(const std::string& name) {
  if (built_in_tokenizer(name)) return {};
  const Path path = name;
  if (!fs::is_directory(path)) return path;
  return real_files().exists(path / kTokenizerJson) ? path / kTokenizerJson : path / kTokenizerModel;
}

bool holds_tokenizer(FileSystem& files, const Path& folder) {
  return files.exists(folder / kTokenizerJson) || files.exists(folder / kTokenizerModel);
}

bool covers(const Tokenizer& all, const Tokenizer& some) {
  if (all.fingerprint() == some.fingerprint()) return true;
  if (some.vocabulary() > all.vocabulary()) return false;
  for (std::int32_t id = 0; id < some.vocabulary(); ++id)
    if (all.written(id) != some.written(id)) return false;
  return true;
}

void require_fits(const Tokenizer& tokenizer, std::int64_t model_vocab, std::string_view where) {
  if (tokenizer.vocabulary() > model_vocab)
    fail_user("{}: the tokenizer {} has {} ids, more than the model's vocabulary of {}; it belongs to another model",
              where, tokenizer.name(), tokenizer.vocabulary(), model_vocab);
}

std::string special_token(const io::Json& config, const char* key, const std::string& file) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return {};
  return found->is_object() ? io::string_at(*found, "content", file) : io::string_at(config, key, file);
}

TokenizerFiles tokenizer_files(FileSystem& files, const std::string& name) {
  const Path file = tokenizer_file(name);
  if (file.empty()) return {{kTokenizerJson, built_in_tokenizer_json(name)}};
  const char* own_name = file.extension() == ".model" ? kTokenizerModel : kTokenizerJson;
  TokenizerFiles found;
  if (file == Path(name)) found.emplace(own_name, files.read(file));  // named itself, it may be a link to anywhere
  if (file.filename() != own_name) return found;                      // what lies beside it may be another's
  std::vector<const char*> beside = {kTokenizerJson, kTokenizerModel};
  beside.insert(beside.end(), std::begin(kCompanions), std::end(kCompanions));
  for (const char* other : beside)
    if (!found.contains(other))
      if (std::optional<std::string> text = io::read_side_file(files, parent_of(file) / other))
        found.emplace(other, std::move(*text));
  return found;
}

void describe_use(TokenizerFiles& files, const Tokenizer* tokenizer, const TokenizerUse& use) {
  io::Json config = read_object(files, kTokenizerConfig);
  // Without a class transformers takes that of the model's family, which would put its own way of splitting text in
  // place of the file's.
  if (!config.contains("tokenizer_class")) {
    const bool pieces = !files.contains(kTokenizerJson);
    config["tokenizer_class"] = pieces ? "LlamaTokenizer" : "PreTrainedTokenizerFast";
    config["clean_up_tokenization_spaces"] = false;
    if (pieces) config["legacy"] = false;
    // As redline gives text to models. Readers that find no such key may put a token of their choice before it:
    // llama.cpp does so where text is split as LLaMA-3 does.
    if (pieces || (tokenizer && tokenizer->beginning().empty())) config["add_bos_token"] = false;
    // These take the name of a special token in a text for its characters.
    if (pieces || (tokenizer && tokenizer->name() == "bytes")) config["split_special_tokens"] = true;
  }
  if (use.max_length > 0) config["model_max_length"] = use.max_length;
  std::map<std::string, std::string> tokens;
  if (tokenizer && use.end) tokens["eos_token"] = tokenizer->written(*use.end);
  if (tokenizer && use.pad >= 0)
    tokens["pad_token"] = tokenizer->written(static_cast<std::int32_t>(use.pad));
  else if (tokenizer && use.end && config.value("pad_token", io::Json()).is_null())
    tokens["pad_token"] = tokens["eos_token"];
  files[kTokenizerConfig] = text_of(config);
  name_special_tokens(files, tokens);
  if (tokenizer && use.beginning) describe_beginning(files, *tokenizer, *use.beginning);
}

namespace {

// The post-processor that puts these tokens before a text. What it does beside that stays: ByteLevel's own cares for
// offsets alone.
io::Json post_processor_for(const io::Json& before, const Tokenizer& tokenizer,
                            std::span<const std::int32_t> beginning) {
  io::Json processors = io::Json::array();
  const auto keep = [&](const io::Json& one) {
    if (one.is_object() && one.value("type", "") == "ByteLevel") processors.push_back(one);
  };
  if (before.is_object() && before.value("type", "") == "Sequence")
    for (const io::Json& one : before.value("processors", io::Json::array())) keep(one);
  else
    keep(before);
  if (!beginning.empty()) {
    io::Json single = io::Json::array(), tokens = io::Json::object();
    for (const std::int32_t id : beginning) {
      const std::string text = tokenizer.written(id);
      single.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
      tokens[text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
    }
    single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    io::Json pair = single;
    pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
    processors.push_back(
        {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}});
  }
  if (processors.empty()) return nullptr;
  if (processors.size() == 1) return processors[0];
  return {{"type", "Sequence"}, {"processors", processors}};
}

}  // namespace

void describe_beginning(TokenizerFiles& files, const Tokenizer& tokenizer, std::span<const std::int32_t> beginning) {
  if (files.contains(kTokenizerJson) && !std::ranges::equal(tokenizer.beginning(), beginning)) {
    io::Json root = read_object(files, kTokenizerJson);
    root["post_processor"] = post_processor_for(root.value("post_processor", io::Json()), tokenizer, beginning);
    files[kTokenizerJson] = text_of(root);
  }
  io::Json config = read_object(files, kTokenizerConfig);
  config[kAddBos] = !beginning.empty();
  files[kTokenizerConfig] = text_of(config);
  if (!beginning.empty()) name_special_tokens(files, {{"bos_token", tokenizer.written(beginning.back())}});
}

}  // namespace redline::data
