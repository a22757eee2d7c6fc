// A folder of sharded weights from anybody: an index and one shard. What is accepted holds exactly what its index
// names.
#include "fuzz.h"
#include "io/safetensors.h"

namespace redline::fuzz {
namespace {

std::string shard() {
  const std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i));
  return file + header + std::string(8, '\0');
}

}  // namespace

std::vector<std::string> seeds() {
  return {
      join({R"({"metadata":{"total_size":8},"weight_map":{"a":"s.safetensors"}})", shard()}),
      join({R"({"weight_map":{"a":"s.safetensors","b":"s.safetensors"}})", shard()}),
      join({R"({"weight_map":{"a":"../s.safetensors"}})", shard()}),
      join({R"({"weight_map":{"a":"t.safetensors"}})", shard()}),
      join({R"({"weight_map":[]})", shard()}),
  };
}

}  // namespace redline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace redline;
  const std::vector<std::string> parts = fuzz::split(fuzz::text_of(data, size), 2);
  fuzz::write_scratch(io::kWeightsIndex, parts[0]);
  fuzz::write_scratch("s.safetensors", parts[1]);
  fuzz::expect_user_errors([&] {
    const io::WeightFiles weights(real_files(), fuzz::scratch("."));
    fuzz::require(weights.files().size() == 1, "a file that is not there");
    for (const io::StoredTensor& t : weights.files()[0].reader->tensors())
      fuzz::require(&weights.at(t.name) == &t, "a tensor that is not found");
  });
  return 0;
}
