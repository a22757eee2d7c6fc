// redline data stats as a user meets it: text, JSON, a page, and one sentence for what is wrong.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.h"

namespace redline::cli {
namespace {

class DataStatsCommand : public ProgramTest {
 protected:
  Ran run(const std::string& words) { return run_line("data stats " + words); }
  nlohmann::json json_of(const std::string& words) {
    const Ran ran = must(run(words + " --json"));
    return nlohmann::json::parse(ran.out);
  }
  void expect_bad_input(const std::string& words, const Words& parts) {
    ProgramTest::expect_bad_input(run(words), parts);
  }
};

TEST_F(DataStatsCommand, PaddingWastesFourFifthsOfPing) {
  const nlohmann::json json = json_of("ping --seq-len 1024");
  EXPECT_EQ(json.at("documents"), 20000);
  const auto utilisation = [&](const char* mode) { return json.at("modes").at(mode).at("utilisation").get<double>(); };
  EXPECT_GE(utilisation("pad"), 0.18);
  EXPECT_LE(utilisation("pad"), 0.25);
  EXPECT_GE(utilisation("pack"), 0.97);
  EXPECT_GE(utilisation("stream"), 0.999);
  EXPECT_EQ(json.at("modes").at("pad").at("rows"), 20000);
  EXPECT_NEAR(json.at("modes").at("pack").at("speedup_over_pad").get<double>(),
              utilisation("pack") / utilisation("pad"), 1e-9);
}

// Option "shorter rows": 512 packed and 512 padded, each as one number against 1024 padded.
TEST_F(DataStatsCommand, ShorterRowsAreComparedWithLongOnesPadded) {
  const Ran ran = must({"data", "stats", "ping", "--seq-len", "1024"});
  EXPECT_TRUE(says(ran.out, {"over rows of 1024 padded", "rows of 512: 5.1", "times packed, 1.9"}));
}

TEST_F(DataStatsCommand, CountsTheFlopsOfAModel) {
  // 6 FLOPs a parameter of its products: 18 layers of 4 d^2 + 3 d f, and the head.
  const nlohmann::json json = json_of("ping --preset llama-1.36b --documents 500");
  const double parameters = 18 * (4.0 * 2304 * 2304 + 3.0 * 2304 * 6656) + 2304.0 * 32000;
  EXPECT_EQ(json.at("model").at("name"), "llama-1.36b");
  EXPECT_NEAR(json.at("model").at("flops_per_token_slot").get<double>(), 6 * parameters, 1e-6 * parameters);
  EXPECT_NEAR(json.at("model").at("flops_per_attention_pair").get<double>(), 3.0 * 4 * 2304 * 18, 1);
  EXPECT_EQ(json.at("seq_len"), 2048);  // the model's
  const nlohmann::json& pad = json.at("modes").at("pad");
  const double slots = 500.0 * 2048;
  EXPECT_NEAR(pad.at("wasted_flops").get<double>(), 6 * parameters * (slots - json.at("tokens").get<double>()), 1e9);
}

TEST_F(DataStatsCommand, LinesOfJsonByHand) {
  write("a.jsonl", "{\"text\": \"abcdefg\"}\n{\"text\": \"abc\"}\n{\"text\": \"abcdefghijklmnopqrs\"}\n");  // 8, 4, 20
  const nlohmann::json json = json_of("a.jsonl --tokenizer bytes --seq-len 16 --batch-size 1");
  EXPECT_EQ(json.at("tokens"), 32);
  EXPECT_EQ(json.at("percentiles").at("max"), 20);
  EXPECT_EQ(json.at("percentiles").at("p50"), 8);
  EXPECT_EQ(json.at("modes").at("pad").at("rows"), 4);  // 8, 4, 16 and 4
  EXPECT_EQ(json.at("modes").at("pad").at("utilisation"), 0.5);
  EXPECT_EQ(json.at("modes").at("pad").at("truncated_tokens"), 4);
  EXPECT_EQ(json.at("modes").at("pad").at("dropped_tokens"), 0);
  EXPECT_EQ(json.at("modes").at("pack").at("rows"), 2);  // 16; 8, 4 and the rest of the long one
  EXPECT_EQ(json.at("modes").at("stream").at("rows"), 2);
  EXPECT_EQ(json.at("modes").at("stream").at("truncated_tokens"), 0);
  EXPECT_EQ(json.at("modes").at("stream").at("speedup_over_pad"), 2.0);
  const nlohmann::json truncated =
      json_of("a.jsonl --tokenizer bytes --seq-len 16 --batch-size 1 data.long_documents=truncate");
  EXPECT_EQ(truncated.at("modes").at("pad").at("rows"), 3);
  EXPECT_EQ(truncated.at("modes").at("pad").at("dropped_tokens"), 4);
}

TEST_F(DataStatsCommand, WritesAPageAndSaysSo) {
  const Ran ran = must(run("ping --seq-len 256 --documents 300 --html page.html"));
  EXPECT_TRUE(says(ran.out, {"page.html", "█"}));
  EXPECT_EQ(real_files().read(folder_ / "page.html").rfind("<!DOCTYPE html>", 0), 0u);
}

TEST_F(DataStatsCommand, BadInput) {
  expect_bad_input("", {"needs DATA"});
  expect_bad_input("ping", {"--seq-len"});
  expect_bad_input("ping --seq-len 0", {"--seq-len", "'0'"});
  expect_bad_input("ping other --seq-len 8", {"ping", "stands alone"});
  expect_bad_input("nowhere --seq-len 8", {"nowhere"});
  expect_bad_input("ping --seq-len 8 data.sed=1", {"data.sed", "data.seed"});
  expect_bad_input("ping --preset quick --model a.toml", {"one model"});
  expect_bad_input("ping --preset quik", {"quik"});
  expect_bad_input("ping --seq-len 8 --html no/page.html", {"--html", "no"});
  expect_bad_input("ping --seq-len 8 --html .", {"--html", "folder"});
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);  // as /dev/null, it is there for others as well
  expect_bad_input("ping --seq-len 8 --html pipe", {"--html pipe: that is a device or a pipe; name a file"});
  EXPECT_TRUE(std::filesystem::is_fifo(folder_ / "pipe"));
  expect_bad_input("ping --seq-len 16777216 --batch-size 16777216", {"--batch-size"});
  write("a.jsonl", "{\"text\": \"a\"}\n{\"text\": 1}\n");
  expect_bad_input("a.jsonl --seq-len 8", {".jsonl", "data.tokenizer"});
  expect_bad_input("a.jsonl --seq-len 8 --tokenizer bytes", {"a.jsonl:2"});
}

}  // namespace
}  // namespace redline::cli
