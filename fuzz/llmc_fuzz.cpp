// llm.c's files: header, counts, ids.
#include "data/shards/token_files.h"
#include "token_source.h"

namespace redline::fuzz {

std::vector<std::string> seeds() {
  const auto file = [](std::int32_t magic, std::int32_t version, std::int32_t count, const std::string& tokens) {
    std::int32_t header[256] = {magic, version, count};
    return std::string(reinterpret_cast<const char*>(header), sizeof(header)) + tokens;
  };
  const std::uint16_t narrow[] = {50256, 1, 2, 50256, 50256, 3};
  const std::uint32_t wide[] = {128000, 70000, 128001, 5};
  return {file(20240520, 1, 6, {reinterpret_cast<const char*>(narrow), sizeof(narrow)}),
          file(20240801, 7, 4, {reinterpret_cast<const char*>(wide), sizeof(wide)}), file(20240520, 1, 0, "")};
}

}  // namespace redline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace redline;
  fuzz::write_scratch("a.bin", fuzz::text_of(data, size));
  fuzz::expect_user_errors([&] {
    fuzz::read_all(*data::open_llmc({fuzz::scratch("a.bin")}, {"data.train", data::Part::all, false, 0, {}, {}}), size);
  });
  return 0;
}
