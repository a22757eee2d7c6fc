// A small prepared folder for tests: documents given as ids, written as `redline data prepare` writes them.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "data/open_corpus.h"
#include "data/shards/shards.h"
#include "data/tokenizer/tokenizer.h"

namespace redline::data {

using Ids = std::vector<std::int32_t>;

inline Manifest write_folder(FileSystem& files, const Path& folder, const std::vector<Ids>& train,
                             const std::vector<Ids>& val, std::int64_t shard_tokens = 1 << 20,
                             TokenType type = TokenType::u16, std::int64_t vocabulary = 257,
                             const std::string& chat = "") {
  files.create_folders(folder);
  Manifest m;
  m.dtype = type;
  m.vocabulary = vocabulary;
  m.tokenizer_name = "bytes";
  m.tokenizer_hash = open_tokenizer("bytes", "test")->fingerprint();
  m.end_token = 256;
  m.chat = chat;
  ShardWriter train_writer(files, folder, "train", type, shard_tokens, !chat.empty()),
      val_writer(files, folder, "val", type, shard_tokens, !chat.empty());
  for (const Ids& d : train) train_writer.append(d);
  for (const Ids& d : val) val_writer.append(d);
  m.train = train_writer.finish();
  m.val = val_writer.finish();
  files.replace(folder / kManifestFile, manifest_text(m));
  return m;
}

inline std::vector<Ids> all_documents(const DocumentSource& source) {
  std::vector<Ids> all;
  for (std::int64_t i = 0; i < source.documents(); ++i) {
    source.read(i, all.emplace_back());
    EXPECT_FALSE(all.back().empty());
  }
  return all;
}

}  // namespace redline::data
