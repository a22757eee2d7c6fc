// The key table against everything that is made from it: the dump, the help, the documentation.
#include "config/keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "config/load.h"
#include "testing/says.h"

namespace redline::config {
namespace {

using testing::error_of;
using testing::says;

TEST(Keys, NamesAreUniqueAndEveryKeySaysWhatItIs) {
  std::set<std::string_view> names;
  for (const Key& key : keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_FALSE(key.help.empty()) << key.name;
    EXPECT_FALSE(key.help.ends_with('.')) << key.name;
  }
}

TEST(Keys, EveryKeyHasAPlaceOfItsOwn) {
  // Changing one key changes that key and no other: no two rows of the table share a field.
  for (const Key& key : keys()) {
    Config changed;
    const Value before = read(key, changed);
    Value after;
    if (std::holds_alternative<bool>(before)) after = !std::get<bool>(before);
    if (std::holds_alternative<std::monostate>(before)) after = true;
    if (const auto* i = std::get_if<std::int64_t>(&before)) after = *i + 1;
    if (const auto* d = std::get_if<double>(&before)) after = *d == 0 ? 0.5 : *d * 0.98 + 0.011;
    if (std::holds_alternative<std::string>(before)) {
      after = key.choices.empty() ? std::string("x")
                                  : std::string(key.choices[key.choices[0] == std::get<std::string>(before)]);
    }
    if (std::holds_alternative<std::vector<std::string>>(before))
      after = key.choices.empty() ? std::vector<std::string>{"x", "y"}
                                  : std::vector<std::string>{std::string(key.choices[1])};
    if (std::holds_alternative<std::vector<std::int64_t>>(before)) after = std::vector<std::int64_t>{1};
    if (std::holds_alternative<std::vector<double>>(before)) after = std::vector<double>{0.5, 2};
    assign(key, after, "here", changed);
    EXPECT_EQ(differing_keys(Config{}, changed), std::vector<std::string>{std::string(key.name)});
  }
}

TEST(Keys, EveryWordOfAListMustBeAChoice) {
  Config c;
  const Key& key = *find_key("log.sinks");
  assign(key, std::vector<std::string>{"jsonl", "prometheus"}, "here", c);
  EXPECT_EQ(c.log.sinks, (std::vector<std::string>{"jsonl", "prometheus"}));
  assign(key, std::vector<std::string>{}, "here", c);
  EXPECT_TRUE(c.log.sinks.empty());
  EXPECT_TRUE(says(error_of([&] {
                     assign(key, std::vector<std::string>{"jsonl", "wandb"}, "here", c);
                   }),
                   {"\"wandb\""}));
}

TEST(Keys, DefaultsAreAllowed) {
  for (const Key& key : keys()) {
    Config c;
    const Value value = read(key, Config{});
    if (!std::holds_alternative<std::monostate>(value)) {
      EXPECT_NO_THROW(assign(key, value, "here", c)) << key.name;
    }
  }
}

TEST(Keys, OldMeaningsAreAllowedAndNotTheDefault) {
  std::set<std::string_view> names;
  Config old;
  ASSERT_NO_THROW(assign_old_meanings(old));
  for (const Key& key : keys()) {
    if (key.before.empty()) continue;
    names.insert(key.name);
    EXPECT_NE(read(key, old), read(key, Config{})) << key.name;
  }
  for (const char* key : {"train.eval_tokens", "checkpoint.minutes"}) EXPECT_TRUE(names.contains(key)) << key;
}

TEST(Dump, ComesBackTheSame) {
  Config c;
  c.preset = "a \"quoted\" name";
  c.model.rope_theta = 1e6;
  c.model.norm_eps = 1e-6;
  c.model.dropout = 0.1;
  c.optim.lr = 1.0 / 3.0;
  c.optim.min_lr = 5e-324;
  c.optim.weight_decay = 1e300;
  c.optim.clip = 0;
  c.optim.beta2 = 0.9999999999999999;
  c.train.max_tokens = std::int64_t{1} << 53;
  c.data.buckets = {1, 1 << 24};
  c.data.train = {"tab\there", "back\\slash", "new\nline", "\x01\x7f", "ünïcode", "#, = []", ""};
  resolve(c);
  const std::string text = dump(c);
  EXPECT_EQ(parse(text, "dump"), c) << text;
  EXPECT_TRUE(differing_keys(parse(text, "dump"), c).empty());
  EXPECT_EQ(dump(parse(text, "dump")), text);
}

TEST(Dump, PresetsComeBackTheSame) {
  for (const EmbeddedFile& file : embedded_configs()) {
    const Config c = load({"", std::string(file.name), {}});
    EXPECT_EQ(parse(dump(c), "dump"), c) << file.name;
  }
}

TEST(Dump, AnUnsetKeyIsAComment) {
  Config c;
  c.train.max_steps = 1;
  EXPECT_NE(dump(c).find("# qk_norm is unset"), std::string::npos);
  Config resolved = c;
  resolve(resolved);
  EXPECT_EQ(parse(dump(c), "dump"), resolved);
}

TEST(DescribeKeys, OneLineAKey) {
  const std::string text = describe_keys(keys());
  EXPECT_EQ(std::ranges::count(text, '\n'), static_cast<std::ptrdiff_t>(keys().size()));
  for (const Key& key : keys()) EXPECT_NE(text.find(key.name), std::string::npos);
}

TEST(Nearest, FindsTyposAndLeavesStrangersAlone) {
  const std::vector<std::string> names = {"train", "data", "model", "optim"};
  EXPECT_EQ(nearest("trian", names), "train");
  EXPECT_EQ(nearest("modl", names), "model");
  EXPECT_EQ(nearest("completely different", names), "");
  EXPECT_EQ(nearest("", names), "");
  EXPECT_EQ(nearest("x", {}), "");
  EXPECT_EQ(nearest(std::string(100000, 'a'), names), "");
}

}  // namespace
}  // namespace redline::config
