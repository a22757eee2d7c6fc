// Prepared folders. One kind of input is the manifest and the two files of a shard as they are; the other is the two
// files alone, with a manifest made here whose hashes fit them, so that the code after the check of hashes is reached
// too.
#include "base/hash.h"
#include "data/shards/shards.h"
#include "token_source.h"

namespace redline::fuzz {
namespace {

data::BlockedFile described(const std::string& name, const std::string& bytes) {
  data::BlockedFile file{name, static_cast<std::int64_t>(bytes.size()), {}};
  for (std::size_t at = 0; at < bytes.size(); at += data::kBlockBytes)
    file.blocks.push_back(hash64(std::string_view(bytes).substr(at, data::kBlockBytes)));
  return file;
}

data::Manifest manifest_for(const std::string& tokens, const std::string& offsets, bool wide) {
  data::Manifest m;
  m.dtype = wide ? data::TokenType::u32 : data::TokenType::u16;
  m.vocabulary = 1000;
  m.tokenizer_name = "bytes";
  data::Shard shard;
  shard.tokens = static_cast<std::int64_t>(tokens.size()) / data::size_of(m.dtype);
  shard.documents = static_cast<std::int64_t>(offsets.size()) / 8 - 1;
  shard.token_file = described("train-00000.tokens", tokens);
  shard.offset_file = described("train-00000.offsets", offsets);
  m.train.shards = {shard};
  return m;
}

const std::string kTokens("\1\0\2\0\0\1\3\0", 8);
const std::string kOffsets("\0\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0", 24);

}  // namespace

std::vector<std::string> seeds() {
  const std::string manifest = data::manifest_text(manifest_for(kTokens, kOffsets, false));
  return {std::string(1, '\0') + join({manifest, kTokens, kOffsets}), "\1" + join({kTokens, kOffsets}),
          "\2" + join({kTokens + kTokens, kOffsets})};
}

}  // namespace redline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace redline;
  if (size == 0) return 0;
  const std::string_view rest = fuzz::text_of(data + 1, size - 1);
  std::vector<std::string> parts;
  if (data[0] % 3 == 0) {
    parts = fuzz::split(rest, 3);
  } else {
    parts = fuzz::split(rest, 2);
    parts.insert(parts.begin(), data::manifest_text(fuzz::manifest_for(parts[0], parts[1], data[0] % 3 == 2)));
  }
  fuzz::write_scratch("manifest.json", parts[0]);
  fuzz::write_scratch("train-00000.tokens", parts[1]);
  fuzz::write_scratch("train-00000.offsets", parts[2]);
  fuzz::expect_user_errors([&] {
    // What was read strictly is written and read again as the same.
    const data::Manifest m = data::parse_manifest(parts[0], "manifest.json");
    fuzz::require(data::parse_manifest(data::manifest_text(m), "again") == m, "a manifest that does not come back");
  });
  // Documents of the format may not overlap, but a file that lies may: each is still no longer than the shard.
  fuzz::expect_user_errors([&] {
    const auto source = data::open_shards({data::read_prepared_folder(fuzz::scratch(""), "data.train")},
                                          {"data.train", data::Part::all, false, 0, {}, {}});
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < source->documents(); ++i) {
      source->read(i, tokens);
      fuzz::require(!tokens.empty() && tokens.size() <= parts[1].size(), "a document that is empty or too long");
    }
  });
  return 0;
}
