// What is written reads back; every kind of broken file is a UserError that names the file; no bytes
// make the reader crash.
#include "io/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/hash.h"
#include "base/random.h"
#include "io/json.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::io {
namespace {

using redline::testing::says;
using redline::testing::TempFolder;

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// A file of the given header text and `data_bytes` bytes of data.
std::string file_of(std::string_view header, std::size_t data_bytes) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i));
  text += header;
  return text + std::string(data_bytes, '\1');
}

// The error that reading such a file gives, less the file's own name.
std::string error_of_file(std::string_view file) {
  TempFolder temp;
  const Path path = temp / "m.safetensors";
  real_files().replace(path, file);
  const std::string error = testing::error_of([&] { SafetensorsReader reader(path); });
  if (error == "no error") return error;
  EXPECT_TRUE(error.starts_with(path.string())) << error;
  return error.substr(std::min(error.size(), path.string().size()));
}

std::string error_of_header(std::string_view header, std::size_t data_bytes) {
  return error_of_file(file_of(header, data_bytes));
}

void expect_error(std::string_view header, std::size_t data_bytes, std::string_view part) {
  const std::string error = error_of_header(header, data_bytes);
  EXPECT_TRUE(says(error, {part})) << header << "\n -> " << error;
}

StoredTensor stored(DType dtype, std::span<const std::byte> bytes) { return {"t", dtype, {}, bytes}; }

TEST(Safetensors, RoundTrip) {
  TempFolder temp;
  std::vector<float> weights(3 * 70'001);  // several pieces of writing
  std::iota(weights.begin(), weights.end(), -5.0f);
  const std::vector<std::int64_t> ids = {-1, 0, 7};
  const std::vector<std::uint8_t> odd = {1, 2, 3};
  const std::vector<double> scalar = {2.5};
  const std::vector<TensorToWrite> tensors = {{"layer.\"0\"\n.weight", DType::f32, {3, 70'001}, bytes_of(weights)},
                                              {"odd", DType::u8, {3}, bytes_of(odd)},
                                              {"ids", DType::i64, {1, 3, 1}, bytes_of(ids)},
                                              {"empty", DType::bf16, {0, 4}, {}},
                                              {"scalar", DType::f64, {}, bytes_of(scalar)}};
  const Path path = temp / "m.safetensors";
  const std::uint64_t hash = write_safetensors(real_files(), path, tensors, {{"format", "pt"}, {"step", "12"}});
  EXPECT_EQ(hash, hash64(real_files().read(path)));

  const SafetensorsReader reader(path);
  EXPECT_EQ(reader.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"step", "12"}}));
  ASSERT_EQ(reader.tensors().size(), tensors.size());
  for (const TensorToWrite& written : tensors) {
    const StoredTensor& read = reader.at(written.name);
    EXPECT_EQ(read.dtype, written.dtype);
    EXPECT_EQ(read.shape, written.shape);
    ASSERT_EQ(read.bytes.size(), written.bytes.size());
    EXPECT_TRUE(std::equal(read.bytes.begin(), read.bytes.end(), written.bytes.begin()));
  }
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(reader.tensors()[0].bytes.data()) % 8, 0u);
  EXPECT_EQ(reader.tensors()[0].to_f32(), weights);
  EXPECT_EQ(reader.at("ids").to_i32(), (std::vector<std::int32_t>{-1, 0, 7}));  // stands at an odd address
  EXPECT_EQ(reader.at("scalar").to_f32(), std::vector<float>{2.5f});
  EXPECT_EQ(reader.at("empty").elements(), 0);
  EXPECT_TRUE(reader.at("empty").to_f32().empty());
  EXPECT_EQ(reader.find("none"), nullptr);
  EXPECT_TRUE(says(testing::error_of([&] { reader.at("none"); }), {path.string(), "none"}));
}

TEST(Safetensors, AFileWithoutTensorsIsFine) {
  TempFolder temp;
  write_safetensors(real_files(), temp / "m", {}, {});
  EXPECT_TRUE(SafetensorsReader(temp / "m").tensors().empty());
  EXPECT_EQ(error_of_header("{}", 0), "no error");
}

TEST(Safetensors, TheWriterRefusesWhatItCouldNotReadBack) {
  TempFolder temp;
  const std::vector<float> two = {1, 2};
  const auto write = [&](std::vector<TensorToWrite> tensors) {
    write_safetensors(real_files(), temp / "m", tensors, {});
  };
  EXPECT_THROW(write({{"a", DType::f32, {3}, bytes_of(two)}}), MachineError);
  EXPECT_THROW(write({{"a", DType::f32, {-2}, bytes_of(two)}}), MachineError);
  EXPECT_THROW(write({{"a", DType::f32, {2}, bytes_of(two)}, {"a", DType::f32, {2}, bytes_of(two)}}), MachineError);
  EXPECT_THROW(write({{"__metadata__", DType::f32, {2}, bytes_of(two)}}), MachineError);
}

TEST(Safetensors, RefusesEveryKindOfBrokenFrame) {
  EXPECT_TRUE(says(error_of_file(""), {"truncated"}));
  EXPECT_TRUE(says(error_of_file("1234567"), {"truncated: 7 bytes"}));
  EXPECT_TRUE(says(error_of_file(std::string(8, '\xff')), {"at most 100000000"}));
  EXPECT_TRUE(says(error_of_file(file_of("{}", 0).substr(0, 9)), {"truncated", "2 bytes"}));
  EXPECT_TRUE(says(error_of_file(file_of("", 0)), {"does not begin with '{'"}));
  expect_error(" {}", 0, "does not begin with '{'");
  expect_error("[]", 0, "does not begin with '{'");
  expect_error("{", 0, "not valid JSON at byte");
  expect_error("{}x", 0, "not valid JSON at byte");
  expect_error("{\"\xff\":1}", 0, "not valid JSON at byte");
  expect_error("{}", 3, "3 bytes");
  EXPECT_EQ(error_of_header("{}   ", 0), "no error");
}

TEST(Safetensors, RefusesEveryKindOfBrokenTensor) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(error_of_header(good, 8), "no error");
  expect_error(good, 7, "tensor \"a\": its data ends at 8");
  expect_error(good, 9, "1 bytes after the last tensor");
  expect_error(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      4, "\"a\" is there twice");
  for (const char* dtype : {"BOOL", "I8", "I16", "U64", "F8_E4M3", "f32", ""}) {
    expect_error(fmt::format(R"({{"a":{{"dtype":"{}","shape":[1],"data_offsets":[0,1]}}}})", dtype), 1,
                 fmt::format("tensor \"a\": its dtype \"{}\" is not one", dtype));
  }
  expect_error(R"({"a":7})", 0, "not an object");
  expect_error(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "no dtype");
  expect_error(R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", 4, "dtype is not a string");
  expect_error(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, "no shape");
  expect_error(R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", 4, "shape is not an array");
  expect_error(R"({"a":{"dtype":"F32","shape":[1]}})", 4, "no data_offsets");
  expect_error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "not two numbers");
  expect_error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}})", 4, "not two numbers");
  for (const char* wrong : {"-1", "1.0", "\"1\"", "null", "18446744073709551615", "[1]"}) {
    expect_error(fmt::format(R"({{"a":{{"dtype":"F32","shape":[{}],"data_offsets":[0,4]}}}})", wrong), 4,
                 "shape holds something");
    expect_error(fmt::format(R"({{"a":{{"dtype":"F32","shape":[1],"data_offsets":[{},4]}}}})", wrong), 4,
                 "data_offsets holds something");
  }
  expect_error(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, "overflows");
  expect_error(R"({"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0, "overflows");
  expect_error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "run backwards");
  expect_error(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "it has 4 bytes");
  expect_error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "there is a hole before it");
  expect_error(
      R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6,
      "tensor \"b\": its data begins at 2");
  expect_error(
      R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[6,10]}})",
      10, "there is a hole before it");
  expect_error(R"({"__metadata__":{"a":1}})", 0, "the value of \"a\" is not a string");
  expect_error(R"({"__metadata__":["a"]})", 0, "__metadata__ is not an object");
}

TEST(Safetensors, AMissingFileIsAUserErrorAndSoIsWhatIsNoFile) {
  TempFolder temp;
  const auto error = [](const Path& path) { return testing::error_of([&] { SafetensorsReader reader(path); }); };
  EXPECT_TRUE(says(error(temp / "none"), {(temp / "none").string(), "no such file"}));
  ASSERT_EQ(::mkfifo((temp / "pipe").c_str(), 0600), 0);  // nobody writes to it, and nobody waits
  for (const Path& path : {temp.path(), temp / "pipe"}) EXPECT_TRUE(says(error(path), {path.string(), "not a file"}));
}

TEST(Safetensors, HeaderOrderMayDifferFromDataOrder) {
  TempFolder temp;
  real_files().replace(temp / "m", file_of(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},)"
                                           R"("z":{"dtype":"U8","shape":[0],"data_offsets":[2,2]},)"
                                           R"("a":{"dtype":"U16","shape":[1],"data_offsets":[0,2],"extra":1}})",
                                           3));
  const SafetensorsReader reader(temp / "m");
  ASSERT_EQ(reader.tensors().size(), 3u);
  EXPECT_EQ(reader.tensors()[0].name, "a");
  EXPECT_EQ(reader.tensors()[1].name, "z");
  EXPECT_EQ(reader.tensors()[2].name, "b");
}

// The value of an f16 by its definition.
double f16_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

TEST(StoredTensor, EveryHalfConvertsExactly) {
  std::vector<std::uint16_t> all(65536);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  const std::vector<float> from_f16 = stored(DType::f16, bytes_of(all)).to_f32();
  const std::vector<float> from_bf16 = stored(DType::bf16, bytes_of(all)).to_f32();
  for (const std::uint16_t bits : all) {
    const float half = from_f16[bits], brain = from_bf16[bits];
    EXPECT_EQ(std::bit_cast<std::uint32_t>(brain), std::uint32_t{bits} << 16);
    EXPECT_EQ(std::signbit(half), (bits & 0x8000) != 0);
    if ((bits & 0x7c00) != 0x7c00) {
      ASSERT_EQ(static_cast<double>(half), f16_value(bits)) << bits;
    } else if (bits & 0x3ff) {
      ASSERT_TRUE(std::isnan(half)) << bits;
    } else {
      ASSERT_TRUE(std::isinf(half)) << bits;
    }
  }
}

std::vector<std::uint16_t> rounded(const std::vector<float>& values, DType to) {
  std::vector<std::uint16_t> out(values.size());
  const auto bytes = bytes_of(values);
  stored(DType::f32, bytes).convert(bytes, to, reinterpret_cast<std::byte*>(out.data()));
  return out;
}

TEST(StoredTensor, EveryHalfComesBackFromFloatWithItsBits) {
  std::vector<std::uint16_t> all(65536);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  for (const DType dtype : {DType::f16, DType::bf16})
    EXPECT_EQ(rounded(stored(dtype, bytes_of(all)).to_f32(), dtype), all) << name_of(dtype);
}

TEST(StoredTensor, FloatsRoundToTheNearestHalfAndTiesToEven) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    // Between each pair of neighbours: the middle, and a little to both sides of it.
    std::vector<std::uint16_t> lower(dtype == DType::f16 ? 0x7bff : 0x7f7f);
    std::iota(lower.begin(), lower.end(), std::uint16_t{0});
    std::vector<std::uint16_t> upper = lower;
    for (std::uint16_t& bits : upper) ++bits;
    const std::vector<float> a = stored(dtype, bytes_of(lower)).to_f32(), b = stored(dtype, bytes_of(upper)).to_f32();
    std::vector<float> middle(a.size()), below(a.size()), above(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      middle[i] = static_cast<float>((static_cast<double>(a[i]) + static_cast<double>(b[i])) / 2);
      below[i] = std::nextafter(middle[i], 0.0f);
      above[i] = std::nextafter(middle[i], std::numeric_limits<float>::infinity());
    }
    EXPECT_EQ(rounded(below, dtype), lower);
    EXPECT_EQ(rounded(above, dtype), upper);
    const std::vector<std::uint16_t> ties = rounded(middle, dtype);
    for (std::size_t i = 0; i < ties.size(); ++i) ASSERT_EQ(ties[i], lower[i] % 2 ? upper[i] : lower[i]) << i;
  }
}

TEST(StoredTensor, AFiniteNumberNeverBecomesInfinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(rounded({infinity, -infinity, 65504}, DType::f16), (std::vector<std::uint16_t>{0x7c00, 0xfc00, 0x7bff}));
  EXPECT_THROW(rounded({1, 65520}, DType::f16), UserError);
  EXPECT_THROW(rounded({std::numeric_limits<float>::max()}, DType::bf16), UserError);
  const std::vector<double> wide = {1, -1e300};
  EXPECT_THROW(stored(DType::f64, bytes_of(wide)).to_f32(), UserError);
  std::vector<std::byte> room(2 * wide.size());
  EXPECT_THROW(stored(DType::f64, bytes_of(wide)).convert(bytes_of(wide), DType::bf16, room.data()), UserError);
}

TEST(StoredTensor, RefusesWhatDoesNotConvert) {
  const std::vector<std::int64_t> wide = {0, std::int64_t{1} << 31};
  EXPECT_THROW(stored(DType::i64, bytes_of(wide)).to_i32(), UserError);
  EXPECT_THROW(stored(DType::i64, bytes_of(wide)).to_f32(), UserError);
  EXPECT_THROW(stored(DType::f64, bytes_of(wide)).to_i32(), UserError);
  std::vector<float> too_short(1);
  EXPECT_THROW(stored(DType::f64, bytes_of(wide)).to_f32(too_short), MachineError);
  const std::vector<std::int64_t> edges = {std::numeric_limits<std::int32_t>::min(),
                                           std::numeric_limits<std::int32_t>::max()};
  EXPECT_EQ(
      stored(DType::i64, bytes_of(edges)).to_i32(),
      (std::vector<std::int32_t>{std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()}));
}

TEST(Safetensors, NoBytesMakeTheReaderCrash) {
  TempFolder temp;
  const Path path = temp / "m";
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  write_safetensors(real_files(), path,
                    std::vector<TensorToWrite>{{"model.a", DType::f32, {2, 3}, bytes_of(values)},
                                               {"model.b", DType::i32, {6}, bytes_of(values)},
                                               {"none", DType::u8, {0}, {}}},
                    {{"format", "pt"}});
  const std::string good = real_files().read(path);
  const Random random(2024, 0);
  std::uint64_t draw = 0;
  int refused = 0;
  constexpr int kRounds = 4000;
  for (int round = 0; round < kRounds; ++round) {
    std::string bad = good;
    const std::uint64_t flips = 1 + random.below(draw++, 3);
    for (std::uint64_t flip = 0; flip < flips; ++flip) {
      const std::uint64_t at = random.below(draw++, bad.size());
      // Digits and JSON's own signs get further into the reader than noise.
      constexpr std::string_view kSigns = "0123456789-.,:[]{}\" eE";
      bad[at] = random.below(draw, 2) ? kSigns[random.below(draw + 1, kSigns.size())]
                                      : static_cast<char>(random.bits(draw + 1));
      draw += 2;
    }
    if (random.below(draw++, 4) == 0) bad.resize(random.below(draw++, bad.size()));
    real_files().remove_all(path);  // truncating it instead makes some file systems flush: 4 ms a round
    const auto file = real_files().create(path);
    file->write(bad);
    file->close();
    try {
      const SafetensorsReader reader(path);
      unsigned sum = 0;
      for (const StoredTensor& tensor : reader.tensors()) {
        for (const std::byte byte : tensor.bytes) sum += std::to_integer<unsigned>(byte);  // all of it can be read
      }
      EXPECT_LT(sum, 256u * bad.size());
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, kRounds / 4);
  EXPECT_LT(refused, kRounds);  // a flip in the data is still a valid file
}

class WeightFolder : public ::testing::Test {
 protected:
  void put(const std::string& file, const std::vector<std::string>& names) {
    std::vector<TensorToWrite> tensors;
    for (const std::string& name : names) tensors.push_back({name, DType::f32, {2}, std::as_bytes(std::span(values_))});
    write_safetensors(real_files(), temp_ / file, tensors, {});
  }
  void put_index(const Json& map) { real_files().replace(temp_ / kWeightsIndex, Json{{"weight_map", map}}.dump()); }
  WeightFiles open() { return {real_files(), temp_.path()}; }
  void expect_error(std::initializer_list<std::string_view> parts) {
    EXPECT_TRUE(says(testing::error_of([&] { open(); }), parts));
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
    expect_error({kWeightsIndex, "name of a file"});
  }
}

}  // namespace
}  // namespace redline::io
