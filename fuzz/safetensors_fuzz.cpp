// A safetensors file from anybody. What is accepted lies inside the file, back to back and without an overlap, converts
// without a crash, and is the same after it was written and read again.
#include <cstring>

#include "fuzz.h"
#include "io/safetensors.h"

namespace redline::fuzz {
namespace {

std::string file_of(std::string_view header, std::size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i));
  return file + std::string(header) + std::string(data_bytes, '\x3f');
}

void check_layout(const io::SafetensorsReader& reader) {
  const std::span<const std::byte> all = reader.file().bytes();
  const std::byte* end = nullptr;
  for (const io::StoredTensor& t : reader.tensors()) {
    require(t.bytes.data() >= all.data() && t.bytes.size() <= all.size(), "a tensor outside of the file");
    require(!end || t.bytes.data() == end, "a hole or an overlap");
    end = t.bytes.data() + t.bytes.size();
    require(static_cast<std::size_t>(t.elements()) * size_of(t.dtype) == t.bytes.size(), "elements that are not bytes");
    require(reader.find(t.name) == &t, "a tensor that is not found by its name");
  }
  require(!end || end == all.data() + all.size(), "bytes after the last tensor");
}

void convert(const io::StoredTensor& t) {
  std::vector<std::byte> out(static_cast<std::size_t>(t.elements()) * sizeof(float));
  for (const DType to : {DType::f32, DType::bf16, DType::f16})
    expect_user_errors([&] { t.convert(t.bytes, to, out.data()); });
  expect_user_errors([&] { t.to_i32(); });
}

void write_again(const io::SafetensorsReader& reader) {
  std::vector<io::TensorToWrite> tensors;
  for (const io::StoredTensor& t : reader.tensors()) tensors.push_back({t.name, t.dtype, t.shape, t.bytes});
  io::write_safetensors(real_files(), scratch("again.safetensors"), tensors, reader.metadata());
  const io::SafetensorsReader again(scratch("again.safetensors"));
  require(again.metadata() == reader.metadata() && again.tensors().size() == tensors.size(), "another file");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const io::StoredTensor& t = again.tensors()[i];
    require(t.name == tensors[i].name && t.dtype == tensors[i].dtype && t.shape == tensors[i].shape, "another tensor");
    require(t.bytes.size() == tensors[i].bytes.size(), "another size");
    require(t.bytes.empty() || std::memcmp(t.bytes.data(), tensors[i].bytes.data(), t.bytes.size()) == 0,
            "other bytes");
  }
}

}  // namespace

std::vector<std::string> seeds() {
  return {
      file_of("{}", 0),
      file_of(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", 24),
      file_of(
          R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[4],"data_offsets":[6,14]},)"
          R"("a":{"dtype":"F16","shape":[3],"data_offsets":[0,6]},"c":{"dtype":"I64","shape":[],"data_offsets":[14,22]}})",
          22),
      file_of(R"({"a":{"dtype":"F64","shape":[0,9223372036854775807],"data_offsets":[0,0]},)"
              R"("b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}   )",
              1),
      file_of(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
  };
}

}  // namespace redline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace redline;
  fuzz::write_scratch("f.safetensors", fuzz::text_of(data, size));
  fuzz::expect_user_errors([&] {
    const io::SafetensorsReader reader(fuzz::scratch("f.safetensors"));
    fuzz::check_layout(reader);
    for (const io::StoredTensor& t : reader.tensors()) fuzz::convert(t);
    fuzz::write_again(reader);
  });
  return 0;
}
