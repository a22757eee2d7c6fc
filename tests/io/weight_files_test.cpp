// Weights in one file or in shards: what the index says and what the shards hold must be the same.
#include <gtest/gtest.h>

#include "base/error.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "testing/temp_folder.h"

namespace redline::io {
namespace {

class WeightFolder : public ::testing::Test {
 protected:
  void put(const std::string& file, const std::vector<std::string>& names) {
    std::vector<TensorToWrite> tensors;
    for (const std::string& name : names) tensors.push_back({name, DType::f32, {2}, std::as_bytes(std::span(values_))});
    write_safetensors(real_files(), temp_ / file, tensors, {});
  }
  void put_index(const Json& map) { real_files().replace(temp_ / kWeightsIndex, Json{{"weight_map", map}}.dump()); }
  WeightFiles open() { return {real_files(), temp_.path()}; }
  void expect_error(const std::vector<std::string>& parts) {
    try {
      open();
      ADD_FAILURE() << "accepted";
    } catch (const UserError& e) {
      for (const std::string& part : parts) EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }

  testing::TempFolder temp_;
  const std::vector<float> values_ = {1, 2};
};

TEST_F(WeightFolder, OneFileOrShardsGiveTheirTensors) {
  EXPECT_FALSE(has_weights(real_files(), temp_.path()));
  put("x.safetensors", {"a", "b"});
  put("y.safetensors", {"c"});
  put_index({{"a", "x.safetensors"}, {"b", "x.safetensors"}, {"c", "y.safetensors"}});
  EXPECT_TRUE(has_weights(real_files(), temp_.path()));
  const WeightFiles shards = open();
  EXPECT_EQ(shards.files().size(), 2u);
  EXPECT_EQ(shards.tensors(), 3u);
  EXPECT_EQ(shards.at("c").to_f32(), values_);
  EXPECT_EQ(shards.find("d"), nullptr);
  EXPECT_THROW(shards.at("d"), UserError);
  put(kWeightsFile, {"d"});  // counts before the index, as in transformers
  EXPECT_EQ(open().tensors(), 1u);
}

TEST_F(WeightFolder, WhatTheIndexAndTheShardsDisagreeAboutIsNamed) {
  expect_error({kWeightsFile, kWeightsIndex});
  put("x.safetensors", {"a"});
  put_index({{"a", "x.safetensors"}, {"b", "y.safetensors"}});
  expect_error({"y.safetensors is missing"});
  put("y.safetensors", {"c"});
  expect_error({"y.safetensors holds \"c\"", "does not name"});
  put("y.safetensors", {});
  expect_error({"y.safetensors holds no tensor \"b\""});
  put("x.safetensors", {"a", "b"});
  put("y.safetensors", {"b"});
  expect_error({"x.safetensors holds \"b\"", "is in y.safetensors"});
}

TEST_F(WeightFolder, ABrokenIndexIsAUserError) {
  put("x.safetensors", {"a"});
  for (const char* text :
       {"", "[]", "{}", R"({"weight_map": []})", R"({"weight_map": {}})", R"({"weight_map": {"a": 1}})",
        R"({"weight_map": {"a": "x.safetensors", "a": "x.safetensors"}})"}) {
    real_files().replace(temp_ / kWeightsIndex, text);
    expect_error({kWeightsIndex});
  }
  for (const char* name : {"../x.safetensors", "/etc/passwd", "", ".", ".."}) {
    put_index({{"a", name}});
    expect_error({"is not the name of a file in this folder"});
  }
}

}  // namespace
}  // namespace redline::io
